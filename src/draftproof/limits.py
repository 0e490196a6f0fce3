"""Which rows of the thresholds concern a run's cells. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from draftproof.gate import NEEDED, TOLD
from draftproof.spec import Cell, Threshold

OF_ALL = frozenset({"pairs", "waiting_share"})
OF_NO_SD = frozenset({"throughput_drop"})
"""Metrics that say nothing of a cell with speculation."""
OF_RATIOS = frozenset({"acceptance_drop", "system_cost_rise", "stage_rise", "speedup_drop"})
OF_SPECULATION = frozenset({*TOLD, *NEEDED, "noise_width_nats"}) | OF_RATIOS
"""Metrics that say nothing of no-SD's own cells."""
OF_CHANGES = OF_NO_SD | OF_RATIOS
"""Metrics of limits on a change against a baseline (`draftproof.quantities`)."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the thresholds that some cell of the run is held against."""

    hardware: str
    row: Threshold


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of the run's hardware."""

    rows: list[Applied] = []
    """In the order of their files."""
    others: int = 0
    """Further rows there, which concern no cell of the run."""


class Judged(NamedTuple):
    """A cell, and whether it speculates."""

    cell: Cell
    speculative: bool


def applicable(cells: Sequence[Judged], thresholds: Mapping[str, list[Threshold]], asked: str = "") -> Limits:
    """The rows that concern any of the cells.

    `asked`: the hardware that the study names, whose rows are counted where no cell was run.
    """
    names = list(dict.fromkeys(one.cell.hardware for one in cells)) or [asked]
    rows = [Applied(hardware=name, row=row) for name in names for row in thresholds.get(name, [])]
    used = concerned(rows, cells)
    return Limits(rows=[rows[index] for index in sorted(used)], others=len(rows) - len(used))


def concerned(rows: Sequence[Applied], cells: Iterable[Judged]) -> dict[int, list[int]]:
    """Index of each row that counts for any cell -> indices of those cells, in their order."""
    found: dict[int, list[int]] = {}
    by_hardware: dict[str, list[int]] = {}
    for index, applied in enumerate(rows):
        by_hardware.setdefault(applied.hardware, []).append(index)
    for number, one in enumerate(cells):
        for index in rows_of(rows, by_hardware.get(one.cell.hardware, []), one):
            found.setdefault(index, []).append(number)
    return found


def rows_of(rows: Sequence[Applied], indices: Sequence[int], one: Judged) -> list[int]:
    """Which of these rows count for a cell.

    Floors of a speedup count all; of another metric only the last gating row that covers the cell, as `gate.limit_of`
    takes it. Rows that inform count beside it.
    """
    wanted = OF_ALL | (OF_SPECULATION if one.speculative else OF_NO_SD)
    found: list[int] = []
    last: dict[str, int] = {}
    for index in indices:
        row = rows[index].row
        if row.metric in wanted and row.covers(one.cell):
            if row.metric in TOLD or not row.gating:
                found.append(index)
            else:
                last[row.metric] = index
    return sorted([*found, *last.values()])
