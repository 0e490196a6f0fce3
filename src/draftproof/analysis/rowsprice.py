"""What each further row that a step verifies costs, from step samples. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec

from draftproof.errors import rule


class Interval(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


class RowsPrice(msgspec.Struct, frozen=True, kw_only=True):
    """Median verify time of the decode steps with so many rows a request."""

    batch_size: int
    rows: int
    """Of each request: its drafts and one more."""
    steps: int
    verify_s: Interval
    relative: Interval | None
    """Over the median at 1 row; None where that was not measured. Its interval takes both medians' ends at 97.5 % each,
    so that it holds in at least 95 % of cases whatever the two have in common."""


def median_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """The sample's median, and two of its values between which the true one lies with at least this probability.

    Of n independent values, the i-th smallest and the i-th largest hold the median between them with probability
    ``1 - 2 P(Binomial(n, 1/2) < i)``, whatever the distribution (David and Nagaraja, Order Statistics, 7.1). None where
    n is too small for any i: below 6 values at 95 %.
    """
    from scipy.stats import binom

    if not 0.0 < level < 1.0:
        raise rule("level", "between 0 and 1", level)
    ordered = sorted(values)
    count = len(ordered)
    # The quantile is the first i with P(Binomial(n, 1/2) <= i) at the limit: one less is below it.
    place = int(binom.ppf((1 - level) / 2, count, 0.5)) if count else 0
    return Interval(float(median(ordered)), ordered[place - 1], ordered[count - place]) if place >= 1 else None


def verify_seconds(steps: Iterable[dict[str, Any]], batch_size: int) -> dict[int, list[float]]:
    """Rows a request -> verify seconds of the decode steps in which all requests of the batch had that many rows."""
    found = defaultdict(list)
    for step in steps:
        whole = step["kind"] == "decode" and step["requests"] == batch_size
        if whole and step["rows"] % batch_size == 0 and step["draft_tokens"] == step["rows"] - batch_size:
            found[step["rows"] // batch_size].append(step["forward_s"] + step["lm_head_s"])
    return dict(found)


def rows_prices(seconds: dict[int, dict[int, list[float]]]) -> list[RowsPrice]:
    """Batch size -> rows -> verify seconds, as a table; what has too few steps for an interval is left out."""
    found = []
    for batch_size, by_rows in sorted(seconds.items()):
        one = median_interval(by_rows.get(1, []), 0.975)
        for rows, values in sorted(by_rows.items()):
            price, wide = median_interval(values), median_interval(values, 0.975)
            if price is None:
                continue
            relative = None
            if rows == 1:
                relative = Interval(1.0, 1.0, 1.0)
            elif one is not None and wide is not None and one.low > 0.0:
                relative = Interval(wide.value / one.value, wide.low / one.high, wide.high / one.low)
            found.append(
                RowsPrice(batch_size=batch_size, rows=rows, steps=len(values), verify_s=price, relative=relative)
            )
    return found
