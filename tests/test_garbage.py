"""Rules of telling a broken reference from one that repeats itself because it was asked to."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.garbage import garbage, not_finite

BROKEN = [0] * 16
"""What NaN logits give: the first token of the vocabulary, whatever was asked."""
FINE = [5, 8, 13, 4, 9, 1, 7, 2, 6, 3]


def test_a_model_that_gives_one_token_for_everything_is_garbage() -> None:
    """Planted: it repeats perfectly, and any variant agrees with it."""
    found = garbage([("p", BROKEN), ("q", BROKEN), ("r", BROKEN)])
    assert found == (
        "outputs without speculation are garbage: for 3 of 3 prompts at least 90% of their tokens are token 0; that "
        "they repeat says nothing: check the target's weights, dtype and scores (NaN?)"
    )


def test_a_clean_model_is_not() -> None:
    assert garbage([("p", FINE), ("q", FINE[::-1]), ("r", FINE[2:] + FINE[:2])]) == ""
    assert garbage([]) == ""


def test_a_model_that_was_asked_to_repeat_a_word_is_not() -> None:
    """Each prompt has a word of its own."""
    assert garbage([(f"repeat {word}", [word] * 64) for word in range(8)]) == ""


def test_one_prompt_cannot_tell() -> None:
    """Nor can many copies of it: it may have asked for just that."""
    assert garbage([("p", BROKEN)] * 128) == ""
    assert garbage([("p", BROKEN)] * 128 + [("q", BROKEN)]) != ""


@pytest.mark.parametrize(("broken", "fine", "told"), [(1, 0, False), (1, 1, False), (2, 2, True), (2, 3, False)])
def test_it_takes_half_of_the_prompts_and_two(broken: int, fine: int, told: bool) -> None:
    outputs = [(f"b{i}", BROKEN) for i in range(broken)] + [(f"f{i}", FINE) for i in range(fine)]
    assert bool(garbage(outputs)) is told


@pytest.mark.parametrize(("others", "told"), [(0, True), (1, True), (2, False)])
def test_it_takes_nine_tokens_in_ten(others: int, told: bool) -> None:
    ids = list(range(1, others + 1)) + [0] * (10 - others)
    assert bool(garbage([("p", ids), ("q", ids[::-1])])) is told


@given(st.integers(1, 300))
def test_exactly_nine_in_ten_is_enough(tens: int) -> None:
    ids = [0] * 9 * tens + [1] * tens
    assert garbage([("p", ids), ("q", ids)])
    assert not garbage([("p", [*ids, 1]), ("q", [*ids, 1])])


def test_a_short_output_says_nothing_either_way() -> None:
    """Seven of one token are no evidence, and are not counted among the prompts that are fine."""
    assert garbage([("p", [0] * 7), ("q", [0] * 7)]) == ""
    assert garbage([("p", [0] * 8), ("q", [0] * 8)]) != ""
    short = [(f"s{i}", FINE[:7]) for i in range(9)]
    assert "2 of 2 prompts" in garbage([("p", BROKEN), ("q", BROKEN), *short])


def test_a_model_that_breaks_in_some_copies_is_garbage() -> None:
    """A prompt that was once answered well and once with the one token counts."""
    assert garbage([("p", FINE), ("p", BROKEN), ("q", BROKEN), ("q", FINE)]) != ""


def test_an_answer_that_is_over_may_repeat_its_end() -> None:
    """Where EOS is ignored: a few tokens, then EOS up to the limit. A model that begins with it is broken."""
    eos = 0
    over = [("p", [5, eos, *[eos] * 62]), ("q", [6, 7, eos, *[eos] * 61])]
    assert garbage(over) != ""
    assert garbage(over, end_tokens=[eos]) == ""
    assert garbage([("p", BROKEN), ("q", BROKEN)], end_tokens=[eos]) != ""
    assert garbage(over, end_tokens=[9]) != ""


@given(st.lists(st.tuples(st.sampled_from("pqrs"), st.lists(st.integers(0, 2), max_size=12)), max_size=8))
def test_it_is_the_slow_rule_in_any_order(outputs: list[tuple[str, list[int]]]) -> None:
    judged = {prompt_id for prompt_id, ids in outputs if len(ids) >= 8}
    slow = False
    for token in range(3):
        hit = {p for p, ids in outputs if len(ids) >= 8 and 10 * ids.count(token) >= 9 * len(ids)}
        slow = slow or (len(hit) >= 2 and 2 * len(hit) >= len(judged))
    assert bool(garbage(outputs)) is slow
    assert bool(garbage(outputs[::-1])) is slow


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_told(bad: float) -> None:
    assert not_finite([-0.5, bad])
    assert not_finite([None, bad])


def test_scores_that_are_numbers_or_absent_are_fine() -> None:
    assert not not_finite([-0.5, 0.0, -1e30, None])
    assert not not_finite([])
