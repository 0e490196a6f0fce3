"""Whose change a ratio's change is: the variant's or no-SD's. Pure.

A ratio to no-SD moves when either arm does, and an arm's own figure moves with the machine too. What tells them apart
is the other variants beside the same no-SD, and how far a machine moves between two runs with nothing changed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from draftproof.analysis.moves import KNOWN_DF, Between, Move, quantile
from draftproof.quantities import OWN_THROUGHPUT, Quantity
from draftproof.snapshot import Series
from draftproof.spec import Threshold

Mover = Literal["variant", "no_sd", "either"]

SURE = 0.99
"""With less, an arm's own figure names nobody: one-sided, against the machine's spread between runs."""


class Own(msgspec.Struct, frozen=True, kw_only=True):
    """How much better each arm's own figure became, on the log scale: whose change a ratio's is."""

    arm: float
    no_sd: float


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """A gate before Holm: its move against its limit."""

    place: str
    series: Series
    quantity: Quantity
    limit: Threshold
    own_limit: Threshold
    """Of an arm's own throughput."""
    between: Between
    means: list[float]
    """Of each run of the baseline: mean over prompt sets, log scale."""
    noise: float
    """Variance of such a mean that its prompt sets account for."""
    machine: float
    """Variance of what all arms together move between the two sides with nothing changed."""
    runs: tuple[int, int]
    found: Move
    base: float
    new: float
    own: Own | None
    """Where the quantity is a ratio to no-SD."""
    stages: str = ""


def mean_place(target: str, variant: str) -> str:
    """What the cells of a variant are called together."""
    return f"{target} {variant}, geometric mean"


def log_limit(limit: float, quantity: Quantity) -> float:
    """A relative limit on the log scale, in the direction that is worse."""
    return -math.log1p(-limit) if quantity.higher_is_better else math.log1p(limit)


def along(other: Tested, tested: Tested) -> bool:
    """Whether another ratio moved the same way, by half as much at least."""
    return other.found.worse * tested.found.worse > 0 and abs(other.found.worse) > abs(tested.found.worse) / 2


class Peers:
    """The speculative figures of a run by what they stand beside: a run of thousands of cells asks of each of them."""

    def __init__(self, everything: Iterable[Tested]) -> None:
        self._cells: dict[tuple[str, str, str, int], list[Tested]] = {}
        self._means: dict[tuple[str, str], list[Tested]] = {}
        for one in everything:
            series, gate = one.series, one.quantity.gate
            if not series.speculative:
                continue
            if one.place == mean_place(series.target, series.variant):
                self._means.setdefault((gate, series.target), []).append(one)
            else:
                cell = (gate, series.target, series.workload, series.batch_size)
                self._cells.setdefault(cell, []).append(one)

    def beside(self, tested: Tested) -> list[Tested]:
        """Other variants beside the same no-SD on the same cell; of a geometric mean the other variants' means."""
        series, gate = tested.series, tested.quantity.gate
        if tested.place == mean_place(series.target, series.variant):
            found = self._means.get((gate, series.target), [])
        else:
            found = self._cells.get((gate, series.target, series.workload, series.batch_size), [])
        return [other for other in found if other.series.variant != series.variant]

    def mean_of(self, tested: Tested) -> Tested | None:
        """The geometric mean that a cell is part of; None for a mean itself, or without one."""
        series, gate = tested.series, tested.quantity.gate
        mean = mean_place(series.target, series.variant)
        of_all = self._means.get((gate, series.target), []) if tested.place != mean else []
        return next((other for other in of_all if other.place == mean), None)


def whose(tested: Tested, everything: Sequence[Tested] | Peers) -> Mover:
    """Which arm moved a ratio to no-SD; ``either`` where the machine's own spread between runs may hide it.

    A variant that moved where most others beside the same no-SD did not is the one that moved. Where most of them moved
    alike, it is no-SD or all of them: the arm whose own figure is further from its baseline, in the geometric mean if
    that moved alike, since the machine is one. An arm that became worse by more than no-SD may is excused by nothing.
    """
    own = tested.own
    if own is None:
        return "variant"
    peers = everything if isinstance(everything, Peers) else Peers(everything)
    beside = peers.beside(tested)
    like = [other for other in beside if along(other, tested)]
    if 2 * len(like) < len(beside):
        return "variant"
    mean = peers.mean_of(tested)
    if mean is not None and along(mean, tested):
        return whose(mean, peers)
    if tested.found.worse > 0 and -own.arm > log_limit(tested.own_limit.limit, OWN_THROUGHPUT):
        return "variant"
    owns = [own, *(other.own for other in like if other.own)]
    sign = -1 if tested.found.worse > 0 else 1
    toward_variant = sign * statistics.fmean((one.arm + one.no_sd) / 2 for one in owns)
    half = statistics.fmean(abs(one.arm - one.no_sd) for one in owns) / 2
    if abs(toward_variant) < quantile(SURE, KNOWN_DF) * math.sqrt(tested.machine + tested.found.within / 4) - half:
        return "either"
    return "variant" if toward_variant > 0 else "no_sd"
