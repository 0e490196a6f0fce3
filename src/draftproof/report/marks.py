"""What the figures of several sections have in common: intervals, rectangles, looks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Bbox, BboxTransformTo

from draftproof.report import determinism
from draftproof.report.drawing import INK, Look, look
from draftproof.report.words import Interval
from draftproof.results import CellResult, RunResults


class Unit(NamedTuple):
    """Cells that a figure may show together."""

    target: str
    workload: str
    batch_size: int
    build: str


def unit_of(cell: CellResult) -> Unit:
    what = cell.cell
    return Unit(what.target, what.workload, what.batch_size, cell.build)


def unit_title(results: RunResults, unit: Unit) -> str:
    name, size = determinism.unit_name(results, *unit)
    return f"{name}, batch size {size}"


def looks_of(results: RunResults, variants: Iterable[str]) -> dict[str, Look]:
    """Variant -> look, controls last."""
    ordered = sorted(dict.fromkeys(variants), key=results.controls.__contains__)
    return {variant: look(variant, control=variant in results.controls) for variant in ordered}


def note(*sentences: str) -> str:
    """What the marks of a table's figures mean, and what is not drawn."""
    return " ".join(sentence for sentence in sentences if sentence)


def intervals(
    axes: Axes, places: Iterable[float], found: Iterable[Interval], how: Look, *, line: bool = True, **style: Any
) -> PathPatch | None:
    """Points with their intervals as bars, joined by a line unless they are not one curve. Gives the bars."""
    points = [*zip(places, found, strict=True)]
    if not points:
        return None
    ends = [Path([(place, one.low), (place, one.high)]) for place, one in points]
    bars = PathPatch(Path.make_compound_path(*ends), fill=False, edgecolor=how.colour, linewidth=1.0, zorder=2)
    axes.add_patch(bars)
    axes.plot(
        [place for place, _ in points],
        [one.value for _, one in points],
        color=how.colour,
        marker=how.marker,
        linestyle=how.line if line else "none",
        **style,
    )
    return bars


def rectangles(axes: Axes, boxes: Iterable[tuple[float, float, float, float]], **style: Any) -> None:
    """Boxes (left, bottom, width, height) of one look, as one path: a bar chart of hundreds stays small."""
    corners = [Bbox.from_bounds(*box) for box in boxes if box[2] > 0 and box[3] > 0]
    if corners:
        paths = [Path.unit_rectangle().transformed(BboxTransformTo(corner)) for corner in corners]
        axes.add_patch(PathPatch(Path.make_compound_path(*paths), **style))


def zero_to(axes: Axes, top: float) -> None:
    """A vertical axis from 0 to a little above `top`."""
    axes.set_ylim(0, 1.05 * top if top > 0 else 1)


def span(values: Iterable[float], form: str = ".2f", unit: str = "") -> str:
    """Least and largest in words."""
    found = [*values]
    if not found:
        return "nothing"
    low, high = format(min(found), form), format(max(found), form)
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


FAINT: dict[str, Any] = {"color": INK["soft"], "linewidth": 0.9, "linestyle": (0, (3, 2))}
"""A line to hold the others against."""
