"""How much of a run its figures hold, and what is said of the rest: one place for all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

PANELS = 12
"""Drawings of one table. A run may have thousands of cells; the table below holds them, and summary.json all."""
LINES = 16
"""Variants in one drawing: more cannot be told apart."""
LINES_CUT = f"Where a panel has more than {LINES} variants, the first {LINES} are drawn."

Thing = TypeVar("Thing")


def drawn(things: Sequence[Thing], what: str = "panels", most: int = PANELS) -> tuple[list[Thing], str]:
    """Those that are drawn, and a sentence on the others; empty where there are none."""
    left = len(things) - most
    if left <= 0:
        return [*things], ""
    return [*things[:most]], f"The first {most} of {len(things):,} {what} are drawn, {left:,} are not."


def more(total: int, shown: int) -> list[str]:
    """For a drawing's description: that not all of its lines are drawn; empty where all are."""
    left = total - shown
    return [f"{left:,} more {'is' if left == 1 else 'are'} not drawn"] if left > 0 else []
