"""The templates of the page: every text that they print is escaped, cut and made visible."""

from __future__ import annotations

import functools
import re
from typing import Any

import jinja2
from markupsafe import Markup

from draftproof.gate import Verdict
from draftproof.report import untrusted

LIST_SHOWN = 10
REASON_CHARS = 600
PANELS_SHOWN = 6
ROWS_SHOWN = 60
ROWS_MOST = 300
"""Rows of one table that are shown at all: a run of thousands of cells stays readable, and its page loadable."""
ROWS_BESIDE_FIGURES = 12
"""A longer table is folded."""
NOTE_CHARS = 280
NOTE_LEAST = 100
"""What would be folded of a note must be longer."""
SENTENCE_END = re.compile(r"(?<=[.]) (?=[A-Z])")

VERDICTS: dict[Verdict, tuple[str, str, str]] = {
    "PASS": ("✓", "good", "judged, and within its limits"),
    "IMPROVED": ("▲", "good", "judged, and better than its baseline"),
    "REGRESSED": ("▼", "bad", "the whole interval is on the wrong side of a limit; outputs: more ties than a control"),
    "FAILED": ("✕", "bad", "an engine did not start or finish; outputs: one is divergent, or no-SD's are garbage"),
    "UNSTABLE": (
        "≈",
        "warn",
        "not judged: the reference does not repeat itself, the limit lies inside the noise, or the machine was busy",
    ),
    "INSUFFICIENT": ("…", "warn", "not judged: too few finished pairs"),
    "INCOMPARABLE": ("≠", "warn", "not judged: a setting that must be held differs"),
    "NO_BASELINE": ("○", "plain", "shown, not judged: no gating limit covers the cell"),
}
"""Verdict -> symbol, tone, meaning. The word is always printed: the colour only repeats it."""

MARKS: dict[str, tuple[str, str]] = {word: (sign, tone) for word, (sign, tone, _) in VERDICTS.items()} | {
    "met": ("✓", "good"),
    "not met": ("✕", "bad"),
    "not judged": ("…", "warn"),
    "not measured": ("○", "plain"),
}
"""Words that a table's cell may consist of -> symbol, tone."""

CLAIMS: dict[str, tuple[str, str]] = {
    "holds": ("✓", "good"),
    "is contradicted": ("✕", "bad"),
    "was not tested": ("○", "plain"),
}
"""Words that a table's cell may begin with, before a colon -> symbol, tone."""


def note_parts(note: str) -> tuple[str, str]:
    """The sentences above a table that are shown, at least one, and the rest, which the page folds.

    A note says first what the figures are, then how they were made.
    """
    first, *others = SENTENCE_END.split(note)
    while others and len(first) + len(others[0]) < NOTE_CHARS:
        first = f"{first} {others.pop(0)}"
    rest = " ".join(others)
    return (f"{first} {rest}".strip(), "") if len(rest) < NOTE_LEAST else (first, rest)


def cut_note(rows: int) -> str:
    """Above a table that has more rows than are shown."""
    return f"The first {ROWS_MOST} of {rows:,} rows; what all of them are made from is in summary.json."


@functools.cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("draftproof", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=untrusted.shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals.update(
        verdicts=VERDICTS,
        marks=MARKS,
        claims=CLAIMS,
        list_shown=LIST_SHOWN,
        panels_shown=PANELS_SHOWN,
        rows_shown=ROWS_SHOWN,
        rows_most=ROWS_MOST,
        rows_beside_figures=ROWS_BESIDE_FIGURES,
        token_chars=untrusted.TOKEN_CHARS,
        cut_note=cut_note,
        note_parts=note_parts,
        breakable=untrusted.breakable,
        token=untrusted.token,
        cut=untrusted.cut,
        tail=untrusted.tail,
        short=functools.partial(untrusted.cut, limit=REASON_CHARS),
    )
    return made


def render(template: str, **values: Any) -> Markup:
    """A part of the page; whole parts may be put into others as they are."""
    return Markup(environment().get_template(template).render(**values))  # noqa: S704 - escaped by the template
