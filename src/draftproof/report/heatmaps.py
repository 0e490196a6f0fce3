"""Maps of acceptance, prompts by position in the output: of a variant, and of one less another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from draftproof.analysis.anatomy import Anatomy, Heat, HeatDifference
from draftproof.anatomy import PairDifference
from draftproof.report import view
from draftproof.report.drawing import INK, Later
from draftproof.report.marks import note, rectangles, span, unit_of, unit_title
from draftproof.report.panels import legend
from draftproof.report.parts import Figure, Table
from draftproof.report.room import drawn
from draftproof.results import CellResult, RunResults

SEQUENTIAL = "viridis"
FIRST, SECOND = "#2a78c2", "#d9660f"
"""Poles of a difference: blue where the first emits more, orange where the second does. Both stand out on a light page
and on a dark one; between them the colour thins out, so that no difference is the page's own ground."""
ENDED: dict[str, Any] = {"facecolor": INK["line"], "edgecolor": "none"}
"""Where the output had ended."""


def diverging() -> Colormap:
    ends = [(*to_rgb(SECOND), 1.0), (*to_rgb(SECOND), 0.0), (*to_rgb(FIRST), 0.0), (*to_rgb(FIRST), 1.0)]
    stops = [0.0, 0.5, 0.5, 1.0]
    return LinearSegmentedColormap.from_list("difference", list(zip(stops, ends, strict=True)), N=128)


def table_of(results: RunResults, shown: Sequence[tuple[CellResult, Anatomy]]) -> Table:
    """One map a variant and workload: of the batch size with the most prompts."""
    body = []
    for cell, found in shown:
        heat = found.heat
        if heat is not None:
            values = [value for row in heat.values for value in row]
            size = [str(len(heat.prompts)), str(heat.left_out), str(heat.tokens_per_bin)]
            low, middle, high = np.quantile(values, (0, 0.5, 1))
            body.append([*view.name(results, cell), *size, f"{low:.2f} / {middle:.2f} / {high:.2f}"])
    figures, meaning = figures_of(results, shown)
    return Table(
        name="maps",
        title="Tokens per step, prompt by prompt along the output",
        note="A row a prompt, all runs of it added; bins of so many tokens, at most 64 by 64. The map of every cell is "
        "in summary.json.",
        head=["variant", "workload", "B", "prompts", "left out", "tokens a bin", "bins: least / median / most"],
        body=body,
        names=2,
        figures=figures,
        legend=meaning,
    )


def largest(shown: Sequence[tuple[CellResult, Anatomy]]) -> list[tuple[CellResult, Anatomy]]:
    """Of each target, variant, workload and build the least batch size of those with the most prompts in its map."""
    best: dict[tuple[str, str, str, str], tuple[CellResult, Anatomy]] = {}
    for cell, found in sorted(shown, key=lambda pair: pair[0].cell.batch_size):
        if found.heat is not None:
            what = cell.cell
            where = (what.target, what.workload, what.variant, cell.build)
            other = best[where][1].heat if where in best else None
            if other is None or len(found.heat.prompts) > len(other.prompts):
                best[where] = (cell, found)
    chosen = {(cell.cell.id, cell.build) for cell, _ in best.values()}
    return [pair for pair in shown if (pair[0].cell.id, pair[0].build) in chosen]


def figures_of(results: RunResults, shown: Sequence[tuple[CellResult, Anatomy]]) -> tuple[list[Figure], Markup]:
    chosen = largest(shown)
    some, left_out = drawn(chosen, "maps")
    heats = [(cell, found.heat) for cell, found in some if found.heat is not None]
    top = max((value for _, heat in heats for row in heat.values for value in row), default=1.0)
    figures = [
        Figure(
            title=f"{cell.cell.variant}, {unit_title(results, unit_of(cell))}",
            description=f"Map of tokens per step: {size_words(heat)}; "
            f"{span(value for row in heat.values for value in row)}.",
            svg=Later(f"maps-{number}", (4.6, 2.7), partial(draw_heat, heat.values, heat.tokens_per_bin, top)),
        )
        for number, (cell, heat) in enumerate(heats)
    ]
    meaning = (
        "One colour scale for all: 1 (no draft accepted) to the most that a bin has. Of a variant's batch sizes the "
        "one with most prompts is drawn. Prompts are in the same order in every map. Grey: the output had ended."
    )
    return figures, legend("maps", {}, note(meaning, left_out))


def difference_figures(results: RunResults, pairs: Sequence[PairDifference]) -> tuple[list[Figure], Markup]:
    cells = results.cells_by_id
    ranked = sorted(pairs, key=lambda pair: -len(pair.map.prompts))  # most prompts first; else in the table's order
    some, left_out = drawn(ranked, "maps")
    top = max((abs(value) for pair in some for row in pair.map.values for value in row), default=1.0) or 1.0
    figures = []
    for number, pair in enumerate(some):
        first, second = cells[pair.first, pair.build], cells[pair.second, pair.build]
        names = first.cell.variant, second.cell.variant
        values, width = pair.map.values, pair.map.tokens_per_bin
        figures.append(
            Figure(
                title=f"{names[0]} less {names[1]}, {unit_title(results, unit_of(first))}",
                description=f"Map of the difference in tokens per step: {size_words(pair.map)}; "
                f"{span((value for row in values for value in row), '+.2f')}. "
                f"{names[0]} emits more in {100 * pair.map.longer:.0f} % of all bins, {names[1]} in "
                f"{100 * pair.map.shorter:.0f} %.",
                svg=Later(f"differences-{number}", (4.6, 2.7), partial(draw_difference, values, width, top)),
            )
        )
    meaning = (
        "Blue: the first emits more tokens a step there, orange: the second; the ground of the page: no difference. "
        "Grey: one of the two outputs had ended. Maps with the most prompts come first; one colour scale for all."
    )
    return figures, legend("differences", {}, note(meaning, left_out))


def size_words(found: Heat | HeatDifference) -> str:
    return f"{len(found.prompts)} prompts down, position in the output across in bins of {found.tokens_per_bin} tokens"


def squared(values: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Rows of unlike length as one array; NaN where there is nothing."""
    width = max(map(len, values), default=0)
    return np.array([[*row, *[np.nan] * (width - len(row))] for row in values], dtype=np.float64)


def draw_heat(values: Sequence[Sequence[float]], tokens_per_bin: int, top: float, sheet: Sheet) -> None:
    draw(sheet, values, tokens_per_bin, "tokens per step", cmap=SEQUENTIAL, vmin=1.0, vmax=max(top, 1.01))


def draw_difference(values: Sequence[Sequence[float]], tokens_per_bin: int, top: float, sheet: Sheet) -> None:
    draw(sheet, values, tokens_per_bin, "difference (tokens per step)", cmap=diverging(), vmin=-top, vmax=top)


def draw(sheet: Sheet, values: Sequence[Sequence[float]], tokens_per_bin: int, title: str, **colours: Any) -> None:
    """The first token comes from the prefill: the first bin begins with the second."""
    axes: Axes = sheet.subplots()
    found = squared(values)
    rows, bins = found.shape
    edges = (1.5, 1.5 + bins * tokens_per_bin, rows + 0.5, 0.5)
    image = axes.imshow(found, aspect="auto", interpolation="none", extent=edges, **colours)
    ended = [
        (1.5 + len(row) * tokens_per_bin, place - 0.5, (bins - len(row)) * tokens_per_bin, 1.0)
        for place, row in enumerate(values, start=1)
    ]
    rectangles(axes, ended, **ENDED)
    axes.grid(visible=False)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
    axes.set_xlabel("position in the output (token)")
    axes.set_ylabel("prompt")
    sheet.colorbar(image, ax=axes, label=title, pad=0.02)
