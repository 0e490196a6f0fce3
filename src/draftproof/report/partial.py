"""What a run is missing: whether it ended early, which cells have no figure, which were not run at all, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from draftproof.records import RunHeader
from draftproof.report import view
from draftproof.report.parts import Page, Section, Table
from draftproof.report.verdict import cells_text
from draftproof.results import CellResult, RunResults

NOT_CHOSEN = "part of the study, but not chosen for this run or not possible on its machine; the records do not say"
NOT_REACHED = "the run ended before it came to them"
TITLE = "Not run, and why"


def headline(results: RunResults) -> str:
    """Why an unfinished run is unfinished; empty for a finished one."""
    return "" if results.finished else results.partial or "ended early"


def gaps(results: RunResults, header: RunHeader) -> list[str]:
    """What a run lacks beside that, a sentence each: empty where every cell of the study has its figure."""
    found = []
    total = len(results.cells)
    failed = sum(bool(cell.failures) for cell in results.cells)
    if failed:
        found.append(f"{failed} of {cells_text(total)} failed, or a part of each did")
    empty = [cell for cell in results.cells if cell.speculative and cell.speedup is None and not cell.failures]
    if empty:
        pairs = Counter(cell.pairs for cell in empty)
        told = ", ".join(f"{count} with {pair} pair{'s' if pair != 1 else ''}" for pair, count in sorted(pairs.items()))
        found.append(f"no interval and so no speedup in {len(empty)} of {cells_text(total)} ({told})")
    missing = len(not_run_cells(results, header))
    if missing:
        found.append(f"{cells_text(missing)} of the study not run")
    return found


def not_run_cells(results: RunResults, header: RunHeader) -> dict[str, str]:
    """Cell id -> why it was not run: skipped with a reason, not chosen, or not reached."""
    ran = {cell.cell.id for cell in results.cells}
    found = {name: why for name, why in results.skipped.items() if name not in ran}
    if header.study.name == results.study:
        asked = [cell.id for cell in header.study.cells()]
        found |= {name: NOT_CHOSEN for name in asked if name not in ran and name not in found}
    found |= dict.fromkeys(unreached(results), NOT_REACHED)
    return found


def unreached(results: RunResults) -> Iterable[str]:
    """Of an unfinished run: cells with neither a block nor a failure, in no build."""
    if results.finished:
        return []
    touched = {cell.cell.id for cell in results.cells if was_touched(cell)}
    return dict.fromkeys(cell.cell.id for cell in results.cells if cell.cell.id not in touched)


def was_touched(cell: CellResult) -> bool:
    return bool(cell.failures or cell.tokens_per_s is not None or cell.stages is not None)


def table(results: RunResults, header: RunHeader) -> Table | None:
    """A row for each reason, with the cells that it kept from being run."""
    reasons: dict[str, list[str]] = {}
    for name, why in not_run_cells(results, header).items():
        reasons.setdefault(why, []).append(name)
    if not reasons:
        return None
    return Table(
        name="not-run-cells",
        title="By reason",
        note="They are in no count above.",
        head=["cells", "how many", "why"],
        body=[[view.some(names), str(len(names)), why] for why, names in reasons.items()],
        names=3,
    )


def section(page: Page) -> Section | None:
    found = table(page.results, page.header)
    return Section(id="not-run", title=TITLE, tables=[found]) if found else None
