"""How much of a bound's gain over no speculation a variant reaches, with an interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from draftproof.analysis.stats import CONFIDENCE, PairSums, ratio_of_totals, t_quantile


class GainShare(msgspec.Struct, frozen=True, kw_only=True):
    """(speedup - 1) / (bound's speedup - 1): 1 is the bound, 0 no gain, below 0 slower than no speculation."""

    value: float
    low: float
    high: float
    clusters: int


def gain_share(ours: Sequence[PairSums], bound: Sequence[PairSums], confidence: float = CONFIDENCE) -> GainShare | None:
    """The share with its interval; `ours` and `bound` are of the same clusters (prompt sets), in the same order.

    Delete-one jackknife (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 11), Student's t
    quantile; on the share itself, which may be negative. What both speedups share of a prompt set cancels.

    None below two clusters, and where the bound gains nothing with any one cluster left out: a share of nothing. Where
    its gain is hardly more than its own error the share is as good as unknown, and its interval says so.
    """
    pairs = list(zip(ours, bound, strict=True))
    if len(pairs) < 2:
        return None
    left_out = [share_of([*pairs[:number], *pairs[number + 1 :]]) for number in range(len(pairs))]
    value = share_of(pairs)
    known = [share for share in left_out if share is not None]
    if value is None or len(known) < len(pairs):
        return None
    count = len(known)
    mean = sum(known) / count
    error = math.sqrt((count - 1) / count * sum((share - mean) ** 2 for share in known))
    reach = t_quantile(count - 1, confidence) * error
    return GainShare(value=value, low=value - reach, high=value + reach, clusters=count)


def share_of(pairs: Sequence[tuple[PairSums, PairSums]]) -> float | None:
    """None where the bound gains nothing."""
    gain = ratio_of_totals([bound for _, bound in pairs]) - 1
    return (ratio_of_totals([ours for ours, _ in pairs]) - 1) / gain if gain > 0 else None
