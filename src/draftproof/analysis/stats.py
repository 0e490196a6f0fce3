"""Intervals for ratios of totals over paired clusters."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

CONFIDENCE = 0.95
BCA_FROM_CLUSTERS = 15


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio of two rates with its interval."""

    value: float
    low: float
    high: float
    clusters: int
    method: str
    log_error: float | None = None
    """Standard error of log(value), as the interval was made of it."""

    @property
    def half_width(self) -> float:
        """Half of the interval on the log scale: about the relative half-width."""
        return math.log(self.high / self.low) / 2


class PairSums(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one cluster (prompt set) on both arms: tokens and seconds, both passes added."""

    tokens: float
    seconds: float
    base_tokens: float
    base_seconds: float


def ratio_of_totals(pairs: Sequence[PairSums]) -> float:
    """(sum tokens / sum seconds) over (sum base tokens / sum base seconds)."""
    return (sum(p.tokens for p in pairs) / sum(p.seconds for p in pairs)) / (
        sum(p.base_tokens for p in pairs) / sum(p.base_seconds for p in pairs)
    )


def paired_ratio(pairs: Sequence[PairSums], confidence: float = CONFIDENCE) -> Ratio | None:
    """Ratio of rates with its interval; None below two clusters, since one pair says nothing about its spread.

    Below 15 clusters: delete-one jackknife of log(ratio) with Student's t quantile (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 11). From there: BCa bootstrap over clusters (scipy), seed 0.

    Raises ValueError where a total is not positive and finite: zero tokens, a clock that went backwards, NaN.
    """
    for pair in pairs:
        for value in (pair.tokens, pair.seconds, pair.base_tokens, pair.base_seconds):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"totals of a pair must be positive and finite (got {pair})")
    if len(pairs) < 2:
        return None
    value = ratio_of_totals(pairs)
    if len(pairs) >= BCA_FROM_CLUSTERS:
        found = bca(pairs, value, confidence)
        if found is not None:
            return found
    left_out = [ratio_of_totals([*pairs[:i], *pairs[i + 1 :]]) for i in range(len(pairs))]
    return jackknife(value, left_out, "jackknife over prompt sets, t quantile", confidence)


def jackknife(value: float, left_out: Sequence[float], method: str, confidence: float = CONFIDENCE) -> Ratio:
    """Delete-one jackknife of log(value); `left_out`: the ratio without each cluster, two at least, all positive."""
    count = len(left_out)
    logs = [math.log(ratio) for ratio in left_out]
    mean = sum(logs) / count
    error = math.sqrt((count - 1) / count * sum((x - mean) ** 2 for x in logs))
    reach = t_quantile(count - 1, confidence) * error
    low, high = value * math.exp(-reach), value * math.exp(reach)
    return Ratio(value=value, low=low, high=high, clusters=count, method=method, log_error=error)


@functools.cache
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Half of the width of Student's two-sided interval, in standard errors; `freedom`: degrees, above 0."""
    from scipy import stats

    return float(stats.t.ppf((1 + confidence) / 2, freedom))


def bca(pairs: Sequence[PairSums], value: float, confidence: float) -> Ratio | None:
    """The ratio `value` with its BCa interval; None where all pairs show one: there is nothing to draw from."""
    from scipy import stats

    columns = [
        np.array([getattr(p, name) for p in pairs]) for name in ("tokens", "seconds", "base_tokens", "base_seconds")
    ]
    ratios = [ratio_of_totals([pair]) for pair in pairs]
    if math.isclose(min(ratios), max(ratios), rel_tol=1e-12):
        return None

    def log_ratio(
        tokens: np.ndarray, seconds: np.ndarray, base_tokens: np.ndarray, base_seconds: np.ndarray, axis: int = -1
    ) -> np.ndarray:
        result: np.ndarray = np.log(
            tokens.sum(axis) / seconds.sum(axis) * base_seconds.sum(axis) / base_tokens.sum(axis)
        )
        return result

    found = stats.bootstrap(
        columns,
        log_ratio,
        paired=True,
        vectorized=True,
        confidence_level=confidence,
        method="BCa",
        n_resamples=4999,
        rng=np.random.default_rng(0),
    )
    low, high = float(found.confidence_interval.low), float(found.confidence_interval.high)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    return Ratio(
        value=value,
        low=math.exp(low),
        high=math.exp(high),
        clusters=len(pairs),
        method="BCa bootstrap over prompt sets",
        log_error=float(found.standard_error),
    )


@functools.lru_cache(maxsize=4096)
def wilson(successes: int, total: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson score interval of a share (Wilson, JASA 22, 1927), through scipy."""
    from scipy import stats

    interval = stats.binomtest(successes, total).proportion_ci(confidence_level=confidence, method="wilson")
    return float(interval.low), float(interval.high)


def quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Interpolated linearly, bit by bit those of `numpy.quantile`, which takes ten times as long for a few values."""
    ordered = sorted(values)
    if any(map(math.isnan, ordered)):
        return [math.nan] * len(shares)
    last = len(ordered) - 1
    found = []
    for share in shares:
        place = last * share
        index = min(int(place), last)
        below, above, part = ordered[index], ordered[min(index + 1, last)], place - index
        step = above - below
        found.append(float(above - step * (1 - part) if part >= 0.5 else below + step * part))
    return found


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share of trials that come in clusters, with its interval."""

    value: float
    low: float
    high: float
    successes: int
    trials: int
    clusters: int


def clustered_share(counts: Sequence[tuple[int, int]], confidence: float = CONFIDENCE) -> Share | None:
    """`counts`: (successes, trials) of each cluster; None without a trial.

    Wilson's interval (JASA 22, 1927) with trials / design effect in place of the trials. Design effect (Kish, Survey
    Sampling, 1965): the share's variance between clusters over that of independent trials, 1 at least. Where all
    trials ended alike there is no spread to see, and each cluster counts as one trial.
    """
    from scipy import special

    counts = [(successes, trials) for successes, trials in counts if trials]
    clusters, total = len(counts), sum(trials for _, trials in counts)
    if not total:
        return None
    successes = sum(count for count, _ in counts)
    share = successes / total
    independent = share * (1 - share) / total
    effective: float = clusters
    if independent > 0 and clusters > 1:
        spread = sum((count - share * trials) ** 2 for count, trials in counts)
        between = spread * clusters / (clusters - 1) / total**2
        effective = total / max(1.0, between / independent)
    z2 = float(special.ndtri((1 + confidence) / 2)) ** 2 / effective
    middle, reach = share + z2 / 2, math.sqrt(z2 * (share * (1 - share) + z2 / 4))
    return Share(
        value=share,
        low=0.0 if successes == 0 else (middle - reach) / (1 + z2),
        high=1.0 if successes == total else (middle + reach) / (1 + z2),
        successes=successes,
        trials=total,
        clusters=clusters,
    )
