"""The fastest variants of a place against each other, in the same rotations. Pure but for reading."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import msgspec

from draftproof.analysis.stats import PairSums, Ratio, jackknife
from draftproof.records import UnitKey
from draftproof.runview import Placed, View

FASTEST = 6
"""Variants of a place that are held against each other; slower ones are not told apart by more than their speedups."""


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """Two variants of one (target, workload, batch size, build)."""

    first: str
    """Id of the cell with the higher speedup."""
    second: str
    build: str
    ratio: Ratio
    """Throughput of the first over the second's, on the same prompt sets; 95 %."""


def rivals(view: View, cells: Iterable[tuple[Placed, Ratio]]) -> list[Rival]:
    """`cells`: those that might be advised, each with its speedup.

    Both arms of a pair ran the same prompts minutes apart: what these have in common cancels, which two intervals
    beside each other cannot show. Arms of different groups share no rotation, and have no pair.
    """
    places: dict[tuple[UnitKey, str], list[tuple[Placed, Ratio]]] = {}
    for place, speedup in cells:
        if place.unit is not None:
            places.setdefault((place.unit, place.build), []).append((place, speedup))
    found = []
    for (unit, build), members in places.items():
        ordered = [place for place, _ in sorted(members, key=lambda member: -member[1].value)[:FASTEST]]
        for first, second in itertools.combinations(ordered, 2):
            ratio = paired([*view.pairs(unit, first.key, second.key).values()])
            if ratio is not None:
                found.append(Rival(first=first.cell.id, second=second.cell.id, build=build, ratio=ratio))
    return found


def paired(pairs: list[PairSums]) -> Ratio | None:
    """Ratio of totals with its delete-one jackknife interval, however many clusters; None below two, or where a total
    is not positive and finite: such records are judged, and told, where the speedup is made."""
    sums = [(p.tokens, p.seconds, p.base_tokens, p.base_seconds) for p in pairs]
    if len(sums) < 2 or not all(math.isfinite(value) and value > 0 for row in sums for value in row):
        return None
    tokens, seconds, base_tokens, base_seconds = (sum(column) for column in zip(*sums, strict=True))
    left_out = [((tokens - t) / (seconds - s)) / ((base_tokens - bt) / (base_seconds - bs)) for t, s, bt, bs in sums]
    value = (tokens / seconds) / (base_tokens / base_seconds)
    return jackknife(value, left_out, "jackknife over prompt sets, t quantile")
