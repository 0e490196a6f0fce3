"""Rules of the share of a bound's gain: planted shares are found, nothing is a share of nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.gainshare import gain_share
from draftproof.analysis.stats import PairSums


def pairs(speedup: float, base_s: list[float], noise: list[float] | None = None) -> list[PairSums]:
    """Clusters of 100 tokens that no-SD takes `base_s` for."""
    return [
        PairSums(tokens=100, seconds=base / speedup * factor, base_tokens=100, base_seconds=base)
        for base, factor in zip(base_s, noise or [1.0] * len(base_s), strict=True)
    ]


@given(
    st.floats(0.2, 4.0),
    st.floats(1.1, 4.0),
    st.lists(st.floats(0.5, 5.0), min_size=2, max_size=9),
)
def test_without_noise_the_share_is_the_planted_one(ours: float, bound: float, base_s: list[float]) -> None:
    """However different the prompt sets are: what both arms share of them cancels."""
    found = gain_share(pairs(ours, base_s), pairs(bound, base_s))
    assert found is not None
    assert found.value == pytest.approx((ours - 1) / (bound - 1), abs=1e-9)
    assert found.low == pytest.approx(found.value, abs=1e-6)
    assert found.high == pytest.approx(found.value, abs=1e-6)
    assert found.clusters == len(base_s)


def test_the_bound_has_all_of_its_gain_and_no_sd_none() -> None:
    base_s = [1.0, 2.0, 3.0]
    noisy = pairs(2.0, base_s, [0.9, 1.0, 1.1])
    own, none = gain_share(noisy, noisy), gain_share(pairs(1.0, base_s), noisy)
    assert own is not None
    assert none is not None
    assert (own.value, own.low, own.high) == (1.0, 1.0, 1.0)
    assert (none.value, none.low, none.high) == (0.0, 0.0, 0.0)


def test_a_slower_variant_has_a_negative_share() -> None:
    found = gain_share(pairs(0.5, [1.0, 2.0]), pairs(2.0, [1.0, 2.0]))
    assert found is not None
    assert found.value == pytest.approx(-0.5)


@pytest.mark.parametrize("bound", [1.0, 0.8])
def test_there_is_no_share_of_nothing(bound: float) -> None:
    assert gain_share(pairs(1.5, [1.0, 2.0, 3.0]), pairs(bound, [1.0, 2.0, 3.0])) is None


def test_a_bound_that_gains_by_one_prompt_set_alone_has_no_share() -> None:
    base_s = [1.0, 1.0, 1.0]
    assert gain_share(pairs(1.5, base_s), pairs(1.0, base_s, [0.5, 1.01, 1.01])) is None


def test_one_prompt_set_has_no_interval() -> None:
    assert gain_share(pairs(1.5, [1.0]), pairs(2.0, [1.0])) is None


def test_clusters_must_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        gain_share(pairs(1.5, [1.0, 2.0]), pairs(2.0, [1.0, 2.0, 3.0]))


@pytest.mark.parametrize("clusters", [3, 12])
def test_the_interval_holds_a_planted_share_about_as_often_as_it_says(clusters: int) -> None:
    """3 % noise on each arm, no-SD's shared by both ratios: of 300 intervals of 95 %, 270 at least hold 0.3 / 0.8."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(300):
        own, best, plain = rng.lognormal(0, 0.03, (3, clusters)).tolist()
        base_s = [10 * one for one in plain]
        ours = [
            PairSums(tokens=1, seconds=10 / 1.3 * n, base_tokens=1, base_seconds=b)
            for n, b in zip(own, base_s, strict=True)
        ]
        bound = [
            PairSums(tokens=1, seconds=10 / 1.8 * n, base_tokens=1, base_seconds=b)
            for n, b in zip(best, base_s, strict=True)
        ]
        found = gain_share(ours, bound)
        assert found is not None
        held += found.low <= 0.3 / 0.8 <= found.high
    assert 270 <= held <= 299
