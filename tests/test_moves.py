"""Rules of a move between two runs: what shifts it, what its error holds, and a slow reference beside each formula."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from draftproof.analysis.moves import (
    KNOWN_DF,
    KNOWN_WEIGHT,
    LEAST_ERROR,
    Between,
    Move,
    between_runs,
    geometric_mean,
    joint_df,
    move,
    noise_of_mean,
)

NONE = Between(sd=0.0)
"""Nothing is added for the spread between runs."""

LOGS = st.floats(-0.5, 0.5)
DIFFERENCES = st.lists(LOGS, min_size=2, max_size=20).filter(lambda values: statistics.stdev(values) > 1e-6)
SPREADS = st.builds(Between, sd=st.floats(0.001, 0.2), df=st.floats(2, 50))
LIMITS = st.floats(0.0, 0.3)
RUNS = st.integers(1, 9)


def moved(differences: Sequence[float], between: Between = NONE, base_runs: int = 1, new_runs: int = 1) -> Move:
    found = move(differences, between, base_runs, new_runs)
    assert found is not None
    return found


# --- one quantity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("differences", [[], [0.3]])
def test_one_prompt_set_says_nothing(differences: list[float]) -> None:
    assert move(differences, NONE) is None


@given(DIFFERENCES, LIMITS)
def test_without_a_spread_between_runs_it_is_the_one_sample_t_test(differences: list[float], limit: float) -> None:
    """scipy's own test is the slow reference, in both directions and for the interval."""
    found = moved(differences)
    worse = stats.ttest_1samp(differences, limit, alternative="greater")
    better = stats.ttest_1samp(differences, -limit, alternative="less")
    assert found.p_worse(limit) == pytest.approx(worse.pvalue, rel=1e-6, abs=1e-12)
    assert found.p_better(limit) == pytest.approx(better.pvalue, rel=1e-6, abs=1e-12)
    interval = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert found.interval() == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)


@given(DIFFERENCES, SPREADS, RUNS, RUNS)
def test_variances_add_and_degrees_of_freedom_are_welchs(
    differences: list[float], between: Between, base_runs: int, new_runs: int
) -> None:
    """Written out: (a + b)^2 / (a^2 / df_a + b^2 / df_b), a of the sets' mean, b of the runs on both sides."""
    found = moved(differences, between, base_runs, new_runs)
    a = statistics.variance(differences) / len(differences)
    b = between.sd**2 / base_runs + between.sd**2 / new_runs
    assert found.error == pytest.approx(math.sqrt(a + b))
    assert found.df == pytest.approx((a + b) ** 2 / (a**2 / (len(differences) - 1) + b**2 / between.df))


@given(DIFFERENCES, SPREADS, LOGS)
def test_a_shift_of_all_sets_shifts_the_move_and_nothing_else(
    differences: list[float], between: Between, shift: float
) -> None:
    """And its test: a limit that is shifted along gives the same p-value."""
    here, there = moved(differences, between), moved([value + shift for value in differences], between)
    assert there.worse == pytest.approx(here.worse + shift, abs=1e-12)
    assert there.error == pytest.approx(here.error, rel=1e-6)
    assert there.p_worse(0.1 + shift) == pytest.approx(here.p_worse(0.1), rel=1e-6, abs=1e-9)


@given(DIFFERENCES, SPREADS, LIMITS)
def test_better_is_worse_with_the_sign_turned(differences: list[float], between: Between, limit: float) -> None:
    here, there = moved(differences, between), moved([-value for value in differences], between)
    assert here.p_better(limit) == pytest.approx(there.p_worse(limit))
    low, high = there.interval()
    assert here.interval() == pytest.approx((-high, -low))


@given(DIFFERENCES, SPREADS, RUNS, RUNS)
def test_more_runs_make_the_error_smaller(
    differences: list[float], between: Between, base_runs: int, new_runs: int
) -> None:
    """On either side; never below what the prompt sets alone leave."""
    here = moved(differences, between, base_runs, new_runs)
    assert moved(differences, between, base_runs + 1, new_runs).error < here.error
    assert moved(differences, between, base_runs, new_runs + 1).error < here.error
    assert moved(differences, between, 10**9, 10**9).error == pytest.approx(moved(differences).error, rel=1e-3)


@given(LOGS.filter(lambda value: abs(value) > 1e-3), st.integers(2, 20))
def test_sets_that_all_say_the_same_are_certain(change: float, count: int) -> None:
    """Counts of a deterministic engine: no division by zero, and a change is beyond every limit that it exceeds."""
    found = moved([change] * count)
    assert found.error == LEAST_ERROR
    for limit in (abs(change) / 2, abs(change) * 2):
        assert found.p_worse(limit) == pytest.approx(1.0 if change < limit else 0.0, abs=1e-5)
        assert found.p_better(limit) == pytest.approx(1.0 if -change < limit else 0.0, abs=1e-5)


def test_nothing_moved_and_nothing_varies() -> None:
    found = moved([0.0] * 12)
    assert (found.worse, found.df, found.p_worse(0.03), found.p_better(0.03)) == (0.0, KNOWN_DF, 1.0, 1.0)
    assert found.reach < 1e-6


@given(DIFFERENCES, SPREADS)
def test_a_limit_within_reach_cannot_be_told_from_nothing(differences: list[float], between: Between) -> None:
    """`reach` is the change that is just significant against 0, one-sided."""
    found = moved(differences, between)
    at_reach = Move(worse=found.reach, error=found.error, df=found.df, sets=found.sets)
    assert at_reach.p_worse(0.0) == pytest.approx(0.05)


@given(st.lists(st.tuples(st.floats(1e-200, 1e3), st.floats(1, 1e6)), min_size=1, max_size=6))
def test_joint_degrees_of_freedom_lie_between_the_smallest_and_the_sum(parts: list[tuple[float, float]]) -> None:
    """Also of variances whose squares are too small for a float."""
    found = joint_df(parts)
    assert found >= min(df for _, df in parts) * (1 - 1e-9)
    assert found <= sum(df for _, df in parts) * (1 + 1e-9)


# --- the spread between runs ------------------------------------------------------------------------------------------


def test_the_known_spread_stands_for_one_run() -> None:
    """A baseline of one run shows nothing of its own."""
    found = between_runs([1.7], 0.03)
    assert found.sd == pytest.approx(0.03)
    assert found.df == KNOWN_WEIGHT


@given(st.lists(LOGS, min_size=2, max_size=20), st.floats(0, 0.1))
def test_the_spread_is_a_weighted_mean_of_the_known_and_the_seen(means: list[float], known: float) -> None:
    """Of variances: the known one counts as KNOWN_WEIGHT degrees of freedom, the runs' own as one less than runs."""
    found = between_runs(means, known)
    own = len(means) - 1
    assert found.df == KNOWN_WEIGHT + own
    expected = (KNOWN_WEIGHT * known**2 + own * statistics.variance(means)) / (KNOWN_WEIGHT + own)
    assert found.sd**2 == pytest.approx(expected, abs=1e-12)


@given(st.integers(2, 20))
def test_runs_that_agree_lower_the_spread_but_not_to_nothing(count: int) -> None:
    """Few runs may agree by chance."""
    found = between_runs([0.2] * count, 0.03)
    assert 0.03 * math.sqrt(KNOWN_WEIGHT / (KNOWN_WEIGHT + 20)) < found.sd < 0.03


@given(st.integers(2, 20), st.floats(0.2, 1))
def test_runs_that_disagree_raise_the_spread(count: int, apart: float) -> None:
    means = [apart * (number % 2) for number in range(count)]
    assert between_runs(means, 0.03).sd > 0.03
    assert between_runs(means, 0.0).sd > 0


# --- the mean of a variant's cells ------------------------------------------------------------------------------------


def test_no_cell_has_no_mean() -> None:
    assert geometric_mean([], NONE) is None


@given(DIFFERENCES, st.integers(1, 12))
def test_the_mean_of_equal_moves_is_that_move_with_less_error(differences: list[float], count: int) -> None:
    """The cells' own errors are independent: one over the square root of their number."""
    one = moved(differences)
    mean = geometric_mean([one] * count, NONE)
    assert mean is not None
    assert mean.worse == pytest.approx(one.worse, abs=1e-12)
    assert mean.error == pytest.approx(one.error / math.sqrt(count))
    assert mean.df == pytest.approx(one.df * count)
    assert mean.sets == one.sets


@given(DIFFERENCES, SPREADS, RUNS, st.integers(1, 12))
def test_what_all_cells_of_a_run_share_does_not_average_out(
    differences: list[float], between: Between, runs: int, count: int
) -> None:
    """The spread between runs stays whole; the mean of one cell is that cell."""
    one = moved(differences, between, runs)
    mean = geometric_mean([one] * count, between, runs)
    assert mean is not None
    across = between.sd**2 * (1 / runs + 1)
    assert mean.error**2 == pytest.approx((one.error**2 - across) / count + across)
    assert mean.error <= one.error * (1 + 1e-9)
    assert mean.error >= math.sqrt(across) * (1 - 1e-9)


@given(st.lists(DIFFERENCES, min_size=2, max_size=5))
def test_the_mean_lies_between_its_cells(cells: list[list[float]]) -> None:
    moves = [moved(differences) for differences in cells]
    assume(len({one.worse for one in moves}) > 1)
    mean = geometric_mean(moves, NONE)
    assert mean is not None
    assert min(one.worse for one in moves) < mean.worse < max(one.worse for one in moves)
    assert mean.sets == min(one.sets for one in moves)


def test_noise_of_a_mean_is_what_neither_runs_nor_sets_explain() -> None:
    """Variance of a run's mean over its sets: known in advance, beside runs and sets that differ widely."""
    rng = np.random.default_rng(0)
    found = [
        noise_of_mean((rng.normal(0, 0.03, (4, 12)) + rng.normal(0, 1, (4, 1)) + rng.normal(0, 1, (1, 12))).tolist())
        for _ in range(2000)
    ]
    assert statistics.fmean(found) == pytest.approx(0.03**2 / 12, rel=0.03)
    assert noise_of_mean([[0.1, 0.2, 0.3]]) == 0
    assert noise_of_mean([[0.1, 0.2], [0.3, 0.4]]) == pytest.approx(0, abs=1e-30)


def test_noise_of_means_is_no_spread_between_runs() -> None:
    """Runs that differ by no more than their own noise leave the known spread alone, and less of it."""
    means = [0.0, 0.02, -0.02]
    variance = statistics.variance(means)
    assert between_runs(means, 0.01, noise=variance).sd < 0.01 < between_runs(means, 0.01).sd
    assert between_runs(means, 0.01, noise=2 * variance) == between_runs(means, 0.01, noise=variance)
