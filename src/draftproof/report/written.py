"""Reports of one run, made from its records alone: ``summary.json``, ``summary.md`` and ``index.html``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

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


def formatted(value: Any, newline: bytes = b"\n") -> Iterator[bytes]:
    """What `msgspec.json.format` makes of `value`, piece by piece: as one text a run of thousands of cells is hundreds
    of megabytes. No string holds a line's end as such: JSON escapes it."""
    inner = newline + b"  "
    if isinstance(value, msgspec.Struct):
        opening = b"{"
        for name in value.__struct_fields__:
            field = getattr(value, name)
            if field is not msgspec.UNSET:
                yield opening + inner + msgspec.json.encode(name) + b": "
                yield from formatted(field, inner)
                opening = b","
        yield newline + b"}" if opening == b"," else b"{}"
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            text = msgspec.json.format(msgspec.json.encode(item))
            yield (b"," if number else b"[") + inner + text.replace(b"\n", inner)
        yield newline + b"]"
    else:
        yield msgspec.json.format(msgspec.json.encode(value)).replace(b"\n", newline)


def write_report(folder: RunFolder, results: RunResults, compared: Compared | None = None) -> None:
    """Write all three beside the records; an unfinished run is rendered too, and says that it is."""
    header = folder.header()
    with folder.writing("write the report"):
        write_atomic(folder.path / "summary.json", itertools.chain(formatted(summary_of(results, compared)), [b"\n"]))
        made = sections(Page(results, header, compared))
        write_atomic(folder.path / "summary.md", render_markdown(results, header, made).encode())
        write_atomic(folder.path / "index.html", render_html(results, header, made).encode())
