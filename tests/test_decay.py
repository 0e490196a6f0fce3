"""Rules of curves over batch sizes: a planted slope and a planted crossing are found, and what lies outside is told."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from draftproof.analysis.decay import DRAWS, Decay, Point, break_even, crossings, decay_of, per_doubling
from draftproof.analysis.stats import Ratio


def point(batch_size: int, value: float, error: float = 0.05, clusters: int = 12) -> Point:
    reach = float(scipy_stats.t.ppf(0.975, clusters - 1)) * error
    low, high = value * math.exp(-reach), value * math.exp(reach)
    ratio = Ratio(value=value, low=low, high=high, clusters=clusters, method="", log_error=error)
    return Point(batch_size=batch_size, output_tokens=64, speedup=ratio)


def curve(*points: Point) -> Decay | None:
    return decay_of("t", "ngram", "w", "new", points)


# -- the slope -------------------------------------------------------------------------------------------------------


def test_a_planted_slope_is_found() -> None:
    """1.6 at batch size 1, and a tenth lost at each doubling."""
    found = curve(*[point(size, 1.6 * 0.9 ** math.log2(size)) for size in (64, 1, 4, 16)])
    assert found is not None
    assert found.per_doubling.value == pytest.approx(0.9)
    assert found.per_doubling.low < 0.9 < found.per_doubling.high
    assert [one.batch_size for one in found.points] == [1, 4, 16, 64]


def test_of_two_sizes_the_slope_is_their_difference() -> None:
    """By hand: log 0.8 over two doublings; errors add in squares, and each has 11 degrees of freedom."""
    found = per_doubling([point(4, 1.5), point(16, 1.2)])
    error = 0.05 * math.sqrt(2) / 2
    assert found.value == pytest.approx(0.8**0.5)
    assert found.half_width == pytest.approx(float(scipy_stats.t.ppf(0.975, 11)) * error)


def test_a_vague_cell_weighs_little() -> None:
    sharp = [point(1, 1.6), point(4, 1.6 * 0.81), point(16, 1.6 * 0.81**2)]
    for wild in (0.1, 10.0):
        assert per_doubling([*sharp, point(64, wild, 5.0)]).value == pytest.approx(0.9, abs=0.003)


POINTS = st.lists(st.tuples(st.floats(0.2, 5), st.floats(0.001, 0.5), st.integers(2, 20)), min_size=2, max_size=6).map(
    lambda rows: [point(2**place, *row) for place, row in enumerate(rows)]
)


@given(POINTS)
def test_the_slope_is_numpys_weighted_fit(points: list[Point]) -> None:
    """A second implementation: `polyfit` with weights 1 / error."""
    weights = [1 / one.log_error for one in points]
    slope = np.polyfit(range(len(points)), [one.log_speedup for one in points], 1, w=weights)[0]
    assert math.log(per_doubling(points).value) == pytest.approx(float(slope), abs=1e-6)


@given(POINTS, st.floats(0.1, 10))
def test_a_factor_on_all_speedups_changes_no_slope(points: list[Point], factor: float) -> None:
    moved = [point(p.batch_size, p.speedup.value * factor, p.log_error, p.speedup.clusters) for p in points]
    assert per_doubling(moved).value == pytest.approx(per_doubling(points).value)


def test_a_run_without_noise_has_a_slope_without_width() -> None:
    found = curve(point(1, 2.0, 0.0), point(4, 1.0, 0.0))
    assert found is not None
    assert found.per_doubling.value == pytest.approx(0.5**0.5)
    assert found.per_doubling.half_width < 1e-5


@pytest.mark.parametrize("sets", [3, 12])
def test_intervals_hold_the_slope_as_often_as_they_say(sets: int) -> None:
    """A planted 0.9 and cells whose errors are estimates: the 95 % interval holds it in 94 of 100 runs or more."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        points = []
        for size in (1, 4, 16, 64):
            logs = math.log(1.6 * 0.9 ** math.log2(size)) + rng.normal(0, 0.1, sets)
            error = statistics.stdev(logs) / math.sqrt(sets)
            points.append(point(size, math.exp(statistics.fmean(logs)), error, sets))
        ratio = per_doubling(points)
        held += ratio.low <= 0.9 <= ratio.high
    assert held >= 282


# -- break-even ------------------------------------------------------------------------------------------------------


def slow_crossing(places: list[float], values: list[float]) -> float:
    """Walk along the line in small steps until it is below 0 after having been there or above."""
    grid = np.linspace(places[0], places[-1], 20_001)
    line = np.interp(grid, places, values)
    was_above = False
    for place, value in zip(grid, line, strict=True):
        if value >= 0:
            was_above = True
        elif was_above:
            return float(place)
    return math.inf if values[-1] >= 0 else -math.inf


@given(st.lists(st.integers(-20, 20).filter(bool), min_size=2, max_size=6))
def test_the_first_fall_below_one_counts(values: list[int]) -> None:
    """However the curve goes up and down: the same as a walk along it."""
    places = [float(place) for place in range(len(values))]
    (found,) = crossings(places, np.array([values], np.float64)).tolist()
    walked = slow_crossing(places, [float(value) for value in values])
    assert found == walked if math.isinf(walked) else found == pytest.approx(walked, abs=1e-3)


@pytest.mark.parametrize(
    ("speedups", "at"),
    [
        ((1.6, 1.2, 1 / 1.2, 0.6), 8.0),
        ((0.9, 1.2, 1 / 1.2, 1.2), 8.0),
        ((1.2, 1 / 1.2, 1.2, 1 / 1.2), 2.0),
        ((1.6, 1.0, 0.6, 0.4), 4.0),
        ((0.9, 0.8, 0.7, 0.6), 0.0),
        ((1.1, 1.2, 1.3, 1.4), math.inf),
        ((0.9, 0.9, 1.1, 1.2), math.inf),
    ],
    ids=["in the middle", "after a rise", "twice", "at a size", "never pays", "always pays", "pays from 16 on"],
)
def test_a_planted_crossing_is_found(speedups: tuple[float, ...], at: float) -> None:
    """Linear in log2 of the batch size between neighbours; where there is none, it is told on which side."""
    found = break_even([point(size, value, 0.0) for size, value in zip((1, 4, 16, 64), speedups, strict=True)])
    if at == 0.0 or math.isinf(at):
        side = "below" if at == 0.0 else "above"
        assert (found.low, found.median, found.high) == (side, side, side)
        assert (found.share_below, found.share_above) == (float(at == 0.0), float(at > 0))
    else:
        assert found.low == pytest.approx(at, rel=1e-3)
        assert found.median == pytest.approx(at, rel=1e-3)
        assert found.high == pytest.approx(at, rel=1e-3)
        assert (found.share_below, found.share_above) == (0, 0)


def test_noise_spreads_the_crossing_and_the_share_outside_is_told() -> None:
    """Around 1.0 at the largest size about half of the curves still pay there; the seed is fixed."""
    points = [point(1, 1.5), point(16, 1.2), point(64, 1.0)]
    found = break_even(points)
    assert found == break_even(points)
    assert 0.4 < found.share_above < 0.6
    assert found.share_below == 0
    assert isinstance(found.low, float)
    assert 16 < found.low < 64
    assert found.high == "above"


def test_few_prompt_sets_make_a_wider_interval() -> None:
    """Two degrees of freedom are not many: draws of Student's t, as the printed intervals."""

    def width(clusters: int) -> float:
        found = break_even([point(1, 2.0, 0.1, clusters), point(64, 0.5, 0.1, clusters)])
        assert isinstance(found.low, float)
        assert isinstance(found.high, float)
        return math.log2(found.high / found.low)

    assert width(3) > 1.3 * width(30)


@given(POINTS)
def test_the_interval_is_in_order_and_shares_are_shares(points: list[Point]) -> None:
    found = break_even(points)
    places = [{"below": -math.inf, "above": math.inf}.get(str(e), e) for e in (found.low, found.median, found.high)]
    assert all(float(a) <= float(b) for a, b in itertools.pairwise(places))
    assert found.share_below + found.share_above <= 1
    assert (found.share_below * DRAWS).is_integer() or round(found.share_below * DRAWS, 6).is_integer()


# -- which cells make a curve ------------------------------------------------------------------------------------------


def test_one_batch_size_makes_no_curve() -> None:
    """Nor does a cell whose interval carries no error, or has none."""
    assert curve() is None
    assert curve(point(1, 1.5)) is None
    bare = Point(batch_size=4, output_tokens=64, speedup=Ratio(value=1.0, low=0.9, high=1.1, clusters=3, method=""))
    assert curve(point(1, 1.5), bare) is None
    assert curve(point(1, 1.5), point(4, 1.2, math.inf)) is None
