"""Rules of the price of rows: which steps count, and intervals that hold the median as often as they say."""

from __future__ import annotations

import math
import random
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.rowsprice import median_interval, rows_prices, verify_seconds
from draftproof.errors import DraftproofError


def slow_place(count: int, level: float) -> int:
    """The largest i with P(fewer than i of n coins show heads) <= (1 - level) / 2; 0 where there is none."""
    place, below = 0, 0.0
    while True:
        below += math.comb(count, place) / 2**count
        if below > (1 - level) / 2 + 1e-15:
            return place
        place += 1


@given(st.lists(st.floats(0.0, 10.0), max_size=60), st.sampled_from([0.9, 0.95, 0.975]))
def test_the_interval_is_that_of_the_slow_reference(values: list[float], level: float) -> None:
    found, place = median_interval(values, level), slow_place(len(values), level) if values else 0
    if place < 1:
        assert found is None
        return
    assert found is not None
    assert found.value == median(values)
    assert (found.low, found.high) == (sorted(values)[place - 1], sorted(values)[-place])
    assert found.low <= found.value <= found.high


def test_too_few_values_have_no_interval() -> None:
    assert median_interval([1.0] * 5) is None
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) is not None
    with pytest.raises(DraftproofError, match="level must be between 0 and 1"):
        median_interval([1.0], 1.0)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    """500 samples of 20 skewed values; the true median of exp(normal) is 1."""
    dice = random.Random(7)
    held = 0
    for _ in range(500):
        found = median_interval([dice.lognormvariate(0.0, 1.0) for _ in range(20)])
        assert found is not None
        held += found.low <= 1.0 <= found.high
    assert held / 500 >= 0.93


def step(
    rows: int, verify_s: float, kind: str = "decode", requests: int = 2, drafts: int | None = None
) -> dict[str, Any]:
    draft_tokens = rows - requests if drafts is None else drafts
    seconds = {"forward_s": verify_s - 0.25, "lm_head_s": 0.25}
    return {"kind": kind, "requests": requests, "rows": rows, "draft_tokens": draft_tokens, **seconds}


def test_only_whole_batches_with_equal_rows_count() -> None:
    """A step of unequal drafts, of part of the batch, or with prompt tokens says nothing of one number of rows."""
    steps = [step(2, 1.0), step(8, 3.0), step(8, 5.0), step(5, 9.0), step(1, 9.0, requests=1), step(8, 9.0, "mixed")]
    assert verify_seconds([*steps, step(8, 9.0, drafts=3)], 2) == {1: [1.0], 4: [3.0, 5.0]}


@given(st.integers(8, 30), st.floats(1.0, 8.0))
def test_a_planted_price_is_found(count: int, price: float) -> None:
    """Four rows cost `price` times one row, with a hundredth of noise on both."""
    dice = random.Random(count)
    seconds = {rows: [times * dice.uniform(0.99, 1.01) for _ in range(count)] for rows, times in ((1, 1.0), (4, price))}
    one, four = rows_prices({2: seconds})
    assert (one.rows, four.rows, four.batch_size, four.steps) == (1, 4, 2, count)
    assert one.relative is not None
    assert four.relative is not None
    assert one.relative.value == 1.0
    assert four.relative.value == pytest.approx(price, rel=0.02)
    assert four.relative.low <= four.relative.value <= four.relative.high


def test_without_one_row_nothing_is_relative() -> None:
    (price,) = rows_prices({1: {4: [1.0] * 8, 2: [1.0] * 3}})
    assert (price.rows, price.relative) == (4, None)
