"""Rules of runs of thousands of cells: nothing is left out of the matrix, and what needs a look is listed first.

How long a report of 5,000 cells takes, and how much memory, is measured by tools/render_cost.py.
"""

from __future__ import annotations

import re

import pytest
from markupsafe import escape

from draftproof.outcomes import rank
from draftproof.report.cells import LISTED, LOGS_SHOWN, anchors, listed_note, listed_rows
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from draftproof.report.templates import ROWS_MOST
from draftproof.report.terminal import CURVES, summary_lines
from draftproof.results import RunResults
from tests.manycells import many
from tests.reporting import cell, header, page, run

COUNT = 5000


@pytest.fixture(scope="module")
def results() -> RunResults:
    return many(COUNT)


@pytest.fixture(scope="module")
def text(results: RunResults) -> str:
    return render_html(results, header())


def test_the_page_stays_within_what_a_browser_opens(text: str) -> None:
    assert len(text.encode()) < 12_000_000


def test_every_cell_is_in_the_matrix(results: RunResults, text: str) -> None:
    start = text.index('<table class="heat">')
    table = text[start : text.index("</table>", start)]
    shown = re.findall(r'<td(?: class="t-\w+")?><(?:a href="#cell-\d+"|span class="plain-cell")>', table)
    assert len(shown) == COUNT
    assert table.count('<a href="#cell-') == LISTED


def test_what_needs_a_look_is_listed_first(results: RunResults) -> None:
    rows = listed_rows(results)
    assert len(rows) == LISTED
    found = [rank(one) for one in results.cells]
    assert found.count(0) > LISTED  # more than there is room for: then no other is listed
    assert {rank(row.cell) for row in rows} == {0}


def test_the_rest_follows_in_the_studys_order() -> None:
    """Ten red cells at the end of 400: they are listed with the first 290, in the order of the study."""
    cells = [cell(f"v{index}", verdict="PASS" if index < 390 else "REGRESSED") for index in range(400)]
    rows = listed_rows(run(*cells))
    assert [row.cell.cell.variant for row in rows] == [f"v{index}" for index in [*range(290), *range(390, 400)]]
    note = listed_note(run(*cells))
    assert note.startswith("Listed are 300 of 400 cells: first the 10 that are red")
    assert listed_note(run(*cells[:300])) == ""
    assert list(anchors(run(*cells[:3])).values()) == ["cell-1", "cell-2", "cell-3"]


def test_what_is_cut_is_said_to_be(results: RunResults, text: str) -> None:
    note = f"The first {ROWS_MOST} of "
    assert escape(listed_note(results)) in text
    assert text.count(note) >= 4
    assert f"{COUNT // 20 - LOGS_SHOWN} more, each in summary.json with the end of its log" in text
    markdown = render_markdown(results, header())
    assert note in markdown
    assert "Listed are 300 of 5,000 cells" in markdown
    lines = summary_lines(results, 140)
    assert len(lines) < LISTED + CURVES + 30
    assert listed_note(results) in lines


def test_links_and_ids_of_a_large_page_hold() -> None:
    """The strict reader takes a while: a smaller run, with more cells than are listed."""
    page(many(2 * LISTED))
