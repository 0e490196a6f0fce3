"""How a speedup falls as the batch grows, and the batch size at which speculation stops to pay. Pure.

The cells of a curve are taken as independent: their prompt sets mostly differ between batch sizes. Where a study gives
all batch sizes the same prompts, what these share cancels in part, and the intervals here are too wide rather than too
narrow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from draftproof.analysis.stats import CONFIDENCE, Ratio, t_quantile

DRAWS = 2000
SEED = 2601
LEAST_ERROR = 1e-6
"""Of log speedup: below what any clock can tell; keeps a cell without any spread from a weight without bound."""

Edge = float | Literal["below", "above"]
"""A batch size, or on which side of the grid it lies."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The speedup of one cell of a curve."""

    batch_size: int
    output_tokens: int
    speedup: Ratio

    @property
    def usable(self) -> bool:
        ratio = self.speedup
        return ratio.log_error is not None and math.isfinite(ratio.log_error) and 0 < ratio.value < math.inf

    @property
    def log_speedup(self) -> float:
        return math.log(self.speedup.value)

    @property
    def log_error(self) -> float:
        """Standard error of the log speedup."""
        return max(self.speedup.log_error or 0.0, LEAST_ERROR)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of that error: clusters - 1."""
        return self.speedup.clusters - 1


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """Where the speedup falls below 1, over simulated curves."""

    median: Edge
    low: Edge
    high: Edge
    """2.5 % and 97.5 % of the draws lie beyond these."""
    share_below: float
    """Of the draws: at the smallest batch size of the grid it does not pay any more, nor at any other."""
    share_above: float
    """Of the draws: it still pays at the largest."""


class Decay(msgspec.Struct, frozen=True, kw_only=True):
    """One variant of a target on one workload over batch sizes."""

    target: str
    variant: str
    workload: str
    build: str
    points: list[Point]
    """By batch size; at least two."""
    per_doubling: Ratio
    """exp(slope of log speedup over log2 of the batch size): 0.9 is a tenth lost at each doubling."""
    break_even: BreakEven


def decay_of(target: str, variant: str, workload: str, build: str, points: Sequence[Point]) -> Decay | None:
    """None with fewer than two batch sizes whose speedup has an interval."""
    found = sorted((point for point in points if point.usable), key=lambda point: point.batch_size)
    if len({point.batch_size for point in found}) < 2:
        return None
    return Decay(
        target=target,
        variant=variant,
        workload=workload,
        build=build,
        points=found,
        per_doubling=per_doubling(found),
        break_even=break_even(found),
    )


def per_doubling(points: Sequence[Point]) -> Ratio:
    """Weighted least squares of log speedup on log2(batch size), weights 1 / error squared.

    Its error comes from the cells' errors, not from how far they lie from a line: the slope says how fast the speedup
    falls over this grid, not that it falls evenly. Quantile of Student's t with the degrees of freedom of the cell that
    has the fewest: Welch and Satterthwaite's would be more, but the weights are estimates too, and with three prompt
    sets a nominal 95 % then held 87 % of planted slopes (300 runs).
    """
    places = np.log2([point.batch_size for point in points])
    values = np.array([point.log_speedup for point in points])
    variances = np.array([point.log_error for point in points]) ** 2
    weights = 1 / variances
    offsets = places - (weights @ places) / weights.sum()
    shares = weights * offsets / (weights @ offsets**2)  # slope = shares . values
    slope, error = float(shares @ values), math.sqrt(shares**2 @ variances)
    reach = t_quantile(min(point.freedom for point in points)) * error
    return Ratio(
        value=math.exp(slope),
        low=math.exp(slope - reach),
        high=math.exp(slope + reach),
        clusters=len(points),
        method="weighted least squares over batch sizes taken as independent, t quantile",
        log_error=error,
    )


def crossings(places: Sequence[float], curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """log2 of the batch size at which each log speedup first falls from 0 or more to below 0 as the batch grows.

    `places`: log2 of the batch sizes, rising; `curves`: shape (curves, places). Linear between neighbours. Minus
    infinity where a curve is below 0 throughout, plus infinity where it never falls below 0 after having been there.
    """
    found = np.where(curves[:, -1] < 0, -np.inf, np.inf)
    for right in range(len(places) - 1, 0, -1):  # from the end, so that the first fall is written last
        before, after = curves[:, right - 1], curves[:, right]
        falls = (before >= 0) & (after < 0)
        left, width = places[right - 1], places[right] - places[right - 1]
        found[falls] = left + width * before[falls] / (before[falls] - after[falls])
    return found


@functools.lru_cache(maxsize=64)
def draws(freedoms: tuple[int, ...]) -> NDArray[np.float64]:
    """Student's t with these degrees of freedom, seed fixed; shape (draws, freedoms). Curves of one study share it."""
    rng = np.random.default_rng(SEED)
    found = np.column_stack([rng.standard_t(freedom, DRAWS) for freedom in freedoms])
    found.setflags(write=False)
    return found


def break_even(points: Sequence[Point]) -> BreakEven:
    """Median and 95 % interval of `crossings` over 2,000 simulated curves.

    Each cell's log speedup is drawn from Student's t with the cell's error and degrees of freedom: the distribution
    that its printed interval stands for (a normal one would make too little of three prompt sets).
    """
    places = [math.log2(point.batch_size) for point in points]
    values = np.array([point.log_speedup for point in points])
    errors = np.array([point.log_error for point in points])
    found = crossings(places, values + errors * draws(tuple(point.freedom for point in points)))
    tail = (1 - CONFIDENCE) / 2
    # A draw each, not interpolated: there is nothing between infinity and a number.
    low, median, high = np.quantile(found, (tail, 0.5, 1 - tail), method="inverted_cdf")
    return BreakEven(
        median=edge(median),
        low=edge(low),
        high=edge(high),
        share_below=float(np.mean(found == -math.inf)),
        share_above=float(np.mean(found == math.inf)),
    )


def edge(log2_batch_size: float) -> Edge:
    if math.isinf(log2_batch_size):
        return "below" if log2_batch_size < 0 else "above"
    return float(2**log2_batch_size)
