"""Figures that others published for a cell: what the thresholds of its hardware hold as the paper's speedups."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from draftproof.gate import BY_PAPER
from draftproof.spec import Cell, Threshold


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A speedup that was published for this hardware, target, variant, workload and batch size."""

    speedup: float
    estimator: str
    source: str


def published(cell: Cell, limits: Sequence[Threshold]) -> Published | None:
    """The last row of the cell's hardware that names all four, whichever study it judges; None without one.

    A row for every target or every batch size is a limit, not somebody's figure.
    """
    found = [
        row
        for row in limits
        if row.metric == BY_PAPER
        and cell.target in row.targets
        and cell.variant in row.variants
        and cell.workload in row.workloads
        and row.batch_sizes == [cell.batch_size]
    ]
    return Published(speedup=found[-1].limit, estimator=found[-1].estimator, source=found[-1].source) if found else None
