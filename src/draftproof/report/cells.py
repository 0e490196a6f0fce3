"""The closing table, each cell with its detail, and the failures behind it."""

from __future__ import annotations

import msgspec

from draftproof.metrics import METRICS
from draftproof.outcomes import rank
from draftproof.records import FailureLine
from draftproof.report import view
from draftproof.report.parts import Page, Section
from draftproof.report.templates import render
from draftproof.results import CellResult, RunResults

LOGS_SHOWN = 100
"""Failures that the page shows with the end of their log."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, however many cells it stops."""

    number: int
    line: FailureLine
    cells: list[str]


LISTED = 300
"""Cells that the page and ``summary.md`` list one by one; of more, those that need a look go first."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the closing table and what its detail holds."""

    row: view.Row
    anchor: str
    failures: list[Failure]


def collect_failures(cells: list[CellResult]) -> dict[FailureLine, Failure]:
    """Each failure once, with the cells that it stops: no-SD's stops all of its target's."""
    stopped: dict[FailureLine, dict[str, None]] = {}
    for cell in cells:
        for line in cell.failures:
            stopped.setdefault(line, {})[cell.cell.id] = None
    return {
        line: Failure(number=number, line=line, cells=list(names))
        for number, (line, names) in enumerate(stopped.items(), start=1)
    }


def anchors(results: RunResults) -> dict[tuple[str, str], str]:
    """(Cell id, build) -> id of its detail on the page, for the cells that are listed there."""
    keys = {(cell.cell.id, cell.build): rank(cell) for cell in results.cells}
    chosen = set(sorted(keys, key=keys.__getitem__)[:LISTED])  # stable: by rank, then as the study has them
    return {key: f"cell-{number}" for number, key in enumerate((key for key in keys if key in chosen), start=1)}


def listed_rows(results: RunResults) -> list[view.Row]:
    """Lines of the closing table for these, in its order."""
    known = anchors(results)
    return [row for row in view.rows(results) if (row.cell.cell.id, row.cell.build) in known]


def listed_note(results: RunResults) -> str:
    """Which cells are listed, where it is not all of them; else empty."""
    total = len({(cell.cell.id, cell.build) for cell in results.cells})
    if total <= LISTED:
        return ""
    ranks = [rank(cell) for cell in results.cells]
    return (
        f"Listed are {LISTED} of {total:,} cells: first the {ranks.count(0):,} that are red or contradict themselves, "
        f"then the {ranks.count(1):,} that were not judged, then others in the study's order. All are in the matrix, "
        "and in summary.json with every figure."
    )


def shown_rows(results: RunResults, failures: dict[FailureLine, Failure]) -> list[Shown]:
    known = anchors(results)
    return [
        Shown(
            row=row,
            anchor=known[row.cell.cell.id, row.cell.build],
            failures=[failures[line] for line in row.cell.failures],
        )
        for row in listed_rows(results)
    ]


def section(page: Page) -> Section:
    """The closing table; every run has one, an empty one says so."""
    results = page.results
    return Section(
        id="cells",
        title="Cells",
        extra=render(
            "cells.html.j2",
            rows=shown_rows(results, collect_failures(results.cells)),
            metrics=METRICS,
            cells_listed=listed_note(results),
            logs_shown=LOGS_SHOWN,
            aa=view.aa_lines(results),
            noise=view.noise_line(results),
        ),
    )


def failures_section(page: Page) -> Section | None:
    failures = list(collect_failures(page.results.cells).values())
    if not failures:
        return None
    extra = render("failures.html.j2", failures=failures[:LOGS_SHOWN], total=len(failures))
    return Section(id="failures", title="Failures", extra=extra)
