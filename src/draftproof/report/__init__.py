"""Reports of one run, made from its records alone: ``summary.json``, ``summary.md`` and ``index.html``."""

from __future__ import annotations

import msgspec

from draftproof.comparison import Compared
from draftproof.records import RunFolder, write_atomic
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from draftproof.results import RunResults


class Summary(RunResults, frozen=True, kw_only=True):
    """What ``summary.json`` holds: the results, and what they were compared with where they were."""

    against: Compared | msgspec.UnsetType = msgspec.UNSET


def write_report(folder: RunFolder, results: RunResults, compared: Compared | None = None) -> None:
    """Write all three beside the records; an unfinished run is rendered too, and says that it is."""
    header = folder.header()
    summary = Summary(**msgspec.structs.asdict(results), against=msgspec.UNSET if compared is None else compared)
    with folder.writing("write the report"):
        payload = msgspec.json.format(msgspec.json.encode(summary))
        write_atomic(folder.path / "summary.json", payload + b"\n")
        write_atomic(folder.path / "summary.md", render_markdown(results, header, compared).encode())
        write_atomic(folder.path / "index.html", render_html(results, header, compared).encode())
