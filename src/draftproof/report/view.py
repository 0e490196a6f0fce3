"""What every report shows, in words: names, rows, the environment in one line, the run's own noise."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from draftproof.analysis.tokendiff import Comparison
from draftproof.metrics import METRICS, ratio_text
from draftproof.report import verdict, words
from draftproof.results import CellResult, RunResults


class Row(msgspec.Struct, frozen=True):
    """One line of the closing table."""

    cell: CellResult
    name: list[str]
    """As `name` gives it."""
    values: list[str]
    """In the order of `METRICS`."""
    throughput: str
    determinism: str


def metric_titles() -> list[str]:
    return [metric.title for metric in METRICS]


def name(results: RunResults, cell: CellResult) -> list[str]:
    """Variant (with the target and the build, where the run has several), workload, batch size."""
    what = cell.cell
    return [results.full_name(what.variant, what.target, cell.build), what.workload, str(what.batch_size)]


def label(results: RunResults, cell: CellResult) -> str:
    """The same in words."""
    variant, workload, batch_size = name(results, cell)
    return f"{variant} on {workload} b{batch_size}"


def rows(results: RunResults) -> list[Row]:
    """Speculative cells in the study's order; no-SD rows carry throughput only."""
    found = []
    for cell in sorted(results.cells, key=place(results)):
        speculative = cell.speculative
        found.append(
            Row(
                cell=cell,
                name=name(results, cell),
                values=[metric.text(cell) for metric in METRICS],
                throughput=cell.throughput.verdict if speculative or cell.throughput.verdict == "FAILED" else "-",
                determinism=cell.determinism.verdict if speculative else "-",
            )
        )
    return found


def place(results: RunResults) -> Callable[[CellResult], tuple[int, bool]]:
    """Sort key: cells of one target, workload and batch size together, no-SD first."""
    units = dict.fromkeys((c.cell.target, c.cell.workload, c.cell.batch_size) for c in results.cells)
    order = {unit: number for number, unit in enumerate(units)}
    return lambda c: (order[c.cell.target, c.cell.workload, c.cell.batch_size], c.arm != c.base_arm)


def headline(results: RunResults) -> str:
    """The run in one sentence."""
    return verdict.sentence(results)


NAMED = 12
"""Names that one place lists; the rest are counted."""


def some(names: list[str]) -> str:
    """The first names, and how many there are besides."""
    return words.some(names, NAMED)


def environment_line(results: RunResults) -> str:
    """Engine, libraries, processor, preloads; no host name, no path."""
    lines = []
    for build in dict.fromkeys(arm.build for arm in results.arms):
        arm = next(a for a in results.arms if a.build == build)
        env = arm.environment
        hardware = ", ".join(env.get("gpus") or []) or f"{env.get('cpu')}, {env.get('threads')} threads"
        preloads = ", ".join(env.get("preloads") or []) or "none"
        which = f"{build} build: " if len({a.build for a in results.arms}) > 1 else ""
        lines.append(
            f"{which}vLLM {env.get('vllm')}, torch {env.get('torch')}, Python {env.get('python')} on {hardware}; "
            f"preloaded: {preloads}"
        )
    return " | ".join(lines)


def aa_lines(results: RunResults) -> list[str]:
    """The run's own noise: two no-SD processes in the same rotations."""
    several = len({aa.target for aa in results.aa}) > 1
    return [
        f"{aa.target + ' ' if several else ''}{aa.workload} b{aa.batch_size}: {ratio_text(aa.ratio)}"
        for aa in results.aa
        if aa.ratio
    ]


def build_lines(results: RunResults) -> list[str]:
    """Throughput of the new build over the base build, cell by cell; empty with one build."""
    return [f"{label(results, c)}: {ratio_text(c.build_ratio)}" for c in results.cells if c.build_ratio]


def noise_line(results: RunResults) -> str:
    """The measured width of a tie; empty where everything was identical and none was needed."""
    if not results.noise:
        return ""
    width = max(line.width_nats for line in results.noise)
    rows_width = max(line.rows_nats for line in results.noise)
    positions = sum(line.positions for line in results.noise)
    unscored = sum(line.unscored for line in results.noise)
    broken = sum(line.not_finite for line in results.noise)
    limit = max((cell.sameness.limit_nats for cell in results.cells if cell.sameness), default=0.0)
    parts = [
        f"the engine's gap between a position's two best tokens lies up to {width:.3f} nats from that of the float32 "
        f"referee, over {positions} positions of no-SD",
        f"the number of rows alone moves it by up to {rows_width:.3f} nats",
        f"a first difference within {limit:.3f} nats of the referee's best token is a near tie",
    ]
    if unscored:
        parts.append(f"{unscored} further positions have a token that was not scored")
    if broken:
        parts.append(f"at {broken} further positions the gap is not a finite number")
    return "; ".join(parts)


def position_table(results: RunResults) -> list[list[str]]:
    """Cells whose acceptance by place in the draft is in no other table."""
    told = {(one.cell, one.build) for one in results.anatomies.cells if one.anatomy.survival}
    return [
        [
            *name(results, cell),
            ", ".join(f"{rate:.2f}" for rate in cell.acceptance.per_position),
            f"{cell.acceptance.num_accepted_tokens} of {cell.acceptance.num_draft_tokens}",
        ]
        for cell in results.cells
        if cell.acceptance and cell.acceptance.per_position and (cell.cell.id, cell.build) not in told
    ]


def first_differences(results: RunResults) -> list[tuple[CellResult, Comparison]]:
    """All first differences from no-SD, earliest position first."""
    found = [(cell, difference) for cell in results.cells if cell.sameness for difference in cell.sameness.differences]
    return sorted(found, key=lambda pair: pair[1].position or 0)


def token_text(text: str, limit: int = 60) -> str:
    """A token as a Python literal; a long one is cut, with a note."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... (cut: {len(text) - limit} more characters)"


def tail_text(text: str, limit: int) -> str:
    """The end of a text as a Python literal."""
    return repr(text) if len(text) <= limit else f"(cut: {len(text) - limit} characters before) {text[-limit:]!r}"
