"""One drawing per data set, like Figures 10 and 12 of arXiv 2601.11580: speedup by batch size, a panel per variant."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from matplotlib.figure import Figure as Sheet

from draftproof.report import drawing
from draftproof.report.panels import KEY_ROW, Axis, Line, axis_end, lines_on, names_below
from draftproof.report.policies import lines
from draftproof.simulator.simulate import Cell

PANEL_WIDTH, PANEL_HEIGHT = 3.4, 3.3
"""Inches."""


def draw(dataset: str, cells: list[Cell], corrected_bound: list[Cell]) -> str:
    """An SVG document. The corrected bound is the dashed line, beside the cells that were asked for.

    Each line is a group whose ``title`` tells its figures.
    """
    variants = list(dict.fromkeys(cell.variant for cell in cells))
    sizes = sorted({cell.batch_size for cell in [*cells, *corrected_bound]})
    top = axis_end((cell.speedup, cell.speedup) for cell in [*cells, *corrected_bound])
    shown = {
        variant: lines(
            [cell for cell in cells if cell.variant == variant],
            [cell for cell in corrected_bound if cell.variant == variant],
        )
        for variant in variants
    }
    told: dict[str, str] = {}

    def fill(sheet: Sheet) -> None:
        sheet.suptitle(f"{dataset}, rules {cells[0].rules}", fontsize=10)
        row = sheet.subplots(1, len(shown), squeeze=False, sharey=True)[0]
        for column, (axes, (variant, drawn)) in enumerate(zip(row, shown.items(), strict=True)):
            axis = Axis(title="" if column else "speedup (x)", low=0.0, high=top, rule=1.0)
            for number, (line, made) in enumerate(zip(drawn, lines_on(axes, drawn, sizes, axis), strict=True)):
                made.set(gid=f"line-{column}-{number}", label=line.name)
                told[f"line-{column}-{number}"] = f"{variant}, {line.name}: {figures(line)}"
            axes.set_title(variant)
            names_below(axes)

    most = max(len(drawn) for drawn in shown.values())
    size = (PANEL_WIDTH * len(shown) + 0.3, PANEL_HEIGHT + KEY_ROW * ((most + 1) // 2))
    text = drawing.document(f"{dataset}: simulated speedup by batch size", size, fill)
    return re.sub(
        r'(<g id="(line-\d+-\d+)">)', lambda found: f"{found[1]}<title>{escape(told[found[2]])}</title>", text
    )


def figures(line: Line) -> str:
    return ", ".join(f"{mark.value:.3f} at batch size {mark.batch_size}" for mark in line.marks)
