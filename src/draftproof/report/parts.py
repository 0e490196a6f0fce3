"""What the reports are made of: sections of tables, each with the figures that draw it."""

from __future__ import annotations

from typing import Literal

import msgspec
from markupsafe import Markup

from draftproof.comparison import Compared
from draftproof.records import RunHeader
from draftproof.report.drawing import Later
from draftproof.results import RunResults


class Page(msgspec.Struct, frozen=True):
    """All that a section may read."""

    results: RunResults
    header: RunHeader
    compared: Compared | None = None
    """The run against a baseline, where it was asked for."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A drawing of a table's figures."""

    title: str
    """Shown above it."""
    description: str
    """What it shows, in words, for those who do not see it."""
    svg: Markup | Later
    """An ``svg`` element, made by us, with all foreign text in it escaped."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table and the sentence above it; the body may be empty, where the sentence says it all."""

    name: str
    """For links; no two tables of a page share one."""
    title: str
    note: str
    head: list[str]
    body: list[list[str]]
    names: int
    """Columns from the left that hold no figures."""
    code: tuple[str, ...] = ()
    """Titles of columns that hold code, shown as such."""
    tone: Literal["", "bad", "gating", "informing"] = ""
    """How the page sets the table off from others; never by colour alone."""
    figures: list[Figure] = []
    """Shown above the table, which is then folded where it is long."""
    more: tuple[str, str] | None = None
    """Id and title of the section where more of it stands."""
    legend: Markup = Markup("")
    """What the figures' marks mean, shown once above all of them."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page with a heading and a link on top."""

    id: str
    title: str
    nav: str = ""
    """The link's text, where it is not the title."""
    lead: str = ""
    """What of it belongs on the first screen, in one sentence."""
    tables: list[Table] = []
    """Shown on the page and in ``summary.md``."""
    extra: Markup = Markup("")
    """What only the page has, below the tables."""
