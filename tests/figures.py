"""What a figure of the reports draws, read from matplotlib's own objects."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.lines import Line2D

from draftproof.report.drawing import Later
from draftproof.report.parts import Figure


def axes_of(figure: Figure) -> Axes:
    """The axes of a figure's only panel."""
    assert isinstance(figure.svg, Later)
    sheet = Sheet()
    figure.svg.draw(sheet)
    (axes,) = sheet.axes
    return axes


def xs(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata(), dtype=float)]


def ys(line: Line2D) -> list[float]:
    return [float(y) for y in np.asarray(line.get_ydata(), dtype=float)]


def row_names(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def marked(axes: Axes) -> list[Line2D]:
    """Lines with markers: all but the rule."""
    return [line for line in axes.lines if line.get_marker() not in ("None", "", None)]
