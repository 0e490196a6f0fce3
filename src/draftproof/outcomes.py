"""How sure a cell's speedup is, and how much a cell needs to be looked at: what all reports go by. Pure."""

from __future__ import annotations

from typing import Literal

from draftproof.analysis.stats import Ratio
from draftproof.gate import GREEN, RED, figure
from draftproof.results import CellResult

Standing = Literal["faster", "slower", "unclear"]
"""The whole interval above 1, below 1, or 1 within it."""


def speedup_of(cell: CellResult) -> Ratio | None:
    """A speculative cell's speedup; None where it has no finite interval, or where the interval says nothing."""
    return figure(cell.throughput, cell.speedup) if cell.speculative else None


def standing(ratio: Ratio) -> Standing:
    return "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "unclear"


def rank(cell: CellResult) -> int:
    """0: red, or records that contradict themselves; 1: something was not judged; 2: the rest.

    Cells that no limit covers (``NO_BASELINE``) are of the rest: nothing was to be judged there.
    """
    verdicts = {cell.throughput.verdict, *([cell.determinism.verdict] if cell.speculative else [])}
    if verdicts & RED or cell.broken:
        return 0
    return 2 if verdicts <= GREEN | {"NO_BASELINE"} else 1
