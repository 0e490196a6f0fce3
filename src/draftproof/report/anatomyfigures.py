"""Figures of acceptance: by request, by place in the draft, by position in the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from draftproof.analysis.anatomy import QUANTILES, Anatomy, Box
from draftproof.analysis.stats import Ratio, Share
from draftproof.report.drawing import INK, Later, Look
from draftproof.report.marks import (
    Unit,
    intervals,
    looks_of,
    note,
    span,
    unit_of,
    unit_title,
    zero_to,
)
from draftproof.report.panels import legend, named, share_axis
from draftproof.report.parts import Figure
from draftproof.report.room import LINES, LINES_CUT, drawn
from draftproof.results import CellResult, RunResults


class Line(NamedTuple):
    """A variant in a panel."""

    variant: str
    look: Look
    anatomy: Anatomy


Panels = dict[Unit, list[Line]]


def panels_of(results: RunResults, shown: Sequence[tuple[CellResult, Anatomy]]) -> tuple[Panels, str]:
    """The variants of each target, workload, batch size and build; and what is not drawn."""
    units: dict[Unit, list[tuple[CellResult, Anatomy]]] = {}
    for cell, found in shown:
        units.setdefault(unit_of(cell), []).append((cell, found))
    some, left_out = drawn([*units.items()])
    panels = {}
    for unit, cells in some:
        looks = looks_of(results, (cell.cell.variant for cell, _ in cells))
        panels[unit] = [Line(cell.cell.variant, looks[cell.cell.variant], found) for cell, found in cells[:LINES]]
    cut = LINES_CUT if any(len(cells) > LINES for _, cells in some) else ""
    return panels, note(left_out, cut)


def whole_places(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))


# --- by request -------------------------------------------------------------------------------------------------------


class Boxes(NamedTuple):
    """One column of a panel."""

    title: str
    box: Callable[[Anatomy], Box | None]
    mean: Callable[[Anatomy], Ratio | None]


COLUMNS = (
    Boxes("acceptance length", lambda a: a.acceptance_length_box, lambda a: a.acceptance_length),
    Boxes("tokens per step", lambda a: a.tokens_per_step_box, lambda a: a.tokens_per_step),
)


def request_figures(results: RunResults, shown: Sequence[tuple[CellResult, Anatomy]]) -> tuple[list[Figure], Markup]:
    panels, left_out = panels_of(results, shown)
    figures = [
        Figure(
            title=unit_title(results, unit),
            description=box_words(lines),
            svg=Later(f"by-request-{number}", (4.6, 0.95 + 0.27 * len(lines)), partial(draw_boxes, lines)),
        )
        for number, (unit, lines) in enumerate(panels.items())
        if any(column.box(line.anatomy) for line in lines for column in COLUMNS)
    ]
    levels = ", ".join(f"{100 * level:.0f}" for level in QUANTILES)
    meaning = (
        f"Box and whiskers: {levels} % of the prompts lie below their marks. Point and thick bar: all prompts together "
        "and the 95 % interval. Acceptance length counts drafted steps only and is no measure across variants."
    )
    return figures, legend("by-request", {}, note(meaning, left_out))


def box_words(lines: Sequence[Line]) -> str:
    told = []
    for column in COLUMNS:
        boxes = [(line.variant, column.box(line.anatomy)) for line in lines]
        some = [
            f"{variant} median {box.quantiles[2]:.2f}, 5 to 95 % {box.quantiles[0]:.2f} to {box.quantiles[4]:.2f}"
            for variant, box in boxes
            if box
        ]
        told += [f"{column.title[0].upper()}{column.title[1:]} by prompt: {'; '.join(some)}."] if some else []
    return " ".join(told)


def draw_boxes(lines: Sequence[Line], sheet: Sheet) -> None:
    """A row for each variant, a column for each figure; both begin at 1, which is no draft accepted."""
    for axes, column in zip(sheet.subplots(1, 2, sharey=True), COLUMNS, strict=True):
        top = 1.0
        for row, line in enumerate(lines):
            box, mean = column.box(line.anatomy), column.mean(line.anatomy)
            if box:
                top = max(top, *box.quantiles)
                draw_box(axes, row, box.quantiles, line.look.colour)
            if mean:
                top = max(top, mean.high)
                axes.plot([mean.low, mean.high], [row, row], color=INK["fg"], linewidth=2.0, solid_capstyle="butt")
                axes.plot([mean.value], [row], color=INK["fg"], marker=line.look.marker, markersize=4)
        from_one(axes, top)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_yticks(range(len(lines)), [named(line.variant, 16) for line in lines])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_axisbelow(True)
        axes.set_xlabel(f"{column.title} (tokens)")


def from_one(axes: Axes, top: float) -> None:
    """A horizontal axis from 1 to a little above `top`, at most five numbers on it."""
    end = 1 + 1.05 * (top - 1) if top > 1 else 2.0
    step = next((step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10) if (end - 1) / step < 5), (end - 1) / 4)
    ticks = [1 + step * number for number in range(int((end - 1) / step) + 1)]
    axes.set_xlim(1, end)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def draw_box(axes: Axes, row: int, quantiles: Sequence[float], colour: str) -> None:
    low, first, median, third, high = quantiles
    up, down, short, long = row - 0.28, row + 0.28, row - 0.14, row + 0.14
    lines: list[list[tuple[float, float]]] = [
        [(first, up), (third, up), (third, down), (first, down), (first, up)],
        [(low, row), (first, row)],
        [(third, row), (high, row)],
        [(low, short), (low, long)],
        [(high, short), (high, long)],
    ]
    outline = Path.make_compound_path(*[Path(line) for line in lines])
    axes.add_patch(PathPatch(outline, fill=False, edgecolor=colour, linewidth=1.1, zorder=2))
    axes.plot([median, median], [up, down], color=colour, linewidth=2.2)


# --- by place in the draft --------------------------------------------------------------------------------------------


def draft_figures(results: RunResults, shown: Sequence[tuple[CellResult, Anatomy]]) -> tuple[list[Figure], Markup]:
    panels, left_out = panels_of(results, [(cell, found) for cell, found in shown if found.survival])
    figures = [
        Figure(
            title=unit_title(results, unit),
            description=place_words(lines),
            svg=Later(f"by-place-{number}", (4.6, 2.9), partial(draw_places, lines)),
        )
        for number, (unit, lines) in enumerate(panels.items())
    ]
    looks = {line.variant: line.look for lines in panels.values() for line in lines}
    return figures, legend("by-place", looks, note("Points with 95 % intervals; dashed: controls.", left_out))


def place_words(lines: Sequence[Line]) -> str:
    survivals = [f"{line.variant} {ends([*line.anatomy.survival])}" for line in lines]
    conditionals = [f"{line.variant} {ends(line.anatomy.conditional)}" for line in lines]
    return (
        f"Share of drafts accepted up to a place, first to last place: {'; '.join(survivals)}. Of those that came so "
        f"far: {'; '.join(conditionals)}."
    )


def ends(shares: Sequence[Share | None]) -> str:
    known = [share for share in shares if share]
    return f"{known[0].value:.2f} to {known[-1].value:.2f} in {len(known)} places" if known else "nothing"


def draw_places(lines: Sequence[Line], sheet: Sheet) -> None:
    left, right = sheet.subplots(1, 2, sharey=True)
    shares: tuple[tuple[Axes, str, Callable[[Anatomy], Sequence[Share | None]]], ...] = (
        (left, "survival", lambda anatomy: anatomy.survival),
        (right, "conditional", lambda anatomy: anatomy.conditional),
    )
    for axes, title, read in shares:
        for number, line in enumerate(lines):
            points = [(place, share) for place, share in enumerate(read(line.anatomy), start=1) if share]
            aside = 0.035 * (number - (len(lines) - 1) / 2)
            where = [place + aside for place, _ in points]
            intervals(axes, where, [share for _, share in points], line.look, clip_on=False)
        axes.set_title(title)
        axes.set_xlabel("place in the draft")
        whole_places(axes)
    share_axis(left, "share accepted")


# --- by position in the output ----------------------------------------------------------------------------------------

Tenths = Mapping[str, tuple[Look, Sequence[Ratio | None]]]
"""Variant -> its look and tokens per step in each tenth."""
Places = dict[tuple[Unit, int, int], dict[str, Sequence[Ratio | None]]]
"""(Unit, least and most tokens) -> variant -> tokens per step in each tenth."""


def output_figures(results: RunResults, shown: Sequence[tuple[CellResult, Anatomy]]) -> tuple[list[Figure], Markup]:
    """A panel for each unit and group of output lengths."""
    panels: Places = {}
    for cell, found in shown:
        for group in found.lengths:
            if any(group.deciles):
                lines = panels.setdefault((unit_of(cell), group.least_tokens, group.most_tokens), {})
                lines[cell.cell.variant] = group.deciles
    some, left_out = drawn([*panels.items()])
    cut = LINES_CUT if any(len(lines) > LINES for _, lines in some) else ""
    some = [(place, dict([*lines.items()][:LINES])) for place, lines in some]
    looks = looks_of(results, (variant for _, cells in some for variant in cells))
    ratios = (ratio for _, cells in some for tenths in cells.values() for ratio in tenths)
    top = max((ratio.value for ratio in ratios if ratio), default=1)
    figures = []
    for number, ((unit, least, most), cells) in enumerate(some):
        curves = {variant: (looks[variant], tenths) for variant, tenths in cells.items()}
        length = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        figures.append(
            Figure(
                title=f"{unit_title(results, unit)}, outputs of {length} tokens",
                description=tenth_words(curves),
                svg=Later(f"by-position-{number}", (4.6, 2.9), partial(draw_tenths, curves, top)),
            )
        )
    meaning = "Points with 95 % intervals, which may leave the frame; dashed: controls. 1: no draft accepted."
    return figures, legend("by-position", looks, note(meaning, left_out, cut))


def tenth_words(lines: Tenths) -> str:
    told = []
    for variant, (_, tenths) in lines.items():
        values = [ratio.value for ratio in tenths if ratio]
        told.append(f"{variant} {values[0]:.2f} at the beginning, {values[-1]:.2f} at the end, {span(values)} in all")
    return f"Tokens per step in each tenth of the output: {'; '.join(told)}."


def draw_tenths(lines: Tenths, top: float, sheet: Sheet) -> None:
    axes = sheet.subplots()
    for number, (look, tenths) in enumerate(lines.values()):
        points = [(10 * tenth + 5, ratio) for tenth, ratio in enumerate(tenths) if ratio]
        aside = 0.5 * (number - (len(lines) - 1) / 2)
        intervals(axes, [place + aside for place, _ in points], [ratio for _, ratio in points], look)
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("position in the output (%)")
    zero_to(axes, 1.1 * top)
    axes.set_ylabel("tokens per step")
