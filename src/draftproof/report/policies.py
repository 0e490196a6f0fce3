"""Simulated speedups of one variant's policies over batch sizes: a panel of Figures 10 and 12 of arXiv 2601.11580."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftproof.report.drawing import INK, MARKERS, Look, look
from draftproof.report.panels import Line, Mark
from draftproof.simulator.output import label
from draftproof.simulator.simulate import Cell

PALE = ("-.", ":", "--")
"""Lines of policies that have no look of their own: the user's, schedules, routers."""


def lines(cells: Iterable[Cell], bound: Iterable[Cell] = ()) -> list[Line]:
    """A line for each policy, as they come; `bound`: the corrected one, where other rules are drawn."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(label(cell), []).append(cell)
    found = [line(name, group, number) for number, (name, group) in enumerate(groups.items())]
    dashed = [*bound]
    if dashed:
        how = Look(colour=INK["fg"], marker="", line="--")
        found.append(Line(name="corrected bound", look=how, marks=marks(dashed), thin=True))
    return found


def line(name: str, cells: Sequence[Cell], number: int) -> Line:
    """Fixed k in the variant's colour, the oracle in that of the measured one, the bound in ink, others pale."""
    policy, variant = cells[0].policy, cells[0].variant
    if policy == "fixed":
        how = Look(colour=look(variant).colour, marker=MARKERS[number % len(MARKERS)], line="-")
    elif policy == "oracle":
        how = Look(colour=look("oracle").colour, marker=MARKERS[number % len(MARKERS)], line=":")
    elif policy == "bound":
        how = Look(colour=INK["fg"], marker="", line="-")
    else:
        how = Look(colour=INK["soft"], marker=MARKERS[number % len(MARKERS)], line=PALE[number % len(PALE)])
    return Line(name=name, look=how, marks=marks(cells), thin=True)


def marks(cells: Iterable[Cell]) -> list[Mark]:
    """Computed figures have no interval."""
    ordered = sorted(cells, key=lambda cell: cell.batch_size)
    return [Mark(batch_size=c.batch_size, value=c.speedup, low=c.speedup, high=c.speedup) for c in ordered]
