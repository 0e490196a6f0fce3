"""Rules of the paper's estimator: unweighted means over survivors, a prompt set left out of both arms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from draftproof.analysis.paperratio import MOST_BLOCKS, PaperBlock, paper_ratio, survivors


def block(rotation: int, tokens: int, seconds: float = 1.0, *, pass_index: int = 0, stopped: bool = True) -> PaperBlock:
    return PaperBlock(rotation=rotation, pass_index=pass_index, tokens=tokens, seconds=seconds, stopped=stopped)


def slow(ours: Sequence[PaperBlock], base: Sequence[PaperBlock]) -> tuple[float, float, float] | None:
    """The rule written out: value and interval of filtered blocks; no cap on their number."""

    def value(left_out: int | None) -> float | None:
        means = []
        for arm in (ours, base):
            speeds = [b.tokens / b.seconds for b in arm if b.stopped and b.rotation != left_out]
            if not speeds:
                return None
            means.append(statistics.fmean(speeds))
        return means[0] / means[1]

    rotations = sorted({b.rotation for arm in (ours, base) for b in arm if b.stopped})
    whole, parts = value(None), [value(rotation) for rotation in rotations]
    if whole is None or None in parts:
        return None
    logs = [math.log(part) for part in parts if part is not None]
    count = len(logs)
    error = math.sqrt((count - 1) / count * sum((log - statistics.fmean(logs)) ** 2 for log in logs))
    reach = float(scipy_stats.t.ppf(0.975, count - 1)) * error
    return whole, whole * math.exp(-reach), whole * math.exp(reach)


BLOCKS = st.lists(
    st.builds(
        PaperBlock,
        rotation=st.integers(0, 5),
        pass_index=st.integers(0, 1),
        tokens=st.integers(1, 500),
        seconds=st.floats(0.1, 10),
        stopped=st.booleans(),
    ),
    max_size=16,
)


@given(BLOCKS, BLOCKS)
def test_it_is_the_rule_written_out(ours: list[PaperBlock], base: list[PaperBlock]) -> None:
    found, expected = paper_ratio(ours, base, ignore_eos=False), slow(ours, base)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.value, found.low, found.high) == pytest.approx(expected)


def test_short_blocks_weigh_as_much_as_long_ones() -> None:
    """What makes it another figure than the ratio of totals: (400 + 100) / 2 over 100, not 500 / 2 s over 100."""
    ours = [block(0, 400, 1.0), block(1, 400, 4.0)]
    base = [block(0, 100), block(1, 100)]
    found = paper_ratio(ours, base, ignore_eos=False)
    assert found is not None
    assert found.value == pytest.approx(2.5)


def test_each_arm_has_its_own_survivors() -> None:
    """Planted: a request that only speculation ends counts for that arm alone, and the means are of other requests."""
    ours = [block(0, 200), block(1, 200), block(2, 600)]
    base = [block(0, 100), block(1, 100), block(2, 900, stopped=False)]
    found = paper_ratio(ours, base, ignore_eos=False)
    assert found is not None
    assert found.value == pytest.approx((1000 / 3) / 100)
    assert found.clusters == 3
    assert "unweighted means of 3 and 2 blocks whose first request ended with EOS" in found.method


def test_where_eos_is_ignored_every_block_counts() -> None:
    """And the figure says so."""
    blocks = [block(rotation, 100 * (1 + rotation), stopped=False) for rotation in range(3)]
    assert paper_ratio(blocks, blocks, ignore_eos=False) is None
    found = paper_ratio(blocks, blocks, ignore_eos=True)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))
    assert "EOS ignored: none is left out" in found.method


def test_the_first_hundred_survivors_of_a_pass_count() -> None:
    """By rotation, whatever the order of the records; those cut off by the limit do not take a place."""
    blocks = [block(r, 1, pass_index=p, stopped=r % 3 != 0) for r in reversed(range(300)) for p in (0, 1)]
    kept = survivors(blocks, ignore_eos=False)
    assert len(kept) == 2 * MOST_BLOCKS
    assert sorted({b.rotation for b in kept}) == [r for r in range(300) if r % 3][:MOST_BLOCKS]


@pytest.mark.parametrize(
    ("ours", "base"),
    [
        ([], []),
        ([block(0, 5)], [block(0, 5)]),
        ([block(0, 5), block(0, 6, pass_index=1)], [block(0, 5), block(1, 6)]),
        ([block(0, 5), block(1, 6)], [block(0, 5), block(1, 6, stopped=False)]),
    ],
    ids=["nothing", "one set", "one set, two passes", "one survivor"],
)
def test_without_a_set_to_leave_out_there_is_no_figure(ours: list[PaperBlock], base: list[PaperBlock]) -> None:
    """A ratio without an interval is not printed."""
    assert paper_ratio(ours, base, ignore_eos=False) is None


@pytest.mark.parametrize("odd", [block(1, 0), block(1, 5, 0.0), block(1, 5, -1.0), block(1, 5, math.nan)])
def test_a_block_that_cannot_be_is_refused(odd: PaperBlock) -> None:
    good = [block(0, 5), block(1, 5)]
    for arms in (([good[0], odd], good), (good, [good[0], odd])):
        with pytest.raises(ValueError, match="positive and finite"):
            paper_ratio(*arms, ignore_eos=True)
