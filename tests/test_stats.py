"""Rules of the intervals: ratios of totals over pairs, and shares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from draftproof.analysis.pairs import speed_pairs
from draftproof.analysis.stats import (
    BCA_FROM_CLUSTERS,
    PairSums,
    Ratio,
    paired_ratio,
    quantiles,
    ratio_of_totals,
    wilson,
)
from draftproof.records import UnitKey
from tests.factories import make_block

UNIT = UnitKey(0, "t", "w", 2)


def make_pair(tokens: float, seconds: float, base_tokens: float, base_seconds: float) -> PairSums:
    return PairSums(tokens=tokens, seconds=seconds, base_tokens=base_tokens, base_seconds=base_seconds)


def noisy_pairs(rng: np.random.Generator, count: int, speedup: float) -> list[PairSums]:
    """Pairs with log-normal noise of each block, a drift that both arms share, and prompt sets of unequal length."""
    tokens = rng.integers(200, 400, count).astype(float)
    drift = np.exp(rng.normal(0.0, 0.2, count))
    base, ours = np.exp(rng.normal(0.0, 0.08, (2, count)))
    return [
        make_pair(t, t * d * o / (100 * speedup), t, t * d * b / 100)
        for t, d, o, b in zip(tokens, drift, ours, base, strict=True)
    ]


POSITIVE = st.floats(0.1, 100.0)
PAIRS = st.lists(st.builds(make_pair, POSITIVE, POSITIVE, POSITIVE, POSITIVE), min_size=2, max_size=9)


def found(pairs: Sequence[PairSums]) -> Ratio:
    ratio = paired_ratio(pairs)
    assert ratio is not None
    return ratio


# -- the ratio -------------------------------------------------------------------------------------------------------


def test_the_ratio_is_one_of_totals() -> None:
    """Worked by hand: (30 / 4) / (30 / 12) = 3; the mean of the two ratios would be (2 + 4) / 2 weighted otherwise."""
    pairs = [make_pair(10, 2, 10, 4), make_pair(20, 2, 20, 8)]
    assert ratio_of_totals(pairs) == pytest.approx(3.0)


def test_unequal_tokens_count() -> None:
    """With EOS on the arms may emit different numbers of tokens: rates are compared, not seconds."""
    assert ratio_of_totals([make_pair(10, 1, 20, 2)]) == pytest.approx(1.0)


@given(PAIRS)
def test_the_ratio_does_not_depend_on_the_order(pairs: list[PairSums]) -> None:
    there, back = found(pairs), found(pairs[::-1])
    assert there.value == pytest.approx(back.value)
    assert there.low == pytest.approx(back.low)
    assert there.high == pytest.approx(back.high)


# -- the jackknife interval ------------------------------------------------------------------------------------------


def slow_interval(pairs: list[PairSums], confidence: float) -> tuple[float, float]:
    """The textbook: pseudo-values of log(ratio), their mean's standard error, Student's t."""

    def theta(some: list[PairSums]) -> float:
        rate = sum(p.tokens for p in some) / sum(p.seconds for p in some)
        base = sum(p.base_tokens for p in some) / sum(p.base_seconds for p in some)
        return math.log(rate) - math.log(base)

    n = len(pairs)
    pseudo = []
    for leave in range(n):
        rest = [pair for index, pair in enumerate(pairs) if index != leave]
        pseudo.append(n * theta(pairs) - (n - 1) * theta(rest))
    error = statistics.stdev(pseudo) / math.sqrt(n)
    reach = scipy_stats.t(n - 1).ppf(0.5 + confidence / 2) * error
    return math.exp(theta(pairs) - reach), math.exp(theta(pairs) + reach)


@given(PAIRS, st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_is_the_textbooks_jackknife(pairs: list[PairSums], confidence: float) -> None:
    ratio = paired_ratio(pairs, confidence)
    assert ratio is not None
    low, high = slow_interval(pairs, confidence)
    assert math.log(ratio.low) == pytest.approx(math.log(low), abs=1e-6)
    assert math.log(ratio.high) == pytest.approx(math.log(high), abs=1e-6)
    assert ratio.low <= ratio.value <= ratio.high
    assert (ratio.clusters, ratio.method.split()[0]) == (len(pairs), "jackknife")


def test_two_pairs_worked_by_hand() -> None:
    """Speedups of 1 and e on equal tokens: leave-one-out logs 1 and 0, so their error is 1/2, and t(1) is 12.706."""
    ratio = found([make_pair(1, 1, 1, 1), make_pair(1, 1 / math.e, 1, 1)])
    assert ratio.value == pytest.approx(2 / (1 + 1 / math.e))
    assert ratio.half_width == pytest.approx(12.7062 / 2, rel=1e-4)
    assert ratio.high / ratio.value == pytest.approx(math.exp(12.7062 / 2), rel=1e-3)


def test_the_half_width_is_on_the_log_scale() -> None:
    assert Ratio(value=1.0, low=0.5, high=2.0, clusters=3, method="").half_width == pytest.approx(math.log(2))


@pytest.mark.parametrize("clusters", [3, 6, 12])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(clusters: int) -> None:
    """2,000 simulated runs of a speedup of 1.4: between 90 and 99 % of the 95 % intervals hold it."""
    rng = np.random.default_rng(2601 + clusters)
    hits = 0
    for _ in range(2000):
        ratio = found(noisy_pairs(rng, clusters, speedup=1.4))
        hits += ratio.low <= 1.4 <= ratio.high
    assert 0.90 <= hits / 2000 <= 0.99


def test_pairing_takes_the_drift_out() -> None:
    """A drift that both arms share, tenfold that of the noise, does not widen the interval."""
    rng = np.random.default_rng(7)
    drift = np.exp(rng.normal(0.0, 1.0, 12))
    pairs = [make_pair(100, d * n, 100, 1.4 * d) for d, n in zip(drift, np.exp(rng.normal(0, 0.02, 12)), strict=True)]
    assert found(pairs).half_width < 0.03


# -- invariances -----------------------------------------------------------------------------------------------------


@given(PAIRS, st.floats(0.01, 100.0))
def test_a_slower_clock_does_not_change_the_ratio(pairs: list[PairSums], factor: float) -> None:
    """Both arms' seconds scaled alike: a ratio has no unit."""
    scaled = [make_pair(p.tokens, p.seconds * factor, p.base_tokens, p.base_seconds * factor) for p in pairs]
    before, after = found(pairs), found(scaled)
    assert after.value == pytest.approx(before.value)
    assert after.half_width == pytest.approx(before.half_width, abs=1e-6)


@given(PAIRS)
def test_swapping_the_arms_inverts_the_ratio_and_its_interval(pairs: list[PairSums]) -> None:
    swapped = [make_pair(p.base_tokens, p.base_seconds, p.tokens, p.seconds) for p in pairs]
    there, back = found(pairs), found(swapped)
    assert back.value == pytest.approx(1 / there.value)
    assert math.log(back.low) == pytest.approx(-math.log(there.high), abs=1e-6)
    assert math.log(back.high) == pytest.approx(-math.log(there.low), abs=1e-6)


@given(PAIRS, st.floats(0.1, 10.0))
def test_a_faster_arm_scales_the_interval(pairs: list[PairSums], factor: float) -> None:
    faster = [make_pair(p.tokens, p.seconds / factor, p.base_tokens, p.base_seconds) for p in pairs]
    assert found(faster).value == pytest.approx(found(pairs).value * factor)
    assert found(faster).half_width == pytest.approx(found(pairs).half_width, abs=1e-6)


@pytest.mark.parametrize("count", [2, 14, BCA_FROM_CLUSTERS, 40])
def test_identical_pairs_have_no_width(count: int) -> None:
    ratio = found([make_pair(10, 2, 10, 3)] * count)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize("ratio", [1.0, 1.37, 2.0])
@pytest.mark.parametrize("count", [2, 14, BCA_FROM_CLUSTERS, 40])
def test_prompt_sets_of_unequal_length_and_equal_ratio_have_no_width(count: int, ratio: float) -> None:
    """Every pair says the same, though they differ in size: the interval is narrow and finite, never NaN."""
    interval = found([make_pair(64.0, float(n), 64.0, ratio * n) for n in range(1, count + 1)])
    assert (interval.low, interval.value, interval.high) == pytest.approx((ratio, ratio, ratio))


# -- the bootstrap ---------------------------------------------------------------------------------------------------


def test_the_bootstrap_takes_over_at_fifteen_clusters() -> None:
    pairs = noisy_pairs(np.random.default_rng(1), 15, speedup=1.4)
    below, above = found(pairs[:14]), found(pairs)
    assert below.method.startswith("jackknife")
    assert above.method.startswith("BCa bootstrap")
    assert above.clusters == 15
    assert above.low < above.value < above.high
    assert above.low < 1.4 < above.high
    assert above.half_width == pytest.approx(found(pairs[:14]).half_width, rel=0.5)


def test_the_bootstrap_repeats_itself() -> None:
    """The same records give the same interval: its seed is fixed, and the global generator stays out of it."""
    pairs = noisy_pairs(np.random.default_rng(2), 20, speedup=0.8)
    assert found(pairs) == found(pairs)


def test_a_higher_confidence_is_a_wider_interval() -> None:
    for count in (6, 20):
        pairs = noisy_pairs(np.random.default_rng(3), count, speedup=1.0)
        narrow, wide = paired_ratio(pairs, 0.8), paired_ratio(pairs, 0.99)
        assert narrow is not None
        assert wide is not None
        assert wide.low < narrow.low < narrow.high < wide.high


# -- what is refused -------------------------------------------------------------------------------------------------


def test_one_pair_has_no_interval_and_so_no_ratio() -> None:
    assert paired_ratio([]) is None
    assert paired_ratio([make_pair(10, 1, 10, 2)]) is None


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("count", [1, 3, 15])
def test_totals_that_cannot_be_are_an_error(bad: float, place: int, count: int) -> None:
    """No tokens, a clock that went backwards, NaN: said, never averaged away; also in a single pair."""
    values = [10.0, 1.0, 10.0, 2.0]
    values[place] = bad
    pairs = [make_pair(10, 1, 10, 2)] * (count - 1) + [make_pair(*values)]
    with pytest.raises(ValueError, match="must be positive and finite"):
        paired_ratio(pairs)


# -- shares ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_published_values(successes: int, total: int, low: float, high: float) -> None:
    """Newcombe, Statistics in Medicine 17 (1998), 857-872, method 3."""
    assert wilson(successes, total) == pytest.approx((low, high), abs=5e-5)


@settings(max_examples=50)
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_its_formula_and_mirrors_itself(case: tuple[int, int]) -> None:
    x, n = case
    z = 1.959963984540054
    centre = (x + z * z / 2) / (n + z * z)
    reach = z / (n + z * z) * math.sqrt(x * (n - x) / n + z * z / 4)
    low, high = wilson(x, n)
    assert (low, high) == pytest.approx((max(0.0, centre - reach), min(1.0, centre + reach)), abs=1e-9)
    assert wilson(n - x, n) == pytest.approx((1 - high, 1 - low), abs=1e-9)


# -- quantiles -------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    st.lists(st.floats(0, 1) | st.sampled_from([0.05, 0.25, 0.5, 0.75, 0.95]), min_size=1, max_size=5),
)
def test_quantiles_are_numpys_bit_by_bit(values: list[float], shares: list[float]) -> None:
    assert quantiles(values, shares) == np.quantile(values, shares).tolist()


def test_a_quantile_of_what_is_no_number_is_none() -> None:
    assert math.isnan(quantiles([1.0, math.nan, 2.0], [0.0])[0])


# -- blocks to pairs -------------------------------------------------------------------------------------------------


def test_a_pair_sums_both_passes_of_a_rotation() -> None:
    blocks = [
        make_block(arm=arm, pass_index=p, output_tokens=tokens, seconds=seconds)
        for arm, p, tokens, seconds in [
            ("no_sd", 0, 10, 2.0),
            ("ngram", 0, 10, 1.0),
            ("ngram", 1, 11, 0.5),
            ("no_sd", 1, 10, 3.0),
        ]
    ]
    assert speed_pairs(blocks, UNIT, "ngram", "no_sd") == [make_pair(21, 1.5, 20, 5.0)]


def test_pairs_are_in_the_order_of_rotations_and_need_both_arms() -> None:
    blocks = [make_block(arm=a, rotation=r, seconds=r + 1.0) for r in (2, 0, 1) for a in ("ngram", "no_sd")]
    blocks.append(make_block(rotation=3))
    assert [pair.seconds for pair in speed_pairs(blocks, UNIT, "ngram", "no_sd")] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "other",
    [{"purpose": "stages"}, {"group": 1}, {"target": "u"}, {"workload": "v"}, {"batch_size": 1}, {"arm": "eagle"}],
    ids=str,
)
def test_blocks_of_another_unit_arm_or_purpose_do_not_count(other: dict[str, Any]) -> None:
    """A throughput figure comes from `speed` alone."""
    own = [make_block(), make_block(arm="no_sd")]
    strange = [make_block(**other)] + ([make_block(**(other | {"arm": "no_sd"}))] if "arm" not in other else [])
    assert speed_pairs(own + strange, UNIT, "ngram", "no_sd") == speed_pairs(own, UNIT, "ngram", "no_sd")
