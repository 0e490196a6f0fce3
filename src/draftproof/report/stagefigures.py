"""Figures of stage times: bars of their shares, expected against measured speedups, what rows cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from draftproof.analysis.rowsprice import Interval, RowsPrice
from draftproof.analysis.stages import StageSums
from draftproof.analysis.stats import Ratio
from draftproof.report import panels, view
from draftproof.report.drawing import INK, MARKERS, Later, Look
from draftproof.report.marks import FAINT, intervals, looks_of, note, rectangles, span, zero_to
from draftproof.report.panels import named
from draftproof.report.parts import Figure
from draftproof.report.room import drawn
from draftproof.results import RunResults
from draftproof.stagefindings import Explained, TargetPrices

DECODE = "the decode steps' time"
MOST_BARS = 48
"""Of one panel."""
MOST_POINTS = 120
"""Cells of one panel."""
LABEL_SHARE = 0.055
"""Of the axis: height of a line's name."""
ROW_IN = 0.17
"""Height of a bar with its gap, in inches."""

VERIFY, HEAD, UNATTRIBUTED = "verify", "LM head (in verify)", "unattributed (in overhead)"
STAGE_LOOKS: dict[str, dict[str, Any]] = {
    "draft": {"facecolor": INK["t0"]},
    VERIFY: {"facecolor": INK["t1"]},
    HEAD: {"facecolor": INK["t1"], "hatch": "////"},
    "sample": {"facecolor": INK["t2"]},
    "overhead": {"facecolor": INK["t3"]},
    UNATTRIBUTED: {"facecolor": INK["t3"], "hatch": "xxxx"},
}
"""Part of a bar -> how it is filled, in the order in which they are stacked; hatches are of the page's ground."""


class Bar(NamedTuple):
    batch_size: int
    name: str
    parts: Mapping[str, float]
    """Shares by part, of those in `STAGE_LOOKS`; they add up to 1."""
    step_s: float | None
    """Mean seconds of a decode step."""


def parts_of(sums: StageSums) -> dict[str, float]:
    """Shares of the decode steps' time by part, in the order of `STAGE_LOOKS`; they add up to 1."""
    found = sums.shares()
    head = min(found["verify"], sums.lm_head_s / sums.decode_s)
    rest = min(max(0.0, sums.unattributed_share or 0.0), found["overhead"])
    return {
        "draft": found["draft"],
        VERIFY: found["verify"] - head,
        HEAD: head,
        "sample": found["sample"],
        "overhead": found["overhead"] - rest,
        UNATTRIBUTED: rest,
    }


def share_figures(results: RunResults) -> tuple[list[Figure], Markup]:
    """A panel for each workload, target and build; bars by batch size, no speculation included."""
    groups: dict[tuple[str, str, str], list[Bar]] = {}
    for cell in sorted(results.cells, key=view.place(results)):
        if cell.stages is not None and cell.stages.decode_s > 0:
            what = cell.cell
            sums = cell.stages
            bar = Bar(what.batch_size, what.variant, parts_of(sums), sums.decode_s / sums.decode_steps)
            groups.setdefault((what.target, what.workload, cell.build), []).append(bar)
    shown, left_out = drawn([*groups.items()])
    figures = [
        share_figure(results.full_name(workload, target, build), f"shares-{number}", bars)
        for number, ((target, workload, build), bars) in enumerate(shown)
    ]
    meaning = "Each bar is the time of a cell's decode steps, split into stages; beside it milliseconds a step."
    return figures, panels.legend("shares", {}, note(meaning, left_out))


def share_figure(title: str, name: str, bars: list[Bar]) -> Figure:
    shown, left_out = drawn(sorted(bars, key=lambda bar: bar.batch_size), "bars", MOST_BARS)
    return Figure(
        title=title,
        description=share_words(shown) + (f" {left_out}" if left_out else ""),
        svg=stacked(name, shown),
    )


def stacked(name: str, bars: Sequence[Bar], of: str = DECODE) -> Later:
    """A bar a row, with a line above those of each batch size; `bars` by batch size. `of`: what is split."""
    groups: dict[int, list[Bar]] = {}
    for bar in bars:
        groups.setdefault(bar.batch_size, []).append(bar)
    height = ROW_IN * (len(bars) + 1.4 * len(groups)) + 0.9
    return Later(name, (4.6, height), partial(draw_shares, groups, of=of))


def share_words(bars: Iterable[Bar], of: str = DECODE) -> str:
    """Least and largest share of each part; `of`: what is split."""
    parts = [bar.parts for bar in bars]
    told = [
        f"{part} {span((100 * found.get(part, 0) for found in parts), '.1f', ' %')}"
        for part in STAGE_LOOKS
        if any(found.get(part, 0) > 0 for found in parts)
    ]
    return f"Shares of {of} in {len(parts)} stacked bars, from 0 to 1: {'; '.join(told)}."


def draw_shares(groups: dict[int, list[Bar]], sheet: Sheet, of: str) -> None:
    axes = sheet.subplots()
    ticks: dict[float, str] = {}
    boxes: dict[str, list[tuple[float, float, float, float]]] = {part: [] for part in STAGE_LOOKS}
    height = 0.0
    for batch_size, bars in groups.items():
        height -= 1.4
        axes.text(0, height + 0.5, f"B = {batch_size}", va="bottom", fontweight="bold", fontsize=8)
        for bar in bars:
            left = 0.0
            for part, share in bar.parts.items():
                boxes[part].append((left, height - 0.4, share, 0.8))
                left += share
            if bar.step_s is not None:
                told = f"{1000 * bar.step_s:.1f} ms"
                axes.text(1.015, height, told, va="center", color=INK["soft"], fontsize=7.5)
            ticks[height] = named(bar.name)
            height -= 1.0
    for part, how in STAGE_LOOKS.items():
        rectangles(axes, boxes[part], edgecolor=INK["bg"], linewidth=0.6, **how)
    axes.set_xlim(0, 1)
    axes.set_ylim(height + 0.3, 0)
    axes.set_yticks([*ticks], [*ticks.values()], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.set_xlabel(f"share of {of}")
    handles = [
        Patch(label=part, edgecolor=INK["bg"], linewidth=0.6, **how)
        for part, how in STAGE_LOOKS.items()
        if any(box[2] > 0 for box in boxes[part])
    ]
    sheet.legend(handles=handles, loc="outside upper left", ncols=3, handlelength=1.4, columnspacing=1.0, fontsize=8)


# --- expected and measured speedup ------------------------------------------------------------------------------------

MODELS = {
    "Eq. 1": "iid",
    "measured tokens and v": "measured_positions",
    "whole steps": "whole_step",
}
"""Title of an estimate -> its field."""


class Met(NamedTuple):
    """A cell's expected and measured speedup."""

    variant: str
    expected: float
    speedup: Ratio


def explained_figures(results: RunResults) -> tuple[list[Figure], Markup]:
    """A panel for each estimate: the nearer to the diagonal, the more it explains."""
    known = [one for one in results.stage_findings.explained if one.speedup is not None]
    if not known:
        return [], Markup("")
    found, left_out = drawn(known, "cells", MOST_POINTS)
    looks = looks_of(results, (one.variant for one in found))
    top = 1.15 * max(max(one.speedup.value if one.speedup else 0, *estimates(one)) for one in found)
    figures = []
    for number, (title, field) in enumerate(MODELS.items()):
        points = [Met(one.variant, getattr(one.expected, field), one.speedup) for one in found if one.speedup]
        figures.append(
            Figure(
                title=f"Measured speedup against {title}",
                description=met_words(title, points),
                svg=Later(f"expected-{number}", (4.0, 3.9), partial(draw_met, points, looks, title, top)),
            )
        )
    meaning = (
        "A point for each variant, workload and batch size; bars: 95 % intervals of the measured speedup. On the "
        "dashed line both are equal; above it the cell is faster than the estimate, below it slower."
    )
    return figures, panels.legend("expected", looks, note(meaning, left_out))


def estimates(one: Explained) -> list[float]:
    return [getattr(one.expected, field) for field in MODELS.values()]


def met_words(title: str, points: list[Met]) -> str:
    inside = sum(one.speedup.low <= one.expected <= one.speedup.high for one in points)
    return (
        f"{len(points)} cells: expected by {title} {span(one.expected for one in points)}, measured "
        f"{span(one.speedup.value for one in points)}, both in times of no speculation; {inside} of {len(points)} "
        "expected figures lie within the interval of the measured one."
    )


def draw_met(points: list[Met], looks: Mapping[str, Look], title: str, top: float, sheet: Sheet) -> None:
    axes = sheet.subplots()
    axes.plot([0, top], [0, top], **FAINT)
    variants: dict[str, list[Met]] = {}
    for one in points:
        variants.setdefault(one.variant, []).append(one)
    for variant, own in variants.items():
        where = [one.expected for one in own]
        intervals(axes, where, [one.speedup for one in own], looks[variant], line=False)
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    axes.set_aspect("equal")
    axes.set_xlabel(f"expected speedup by {title} (x)")
    axes.set_ylabel("measured speedup (x)")


# --- the price of rows ------------------------------------------------------------------------------------------------


def price_figures(results: RunResults) -> tuple[list[Figure], Markup]:
    """Two panels for each target and build: milliseconds, and times one row."""
    found = results.stage_findings.prices
    several = [len({one.target for one in found}) > 1, len({one.build for one in found}) > 1]
    shown, left_out = drawn(found, "targets", 4)
    figures = []
    for number, one in enumerate(shown):
        told = [name for name, tell in zip((one.target, f"{one.build} build"), several, strict=True) if tell]
        where = f" ({', '.join(told)})" if told else ""
        curves = curves_of(one)
        figures.append(
            Figure(
                title=f"Verify time by rows a request{where}",
                description=price_words(curves),
                svg=Later(f"row-prices-{number}", (4.4, 3.2), partial(draw_prices, curves)),
            )
        )
        relative = {size: [price for price in prices if price.relative] for size, prices in curves.items()}
        relative = {size: prices for size, prices in relative.items() if len(prices) > 1}
        if relative:
            figures.append(
                Figure(
                    title=f"The same over one row{where}",
                    description=relative_words(relative),
                    svg=Later(f"row-prices-{number}-over-one", (4.4, 3.2), partial(draw_relative, relative)),
                )
            )
    meaning = (
        "One curve for each batch size, median and 95 % interval. Over one row: at the line that is level further rows "
        "are free, at the slanted one each costs as much as the first."
    )
    return figures, panels.legend("row-prices", {}, note(meaning, left_out))


def curves_of(found: TargetPrices) -> dict[int, list[RowsPrice]]:
    curves: dict[int, list[RowsPrice]] = {}
    for price in found.prices:
        curves.setdefault(price.batch_size, []).append(price)
    return curves


def price_words(curves: dict[int, list[RowsPrice]]) -> str:
    told = [
        f"batch size {size}, {span((price.rows for price in prices), 'd')} rows: "
        f"{span((1000 * price.verify_s.value for price in prices), '.2f', ' ms')}"
        for size, prices in curves.items()
    ]
    return f"Median verify time; {'; '.join(told)}."


def relative_words(curves: dict[int, list[RowsPrice]]) -> str:
    told = []
    for size, prices in curves.items():
        last = prices[-1]
        if last.relative:
            told.append(f"batch size {size}: {last.rows} rows take {last.relative.value:.2f} times as long as one")
    return f"Median verify time over that of one row a request; {'; '.join(told)}."


def draw_curves(axes: Axes, curves: dict[int, list[tuple[int, Interval]]]) -> None:
    """A line for each batch size, its name at its end."""
    ends = {}
    for number, (size, points) in enumerate(curves.items()):
        how = Look(colour=INK["fg"], marker=MARKERS[number % len(MARKERS)], line="-")
        places, found = zip(*points, strict=True)
        intervals(axes, places, found, how, linewidth=1.0)
        ends[size] = (places[-1], found[-1].value)
    apart = LABEL_SHARE * max(found.high for points in curves.values() for _, found in points)
    height = -apart
    for size, (place, value) in sorted(ends.items(), key=lambda end: end[1][1]):
        height = max(value, height + apart)
        name: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(f"B = {size}", (place, height), (6, 0), annotation_clip=False, **name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)
    axes.set_xlabel("rows a request (drafts and one more)")


def milliseconds(found: Interval) -> Interval:
    return Interval(1000 * found.value, 1000 * found.low, 1000 * found.high)


def draw_prices(curves: dict[int, list[RowsPrice]], sheet: Sheet) -> None:
    axes = sheet.subplots()
    ms = {size: [(price.rows, milliseconds(price.verify_s)) for price in prices] for size, prices in curves.items()}
    draw_curves(axes, ms)
    zero_to(axes, max(found.high for points in ms.values() for _, found in points))
    axes.set_ylabel("verify time (ms)")


def draw_relative(curves: dict[int, list[RowsPrice]], sheet: Sheet) -> None:
    axes = sheet.subplots()
    times = {size: [(p.rows, p.relative) for p in prices if p.relative] for size, prices in curves.items()}
    most = max(rows for points in times.values() for rows, _ in points)
    axes.plot([1, most], [1, 1], **FAINT)
    axes.plot([1, most], [1, most], **FAINT)
    draw_curves(axes, times)
    zero_to(axes, max(most, *[found.high for points in times.values() for _, found in points]))
    axes.set_ylabel("verify time over one row (x)")
