"""Rules of comparing outputs: token ids, the first difference, and its cause."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.tokendiff import (
    Cause,
    OutputSet,
    TokenRows,
    cause_of,
    engine_tie,
    first_difference,
    first_differences,
    first_differences_of_rows,
    gap_to_best,
    pair_up,
)
from draftproof.errors import DraftproofError

IDS = st.lists(st.integers(0, 3), max_size=8)
OUTPUT = st.lists(st.integers(0, 3), min_size=1, max_size=8)
LIMIT_NATS = 0.25


def by_rows(left: list[list[int]], right: list[list[int]]) -> list[int | None]:
    """The flat arrays' answer in the words of the lists'."""
    found = first_differences_of_rows(TokenRows.of(left), TokenRows.of(right))
    assert found.dtype == np.int64
    return [None if position == -1 else position for position in found.tolist()]


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


@given(st.lists(st.tuples(OUTPUT, OUTPUT), max_size=5))
def test_requests_are_compared_one_by_one(pairs: list[tuple[list[int], list[int]]]) -> None:
    found = first_differences([left for left, _ in pairs], [right for _, right in pairs])
    assert found == [slow_first_difference(left, right) for left, right in pairs]


def test_an_unequal_number_of_outputs_is_an_error() -> None:
    """A request that got lost would shift all later ones."""
    for compare in (first_differences, by_rows):
        with pytest.raises(DraftproofError, match=r"equal number \(got 2 and 1\)"):
            compare([[1], [2]], [[1]])
        with pytest.raises(DraftproofError, match=r"equal number \(got 0 and 1\)"):
            compare([], [[1]])


@pytest.mark.parametrize(("left", "right"), [([], [1]), ([1], []), ([], [])])
def test_an_empty_output_is_an_error(left: list[int], right: list[int]) -> None:
    """Two empty outputs are equal and say nothing: never a pass."""
    for compare in (first_differences, by_rows):
        with pytest.raises(DraftproofError, match=r"must not be empty \(request 1\)"):
            compare([[1], left], [[1], right])


# -- flat arrays -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(OUTPUT, OUTPUT), max_size=8))
def test_flat_arrays_say_what_the_lists_say(pairs: list[tuple[list[int], list[int]]]) -> None:
    left, right = [one for one, _ in pairs], [other for _, other in pairs]
    assert by_rows(left, right) == [first_difference(one, other) for one, other in pairs]


@given(st.lists(OUTPUT, min_size=1, max_size=8), st.data())
def test_a_difference_stays_within_its_row(rows: list[list[int]], data: st.DataObject) -> None:
    """Rows lie one behind the other: what happens to one must not show in its neighbours, however long they are."""
    index = data.draw(st.integers(0, len(rows) - 1))
    other = data.draw(OUTPUT)
    found = by_rows(rows, [*rows[:index], other, *rows[index + 1 :]])
    assert found.pop(index) == first_difference(rows[index], other)
    assert found == [None] * (len(rows) - 1)


@given(st.lists(IDS, max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_rows_are_what_they_were_made_of(lists: list[list[int]], start: int, stop: int) -> None:
    """From lists, and from a column of the records: whole, in chunks, and as a part of a longer one."""

    def back(rows: TokenRows) -> list[list[int]]:
        ends = rows.offsets.tolist()
        assert rows.values.dtype == np.int32
        assert rows.offsets.dtype == np.int64
        assert len(rows) == len(ends) - 1
        return [rows.values[left:right].tolist() for left, right in pairwise(ends)]

    assert back(TokenRows.of(lists)) == lists
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.int64())):
        column = pa.array(lists, kind)
        assert back(TokenRows.from_arrow(column)) == lists
        assert back(TokenRows.from_arrow(column[start:stop])) == lists[start:stop]
        chunks = pa.chunked_array([column[:start], column[start:]], kind)
        assert back(TokenRows.from_arrow(chunks)) == lists


def test_an_id_beyond_32_bits_is_never_wrapped_into_another() -> None:
    """2**32 + 5 would become 5, and two different outputs equal."""
    with pytest.raises(DraftproofError, match=r"32 bits \(got 4294967301\)"):
        TokenRows.of([[5], [2**32 + 5]])
    with pytest.raises(DraftproofError, match=r"32 bits \(got 4294967301\)"):
        TokenRows.from_arrow(pa.array([[5], [2**32 + 5]]))


@pytest.mark.parametrize("lists", [[[1], None], [[1], [2, None]]])
def test_a_column_with_holes_is_an_error(lists: list[Any]) -> None:
    with pytest.raises(DraftproofError, match=r"got None\); 1 of [23] are null"):
        TokenRows.from_arrow(pa.array(lists))


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


@pytest.mark.parametrize(
    ("best", "pair", "ties"),
    [
        (-0.5, (-0.5, -0.5), True),
        (0.0, (0.0, 0.0), True),
        (-0.5, (-0.5, -0.5000001), False),
        (-0.5, (-0.75, -0.75), False),  # equal, but a third token is better
        (-0.5, (-0.5, None), False),
        (-0.5, (None, -0.5), False),
        (None, (None, None), False),
        (None, (-0.5, -0.5), False),
        (float("nan"), (float("nan"), float("nan")), False),
    ],
)
def test_an_engine_ties_bit_by_bit(best: float | None, pair: tuple[float | None, float | None], ties: bool) -> None:
    assert engine_tie(best, pair) is ties


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


@pytest.mark.parametrize("gap_nats", [0.0, 0.125, 5.0, float("nan"), None])
def test_a_tie_of_the_engine_goes_before_the_gap(gap_nats: float | None) -> None:
    """The engine cannot tell apart what its own precision makes equal; but nothing is a tie without a difference, and
    a reference that does not repeat itself leaves nothing to explain."""

    def cause(position: int | None, **given: bool) -> Cause:
        told = {"reference_repeats": True, "engine_tie": True} | given
        return cause_of(position, gap_nats, limit_nats=LIMIT_NATS, **told)

    assert cause(3) == "exact_tie"
    assert cause(None) == "identical"
    assert cause(3, reference_repeats=False) == "inconclusive"
    assert cause(3, scored=False) == "inconclusive"


def judge(
    reference: list[int],
    other: list[int],
    best: float,
    pair: tuple[float | None, float | None],
    again: list[int],
    engine: tuple[float | None, tuple[float | None, float | None]] = (None, (None, None)),
) -> Cause:
    """The whole detector on one request: `best` and `pair` are the referee's scores, `engine` the engine's own."""
    (position,) = first_differences([reference], [other])
    (repeat,) = first_differences([reference], [again])
    assert by_rows([reference], [other]) == [position]
    return cause_of(
        position,
        gap_to_best(best, pair),
        limit_nats=LIMIT_NATS,
        reference_repeats=repeat is None,
        engine_tie=engine_tie(*engine),
    )


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


CLEAN = [11, 12, 13, 14, 15, 16, 17, 18, 19, 2]
"""An output of ten tokens, the last of which stops it."""
BOS = 1


@pytest.mark.parametrize(
    ("faulty", "position"),
    [
        pytest.param([*CLEAN[:6], 99, *CLEAN[7:]], 6, id="a token flipped after position 5"),
        pytest.param([*CLEAN[:9], 20, 21], 9, id="a stop token swallowed: the output goes on in its place"),
        pytest.param([*CLEAN, 20, 21], 10, id="a stop token not heeded: the output goes on behind it"),
        pytest.param([*CLEAN[1:], 20], 0, id="shifted by one to the left"),
        pytest.param([10, *CLEAN[:-1]], 0, id="shifted by one to the right"),
        pytest.param(CLEAN[:7], 7, id="truncated"),
        pytest.param(CLEAN[:-1], 9, id="without its last token"),
        pytest.param([BOS, *CLEAN], 0, id="one BOS more at the beginning"),
        pytest.param([*CLEAN[:4], *CLEAN[3:-1]], 4, id="one token twice"),
        pytest.param(CLEAN[::-1], 0, id="backwards"),
    ],
)
def test_each_planted_fault_is_found_at_its_place(faulty: list[int], position: int) -> None:
    """No scores explain it: divergent, and in between clean neighbours it is the only one."""
    assert judge(CLEAN, faulty, -0.1, (-0.1, -9.0), CLEAN) == "divergent"
    assert judge(CLEAN, faulty, -0.1, (None, None), CLEAN) == "divergent"
    assert first_difference(CLEAN, faulty) == position
    assert by_rows([CLEAN] * 3, [CLEAN, faulty, CLEAN]) == [None, position, None]


def test_equal_text_from_other_tokens_is_a_difference() -> None:
    """Ids are compared, never text: a tokenizer may write one word in two ways, and only one was emitted."""
    pieces = {5: "to", 6: "day", 7: "today", 8: "."}
    left, right = [5, 6, 8], [7, 8]
    assert "".join(pieces[i] for i in left) == "".join(pieces[i] for i in right)
    assert judge(left, right, -0.1, (-0.1, -4.0), left) == "divergent"
    assert by_rows([left], [right]) == [0]


def test_a_third_token_shows_a_fault_in_both_arms() -> None:
    """Both emitted tokens lie far below what the referee would have taken: that they tie with each other excuses
    neither, in the referee's scores or in the engine's."""
    flipped = [*CLEAN[:6], 99, *CLEAN[7:]]
    assert judge(CLEAN, flipped, -0.1, (-4.0, -4.0), CLEAN) == "divergent"
    assert judge(CLEAN, flipped, -0.1, (-4.0, -4.0), CLEAN, (-0.1, (-4.0, -4.0))) == "divergent"
    assert judge(CLEAN, flipped, -0.9, (-1.0, -1.1), CLEAN) == "near_tie"  # all three lie together


def test_an_unstable_reference_is_never_green() -> None:
    """It cannot be judged against, even where the scores would explain the difference, or the engine's tie."""
    flipped, unstable = [*CLEAN[:6], 99, *CLEAN[7:]], [*CLEAN[:2], 98, *CLEAN[3:]]
    for scores in ((-0.7, -0.7), (-0.1, -9.0)):
        assert judge(CLEAN, flipped, -0.7, scores, unstable) == "inconclusive"
        assert judge(CLEAN, flipped, -0.7, scores, unstable, (-0.7, (-0.7, -0.7))) == "inconclusive"


def test_an_exact_tie_is_no_fault() -> None:
    """Equal logits in bf16: which of them comes first is the kernel's choice. The referee sees a small gap."""
    flipped = [*CLEAN[:6], 99, *CLEAN[7:]]
    assert judge(CLEAN, flipped, -0.7, (-0.7, -0.72), CLEAN, (-0.6875, (-0.6875, -0.6875))) == "exact_tie"
    assert judge(CLEAN, flipped, -0.7, (-0.7, -0.72), CLEAN, (-0.6875, (-0.6875, -0.6914))) == "near_tie"


# -- outputs of two runs ---------------------------------------------------------------------------------------------


def make_set(name: str, outputs: dict[str, list[int]], **fields: Any) -> OutputSet:
    """Each prompt's hash is made of its id, so that equal ids mean equal prompts."""
    given: dict[str, Any] = {
        "prompts_sha256": {prompt_id: f"sha-{prompt_id}" for prompt_id in outputs},
        "tokenizer_sha256": "t",
    }
    return OutputSet(name=name, outputs=outputs, **(given | fields))


REFERENCE = make_set("no_sd", {"p": [1, 2], "q": [3], "r": [4, 5]})


@given(st.dictionaries(st.text(min_size=1), st.tuples(OUTPUT, OUTPUT), min_size=1, max_size=6), st.randoms())
def test_requests_meet_by_prompt_id(outputs: dict[str, tuple[list[int], list[int]]], random: Any) -> None:
    """In whatever order the other arm finished them."""
    reference = make_set("no_sd", {key: left for key, (left, _) in outputs.items()})
    shuffled = random.sample(list(outputs), len(outputs))
    other = make_set("ngram", {key: outputs[key][1] for key in shuffled})
    assert pair_up(reference, other) == [(key, *pair) for key, pair in outputs.items()]


def test_outputs_swapped_between_two_requests_both_differ() -> None:
    """As sets of outputs the two arms are equal; request by request they are not."""
    swapped = make_set("ngram", REFERENCE.outputs | {"p": [4, 5], "r": [1, 2]})
    assert sorted(swapped.outputs.values()) == sorted(REFERENCE.outputs.values())
    pairs = pair_up(REFERENCE, swapped)
    assert by_rows([left for _, left, _ in pairs], [right for _, _, right in pairs]) == [0, None, 0]


@pytest.mark.parametrize(
    ("outputs", "fields", "message"),
    [
        ({}, {}, r"must not be none at all \(ngram\)"),
        ({"p": [1], "q": [], "r": [1]}, {}, r"outputs of ngram must be longer than 0 tokens \(not so for 1: q\)"),
        (
            REFERENCE.outputs,
            {"tokenizer_sha256": "u"},
            r"tokenizer of ngram must be that of no_sd \(t\) \(got 'u'\); token ids of two tokenizers",
        ),
        (
            REFERENCE.outputs,
            {"prompts_sha256": {"p": "sha-p", "q": "another", "r": "sha-r"}},
            r"prompts of ngram must be those of no_sd, token by token \(not so for 1: q\)",
        ),
        ({"p": [1], "q": [3]}, {}, r"requests of no_sd must be among those of ngram \(not so for 1: r\)"),
        (
            REFERENCE.outputs | {"s": [1], "t": [1]},
            {},
            r"requests of ngram must be among those of no_sd \(not so for 2: s, t\)",
        ),
        (
            REFERENCE.outputs | {f"s{i}": [1] for i in range(9)},
            {},
            r"\(not so for 9: s0, s1, s2, s3, s4, \.\.\.\)",
        ),
        (
            {"p": [1]},
            {"prompts_sha256": {"p": "sha-p", "q": "sha-q"}},
            r"prompts of ngram must be answered \(not so for 1: q\)",
        ),
        (
            {"p": [1], "q": [1]},
            {"prompts_sha256": {"p": "sha-p"}},
            r"outputs of ngram must be to a prompt with a hash \(not so for 1: q\)",
        ),
    ],
)
def test_what_does_not_meet_is_refused(outputs: dict[str, list[int]], fields: dict[str, Any], message: str) -> None:
    """Nothing is zipped, cut to the shorter side or left out: a request that got lost would count as agreeing."""
    with pytest.raises(DraftproofError, match=message):
        pair_up(REFERENCE, make_set("ngram", outputs, **fields))


def test_the_reference_is_held_to_the_same() -> None:
    with pytest.raises(DraftproofError, match=r"none at all \(no_sd\)"):
        pair_up(make_set("no_sd", {}), REFERENCE)
    with pytest.raises(DraftproofError, match=r"outputs of no_sd must be longer than 0 tokens \(not so for 1: p\)"):
        pair_up(make_set("no_sd", REFERENCE.outputs | {"p": []}), REFERENCE)
