"""What a CI job shows: properties of each test in the JUnit file, and GitHub's job summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from draftproof.analysis.stats import Ratio
from draftproof.comparison import Compared
from draftproof.gate import RED, Judgement
from draftproof.report import against, speed, view
from draftproof.report.commands import OUTPUTS_TEST, RECORDS_TEST, SPEEDUP_TEST, homeless
from draftproof.report.compared import ordered
from draftproof.report.determinism import shorten
from draftproof.report.markdown import cell_text, code_span, table, table_lines
from draftproof.results import CellResult, RunResults

MOST_BYTES = 1024 * 1024 - 1
"""GitHub drops a step's summary of more than 1 MiB (its documentation of workflow commands)."""
REASON_CHARS = 600
REGRESSION_TESTS = "tests_perf/test_regression.py"
CUT = "\n**Cut here**: GitHub shows less than 1 MiB. The whole report is in the run's folder.\n"


def properties(cell: CellResult) -> list[tuple[str, str | float]]:
    """What every test of a cell carries along; what was not measured is left out."""
    found: list[tuple[str, str | float]] = []
    for name, judgement in (("throughput", cell.throughput), ("outputs", cell.determinism)):
        found += [(f"{name}_verdict", judgement.verdict), (f"{name}_reason", judgement.reason)]
    ratios: dict[str, Ratio | None] = {"speedup": cell.speedup, "paper_speedup": cell.paper_ratio}
    for name, ratio in ratios.items():
        if ratio is not None:
            found += [(name, ratio.value), (f"{name}_low", ratio.low), (f"{name}_high", ratio.high)]
    figures = {
        "acceptance_length": cell.acceptance.length if cell.acceptance else None,
        "tokens_per_s": cell.tokens_per_s,
        "base_tokens_per_s": cell.base_tokens_per_s,
    }
    return found + [(name, value) for name, value in figures.items() if value is not None]


class FailedTest(msgspec.Struct, frozen=True, kw_only=True):
    """A test of this session that failed."""

    test: str
    """Its id, as pytest takes it."""
    reason: str


def red_cells(results: RunResults, known: Iterable[FailedTest]) -> list[FailedTest]:
    """What was judged red and has no failed test, since that was not selected. An arm that did not run is told once."""
    tested = {test.test for test in known}
    found = []
    for result in results.cells:
        speculative = result.arm != result.base_arm
        judged: list[tuple[str, Judgement]] = [(SPEEDUP_TEST if speculative else RECORDS_TEST, result.throughput)]
        if speculative and result.determinism != result.throughput:
            judged.append((OUTPUTS_TEST, result.determinism))
        for name, judgement in judged:
            test = f"{name}[{result.cell.id}]"
            if result.build == "new" and judgement.verdict in RED and test not in tested:
                found.append(FailedTest(test=test, reason=f"{judgement.verdict}: {judgement.reason}"))
    return found


def red_findings(compared: Compared, known: Iterable[FailedTest]) -> list[FailedTest]:
    """What regressed against the baseline and has no failed test; all geometric means have one test file together."""
    tested = [test.test for test in known]
    regressed = [one for one in ordered(compared) if one.verdict == "REGRESSED"]
    found: dict[str, FailedTest] = {}
    for one in regressed:
        mean = one.place == one.mean
        test = REGRESSION_TESTS if mean else f"{REGRESSION_TESTS}::test_regression[{one.place}]"
        told = any("::test_regression_of_means[" in name for name in tested) if mean else test in tested
        if not told:
            reason = f"REGRESSED: {one.place}, {compared.judgement(one.place).reason}"
            found.setdefault(test, FailedTest(test=test, reason=reason))
    return list(found.values())


def job_summary(
    results: RunResults | None,
    failed: list[FailedTest],
    command: Callable[[str], str],
    *,
    problem: str = "",
    compared: Compared | None = None,
    most_bytes: int = MOST_BYTES,
) -> str:
    """Markdown of at most `most_bytes`: what failed and the command that runs just that again, then all cells.

    `command`: from a test's id to what runs it alone.
    """
    lines = [f"# draftproof: {cell_text(results.title if results else 'no run')}", ""]
    if problem:
        lines += [f"**{cell_text(shorten(homeless(problem), REASON_CHARS))}**", ""]
    if results is not None:
        lines += [cell_text(view.headline(results)), "", cell_text(view.environment_line(results)), ""]
        if not results.finished:
            lines += [f"**Partial run**: {cell_text(results.partial or 'ended early')}.", ""]
        failed = failed + red_cells(results, failed)
    if compared is not None:
        failed = failed + red_findings(compared, failed)
    if failed:
        lines += [f"## Failing: {len(failed)}", ""]
    for test in failed:
        lines.append(f"- **{cell_text(test.test)}**: {cell_text(shorten(homeless(test.reason), REASON_CHARS))}")
        lines.append(f"  - again: {code_span(homeless(command(test.test)))}")
    if results is not None and results.cells:
        ids = {test.test.rpartition("[")[2].removesuffix("]") for test in failed}
        rows = sorted(view.rows(results), key=lambda row: row.cell.cell.id not in ids)
        head = ["variant", "workload", "B", *view.metric_titles(), "verdict", "outputs"]
        lines += ["", "## Cells", ""]
        lines += table(head, [[*row.name, *row.values, row.throughput, row.determinism] for row in rows])
        lines += table_lines(speed.tables(results))
    if compared is not None:
        lines += ["", f"## Against {cell_text(against.base_name(compared))}"]
        lines += table_lines(against.tables(compared))
    if results is not None and results.skipped:
        lines += ["", "## Not run", ""]
        lines += [f"- {cell_text(name)}: {cell_text(why)}" for name, why in results.skipped.items()]
    return fitting(lines, most_bytes)


def fitting(lines: Iterable[str], most_bytes: int) -> str:
    """Whole lines, as many as there is room for; then a note where some are missing."""
    kept: list[bytes] = []
    room = most_bytes - len(CUT.encode())
    whole = [f"{line}\n".encode(errors="replace") for line in lines]
    if sum(map(len, whole)) <= most_bytes:
        return b"".join(whole).decode()
    for line in whole:
        room -= len(line)
        if room < 0:
            break
        kept.append(line)
    return b"".join(kept).decode() + CUT if most_bytes >= len(CUT.encode()) else ""


def append(path: Path, render: Callable[[int], str]) -> None:
    """Append what `render` makes of the bytes that are left. Raises OSError where the file cannot be written."""
    with path.open("ab") as file:
        file.write(render(MOST_BYTES - file.tell()).encode())
