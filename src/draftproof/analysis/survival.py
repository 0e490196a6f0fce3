"""How long outputs stay identical, how often they part, and whether that is more often than the floor.

The unit is one prompt of one batch: B copies of one prompt are one observation, since what moves one moves them all.
An output that ends without a difference is censored there: what it would have done later is not known.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from draftproof.analysis.stats import CONFIDENCE
from draftproof.errors import rule

TIE = 1e-10
"""Two values of a test statistic that differ by rounding alone are equal (relative to the count that they bound)."""


class Observation(msgspec.Struct, frozen=True):
    """One prompt of one batch."""

    tokens_at_risk: int
    """Positions compared, from 1: up to and including the first difference, or the whole output."""
    differs: bool

    def __post_init__(self) -> None:
        if self.tokens_at_risk < 1:
            raise rule("tokens_at_risk", "at least 1", self.tokens_at_risk)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Differences per 1,000 tokens at risk."""

    events: int
    tokens: int
    """Tokens at risk."""
    per_1000: float
    low: float
    high: float


class Survival(msgspec.Struct, frozen=True, kw_only=True):
    """A Kaplan-Meier curve: the share of outputs that are still identical, a step wherever some part.

    Lists of equal length: the beginning (0 tokens, share 1), each step, and the end of the longest output.
    """

    tokens: list[int]
    share: list[float]
    """Still identical after as many `tokens`."""
    low: list[float]
    high: list[float]
    at_risk: list[int]
    """Observations that were identical, and had not ended, just before their token number `tokens`."""


def observe(differences: Sequence[tuple[str, int | None, int]]) -> list[Observation]:
    """Observations of one batch, one a prompt, in the order of first sight.

    `differences`: of each request its prompt id, the first position that differs (from 0; None: identical) and the
    tokens of the reference's output. Of several copies of a prompt the earliest difference counts; where none differs,
    the shortest output does, since beyond it not all copies are watched. A position equal to the number of tokens is
    allowed: the other output goes on there.
    """
    differing: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for prompt_id, position, tokens in differences:
        if tokens < 1:
            raise rule(f"tokens of the reference for {prompt_id}", "at least 1", tokens)
        if position is not None:
            if not 0 <= position <= tokens:
                raise rule(f"first difference of {prompt_id}", f"from 0 to its {tokens} tokens", position)
            differing[prompt_id] = min(position, differing.get(prompt_id, position))
        lengths[prompt_id] = min(tokens, lengths.get(prompt_id, tokens))
    return [
        Observation(differing[prompt_id] + 1, True) if prompt_id in differing else Observation(tokens, False)
        for prompt_id, tokens in lengths.items()
    ]


def rate(observations: Sequence[Observation], confidence: float = CONFIDENCE) -> Rate | None:
    """Differences per 1,000 tokens at risk; None without observations.

    Interval: exact for a Poisson count (Garwood, Biometrika 28, 1936), through quantiles of chi-square. It is cut at
    1,000, which no rate per 1,000 tokens can exceed.
    """
    if not observations:
        return None
    events = sum(one.differs for one in observations)
    tokens = sum(one.tokens_at_risk for one in observations)
    low, high = poisson_bounds(events, confidence)
    scale = 1000 / tokens
    return Rate(events=events, tokens=tokens, per_1000=events * scale, low=low * scale, high=min(high * scale, 1000.0))


@functools.lru_cache(maxsize=4096)
def poisson_bounds(events: int, confidence: float) -> tuple[float, float]:
    """Of the mean of a Poisson count (Garwood, Biometrika 28, 1936)."""
    from scipy import stats

    tail = (1 - confidence) / 2
    low = float(stats.chi2.ppf(tail, 2 * events)) / 2 if events else 0.0
    return low, float(stats.chi2.isf(tail, 2 * events + 2)) / 2


def survival(observations: Sequence[Observation], confidence: float = CONFIDENCE) -> Survival | None:
    """The curve, through `scipy.stats.ecdf`; None without observations.

    Intervals are those of log(-log(share)) (exponential Greenwood). Where that has no value: before any difference the
    lower bound is the exact one of a share of which all n at risk are examples, ``((1 - confidence) / 2) ** (1 / n)``
    (Clopper and Pearson, Biometrika 26, 1934); once all have parted the upper bound is that of the step before.
    """
    if not observations:
        return None
    times = np.sort([one.tokens_at_risk for one in observations])
    parted = {one.tokens_at_risk for one in observations if one.differs}
    steps = [(0, 1.0, 1.0, 1.0, len(observations))]
    for time, share, low, high in estimates(observations, confidence) if parted else [(times[-1], 1.0, 1.0, 1.0)]:
        if time not in parted and time != times[-1]:
            continue
        at_risk = int(len(times) - np.searchsorted(times, time))
        if share == 1:
            low, high = least_share(at_risk, confidence), 1.0
        elif share == 0:
            low, high = 0.0, steps[-1][3]
        steps.append((int(time), float(share), float(low), float(high), at_risk))
    tokens, shares, lows, highs, risks = zip(*steps, strict=True)
    return Survival(tokens=list(tokens), share=list(shares), low=list(lows), high=list(highs), at_risk=list(risks))


def estimates(observations: Sequence[Observation], confidence: float) -> Iterator[tuple[float, float, float, float]]:
    """(Tokens, share, its bounds) wherever an output parted or ended, by `scipy.stats.ecdf`."""
    from scipy import stats

    curve = stats.ecdf(
        stats.CensoredData(
            uncensored=[one.tokens_at_risk for one in observations if one.differs],
            right=[one.tokens_at_risk for one in observations if not one.differs],
        )
    ).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy tells of the bounds without a value, mended below
        bounds = curve.confidence_interval(confidence, method="log-log")
    yield from zip(
        curve.quantiles, curve.probabilities, bounds.low.probabilities, bounds.high.probabilities, strict=True
    )


def least_share(at_risk: int, confidence: float = CONFIDENCE) -> float:
    """Lower bound of a share of which all that are at risk are examples (Clopper and Pearson, Biometrika 26, 1934)."""
    low: float = ((1 - confidence) / 2) ** (1 / at_risk)
    return low


def excess_p(events: int, tokens: int, floor_events: int, floor_tokens: int, ratio: float = 1.0) -> float:
    """One-sided p-value of the rate ``events / tokens`` against at most `ratio` times the floor's rate.

    The E-test (Krishnamoorthy and Thomson, Journal of Statistical Planning and Inference 119, 2004, equation 3.5):
    `ratio` times the floor's rate is the rate of its events over ``floor_tokens / ratio``. No events at all are no
    excess (p = 1).

    `scipy.stats.poisson_means_test` is not used: it compares floating-point numbers that are equal but for rounding,
    and may so lose the very counts that were seen (2 in 1,000 against 5 in 3,000: 0.37 in place of 0.41). Its grid also
    takes gigabytes for counts in the hundred thousands. Here ties count, and the inner sum is a tail probability: for
    each count of the floor the statistic rises with the other count, so that one quadratic root says from where on.
    """
    for name, value, exposure in (("events", events, tokens), ("floor_events", floor_events, floor_tokens)):
        if exposure < 1:
            raise rule(f"tokens at risk of {name}", "at least 1", exposure)
        if not 0 <= value <= exposure:
            raise rule(name, f"from 0 to the {exposure} tokens at risk", value)
    if not (math.isfinite(ratio) and ratio > 0):
        raise rule("ratio", "positive and finite", ratio)
    if not events:
        return 1.0
    from scipy import stats

    scaled = floor_tokens / ratio
    pooled = (events + floor_events) / (tokens + scaled)
    seen = (events / tokens - floor_events / scaled) / math.sqrt(events / tokens**2 + floor_events / scaled**2)
    mean = scaled * pooled
    reach = 10 * math.sqrt(mean)  # beyond that lies less than 1e-20
    counts = np.arange(math.floor(max(0.0, mean - reach)), math.ceil(mean + reach) + 30)
    rates = counts / scaled
    middle = 2 * rates + seen**2 / tokens
    root = np.sqrt(middle**2 - 4 * rates**2 + 4 * seen**2 * rates / scaled)
    least = tokens * (middle + math.copysign(1.0, seen) * root) / 2
    least = np.ceil(least - TIE * (1 + tokens * middle))
    return min(1.0, float(stats.poisson.pmf(counts, mean) @ stats.poisson.sf(least - 1, tokens * pooled)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given (Holm, Scandinavian Journal of Statistics 6, 1979).

    The smallest is multiplied by the number of tests, the next by one less, and so on; none falls below one before it.
    """
    for p_value in p_values:
        if not 0 <= p_value <= 1:  # NaN too
            raise rule("p-values", "from 0 to 1", p_value)
    order = np.argsort(np.array(p_values, dtype=float), kind="stable")
    scaled = np.array(p_values, dtype=float)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(value) for value in adjusted]
