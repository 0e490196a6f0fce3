"""Panels that several sections draw: lines over batch sizes, and rows with an interval each."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from draftproof.report import drawing, untrusted
from draftproof.report.drawing import INK, Later, Look
from draftproof.report.templates import render

SIZE = (4.2, 2.7)
ROW = 0.23
KEY_ROW = 0.18
"""Heights of a row and of a line of names, in inches."""
NAME_CHARS = 24


Thing = TypeVar("Thing")


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A figure at a batch size, with its interval; without one all three are the same."""

    batch_size: int
    value: float
    low: float
    high: float


class Line(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    look: Look
    marks: list[Mark]
    behind: bool = False
    """Dotted, pale and without intervals: another's figures, for comparison."""
    hollow: bool = False
    """Of the base build."""
    thin: bool = False
    """Computed, not measured: without intervals, hollow."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A named figure with its interval; an end that is not finite runs out of the frame."""

    name: str
    look: Look
    mark: Mark
    other: float | None = None
    """Another's figure, for comparison."""
    hollow: bool = False


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """The axis of the figures."""

    title: str
    low: float
    high: float
    rule: float | None = None
    """Where a line is drawn across: the value that means no change."""


def named(text: str, most: int = NAME_CHARS) -> str:
    """Foreign text for a drawing: one line, every character seen, cut."""
    shown = untrusted.visible(untrusted.without_homes(text[:200]), keep="")
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def axis_end(figures: Iterable[tuple[float, float]], least: float = 1.0) -> float:
    """End of an axis that begins at 0: (value, upper end) of each; an interval that is much wider is cut."""
    ends = [least]
    for value, high in figures:
        ends += [value, min(high, 1.5 * value)]
    return 1.06 * max(ends)


def over_sizes(name: str, lines: Sequence[Line], sizes: Iterable[int], axis: Axis, *, key: bool = False) -> Later:
    """A line for each name over batch sizes; bars of one batch size stand beside each other. `key`: names below."""

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        for line, made in zip(lines, lines_on(axes, lines, sizes, axis), strict=True):
            made.set_label(named(line.name))
        if key:
            names_below(axes)

    rows = (len(lines) + 1) // 2 if key else 0
    return Later(name, (SIZE[0], SIZE[1] + KEY_ROW * rows), draw)


def names_below(axes: Axes) -> None:
    """The lines' names in two columns under the axis."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, handlelength=2.4)


def lines_on(axes: Axes, lines: Sequence[Line], sizes: Iterable[int], axis: Axis) -> list[Line2D]:
    """What matplotlib made of each line."""
    shown = sorted(set(sizes))
    drawing.batch_axis(axes, shown)
    axes.set_xlim(shown[0] / 1.35, shown[-1] * 1.35)
    axes.set_ylim(axis.low, axis.high)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.set_ylabel(axis.title)
    if axis.rule is not None:
        axes.axhline(axis.rule, color=INK["fg"], linewidth=1.0, zorder=1.8)
    barred = [number for number, line in enumerate(lines) if not (line.behind or line.thin)]
    gaps = [math.log2(right / left) for left, right in itertools.pairwise(shown)]
    step = min(gaps, default=1.0) * min(0.04, 0.24 / max(len(barred), 1))
    asides = {number: 2.0 ** (step * (place - (len(barred) - 1) / 2)) for place, number in enumerate(barred)}
    return [line_on(axes, line, asides.get(number, 1.0), axis) for number, line in enumerate(lines)]


def line_on(axes: Axes, line: Line, aside: float, axis: Axis) -> Line2D:
    """One line; `aside`: a factor on its batch sizes."""
    look, at = line.look, [mark.batch_size * aside for mark in line.marks]
    values = [mark.value for mark in line.marks]
    if line.behind:
        return axes.plot(at, values, color=look.colour, linestyle=":", linewidth=1.4, marker=".", zorder=2)[0]
    if not line.thin:
        span = axis.high - axis.low
        lows = [max(mark.low, axis.low - span) for mark in line.marks]
        highs = [min(mark.high, axis.high + span) for mark in line.marks]
        axes.vlines(at, lows, highs, color=look.colour, linewidth=1.0, zorder=2.5)
    return axes.plot(
        at,
        values,
        color=look.colour,
        linestyle=look.line,
        linewidth=1.2 if line.thin else 1.6,
        marker=look.marker,
        markersize=4 if line.thin else 5,
        markerfacecolor=drawing.GROUND if line.hollow or line.thin else look.colour,
        zorder=3,
    )[0]


def share_axis(axes: Axes, title: str) -> None:
    """A vertical axis of shares, whole whatever was measured."""
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.set_ylabel(title)


def in_rows(name: str, rows: Sequence[Row], axis: Axis, prepare: Callable[[Axes], None] | None = None) -> Later:
    """A row for each name, with its interval; `prepare` may give the axis another scale."""

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        if prepare:
            prepare(axes)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axes.set_xlim(axis.low, axis.high)
        axes.set_xlabel(axis.title)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(range(len(rows)), [named(row.name) for row in rows])
        axes.tick_params(axis="y", length=0, pad=8, labelcolor=INK["fg"])
        axes.grid(visible=False, axis="y")
        if axis.rule is not None:
            axes.axvline(axis.rule, color=INK["fg"], linewidth=1.0, zorder=1.8)
        for at, row in enumerate(rows):
            row_on(axes, at, row, axis)

    return Later(name, (SIZE[0], 0.62 + ROW * len(rows)), draw)


def row_on(axes: Axes, at: int, row: Row, axis: Axis) -> None:
    """One row; an end outside of the frame is an arrow at its edge."""
    look, mark = row.look, row.mark
    low, high = max(mark.low, axis.low), min(mark.high, axis.high)
    axes.hlines([at], [min(low, axis.high)], [max(high, axis.low)], color=look.colour, linewidth=1.4, zorder=2.5)
    arrow: dict[str, Any] = {"color": look.colour, "markersize": 4, "linestyle": "", "clip_on": False, "zorder": 3}
    if mark.low < axis.low:
        axes.plot([axis.low], [at], marker="<", **arrow)
    if mark.high > axis.high:
        axes.plot([axis.high], [at], marker=">", **arrow)
    if axis.low <= mark.value <= axis.high:
        face = drawing.GROUND if row.hollow else look.colour
        axes.plot([mark.value], [at], color=look.colour, marker=look.marker, markerfacecolor=face, zorder=3)
    if row.other is not None and axis.low <= row.other <= axis.high:
        axes.plot([row.other], [at], color=look.colour, marker="|", markersize=11, markeredgewidth=1.6, zorder=2)


def legend(table: str, looks: Mapping[str, Look], note: str = "") -> Markup:
    """What marks mean, once for all figures of a table; `looks`: name -> look."""
    items = [(sample(f"{table}-look-{number}", look), name) for number, (name, look) in enumerate(looks.items())]
    return render("looks.html.j2", items=items, note=note) if items or note else Markup("")


@functools.lru_cache(maxsize=256)
def sample(name: str, look: Look) -> Markup:
    """A short piece of a line with its marker."""

    def draw(sheet: Sheet) -> None:
        sheet.set_layout_engine("none")
        axes = sheet.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(-1, 1)
        axes.set_ylim(-1, 1)
        axes.plot([-0.95, 0, 0.95], [0] * 3, color=look.colour, linestyle=look.line, marker=look.marker, markevery=[1])

    return drawing.svg(name, (0.42, 0.15), draw)


def ends(things: Sequence[Thing]) -> list[Thing]:
    """The first and the last of a line, or its only one."""
    return [things[0], things[-1]] if len(things) > 1 else [things[0]]


def finite(value: float, low: float, high: float) -> bool:
    """Whether a figure and its interval can be drawn; an upper end without a bound can."""
    return math.isfinite(value) and low <= value <= high and not math.isinf(low)
