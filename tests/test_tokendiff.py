"""Rules of comparing outputs: token ids, the first difference, and its cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.tokendiff import Cause, cause_of, first_difference, first_differences, gap_to_best
from draftproof.errors import DraftproofError

IDS = st.lists(st.integers(0, 3), max_size=8)
LIMIT_NATS = 0.25


def slow_first_difference(left: list[int], right: list[int]) -> int | None:
    """The first place at which one has something that the other has not."""
    for index in range(max(len(left), len(right))):
        if left[index : index + 1] != right[index : index + 1]:
            return index
    return None


@given(IDS, IDS)
def test_first_difference_is_the_slow_one(left: list[int], right: list[int]) -> None:
    assert first_difference(left, right) == slow_first_difference(left, right)
    assert first_difference(right, left) == first_difference(left, right)


@given(IDS, IDS)
def test_all_before_the_first_difference_is_equal(left: list[int], right: list[int]) -> None:
    index = first_difference(left, right)
    if index is None:
        assert left == right
    else:
        assert left[:index] == right[:index]
        assert left != right


@given(IDS, st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_an_output_that_ends_early_differs_at_its_end(ids: list[int], more: list[int]) -> None:
    """Nothing is cut to equal length: a prefix is not the same output."""
    assert first_difference(ids, ids + more) == len(ids)
    assert first_difference(ids + more, ids) == len(ids)


@pytest.mark.parametrize(
    ("left", "right", "index"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [9, 2, 3], 0),
        ([1, 2, 3], [1, 2, 9], 2),
        ([1, 2], [1, 2, 3], 2),
        ([1], [2], 0),
    ],
)
def test_first_differences_by_hand(left: list[int], right: list[int], index: int | None) -> None:
    assert first_differences([left], [right]) == [index]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1), st.lists(st.integers(0, 3), min_size=1)), max_size=5)
)
def test_requests_are_compared_one_by_one(pairs: list[tuple[list[int], list[int]]]) -> None:
    found = first_differences([left for left, _ in pairs], [right for _, right in pairs])
    assert found == [slow_first_difference(left, right) for left, right in pairs]


def test_an_unequal_number_of_outputs_is_an_error() -> None:
    """A request that got lost would shift all later ones."""
    with pytest.raises(DraftproofError, match=r"equal number \(got 2 and 1\)"):
        first_differences([[1], [2]], [[1]])
    with pytest.raises(DraftproofError, match=r"equal number \(got 0 and 1\)"):
        first_differences([], [[1]])


@pytest.mark.parametrize(("left", "right"), [([], [1]), ([1], []), ([], [])])
def test_an_empty_output_is_an_error(left: list[int], right: list[int]) -> None:
    """Two empty outputs are equal and say nothing: never a pass."""
    with pytest.raises(DraftproofError, match=r"must not be empty \(request 1\)"):
        first_differences([[1], left], [[1], right])


# -- gaps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("best", "pair", "gap"),
    [
        (-0.5, (-0.5, -0.625), 0.125),
        (-0.5, (-0.625, -0.5), 0.125),
        (-0.5, (-0.75, -1.5), 1.0),
        (-0.5, (-0.5, -0.5), 0.0),
        (-0.5, (-0.5, None), None),
        (-0.5, (None, -0.5), None),
        (-0.5, (None, None), None),
    ],
)
def test_the_gap_is_that_of_the_worse_token(
    best: float, pair: tuple[float | None, float | None], gap: float | None
) -> None:
    """Both emitted tokens must lie near the best one; one that was not scored lies nowhere."""
    assert gap_to_best(best, pair) == gap


# -- causes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "gap_nats", "repeats", "cause"),
    [
        (None, None, True, "identical"),
        (None, None, False, "identical"),
        (3, 0.0, True, "near_tie"),
        (3, 0.125, True, "near_tie"),
        (3, LIMIT_NATS, True, "near_tie"),
        (3, LIMIT_NATS + 5e-6, True, "near_tie"),  # within float32 of the limit
        (3, 0.2501, True, "divergent"),
        (3, 5.0, True, "divergent"),
        (3, float("inf"), True, "divergent"),
        (3, float("nan"), True, "divergent"),
        (3, None, True, "divergent"),
        (0, 0.0, True, "near_tie"),
        (0, None, True, "divergent"),
        (3, 0.0, False, "inconclusive"),
        (3, 5.0, False, "inconclusive"),
        (3, None, False, "inconclusive"),
    ],
)
def test_the_table_of_causes(position: int | None, gap_nats: float | None, repeats: bool, cause: Cause) -> None:
    assert cause_of(position, gap_nats, limit_nats=LIMIT_NATS, reference_repeats=repeats) == cause


def judge(
    reference: list[int], other: list[int], best: float, pair: tuple[float | None, float | None], again: list[int]
) -> Cause:
    """The whole detector on one request."""
    (position,) = first_differences([reference], [other])
    (repeat,) = first_differences([reference], [again])
    return cause_of(position, gap_to_best(best, pair), limit_nats=LIMIT_NATS, reference_repeats=repeat is None)


def test_planted_faults_are_caught_and_the_clean_case_passes() -> None:
    """One token flipped: what its scores say decides, and whether the reference repeats itself."""
    clean = [5, 6, 7, 8]
    flipped = [5, 6, 9, 8]
    assert judge(clean, clean, -0.1, (-0.1, -0.1), clean) == "identical"
    assert judge(clean, flipped, -0.1, (-0.1, -3.0), clean) == "divergent"
    assert judge(clean, flipped, -0.1, (-0.1, None), clean) == "divergent"
    assert judge(clean, flipped, -0.7, (-0.7, -0.8), clean) == "near_tie"
    assert judge(clean, flipped, -0.7, (-0.7, -0.8), [5, 6, 7, 9]) == "inconclusive"
    assert judge(clean, clean[:3], -0.1, (None, None), clean) == "divergent"


@given(IDS.filter(bool), st.integers(0, 7), st.floats(0.26, 50.0))
def test_a_flipped_token_with_a_wide_gap_is_always_caught(ids: list[int], place: int, gap: float) -> None:
    place %= len(ids)
    flipped = [*ids[:place], ids[place] + 10, *ids[place + 1 :]]
    assert judge(ids, flipped, -0.5, (-0.5, -0.5 - gap), ids) == "divergent"
