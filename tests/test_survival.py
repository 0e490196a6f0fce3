"""Rules of rates per token at risk, of survival curves, of the test against the floor, and of many tests at once."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from draftproof.analysis.survival import (
    Observation,
    Rate,
    Survival,
    excess_p,
    holm,
    observe,
    rate,
    survival,
)
from draftproof.errors import DraftproofError

Z = 1.959963984540054
OBSERVATIONS = st.lists(st.builds(Observation, st.integers(1, 9), st.booleans()), min_size=1, max_size=12)


def parted(*tokens: int) -> list[Observation]:
    return [Observation(count, True) for count in tokens]


def ended(*tokens: int) -> list[Observation]:
    return [Observation(count, False) for count in tokens]


def curve_of(observations: list[Observation]) -> Survival:
    curve = survival(observations)
    assert curve is not None
    return curve


def rate_of(observations: list[Observation]) -> Rate:
    found = rate(observations)
    assert found is not None
    return found


# -- what one observation is -----------------------------------------------------------------------------------------


def test_tokens_at_risk_reach_to_the_first_difference_and_not_beyond() -> None:
    """Position 4 is the fifth token; behind it the two outputs have different pasts."""
    assert observe([("p", 4, 64), ("q", None, 64), ("r", 0, 64)]) == [*parted(5), *ended(64), *parted(1)]


def test_an_output_that_goes_on_behind_its_reference_differs_there() -> None:
    assert observe([("p", 8, 8)]) == parted(9)


@pytest.mark.parametrize("copies", [1, 2, 128])
def test_copies_of_a_prompt_are_one_observation(copies: int) -> None:
    """What moves one copy moves them all: 128 of them know no more than one."""
    assert observe([("p", 4, 64)] * copies) == parted(5)
    assert observe([("p", None, 64)] * copies) == ended(64)


def test_of_copies_the_earliest_difference_counts() -> None:
    assert observe([("p", None, 64), ("p", 9, 64), ("q", None, 64), ("p", 3, 64)]) == [*parted(4), *ended(64)]


def test_copies_that_agree_are_watched_to_the_shortest_end() -> None:
    assert observe([("p", None, 9), ("p", None, 7)]) == ended(7)


@given(st.lists(st.tuples(st.sampled_from("pqr"), st.none() | st.integers(0, 8), st.just(8)), max_size=12))
def test_the_order_of_requests_does_not_matter(differences: list[tuple[str, int | None, int]]) -> None:
    def key(one: Observation) -> tuple[int, bool]:
        return one.tokens_at_risk, one.differs

    there, back = observe(differences), observe(differences[::-1])
    assert sorted(there, key=key) == sorted(back, key=key)
    assert len(there) == len({prompt_id for prompt_id, _, _ in differences})


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        (("p", 9, 8), r"first difference of p must be from 0 to its 8 tokens \(got 9\)"),
        (("p", -1, 8), r"first difference of p must be from 0 to its 8 tokens \(got -1\)"),
        (("p", None, 0), r"tokens of the reference for p must be at least 1 \(got 0\)"),
    ],
)
def test_a_difference_that_cannot_be_is_an_error(difference: tuple[str, int | None, int], message: str) -> None:
    with pytest.raises(DraftproofError, match=message):
        observe([difference])


def test_an_observation_without_a_token_is_an_error() -> None:
    with pytest.raises(DraftproofError, match=r"tokens_at_risk must be at least 1 \(got 0\)"):
        Observation(0, False)


# -- rates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "low", "high"),
    [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (5, 1.6235, 11.6683), (10, 4.7954, 18.3904)],
)
def test_the_interval_against_published_values(events: int, low: float, high: float) -> None:
    """Garwood (1936), as printed in tables of exact Poisson limits. 100,000 tokens: a hundredth of the count."""
    found = rate_of([*parted(*[1000] * events), *ended(*[1000] * (100 - events))])
    assert (found.events, found.tokens) == (events, 100_000)
    assert found.per_1000 == pytest.approx(events / 100)
    assert (found.low, found.high) == pytest.approx((low / 100, high / 100), abs=1e-6)


@given(st.integers(0, 40))
def test_each_limit_leaves_its_tail(events: int) -> None:
    """The definition: at the lower limit as many or more are just as rare as as few or fewer at the upper one."""
    found = rate_of([*parted(*[1000] * events), *ended(1_000_000)])
    scale = found.tokens / 1000
    assert scipy_stats.poisson.cdf(events, found.high * scale) == pytest.approx(0.025)
    if events:
        assert scipy_stats.poisson.sf(events - 1, found.low * scale) == pytest.approx(0.025)


@given(OBSERVATIONS)
def test_a_rate_lies_within_its_interval_and_is_one(observations: list[Observation]) -> None:
    found = rate_of(observations)
    assert 0 <= found.low <= found.per_1000 <= found.high <= 1000


def test_more_copies_do_not_narrow_the_interval() -> None:
    once = [("p", 3, 64), ("q", None, 64)]
    assert rate(observe(once * 128)) == rate(observe(once))


# -- survival --------------------------------------------------------------------------------------------------------


def slow_share(observations: list[Observation], tokens: int) -> Fraction:
    """Kaplan and Meier (1958): one factor for each token, whether something happened there or not."""
    share = Fraction(1)
    for place in range(1, tokens + 1):
        at_risk = sum(one.tokens_at_risk >= place for one in observations)
        events = sum(one.differs and one.tokens_at_risk == place for one in observations)
        if at_risk:
            share *= 1 - Fraction(events, at_risk)
    return share


def slow_interval(observations: list[Observation], tokens: int) -> tuple[float, float]:
    """Exponential Greenwood by its formula, where it has a value."""
    share = float(slow_share(observations, tokens))
    total = 0.0
    for place in range(1, tokens + 1):
        at_risk = sum(one.tokens_at_risk >= place for one in observations)
        events = sum(one.differs and one.tokens_at_risk == place for one in observations)
        total += events / (at_risk * (at_risk - events))
    reach = Z * math.sqrt(total) / abs(math.log(share))
    return share ** math.exp(reach), share ** math.exp(-reach)


@given(OBSERVATIONS)
def test_the_curve_is_the_slow_product(observations: list[Observation]) -> None:
    curve = curve_of(observations)
    for index, tokens in enumerate(curve.tokens):
        share = slow_share(observations, tokens)
        assert curve.share[index] == pytest.approx(float(share))
        assert curve.at_risk[index] == sum(one.tokens_at_risk >= tokens for one in observations)
        if 0 < share < 1:
            assert (curve.low[index], curve.high[index]) == pytest.approx(slow_interval(observations, tokens))


@given(OBSERVATIONS)
def test_the_curve_has_its_beginning_its_steps_and_its_end(observations: list[Observation]) -> None:
    curve = curve_of(observations)
    longest = max(one.tokens_at_risk for one in observations)
    steps = {one.tokens_at_risk for one in observations if one.differs}
    assert curve.tokens == sorted({0, *steps, longest})
    assert (curve.share[0], curve.low[0], curve.high[0], curve.at_risk[0]) == (1.0, 1.0, 1.0, len(observations))


@given(OBSERVATIONS)
def test_shares_and_their_bounds_fall_and_are_numbers(observations: list[Observation]) -> None:
    curve = curve_of(observations)
    for low, share, high in zip(curve.low, curve.share, curve.high, strict=True):
        assert 0 <= low <= share <= high <= 1
    for values in (curve.low, curve.share, curve.high):
        assert values == sorted(values, reverse=True)


@given(OBSERVATIONS, st.randoms())
def test_the_curve_does_not_depend_on_the_order(observations: list[Observation], random: Any) -> None:
    assert survival(random.sample(observations, len(observations))) == survival(observations)


def test_the_curve_against_a_published_one() -> None:
    """Remission under 6-mercaptopurine (Freireich and others, Blood 21, 1963; Cox and Oakes, 1984, table 1.1)."""
    curve = curve_of(
        [*parted(6, 6, 6, 7, 10, 13, 16, 22, 23), *ended(6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35)],
    )
    assert curve.tokens == [0, 6, 7, 10, 13, 16, 22, 23, 35]
    assert curve.at_risk == [21, 21, 17, 15, 12, 11, 7, 6, 1]
    shares = [1, 0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482, 0.4482]
    assert curve.share == pytest.approx(shares, abs=5e-5)
    assert (curve.low[1], curve.high[1]) == pytest.approx((0.6197, 0.9516), abs=5e-5)
    assert (curve.low[-1], curve.high[-1]) == pytest.approx((0.1881, 0.6801), abs=5e-5)


def test_an_end_is_no_difference() -> None:
    """Shares are of those still watched: two that parted early of four are a half, though one more had ended."""
    assert curve_of([*parted(2, 3), *ended(2, 9)]).share == [1.0, 0.75, 0.375, 0.375]


@pytest.mark.parametrize("count", [1, 3, 32])
def test_no_difference_at_all_is_not_certainty(count: int) -> None:
    """The exact lower limit of a share of n in n; Greenwood's formula has no value there."""
    curve = curve_of(ended(*[64] * count))
    assert (curve.tokens, curve.share, curve.high) == ([0, 64], [1.0, 1.0], [1.0, 1.0])
    exact = scipy_stats.binomtest(count, count).proportion_ci(method="exact").low
    assert curve.low == [1.0, pytest.approx(exact)]


def test_where_all_have_parted_the_bounds_are_numbers() -> None:
    curve = curve_of(parted(2, 5))
    assert (curve.tokens, curve.share) == ([0, 2, 5], [1.0, 0.5, 0.0])
    assert (curve.low[2], curve.high[2]) == (0.0, curve.high[1])
    assert curve_of(parted(3, 3)) == Survival(
        tokens=[0, 3], share=[1.0, 0.0], low=[1.0, 0.0], high=[1.0, 1.0], at_risk=[2, 2]
    )


def test_without_observations_there_is_nothing_to_show() -> None:
    assert observe([]) == []
    assert rate([]) is None
    assert survival([]) is None


# -- against the floor -----------------------------------------------------------------------------------------------


def slow_excess(events: int, tokens: int, floor_events: int, floor_tokens: int) -> float:
    """Equation 3.5 of Krishnamoorthy and Thomson, cell by cell."""

    def pivot(own: int, other: int) -> Fraction:
        """Of the statistic its square, with its sign: fractions know no rounding."""
        above = Fraction(own, tokens) - Fraction(other, floor_tokens)
        return above * abs(above) / (Fraction(own, tokens**2) + Fraction(other, floor_tokens**2) or 1)

    def mass(count: int, mean: float) -> float:
        return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))

    pooled = (events + floor_events) / (tokens + floor_tokens)
    return sum(
        mass(own, tokens * pooled) * mass(other, floor_tokens * pooled)
        for own in range(50)
        for other in range(50)
        if pivot(own, other) >= pivot(events, floor_events)
    )


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(0, 6), st.sampled_from([(1, 1), (999, 1000), (1000, 3000), (2000, 700)]))
def test_the_p_value_is_the_slow_sum(events: int, floor_events: int, exposures: tuple[int, int]) -> None:
    tokens, floor_tokens = 1000 * exposures[0], 1000 * exposures[1]
    expected = slow_excess(events, tokens, floor_events, floor_tokens)
    assert excess_p(events, tokens, floor_events, floor_tokens) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("events", "floor_events"), [(1, 0), (3, 0), (5, 2), (40, 11), (900, 850)])
def test_the_p_value_is_scipys_where_nothing_ties(events: int, floor_events: int) -> None:
    theirs = scipy_stats.poisson_means_test(events, 1024, floor_events, 1777, alternative="greater").pvalue
    assert excess_p(events, 1024, floor_events, 1777) == pytest.approx(theirs, rel=1e-6, abs=1e-9)


def test_counts_that_tie_with_the_seen_ones_count() -> None:
    """Where rounding leaves them out, the p-value lacks the probability of the very counts that were seen."""
    assert excess_p(2, 1000, 5, 3000) == pytest.approx(slow_excess(2, 1000, 5, 3000))
    assert slow_excess(2, 1000, 5, 3000) == pytest.approx(0.414, abs=5e-4)


def test_the_p_value_against_a_published_one() -> None:
    """Clover seed (Przyborowski and Wilenski, 1940): 3 weeds against none in equal samples, 0.0884 on both sides."""
    assert excess_p(3, 100, 0, 100) == pytest.approx(0.0884 / 2, abs=5e-5)


@pytest.mark.parametrize(("events", "floor_events"), [(0, 0), (0, 5), (0, 1000)])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_no_events_are_no_excess(events: int, floor_events: int, ratio: float) -> None:
    assert excess_p(events, 100_000, floor_events, 100_000, ratio) == 1.0


def test_an_excess_is_caught_and_the_floor_itself_is_none() -> None:
    assert excess_p(40, 100_000, 5, 100_000) < 1e-6
    assert excess_p(5, 100_000, 5, 100_000) > 0.4
    assert excess_p(50, 1_000_000, 5, 100_000) > 0.4  # as often, over ten times the tokens
    assert excess_p(2, 100_000, 40, 100_000) > 0.99


def test_a_ratio_allows_for_that_much_more() -> None:
    """Three times the floor: an excess over once the floor, not over three times."""
    assert excess_p(60, 100_000, 20, 100_000) < 1e-4
    assert excess_p(60, 100_000, 20, 100_000, ratio=3) > 0.3
    assert excess_p(60, 100_000, 20, 100_000, ratio=3) == pytest.approx(excess_p(60, 300_000, 20, 100_000))


@pytest.mark.parametrize(("tokens", "floor_tokens"), [(1000, 1000), (1000, 4000), (4000, 1000)])
@pytest.mark.parametrize("mean", [0.3, 1.0, 2.0, 4.0])
def test_equal_rates_rarely_look_like_an_excess(tokens: int, floor_tokens: int, mean: float) -> None:
    """The test never cries wolf more often than it says, but for a little (the E-test is not quite exact)."""
    other = mean * floor_tokens / tokens
    alarms = sum(
        scipy_stats.poisson.pmf(events, mean) * scipy_stats.poisson.pmf(floor, other)
        for events in range(15)
        for floor in range(int(other + 6 * math.sqrt(other)) + 2)
        if excess_p(events, tokens, floor, floor_tokens) <= 0.05
    )
    assert alarms <= 0.0525


def test_large_counts_cost_little_and_agree() -> None:
    """A grid of all pairs of counts would take 10**8 cells here; the conditional test needs none, and says the same."""
    events, floor_events = 1_001_000, 1_000_000
    condition = scipy_stats.binomtest(events, events + floor_events, 0.5, alternative="greater").pvalue
    assert excess_p(events, 10**9, floor_events, 10**9) == pytest.approx(condition, rel=1e-2)
    assert excess_p(10**6, 10**9, 0, 10**9) < 1e-12
    assert excess_p(1, 10**9, 10**6, 10**9) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((1, 0, 1, 10), r"tokens at risk of events must be at least 1 \(got 0\)"),
        ((1, 10, 0, 0), r"tokens at risk of floor_events must be at least 1 \(got 0\)"),
        ((11, 10, 0, 10), r"events must be from 0 to the 10 tokens at risk \(got 11\)"),
        ((1, 10, -1, 10), r"floor_events must be from 0 to the 10 tokens at risk \(got -1\)"),
        ((1, 10, 1, 10, 0.0), r"ratio must be positive and finite \(got 0.0\)"),
        ((1, 10, 1, 10, math.nan), r"ratio must be positive and finite \(got nan\)"),
    ],
)
def test_counts_that_cannot_be_are_an_error(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DraftproofError, match=message):
        excess_p(*given)


# -- many tests ------------------------------------------------------------------------------------------------------

P_VALUES = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.01, 0.02, 1.0]), max_size=8)


def slow_holm(p_values: list[float]) -> list[float]:
    """Without ranks: each test waits for all that are smaller, and each is one of those that are no smaller."""
    scaled = [p * sum(other >= p for other in p_values) for p in p_values]
    return [min(1.0, max(s for q, s in zip(p_values, scaled, strict=True) if q <= p)) for p in p_values]


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@given(P_VALUES)
def test_holm_is_the_slow_one(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(slow_holm(p_values))


@given(P_VALUES, st.sampled_from([0.001, 0.0499, 0.31]))
def test_holm_rejects_what_the_steps_reject(p_values: list[float], level: float) -> None:
    """As Holm wrote it: from the smallest on, each against level / (tests left), up to the first that is not below."""
    rejected: set[int] = set()
    for index in sorted(range(len(p_values)), key=p_values.__getitem__):
        if p_values[index] * (len(p_values) - len(rejected)) > level:
            break
        rejected.add(index)
    assert {index for index, p in enumerate(holm(p_values)) if p <= level} == rejected


@given(P_VALUES)
def test_holm_only_raises_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    for p, q in zip(p_values, adjusted, strict=True):
        for other_p, other_q in zip(p_values, adjusted, strict=True):
            assert p > other_p or q <= other_q


@pytest.mark.parametrize("bad", [math.nan, -0.1, 1.1, math.inf])
def test_what_is_no_p_value_is_an_error(bad: float) -> None:
    """NaN would sort to the end and pass for a test that holds."""
    with pytest.raises(DraftproofError, match=r"p-values must be from 0 to 1"):
        holm([0.01, bad])
