"""Whether a cell of two runs may be compared at all: its limits, what is held, what both sides hold. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from draftproof.analysis.held import Changed, changes
from draftproof.gate import Verdict, limit_of
from draftproof.quantities import PLAIN, SPECULATIVE, STAGES
from draftproof.snapshot import Series, Snapshot
from draftproof.spec import Cell, Threshold

NEEDED = ("pairs", "waiting_share", *dict.fromkeys(each.metric for each in (*SPECULATIVE, *STAGES, *PLAIN)))
"""Metrics without whose limits nothing can be compared."""


class Limits:
    """The gating rows of a hardware's thresholds, by metric and cell."""

    def __init__(self, rows: Sequence[Threshold], of: Snapshot) -> None:
        self._rows = [row for row in rows if row.gating]
        self._hardware, self._study = of.hardware, of.study

    def of(self, metric: str, series: Series) -> Threshold:
        """The last row that covers the cell. Raises DraftproofError where there is none."""
        cell = Cell(
            study=self._study,
            hardware=self._hardware,
            target=series.target,
            variant=series.variant,
            workload=series.workload,
            batch_size=series.batch_size,
            batching="mixed",
            output_tokens=1,
            num_prompts=None,
        )
        return limit_of(self._rows, metric, cell)


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """One cell in the runs of both sides."""

    base: list[Series]
    """Those that hold figures."""
    new: list[Series]
    """Those that hold figures, and the newest one in any case."""

    @property
    def last(self) -> Series:
        return self.new[-1]

    def shared(self) -> list[str]:
        """Prompt sets that every run holds, in the order of the newest one."""
        known = set.intersection(*({totals.prompts for totals in one.sets} for one in (*self.base, *self.new)))
        return list(dict.fromkeys(totals.prompts for totals in self.last.sets if totals.prompts in known))


def held_apart(sides: Sides) -> list[Changed]:
    """Held fields in which the cell's other runs differ from the newest one; each change once."""
    series = sides.last
    return list(
        dict.fromkeys(change for one in (*sides.base, *sides.new[:-1]) for change in changes(one.held, series.held))
    )


def refusal(
    sides: Sides, unlike: Sequence[Changed], apart: Sequence[Changed], limits: Limits
) -> tuple[Verdict, str] | None:
    """Why no gate of a cell can be judged; None where all can.

    `unlike`: held fields of machine and study that differ; `apart`: those of the cell itself (`held_apart`).
    """
    series = sides.last
    if "FAILED" in (series.throughput, series.determinism):
        return "FAILED", series.reason
    if unlike:
        return "INCOMPARABLE", differ(unlike)
    if not sides.base:
        return "NO_BASELINE", "no baseline run holds this cell, or it failed there"
    if apart:
        return "INCOMPARABLE", differ(apart)
    if not series.sets:
        return "INSUFFICIENT", "no finished pair"
    shared = sides.shared()
    if not shared:
        first = f"prompts of the first set: {sides.base[-1].sets[0].prompts} -> {series.sets[0].prompts}"
        return "INCOMPARABLE", f"no prompt set in common: other prompts, or dealt otherwise; {first}"
    least = max(2, limits.of("pairs", series).limit)
    if len(shared) < least:
        return "INSUFFICIENT", f"{len(shared)} prompt sets in common; a gate needs {least:g}"
    return None


def differ(found: Sequence[Changed]) -> str:
    return "held fields differ: " + "; ".join(dict.fromkeys(change.text for change in found))


def busy(sides: Sides, limits: Limits) -> str:
    """Why the machine was too busy to speak of seconds; empty where it was not, or where nobody recorded it."""
    limit = limits.of("waiting_share", sides.last).limit
    for name, runs in (("this run", sides.new), ("the baseline", sides.base)):
        shares = [t.waiting for one in runs for t in (*one.sets, *one.base_sets) if t.waiting is not None]
        if shares and statistics.median(shares) > limit:
            return (
                f"the machine was busy: in {name} the engines' threads stood without a CPU for "
                f"{statistics.median(shares):.0%} of the time, above {limit:.0%}"
            )
    return ""
