"""A comparison with a baseline, in words."""

from __future__ import annotations

import math

import msgspec

from draftproof.comparison import GREEN_EXIT, RED_EXIT, Compared, Finding
from draftproof.gate import GREEN, RED
from draftproof.report.words import counted, some

SENTENCES = {GREEN_EXIT: "green", RED_EXIT: "red"}
NAMED = 12
"""Gates that the headline names; the rest are counted."""


def headline(found: Compared) -> str:
    """What moved, in one sentence."""
    regressed = [one for one in found.findings if one.verdict == "REGRESSED"]
    failed = [one for one in found.findings if one.verdict in RED and one.verdict != "REGRESSED"]
    judged = [one for one in found.findings if one.counts]
    not_judged = [one for one in judged if one.verdict not in RED | GREEN]
    better = [one for one in found.findings if one.verdict == "IMPROVED"]
    against = "the other build in the same rotations" if found.same_run else counted(len(found.base), "run")
    parts = []
    for title, ones in (("regressed", regressed), ("failed", failed), ("better", better)):
        if ones:
            names = list(dict.fromkeys(f"{one.place} ({one.gate})" for one in ones))
            parts.append(f"{title}: {some(names, NAMED)}")
    if not_judged:
        parts.append(f"{len(not_judged)} of {len(judged)} gates not judged")
    told = "; ".join(parts) or "nothing moved beyond its limit"
    return f"{SENTENCES.get(found.exit_code, 'not judged')} against {against}: {told} ({found.tests} tests, Holm)"


def ordered(found: Compared) -> list[Finding]:
    """The most important first: what regressed, what failed, what was not judged, what is better, the rest, and last
    what only looks closer and cannot tell.

    Within each: what lies furthest beyond its limit, and of what is better the largest gain; where that is equal,
    geometric means and then the order of the cells.
    """
    return sorted(found.findings, key=importance)


def importance(one: Finding) -> tuple[int, float]:
    """Sort key of a finding."""
    beyond = one.beyond if one.beyond is not None else -math.inf
    return rank(one), beyond if one.verdict == "IMPROVED" else -beyond


def rank(one: Finding) -> int:
    """The smaller, the more it matters."""
    if one.verdict in RED:
        return 0 if one.verdict == "REGRESSED" else 1
    if one.verdict in GREEN:
        return 3 if one.verdict == "IMPROVED" else 4
    return 2 if one.counts else 5


def lines(found: Compared) -> list[str]:
    """Plain text, one gate a line."""
    told = [f"{one.verdict:12} {line(one)}" for one in ordered(found)]
    return [*told, *[f"note: {note}" for note in found.notes], headline(found)]


def line(one: Finding) -> str:
    """A gate without its verdict."""
    return f"{one.place}, {one.gate} [{one.arm}]: {one.reason}"


def markdown_lines(found: Compared) -> list[str]:
    """A table for a pull request."""
    rows = [
        f"| {one.verdict} | {cell(one.place)} | {one.gate} | {one.arm} | {cell(one.reason)} |" for one in ordered(found)
    ]
    head = ["| verdict | cell | gate | arm | what was measured |", "|---|---|---|---|---|"]
    return [f"**{cell(headline(found))}**", "", *head, *rows, *[f"\nnote: {cell(note)}" for note in found.notes]]


def cell(text: str) -> str:
    """Text inside a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


def as_json(found: Compared) -> str:
    return msgspec.json.format(msgspec.json.encode(found)).decode()
