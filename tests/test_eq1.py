"""Rules of the expected speedups: the formula by its definition, its limits, and what the measured form adds."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.acceptance import Acceptance
from draftproof.analysis.eq1 import (
    StepCosts,
    acceptance_rate,
    by_positions,
    eq1,
    expected,
    step_costs,
    tokens_per_decode_step,
)
from draftproof.errors import DraftproofError
from draftproof.records import Output

ALPHAS = st.floats(0.0, 1.0)
KS = st.integers(1, 16)
CS = st.floats(0.0, 2.0)


def acceptance(per_position: list[float]) -> Acceptance:
    return Acceptance(
        num_drafts=100,
        num_draft_tokens=100 * len(per_position),
        num_accepted_tokens=round(100 * sum(per_position)),
        length=1 + sum(per_position),
        rate=None,
        per_position=per_position,
        tokens_per_step=None,
    )


@given(st.floats(0.0, 0.999), KS, CS)
def test_the_formula_is_the_papers(alpha: float, k: int, c: float) -> None:
    """As it is printed: (1 - alpha^(k+1)) / ((1 - alpha)(k c + 1))."""
    assert eq1(alpha, k, c) == pytest.approx((1 - alpha ** (k + 1)) / ((1 - alpha) * (k * c + 1)), rel=1e-9)


def test_the_formula_against_dice() -> None:
    """The mean of tokens a step over drafts that are accepted by dice, over the seconds of a step."""
    dice = random.Random(3)
    alpha, k, c, steps = 0.7, 4, 0.1, 40_000
    tokens = 0
    for _ in range(steps):
        accepted = 0
        while accepted < k and dice.random() < alpha:
            accepted += 1
        tokens += accepted + 1
    assert eq1(alpha, k, c) == pytest.approx(tokens / steps / (k * c + 1), rel=0.01)


@given(KS, CS)
def test_the_ends_of_the_formula(k: int, c: float) -> None:
    """All accepted: k + 1 tokens for k drafts and one forward; none accepted: one token for the same."""
    assert eq1(1.0, k, c) == pytest.approx((k + 1) / (k * c + 1))
    assert eq1(0.0, k, c) == pytest.approx(1 / (k * c + 1))


@given(ALPHAS, KS, CS)
def test_both_forms_agree_where_the_assumptions_hold(alpha: float, k: int, c: float) -> None:
    """Equal chances at all positions, and k + 1 rows for the price of one."""
    survival = [alpha ** (position + 1) for position in range(k)]
    found = acceptance(survival)
    assert found.length is not None
    assert acceptance_rate(found) == pytest.approx(alpha, abs=1e-9)
    assert by_positions(found.length, k, c, 1.0) == pytest.approx(eq1(alpha, k, c))


def test_alpha_counts_judged_tokens_alone() -> None:
    """Of 100 drafts of 3, 80, 50 and 20 had 1, 2 and 3 accepted: 230 tokens were judged, 150 accepted."""
    assert acceptance_rate(acceptance([0.8, 0.5, 0.2])) == pytest.approx(150 / 230)
    assert acceptance_rate(acceptance([])) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: eq1(1.5, 1, 0.0), "alpha must be from 0 to 1"),
        (lambda: eq1(0.5, 0, 0.0), "k must be at least 1"),
        (lambda: eq1(0.5, 1, -0.1), "c must be at least 0"),
        (lambda: by_positions(2.0, 1, 0.0, 0.0), "v must be more than 0"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Any, message: str) -> None:
    with pytest.raises(DraftproofError, match=message):
        call()


def step(kind: str = "decode", requests: int = 2, **seconds: float) -> dict[str, Any]:
    given_ = {"draft_s": 1.0, "forward_s": 3.0, "lm_head_s": 1.0, "step_s": 8.0, **seconds}
    return {"kind": kind, "requests": requests, **given_}


def test_costs_are_those_of_steps_with_the_whole_batch() -> None:
    steps = [step(), step(draft_s=3.0), step(requests=1, forward_s=99.0), step("mixed", forward_s=99.0)]
    assert step_costs(steps, 2) == StepCosts(draft_s=2.0, verify_s=4.0, step_s=8.0, steps=2)
    assert step_costs(steps, 4) is None


def test_one_cell_by_hand() -> None:
    """k = 2: drafting 2 s, verifying 6 s, a step of 10 s; without speculation 4 s and 5 s."""
    ours = StepCosts(draft_s=2.0, verify_s=6.0, step_s=10.0, steps=9)
    base = StepCosts(draft_s=0.0, verify_s=4.0, step_s=5.0, steps=9)
    found = expected(acceptance([0.5, 0.25]), 1.75, 2, ours, base)
    assert found is not None
    assert (found.alpha, found.c, found.v) == (0.5, 0.25, 1.5)
    assert found.iid == pytest.approx(1.75 / 1.5)
    assert found.measured_positions == pytest.approx(1.75 / 2.0)
    assert found.whole_step == pytest.approx(1.75 * 5 / 10)
    assert expected(acceptance([]), 1.75, 2, ours, base) is None
    assert expected(acceptance([0.5, 0.25]), None, 2, ours, base) is None


def test_tokens_of_a_decode_step_leave_the_prefill_out() -> None:
    """Nine tokens: one of the prefill, and eight in three steps with 2, 2 and 1 accepted."""
    output = Output(token_ids=[1] * 9, finish_reason="length", accepted=[2, 2, 1], drafted=[3, 3, 3])
    assert tokens_per_decode_step([output]) == pytest.approx(8 / 3)
    assert tokens_per_decode_step([Output(token_ids=[1], finish_reason="length")]) is None
