"""The closing table, each cell with its detail, and the failures behind it."""

from __future__ import annotations

import msgspec

from draftproof.metrics import METRICS
from draftproof.records import FailureLine
from draftproof.report import view
from draftproof.report.parts import Page, Section
from draftproof.report.templates import render
from draftproof.results import CellResult, RunResults


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, however many cells it stops."""

    number: int
    line: FailureLine
    cells: list[str]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the closing table and what its detail holds."""

    row: view.Row
    label: str
    failures: list[Failure]


def collect_failures(cells: list[CellResult]) -> dict[FailureLine, Failure]:
    """Each failure once, with the cells that it stops: no-SD's stops all of its target's."""
    found: dict[FailureLine, Failure] = {}
    for cell in cells:
        for line in cell.failures:
            if line not in found:
                found[line] = Failure(number=len(found) + 1, line=line, cells=[])
            if cell.cell.id not in found[line].cells:
                found[line].cells.append(cell.cell.id)
    return found


def shown_rows(results: RunResults, failures: dict[FailureLine, Failure]) -> list[Shown]:
    return [
        Shown(row=row, label=view.label(results, row.cell), failures=[failures[line] for line in row.cell.failures])
        for row in view.rows(results)
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
            aa=view.aa_lines(results),
            noise=view.noise_line(results),
        ),
    )


def failures_section(page: Page) -> Section | None:
    failures = list(collect_failures(page.results.cells).values())
    if not failures:
        return None
    return Section(id="failures", title="Failures", extra=render("failures.html.j2", failures=failures))
