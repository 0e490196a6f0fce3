"""``index.html``: one self-contained page. No network, no script, nothing but what the records hold."""

from __future__ import annotations

from draftproof.comparison import Compared
from draftproof.records import RunHeader
from draftproof.report import view
from draftproof.report.parts import Page
from draftproof.report.sections import sections
from draftproof.report.templates import render
from draftproof.results import RunResults


def render_html(results: RunResults, header: RunHeader, compared: Compared | None = None) -> str:
    """The whole page; works for unfinished, failed and empty runs."""
    return render(
        "page.html.j2",
        results=results,
        headline=view.headline(results),
        environment_line=view.environment_line(results),
        sections=sections(Page(results, header, compared)),
    )
