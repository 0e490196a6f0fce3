"""The run against a baseline: held fields that differ, what moved, what could not be judged."""

from __future__ import annotations

import math

from draftproof.comparison import Apart, Compared, Finding, number
from draftproof.gate import RED
from draftproof.report import compared
from draftproof.report.determinism import shorten
from draftproof.report.parts import Page, Section, Table
from draftproof.report.words import capital, signed, some

ID = "against"
MOVES_SHOWN = 60
"""Rows of the first table, which the page does not fold: the most important ones."""
MOST_SHOWN = 300
"""Rows of any other one; the rest is counted."""
NAMED = 4
"""Cells that one row names."""
NAME_CHARS = 60
VALUE_CHARS = 300
HELD_NOTE = (
    "What must be equal on both sides before figures are compared: machine, target, prompts, sampling, lengths, "
    "settings of the engine. Versions and speculative settings are under test and may differ."
)
MOVES_NOTE = (
    "Figures are geometric means over the prompt sets that both sides hold. Red: the change for the worse is larger "
    "than its limit with p < 0.05 (one-sided, Holm over all tests). Arm: whose change it is. Beyond: how far the "
    "change for the worse lies beyond the limit, in points; negative: within it."
)
MOVES_HEAD = ["verdict", "cell", "gate", "arm", "besides", "before -> now", "change [95 %]", "limit", "beyond", "p"]
MOVES_HEAD += ["sets"]


def section(page: Page) -> Section | None:
    """None without a comparison."""
    found = page.compared
    if found is None:
        return None
    title, lead = f"Against {base_name(found)}", f"{compared.headline(found)}."
    return Section(id=ID, title=title, lead=lead, tables=tables(found))


def tables(found: Compared) -> list[Table]:
    """All that the comparison has something for; the table of what moved is always there, since it says the verdict."""
    made = [
        unlike_table(found),
        moves_table(found),
        further_table(found),
        unjudged_table(found),
        under_test_table(found),
    ]
    return [table for table in made if table is not None]


def base_name(found: Compared) -> str:
    """What the run is compared with, in a few words."""
    if found.same_run:
        return "the other build"
    if len(found.base) == 1:
        return shorten(found.base[0], NAME_CHARS)
    return f"{len(found.base)} earlier runs" if found.base else "a baseline"


def sides(found: Compared) -> str:
    """Which runs are on the two sides."""
    if found.same_run:
        return "Both builds ran in the same rotations."
    before, now = ([shorten(run, NAME_CHARS) for run in runs] for runs in (found.base, found.new))
    return f"Before: {some(before, NAMED) or 'no run'}; now: {some(now, NAMED)}."


def unlike_table(found: Compared) -> Table | None:
    """Held fields that differ, both values."""
    if not found.unlike:
        return None
    everywhere = any(not apart.places for apart in found.unlike)
    what = "so that nothing is judged" if everywhere else "so that these cells are not judged"
    return Table(
        name="against-held",
        title=f"Held fields differ, {what}",
        note=HELD_NOTE,
        head=["field", "before", "now", "cells"],
        body=[
            [*apart_row(apart), some(apart.places, NAMED) if apart.places else "all"]
            for apart in found.unlike[:MOST_SHOWN]
        ],
        names=4,
        tone="bad",
    )


def apart_row(apart: Apart) -> list[str]:
    return [apart.field, shorten(apart.base, VALUE_CHARS), shorten(apart.new, VALUE_CHARS)]


def moves_table(found: Compared) -> Table:
    """A row for each gate that has figures, the most important ones."""
    moved = with_figures(found)
    note = f"{capital(compared.headline(found))}. {sides(found)}"
    if moved:
        note += f" {MOVES_NOTE}"
    note += "".join(f" Note: {text}." for text in found.notes)
    return Table(
        name="against-moves",
        title="What moved",
        note=note,
        head=MOVES_HEAD,
        body=[move_row(one) for one in moved[:MOVES_SHOWN]],
        names=5,
    )


def with_figures(found: Compared) -> list[Finding]:
    """In the order of their importance."""
    return [one for one in compared.ordered(found) if one.change is not None]


def further_table(found: Compared) -> Table | None:
    """What did not fit into the first table."""
    moved = with_figures(found)[MOVES_SHOWN:]
    if not moved:
        return None
    note = f"In the same order, after the first {MOVES_SHOWN}."
    if len(moved) > MOST_SHOWN:
        note += f" The first {MOST_SHOWN} of {len(moved):,}; the rest is in summary.json."
    return Table(
        name="against-further",
        title="Further gates",
        note=note,
        head=MOVES_HEAD,
        body=[move_row(one) for one in moved[:MOST_SHOWN]],
        names=5,
    )


def move_row(one: Finding) -> list[str]:
    return [
        one.verdict,
        one.place,
        f"{one.gate}: {one.noun}",
        one.arm,
        one.why or "-",
        "-" if one.base is None or one.new is None else f"{number(one.base)} -> {number(one.new)} {one.unit}",
        change_text(one),
        "-" if one.limit is None else f"{100 * one.limit:+.3g} %",
        "-" if one.beyond is None else signed(100 * one.beyond),
        "-" if one.p is None else f"{one.p:.2g}",
        "-" if one.sets is None else str(one.sets),
    ]


def change_text(one: Finding) -> str:
    """A change is never printed without its interval."""
    if one.change is None or one.low is None or one.high is None:
        return "-"
    low, high = (signed(100 * end) if math.isfinite(end) else "unbounded" for end in (one.low, one.high))
    return f"{signed(100 * one.change)} % [{low}, {high}]"


def unjudged_table(found: Compared) -> Table | None:
    """Gates without figures, those of one reason together; failed ones first."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in compared.ordered(found):
        if one.change is None:
            reasons.setdefault((one.verdict, one.why or one.reason), []).append(one.place)
    if not reasons:
        return None
    failed = sum(verdict in RED for verdict, _ in reasons)
    note = "A gate that was not judged is neither green nor red."
    if len(reasons) > MOST_SHOWN:
        note += f" The first {MOST_SHOWN} of {len(reasons):,} reasons; the rest is in summary.json."
    return Table(
        name="against-unjudged",
        title="Failed, or not judged" if failed else "Not judged",
        note=note,
        head=["verdict", "why", "gates", "cells"],
        body=[
            [verdict, why, str(len(places)), some(list(dict.fromkeys(places)), NAMED)]
            for (verdict, why), places in list(reasons.items())[:MOST_SHOWN]
        ],
        names=4,
    )


def under_test_table(found: Compared) -> Table | None:
    """What differs and may."""
    if not found.under_test:
        return None
    return Table(
        name="against-versions",
        title="Under test, and not the same",
        note="Of the newest run of each side; what the figures above may come from.",
        head=["what", "before", "now"],
        body=[apart_row(apart) for apart in found.under_test[:MOST_SHOWN]],
        names=3,
    )
