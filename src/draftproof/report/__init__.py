"""Reports of one run, made from its records alone: ``summary.json``, ``summary.md`` and ``index.html``."""

from __future__ import annotations

import msgspec

from draftproof.recommendation import Choice, recommend
from draftproof.records import RunFolder, write_atomic
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Page
from draftproof.report.sections import sections
from draftproof.results import RunResults


class Summary(RunResults, frozen=True, kw_only=True, dict=True):
    """What ``summary.json`` holds: the results, and what follows from them alone."""

    recommendations: list[Choice]


def write_report(folder: RunFolder, results: RunResults) -> None:
    """Write all three beside the records; an unfinished run is rendered too, and says that it is."""
    header = folder.header()
    with folder.writing("write the report"):
        summary = Summary(**msgspec.structs.asdict(results), recommendations=recommend(results))
        payload = msgspec.json.format(msgspec.json.encode(summary))
        write_atomic(folder.path / "summary.json", payload + b"\n")
        made = sections(Page(results, header))
        write_atomic(folder.path / "summary.md", render_markdown(results, header, made).encode())
        write_atomic(folder.path / "index.html", render_html(results, header, made).encode())
