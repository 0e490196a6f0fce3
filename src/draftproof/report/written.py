"""Reports of one run, made from its records alone: ``summary.json``, ``summary.md`` and ``index.html``."""

from __future__ import annotations

import msgspec

from draftproof.comparison import Compared
from draftproof.recommendation import Choice, recommend
from draftproof.records import RunFolder, write_atomic
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Page
from draftproof.report.sections import sections
from draftproof.results import RunResults


class Summary(RunResults, frozen=True, kw_only=True, dict=True):
    """What ``summary.json`` holds: the results, what follows from them, and what they were compared with."""

    recommendations: list[Choice]
    against: Compared | msgspec.UnsetType = msgspec.UNSET
    """Absent without a comparison."""


def summary_of(results: RunResults, compared: Compared | None = None) -> Summary:
    return Summary(
        **msgspec.structs.asdict(results),
        recommendations=recommend(results),
        against=msgspec.UNSET if compared is None else compared,
    )


def write_report(folder: RunFolder, results: RunResults, compared: Compared | None = None) -> None:
    """Write all three beside the records; an unfinished run is rendered too, and says that it is."""
    header = folder.header()
    with folder.writing("write the report"):
        payload = msgspec.json.format(msgspec.json.encode(summary_of(results, compared)))
        write_atomic(folder.path / "summary.json", payload + b"\n")
        made = sections(Page(results, header, compared))
        write_atomic(folder.path / "summary.md", render_markdown(results, header, made).encode())
        write_atomic(folder.path / "index.html", render_html(results, header, made).encode())
