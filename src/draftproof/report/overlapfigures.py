"""Figures of what n-gram lookup gains over learned drafters, by the overlap of prompt and output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure as Sheet

from draftproof.analysis.overlap import FEW, OverlapBin
from draftproof.analysis.rowsprice import Interval
from draftproof.analysis.stats import Ratio
from draftproof.anatomy import PairOverlap
from draftproof.report.drawing import INK, Later, Look
from draftproof.report.marks import (
    FAINT,
    Unit,
    intervals,
    looks_of,
    note,
    span,
    unit_of,
    unit_title,
)
from draftproof.report.panels import legend
from draftproof.report.parts import Figure
from draftproof.report.room import LINES, LINES_CUT, drawn
from draftproof.results import CellResult, RunResults


class Line(NamedTuple):
    """A learned drafter that n-gram is held against."""

    variant: str
    look: Look
    bins: list[OverlapBin]


Pairs = list[tuple[CellResult, list[OverlapBin]]]


def overlap_figures(results: RunResults, pairs: Sequence[PairOverlap]) -> tuple[list[Figure], Markup]:
    """A panel for each n-gram cell, a line of points for each learned drafter beside it."""
    cells = results.cells_by_id
    panels: dict[tuple[Unit, str], Pairs] = {}
    for pair in pairs:
        first, second = cells[pair.first, pair.build], cells[pair.second, pair.build]
        if any(found.advantage for found in pair.bins):
            panels.setdefault((unit_of(first), first.cell.variant), []).append((second, pair.bins))
    some, left_out = drawn([*panels.items()])
    cut = LINES_CUT if any(len(seconds) > LINES for _, seconds in some) else ""
    figures: list[Figure] = []
    looks: dict[str, Look] = {}
    for number, ((unit, variant), seconds) in enumerate(some):
        shown = seconds[:LINES]
        looks |= looks_of(results, (one.cell.variant for one, _ in shown))
        lines = [Line(one.cell.variant, looks[one.cell.variant], bins) for one, bins in shown]
        figures.append(
            Figure(
                title=f"{variant}, {unit_title(results, unit)}",
                description=overlap_words(variant, lines),
                svg=Later(f"overlap-{number}", (4.6, 3.1), partial(draw_overlap, lines)),
            )
        )
    meaning = (
        "Above 0 n-gram is faster than the drafter whose colour a point has. Bars: 95 % intervals, which may leave the "
        f"frame. Hollow points on dotted bars: fewer than {FEW} prompts, which single requests decide."
    )
    return figures, legend("overlap", looks, note(meaning, left_out, cut))


def overlap_words(variant: str, lines: Sequence[Line]) -> str:
    told = []
    for line in lines:
        known = [found for found in line.bins if found.advantage]
        few = sum(found.few for found in known)
        percents = span((100 * (found.advantage.value - 1) for found in known if found.advantage), "+.0f", " %")
        told.append(f"over {line.variant} {percents} in {len(known)} bins, {few} of them with fewer than {FEW} prompts")
    return (
        f"Relative advantage of {variant} by BLEU-4 of prompt and output, from 0 to 1 in five bins: {'; '.join(told)}."
    )


def counts(lines: Sequence[Line], number: int) -> str:
    """Prompts of a bin, of all lines."""
    return span((line.bins[number].prompts for line in lines), "d")


def percent(ratio: Ratio) -> Interval:
    """The part of the other's throughput by which it is higher, in %."""
    return Interval(*[100 * (end - 1) for end in (ratio.value, ratio.low, ratio.high)])


def draw_overlap(lines: Sequence[Line], sheet: Sheet) -> None:
    axes = sheet.subplots()
    axes.axhline(0, **{**FAINT, "color": INK["fg"]})
    values = []
    step = min(0.16, 0.8 / max(1, len(lines)))
    for number, line in enumerate(lines):
        aside = step * (number - (len(lines) - 1) / 2)
        for place, found in enumerate(line.bins):
            if found.advantage:
                value = percent(found.advantage)
                values.append(value.value)
                how = {"markerfacecolor": INK["bg"]} if found.few else {}
                bar = intervals(axes, [place + aside], [value], line.look, line=False, **how)
                if found.few and bar is not None:
                    bar.set_linestyle((0, (1, 1.5)))
    low, high = min(0.0, *values), max(0.0, *values)
    room = max(10.0, 0.6 * (high - low))
    axes.set_ylim(low - room, high + room)
    axes.set_xlim(-0.5, len(lines[0].bins) - 0.5)
    names = [f"{found.low:.1f}-{found.high:.1f}\nn = {counts(lines, at)}" for at, found in enumerate(lines[0].bins)]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("BLEU-4 of prompt and output, prompts in the bin")
    axes.set_ylabel("advantage of n-gram (%)")
