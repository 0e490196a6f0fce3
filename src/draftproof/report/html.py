"""``index.html``: one self-contained page. No network, no script, nothing but what the records hold."""

from __future__ import annotations

from draftproof.records import RunHeader
from draftproof.report import partial, view
from draftproof.report.parts import Page, Section
from draftproof.report.sections import sections
from draftproof.report.templates import render
from draftproof.results import RunResults


def render_html(results: RunResults, header: RunHeader, made: list[Section] | None = None) -> str:
    """The whole page; works for unfinished, failed and empty runs. `made`: its sections, where they are at hand."""
    return render(
        "page.html.j2",
        results=results,
        headline=view.headline(results),
        environment_line=view.environment_line(results),
        ended_early=partial.headline(results),
        gaps=partial.gaps(results, header),
        sections=sections(Page(results, header)) if made is None else made,
    )
