"""Change points of one series of nights, and what is said of the newest ones. Pure.

Levels are logarithms turned so that more is better. Change points (PELT with squared error, Killick, Fearnhead and
Eckley, JASA 107, 2012, through ruptures) cut a series into segments. A night is worse where it lies below the best
stable level so far by more than the limit and by more than the noise, or belongs to a long segment whose level does.
Two consecutive worse nights begin a regression, two consecutive nights that are not worse end it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

STABLE_NIGHTS = 5
"""A segment this long has a level to compare with: median and MAD of 5 stand two odd nights."""
CONFIRM_NIGHTS = 2
LASTING_NIGHTS = 10
"""A level that has lasted this long is judged as a level: two weeks of weekdays."""
MIN_NIGHTS = STABLE_NIGHTS + CONFIRM_NIGHTS
"""Fewer nights hold no stable level and the two nights that could confirm a change."""
REACH_SPREADS = 3.0
"""A night this many spreads below a level is no noise."""
PENALTY_SPREADS = 3.0
"""Of a change point: squared spreads per log(nights). BIC asks 2, one for the level and one for the place; 3 errs on
the quiet side."""
LEAST_SPREAD = 0.1
"""Of the limit: a series without noise is not cut at every tiny step."""
MAD_TO_SPREAD = 1.4826
"""Standard deviation over median absolute deviation, of normal noise."""
LAGS = 3
MEDIAN_TO_MEAN = 1.2533
"""Standard error of a median over that of a mean, of normal noise: sqrt(pi / 2)."""
LEVEL_ERRORS = 2.0
ALIKE_NIGHTS = 3
"""Nights worth one independent night: (1 + r) / (1 - r) where each correlates with the night before by r = 0.5."""
ROUNDING = 1e-9


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a figure may get worse."""

    relative: float
    better: Literal["higher", "lower"]
    absolute: float = 0.0
    """In the figure's own unit."""

    @property
    def log(self) -> float:
        """The same on the log scale; infinite: a figure that is better when higher cannot lose all of itself."""
        if self.better == "lower":
            return math.log1p(self.relative)
        return -math.log1p(-self.relative) if self.relative < 1 else math.inf

    def level(self, value: float) -> float:
        return math.log(value) if self.better == "higher" else -math.log(value)

    def value(self, level: float) -> float:
        return math.exp(level if self.better == "higher" else -level)


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """A run of nights that were worse, by index."""

    first: int
    until: int | None
    """The first night that was not worse again; None: it goes on."""
    reference: float
    """The best stable level when it began."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A change point: the first night on a new level, and both levels."""

    first: int
    before: float
    after: float


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a series shows."""

    verdict: Literal["regression", "suspicious", "no_regression", "insufficient_data"]
    reference: float | None
    """The best stable level that the newest night is compared with."""
    spread: float
    """Robust standard deviation of a night on the log scale."""
    episodes: list[Episode]
    """Regressions, ended or not."""
    improvements: list[Step]
    """Steps to a new best level."""
    further: list[Step]
    """Steps down while a regression went on."""

    @property
    def current(self) -> Episode | None:
        return self.episodes[-1] if self.episodes and self.episodes[-1].until is None else None


def examine(values: Sequence[float], limit: Limit) -> Found:
    """Positive values of the nights that count, in the order of time."""
    levels = np.array([limit.level(value) for value in values])
    if len(levels) < MIN_NIGHTS:
        return unknown()
    ends = segment_ends(levels, limit)
    starts = [0, *ends[:-1]]
    medians = [float(np.median(levels[start:end])) for start, end in zip(starts, ends, strict=True)]
    spread = spread_of(levels, starts, medians)
    references = best_so_far(starts, ends, medians)
    if references[-1] is None:
        return unknown(spread)
    lasting = lasting_losses(starts, ends, medians, references, spread, limit)
    worse = [
        reference is not None and (lost or exceeds(reference, level, spread, limit))
        for level, reference, lost in zip(levels, references, lasting, strict=True)
    ]
    episodes = [
        Episode(first=first, until=until, reference=references[first] or 0.0) for first, until in bad_spells(worse)
    ]
    steps = [
        Step(first=start, before=before, after=after)
        for start, (before, after) in zip(starts[1:], itertools.pairwise(medians), strict=True)
    ]
    going_on = [episode for episode in episodes if episode.until is None]
    return Found(
        verdict="regression" if going_on else "suspicious" if worse[-1] else "no_regression",
        reference=references[-1],
        spread=spread,
        episodes=episodes,
        improvements=[
            step
            for step, end in zip(steps, ends[1:], strict=True)
            if end - step.first >= STABLE_NIGHTS
            and (best := references[step.first - 1]) is not None
            and exceeds(step.after, best, spread, limit)
        ],
        further=[
            step
            for step in steps
            if any(e.first + CONFIRM_NIGHTS <= step.first < (e.until or len(levels)) for e in episodes)
            and exceeds(step.before, step.after, spread, limit)
        ],
    )


def unknown(spread: float = 0.0) -> Found:
    return Found(verdict="insufficient_data", reference=None, spread=spread, episodes=[], improvements=[], further=[])


def segment_ends(levels: np.ndarray, limit: Limit) -> list[int]:
    """Where segments of one level end (exclusive), the last one at the series' end."""
    import ruptures

    spread = max(night_to_night(levels), LEAST_SPREAD * min(limit.log, 1.0))
    penalty = PENALTY_SPREADS * spread**2 * math.log(len(levels))
    search = ruptures.KernelCPD(kernel="linear", min_size=CONFIRM_NIGHTS)
    ends: list[int] = search.fit(levels[:, None] - levels.mean()).predict(pen=penalty)
    return ends


def night_to_night(levels: np.ndarray) -> float:
    """Spread of one night from the steps between nights up to `LAGS` apart: a change of level is a few steps of many.

    Noise that is like its neighbours (a machine's warm week) shows between nights that lie further apart. A step
    touches `lag` of the differences: a lag is used where those are a quarter at most.
    """
    lags = [lag for lag in range(1, LAGS + 1) if lag == 1 or len(levels) >= 5 * lag]
    steps = [float(np.median(np.abs(levels[lag:] - levels[:-lag]))) for lag in lags]
    return MAD_TO_SPREAD * max(steps) / math.sqrt(2)


def spread_of(levels: np.ndarray, starts: Sequence[int], medians: Sequence[float]) -> float:
    """The larger of two robust spreads: within segments, and from night to night.

    Noise that is like its neighbours hides from the second, a series cut too finely from the first.
    """
    sizes = np.diff([*starts, len(levels)])
    residuals = np.abs(levels - np.repeat(medians, sizes))
    return max(MAD_TO_SPREAD * float(np.median(residuals)), night_to_night(levels))


def best_so_far(starts: Sequence[int], ends: Sequence[int], medians: Sequence[float]) -> list[float | None]:
    """Night by night: the best level of a stable segment that has begun; None before the first."""
    references: list[float | None] = []
    best: float | None = None
    for start, end, median in zip(starts, ends, medians, strict=True):
        if end - start >= STABLE_NIGHTS:
            best = median if best is None else max(best, median)
        references += [best] * (end - start)
    return references


def lasting_losses(
    starts: Sequence[int],
    ends: Sequence[int],
    medians: Sequence[float],
    references: Sequence[float | None],
    spread: float,
    limit: Limit,
) -> list[bool]:
    """Night by night: whether it is of a long segment whose level is worse than the best before it.

    In noise wider than the limit no night shows a lasting loss by itself, but the level of many nights does, where even
    two standard errors above it (of a median, over nights that are like their neighbours) lie beyond the limit.
    """
    lost = []
    for start, end, median in zip(starts, ends, medians, strict=True):
        best = references[start]
        error = MEDIAN_TO_MEAN * spread / math.sqrt((end - start) / ALIKE_NIGHTS)
        surely = median + LEVEL_ERRORS * error
        worse = end - start >= LASTING_NIGHTS and best is not None and exceeds(best, surely, 0.0, limit)
        lost += [worse] * (end - start)
    return lost


def exceeds(better: float, worse: float, spread: float, limit: Limit) -> bool:
    """Whether `better` is above `worse` by more than the limit, the absolute limit and the noise."""
    apart = better - worse
    if apart <= max(limit.log, REACH_SPREADS * spread) + ROUNDING:
        return False
    return abs(limit.value(better) - limit.value(worse)) > limit.absolute


def bad_spells(worse: Sequence[bool]) -> list[tuple[int, int | None]]:
    """First night and end of each spell: two consecutive worse nights begin one, two consecutive others end it."""
    spells: list[tuple[int, int | None]] = []
    begun: int | None = None
    for night, (last, now) in enumerate(itertools.pairwise(worse), start=1):
        if begun is None and last and now:
            begun = night - 1
        elif begun is not None and not last and not now:
            spells.append((begun, night - 1))
            begun = None
    return spells if begun is None else [*spells, (begun, None)]
