"""Rules of acceptance: vLLM's definitions, worked by hand, and the invariants of a sound block."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.acceptance import acceptance_of, engine_steps, soundness
from draftproof.records import Output
from tests.factories import make_block


def make_output(tokens: int, accepted: list[int] | None = None, drafted: list[int] | None = None) -> Output:
    accepted = accepted or []
    return Output(
        token_ids=list(range(tokens)), finish_reason="length", accepted=accepted, drafted=drafted or [3] * len(accepted)
    )


# The requests of `make_block()`, 8 tokens each: 1 of the prefill, then 3 + 1, 0 + 1 and 1 + 1 of drafted steps; and 1,
# then 2 + 1 and 1 + 1, and two steps without a draft.
OUTPUTS = [make_output(8, [3, 0, 1]), make_output(8, [2, 1])]


# -- formulas --------------------------------------------------------------------------------------------------------


def test_acceptance_by_hand() -> None:
    """AL 1 + 7/5, rate 7/15, survival 4/5, 2/5, 1/5; 16 tokens in 4 + 5 steps of a request."""
    found = acceptance_of([make_block()], OUTPUTS)
    assert found is not None
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (5, 15, 7)
    assert found.length == pytest.approx(2.4)
    assert found.rate == pytest.approx(7 / 15)
    assert found.per_position == pytest.approx([0.8, 0.4, 0.2])
    assert found.tokens_per_step == pytest.approx(16 / 9)


def test_blocks_are_pooled_not_averaged() -> None:
    """Sums over sums; a block with shorter drafts counts at the positions that it has."""
    short = make_block(num_drafts=5, num_draft_tokens=5, num_accepted_tokens=1, num_accepted_tokens_per_pos=[1])
    found = acceptance_of([make_block(), short], [])
    assert found is not None
    assert found.length == pytest.approx(1 + 8 / 10)
    assert found.rate == pytest.approx(8 / 20)
    assert found.per_position == pytest.approx([0.5, 0.2, 0.1])


def test_the_length_is_one_more_than_the_sum_of_the_positions() -> None:
    found = acceptance_of([make_block()], OUTPUTS)
    assert found is not None
    assert found.length == pytest.approx(1 + sum(found.per_position))


def test_a_requests_length_weighs_the_same_however_long_it_is() -> None:
    """By hand: 1 + 9/3 and 1 + 1/1 have a mean of 3, pooled they are 1 + 10/4; a request without a draft has none."""
    found = acceptance_of([make_block()], [make_output(13, [3, 3, 3]), make_output(3, [1]), make_output(5)])
    assert found is not None
    assert found.per_request is not None
    assert found.per_request.requests == 2
    assert found.per_request.mean == pytest.approx(3.0)
    assert found.per_request.quartiles == pytest.approx((2.5, 3.0, 3.5))


def test_without_a_drafted_step_no_request_has_a_length() -> None:
    found = acceptance_of([make_block()], [make_output(5)])
    assert found is not None
    assert found.per_request is None


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=12))
def test_lengths_of_requests_lie_where_those_of_steps_do(accepted: list[list[int]]) -> None:
    """From 1 to k + 1, quartiles in order; requests with equally many steps give the pooled length as their mean."""
    outputs = [make_output(20, steps) for steps in accepted]
    found = acceptance_of([make_block()], outputs)
    assert found is not None
    assert found.per_request is not None
    first, median, third = found.per_request.quartiles
    assert 1 <= first <= median <= third <= 4
    assert 1 <= found.per_request.mean <= 4 + 1e-9
    if len({len(steps) for steps in accepted}) == 1:
        pooled = 1 + sum(map(sum, accepted)) / sum(map(len, accepted))
        assert found.per_request.mean == pytest.approx(pooled)


def test_without_blocks_there_is_no_acceptance() -> None:
    assert acceptance_of([], []) is None


def test_without_drafts_nothing_is_divided_by_zero() -> None:
    """A lookup that never found a match: no length, no rate, no positions."""
    idle = make_block(num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0, num_accepted_tokens_per_pos=[0, 0, 0])
    found = acceptance_of([idle], [make_output(8)])
    assert found is not None
    assert (found.length, found.rate, found.per_position, found.tokens_per_step) == (None, None, [], None)


# -- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "accepted", "steps"),
    [
        (1, [], 1),  # the prefill step alone
        (8, [], 8),  # one token a step
        (5, [3], 2),  # prefill, 3 + 1
        (8, [3, 0, 1], 4),  # prefill, 3 + 1, 0 + 1, 1 + 1
        (8, [2, 1], 5),  # prefill, 2 + 1, 1 + 1, and two steps without a draft
        (4, [3], 2),  # the limit takes the bonus token of the last run
        (3, [3], 2),  # and an accepted token
        (2, [3], 2),  # and all but one
        (6, [3, 3], 3),  # prefill, 3 + 1, and 1 of 3 + 1
    ],
)
def test_steps_by_hand(tokens: int, accepted: list[int], steps: int) -> None:
    assert engine_steps(make_output(tokens, accepted)) == steps


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 4))
def test_steps_are_counted_back_from_a_played_request(accepted: list[int], undrafted: int) -> None:
    """Play the prefill, the drafted steps and the others: what they emit gives their number again."""
    emitted = 1 + sum(count + 1 for count in accepted) + undrafted
    assert engine_steps(make_output(emitted, accepted)) == 1 + len(accepted) + undrafted


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_steps_survive_a_limit_inside_the_last_run(accepted: list[int], data: st.DataObject) -> None:
    """The last run is cut anywhere but at nothing; all steps had drafts."""
    cut = data.draw(st.integers(0, accepted[-1]))
    emitted = 1 + sum(count + 1 for count in accepted) - cut
    assert engine_steps(make_output(emitted, accepted)) == 1 + len(accepted)


# -- soundness -------------------------------------------------------------------------------------------------------


def test_a_sound_block_has_no_problem() -> None:
    assert soundness(make_block(), OUTPUTS, 8) == []
    assert soundness(make_block(), OUTPUTS, None) == []


def test_a_sound_block_without_speculation_has_no_problem() -> None:
    plain = make_block(
        arm="no_sd", num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0, num_accepted_tokens_per_pos=[]
    )
    assert soundness(plain, [make_output(8), make_output(8)], 8) == []


FAULTS: dict[str, tuple[dict[str, Any], list[Output], str]] = {
    "an output is missing": ({}, OUTPUTS[:1], "2 requests but 1 outputs"),
    "an output too many": ({}, [*OUTPUTS, make_output(8)], "2 requests but 3 outputs"),
    "an output of the wrong length": (
        {"output_tokens": 17},
        [OUTPUTS[0], make_output(9, [2, 1])],
        "requests [1] are not 8 tokens long though EOS is ignored",
    ),
    "other ids stored than counted": ({"output_tokens": 17}, OUTPUTS, "17 output tokens recorded, 16 ids stored"),
    "no time passed": ({"seconds": 0.0}, OUTPUTS, "seconds must be positive (got 0.0)"),
    "the clock went backwards": ({"seconds": -1.0}, OUTPUTS, "seconds must be positive (got -1.0)"),
    "the clock says NaN": ({"seconds": float("nan")}, OUTPUTS, "seconds must be positive (got nan)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_named(fault: str) -> None:
    """With the block that it lies in."""
    changes, outputs, said = FAULTS[fault]
    problems = soundness(make_block(**changes), outputs, 8)
    assert any(said in problem for problem in problems), problems
    assert all(problem.startswith("ngram, w b2, rotation 0, pass 0: ") for problem in problems)


def test_lengths_may_differ_where_eos_ends_outputs() -> None:
    outputs = [OUTPUTS[0], make_output(9, [2, 1])]
    assert soundness(make_block(output_tokens=17), outputs, None) == []
