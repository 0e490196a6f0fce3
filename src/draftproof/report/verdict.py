"""The run in one sentence: what is faster, what is not the same, what regressed, what failed, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from draftproof.determinism import Sameness
from draftproof.gate import GREEN
from draftproof.metrics import ratio_text
from draftproof.outcomes import Standing, speedup_of, standing
from draftproof.results import CellResult, RunResults

NAMED = 4
"""Variants that a part of the sentence names; the rest are counted."""
REASONS = 3
MANY = 10
"""From so many intervals on the sentence says how many of them miss by chance."""


def sentence(results: RunResults) -> str:
    """Counts by variant with the extremes and their intervals; controls apart."""
    if not results.cells:
        return f"Nothing ran: {results.partial or 'no cells were selected'}."
    drafted = [cell for cell in results.cells if cell.speculative]
    variants = [cell for cell in drafted if cell.cell.variant not in results.controls]
    controls = [cell for cell in drafted if cell.cell.variant in results.controls]
    tell = Words(results)
    parts = [*speeds(variants, tell)]
    if not variants:
        parts.append("no speculative variant ran" if not controls else "controls alone ran")
    parts += outputs(drafted, tell)
    parts += limits(drafted, tell)
    failed = [c for c in results.cells if "FAILED" in (c.throughput.verdict, c.determinism.verdict) and c.failures]
    if failed:
        parts.append(f"failed: {tell.counts(failed)}")
    parts += control_speeds(controls, tell)
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


class Words:
    """Names of cells and variants, with the target and the build where the run has several."""

    def __init__(self, results: RunResults) -> None:
        self.results = results

    def variant(self, cell: CellResult) -> str:
        return self.results.full_name(cell.cell.variant, cell.cell.target, cell.build)

    def cell(self, cell: CellResult) -> str:
        return f"{self.variant(cell)} on {cell.cell.workload} b{cell.cell.batch_size}"

    def counts(self, cells: Sequence[CellResult]) -> str:
        """Cells by variant; one cell is named in full."""
        if len(cells) == 1:
            return self.cell(cells[0])
        found = Counter(self.variant(cell) for cell in cells).most_common()
        told = ", ".join(f"{variant} in {count}" for variant, count in found[:NAMED])
        rest = found[NAMED:]
        return told + (f", {len(rest)} more variants in {sum(count for _, count in rest)}" if rest else "")


def cells_text(count: int) -> str:
    return f"{count} cell" + ("s" if count != 1 else "")


def speeds(cells: list[CellResult], tell: Words) -> list[str]:
    """What is faster, slower, not told apart, and what has no figure that counts: together all `cells`."""
    if not cells:
        return []
    found: dict[Standing, list[CellResult]] = {"faster": [], "slower": [], "unclear": []}
    for cell in cells:
        ratio = speedup_of(cell)
        if ratio is not None:
            found[standing(ratio)].append(cell)
    parts = [f"faster than no speculation in {len(found['faster'])} of {cells_text(len(cells))}"]
    if found["faster"]:
        parts[-1] += f" ({tell.counts(found['faster'])}{extremes(found['faster'], tell, max)})"
    parts.append(f"slower in {len(found['slower'])}")
    if found["slower"]:
        parts[-1] += f" ({tell.counts(found['slower'])}{extremes(found['slower'], tell, min)})"
    if found["unclear"]:
        parts.append(f"not told apart from 1.0 in {len(found['unclear'])}")
    told = [cell for some in found.values() for cell in some]
    without = [cell for cell in cells if speedup_of(cell) is None]
    if without:
        parts.append(f"not counted in {len(without)} ({', '.join(kinds(without))})")
    text = ", ".join(parts)
    return [f"{text}, {sureness(told)}" if told else text]


def kinds(cells: list[CellResult]) -> Iterable[str]:
    """Verdicts of cells whose figure does not count; with the reason of those that have but one (a busy machine)."""
    counts = Counter(cell.throughput.verdict for cell in cells)
    for verdict, count in counts.most_common():
        reasons = {c.throughput.reason.partition(":")[0] for c in cells if c.throughput.verdict == verdict}
        why = f": {reasons.pop()}" if verdict == "UNSTABLE" and len(reasons) == 1 else ""
        yield (f"{count} " if len(counts) > 1 else "") + verdict + why


def extremes(cells: list[CellResult], tell: Words, first: Callable[..., CellResult]) -> str:
    """The largest and the smallest speedup with their intervals; of one cell, its own. `first`: which goes first."""
    last = min if first is max else max

    def value(cell: CellResult) -> float:
        assert cell.speedup is not None, "only cells with a figure are told"
        return cell.speedup.value

    ends = list({(c.cell.id, c.build): c for c in (first(cells, key=value), last(cells, key=value))}.values())
    if len(cells) == 1:
        return f", {ratio_text(ends[0].speedup)}"
    alone = len({tell.variant(cell) for cell in cells}) == 1

    def where(cell: CellResult) -> str:
        return f"{cell.cell.workload} b{cell.cell.batch_size}" if alone else tell.cell(cell)

    return ": " + " to ".join(f"{ratio_text(cell.speedup)}, {where(cell)}" for cell in ends)


def sureness(cells: list[CellResult]) -> str:
    """By what, over how much, and how many of so many intervals miss."""
    sets = sorted({cell.speedup.clusters for cell in cells if cell.speedup})
    many = f"{sets[0]}" if len(sets) == 1 else f"{sets[0]} to {sets[-1]}"
    text = f"by 95 % intervals over {many} prompt sets each"
    if len(cells) >= MANY:
        text += f", of which about {max(1, round(0.05 * len(cells)))} in {len(cells)} misses by chance"
    return text


def outputs(cells: list[CellResult], tell: Words) -> list[str]:
    """What is not the same: divergent first, then what differs for another reason, then what was not compared."""
    found: dict[str, list[CellResult]] = {"divergent": [], "inconclusive": [], "ties": [], "same": []}
    for cell in cells:
        if cell.sameness is not None and cell.sameness.requests:
            found[likeness(cell.sameness)].append(cell)
    compared = [cell for some in found.values() for cell in some]
    parts = []
    if compared:
        told = f"no divergent outputs in {cells_text(len(compared))} compared"
        if found["divergent"]:
            told = f"divergent outputs in {len(found['divergent'])} of {cells_text(len(compared))} compared"
            told += f" ({tell.counts(found['divergent'])})"
        if found["inconclusive"]:
            told += f", inconclusive ones in {len(found['inconclusive'])} ({tell.counts(found['inconclusive'])})"
        told += f", differences by ties alone in {len(found['ties'])}" if found["ties"] else ""
        parts.append(told)
        garbage = [cell for cell in compared if cell.sameness and cell.sameness.garbage]
        if garbage:
            parts.append(f"no-SD's own output is garbage beside {tell.counts(garbage)}")
    uncompared = [cell for cell in cells if cell.meaningless]
    if uncompared:
        reasons = list(dict.fromkeys(cell.meaningless for cell in uncompared))
        more = f" and {len(reasons) - REASONS} more reasons" if len(reasons) > REASONS else ""
        parts.append(f"outputs of {cells_text(len(uncompared))} not compared: {', '.join(reasons[:REASONS])}{more}")
    return parts


def likeness(same: Sameness) -> Literal["divergent", "inconclusive", "ties", "same"]:
    """The worst class of a cell's requests."""
    if same.causes.get("divergent"):
        return "divergent"
    if same.causes.get("inconclusive"):
        return "inconclusive"
    return "ties" if same.identical < same.requests else "same"


def limits(cells: list[CellResult], tell: Words) -> list[str]:
    """What regressed, of how many that were judged: where nothing was, nothing can be said to have held."""
    if not cells:
        return []
    parts = []
    for what, verdicts in (
        ("speedups", [(cell, cell.throughput.verdict) for cell in cells]),
        ("outputs", [(cell, cell.determinism.verdict) for cell in cells]),
    ):
        judged = [verdict for _, verdict in verdicts if verdict in GREEN or verdict == "REGRESSED"]
        regressed = [cell for cell, verdict in verdicts if verdict == "REGRESSED"]
        if regressed:
            parts.append(f"regressed {what} in {len(regressed)} of {len(judged)} judged: {tell.counts(regressed)}")
        elif what == "speedups":
            told = f"no speedup regressed, of {len(judged)} held against a limit"
            parts.append(told if judged else "no speedup was held against a limit")
    return parts


def control_speeds(cells: list[CellResult], tell: Words) -> list[str]:
    """Controls in one part: the range of their speedups."""
    told = [cell for cell in cells if speedup_of(cell)]
    if not told:
        return []
    return [f"controls apart ({tell.counts(told)}{extremes(told, tell, min)})"]
