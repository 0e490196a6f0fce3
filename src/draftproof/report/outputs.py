"""The section on outputs: tables, survival curves, the earliest differences."""

from __future__ import annotations

import msgspec

from draftproof.report import curves, determinism
from draftproof.report.parts import Page, Section
from draftproof.report.templates import render

ID = "outputs"


def section(page: Page) -> Section | None:
    results = page.results
    earliest = determinism.earliest(results)
    tables = [
        msgspec.structs.replace(table, figures=curves.figures(results), legend=curves.legend(results))
        if table.name == "survival"
        else table
        for table in determinism.tables(results)
    ]
    if not tables and not earliest:
        return None
    differences = render(
        "differences.html.j2",
        earliest=earliest,
        title=determinism.EARLIEST_TITLE,
        note=determinism.earliest_note(results),
    )
    return Section(id=ID, title=determinism.TITLE, tables=tables, extra=differences)
