"""Sections that are one table or one list."""

from __future__ import annotations

from draftproof.metrics import ratio_text
from draftproof.report import view
from draftproof.report.parts import Page, Section, Table
from draftproof.report.templates import render


def builds(page: Page) -> Section | None:
    """Two builds of vLLM in one run."""
    body = [
        [*row.name, row.cell.cell.target, ratio_text(row.cell.build_ratio)]
        for row in view.rows(page.results)
        if row.cell.build_ratio
    ]
    if not body:
        return None
    table = Table(
        name="build-ratios",
        title="Throughput",
        note="Of the new build over the base build's, in the same rotations.",
        head=["variant", "workload", "B", "target", "build ratio (throughput new / base)"],
        body=body,
        names=2,
    )
    return Section(id="builds", title="New build against base build", tables=[table])


def positions(page: Page) -> Section | None:
    """How often each draft position was accepted, of cells whose steps do not say it with intervals."""
    body = view.position_table(page.results)
    if not body:
        return None
    table = Table(
        name="draft-positions",
        title="By draft position",
        note="By vLLM's own counters: accepted at a position / drafts made (a survival, not conditional on the one "
        "before), of cells that the table by place in the draft does not have.",
        head=["variant", "workload", "B", "accepted at positions 1, 2, ... / drafts", "tokens accepted"],
        body=body,
        names=2,
    )
    return Section(id="positions", title="Acceptance by position", tables=[table])


def notes(page: Page) -> Section | None:
    if not page.results.notes:
        return None
    return Section(id="notes", title="Notes", extra=render("notes.html.j2", notes=page.results.notes))
