"""The figure of all speedups with their intervals."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from draftproof.metrics import ratio_text
from draftproof.report import view
from draftproof.report.parts import Page, Section
from draftproof.report.templates import render
from draftproof.results import CellResult

TICKS = (
    1.0,
    2.0,
    0.5,
    4.0,
    0.25,
    1.5,
    3.0,
    0.75,
    8.0,
    0.1,
    16.0,
    0.9,
    1.1,
    1.25,
    1.2,
    0.8,
    0.6,
    0.7,
    6.0,
    2.5,
    32.0,
    64.0,
    0.05,
    0.02,
    0.01,
    128.0,
    256.0,
)
"""Axis labels in the order of their worth; one too near to an earlier one is left out."""
ROW_PX = 38


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the plot; places in percent of the plot's width."""

    label: str
    text: str
    tone: Literal["faster", "slower", "unclear"]
    value: float
    low: float
    high: float
    low_cut: bool
    high_cut: bool


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Interval]
    ticks: list[tuple[float, str]]
    one: float
    left_out: int
    """Speculative cells that have no interval."""
    description: str

    @property
    def height(self) -> int:
        """Pixels down to the axis."""
        return ROW_PX * len(self.rows) + 8


def logarithm(value: float) -> float:
    """Natural logarithm, with the interval's ends that have none: 0 and infinity."""
    return math.log(value) if value > 0 else -math.inf


def interval_plot(cells: list[tuple[str, CellResult]]) -> Plot | None:
    """Speedups with their intervals on a logarithmic axis; one that is very wide is cut and ends in an arrow."""
    speculative = [(label, cell) for label, cell in cells if cell.arm != cell.base_arm]
    drawn = [
        (label, cell.speedup)
        for label, cell in speculative
        if cell.speedup and 0 < cell.speedup.value < math.inf and cell.speedup.low <= cell.speedup.high
    ]
    if not drawn:
        return None
    ends = [0.9, 1.1]
    for _, ratio in drawn:
        ends += [ratio.value, max(ratio.low, ratio.value / 3), min(ratio.high, ratio.value * 3)]
    low, high = math.log(min(ends)), math.log(max(ends))
    margin = 0.04 * (high - low)
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return round(3 + 94 * (min(max(logarithm(value), low), high) - low) / (high - low), 2)

    rows = []
    counts = {"faster": 0, "slower": 0, "unclear": 0}
    for label, ratio in drawn:
        tone: Literal["faster", "slower", "unclear"] = (
            "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "unclear"
        )
        counts[tone] += 1
        rows.append(
            Interval(
                label=label,
                text=ratio_text(ratio),
                tone=tone,
                value=place(ratio.value),
                low=place(ratio.low),
                high=place(ratio.high),
                low_cut=logarithm(ratio.low) < low,
                high_cut=logarithm(ratio.high) > high,
            )
        )
    ticks: list[tuple[float, str]] = []
    for tick in TICKS:
        at = place(tick)
        if low <= math.log(tick) <= high and all(abs(at - other) >= 9 for other, _ in ticks):
            ticks.append((at, f"{tick:g}"))
    description = (
        f"{len(drawn)} cells: {counts['faster']} wholly above 1.0, {counts['slower']} wholly below, "
        f"{counts['unclear']} with an interval that holds 1.0. The figures are in the table above."
    )
    return Plot(
        rows=rows, ticks=sorted(ticks), one=place(1.0), left_out=len(speculative) - len(drawn), description=description
    )


def section(page: Page) -> Section | None:
    results = page.results
    plot = interval_plot([(view.label(results, row.cell), row.cell) for row in view.rows(results)])
    if plot is None:
        return None
    return Section(id="speedups", title="Speedups", extra=render("intervals.html.j2", plot=plot, row_px=ROW_PX))
