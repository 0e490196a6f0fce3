"""What speedup the measured stages and acceptance would explain, beside the speedup that was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

import msgspec

from draftproof.analysis.acceptance import Acceptance, engine_steps
from draftproof.errors import rule
from draftproof.records import Output


class StepCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds of the decode steps in which all requests of a batch took part."""

    draft_s: float
    verify_s: float
    """The target's forward pass and LM head."""
    step_s: float
    steps: int


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Expected speedups of one cell (dimensionless), with what they follow from."""

    k: int
    alpha: float
    c: float
    v: float
    tokens_per_step: float
    """`tokens_per_decode_step`."""
    iid: float
    """`eq1`."""
    measured_positions: float
    """`by_positions`."""
    whole_step: float
    """Tokens per step over the seconds of a whole step in those of a no-SD step: nothing is modelled but the batch's
    end, where requests are missing."""


def step_costs(steps: Iterable[dict[str, Any]], batch_size: int) -> StepCosts | None:
    """None without a decode step of the whole batch (keys as in ``steps.parquet``)."""
    full = [step for step in steps if step["kind"] == "decode" and step["requests"] == batch_size]
    if not full:
        return None
    return StepCosts(
        draft_s=fmean(step["draft_s"] for step in full),
        verify_s=fmean(step["forward_s"] + step["lm_head_s"] for step in full),
        step_s=fmean(step["step_s"] for step in full),
        steps=len(full),
    )


def acceptance_rate(acceptance: Acceptance) -> float | None:
    """alpha: the chance that a draft token is accepted, given that those before it were; from 0 to 1.

    The maximum-likelihood estimate where all positions share one chance: accepted tokens over those that were judged,
    the first rejected one of each draft included. A position is judged when the one before it was accepted. None
    without drafts.
    """
    survival = acceptance.per_position
    if not survival:
        return None
    return sum(survival) / (1 + sum(survival[:-1]))


def eq1(alpha: float, k: int, c: float) -> float:
    """Expected speedup if every draft token is accepted with chance `alpha`, whatever came before it.

    ``(1 - alpha^(k+1)) / ((1 - alpha) (k c + 1))``; `c`: seconds of one draft forward over those of one target forward.
    Verifying k + 1 rows is taken to cost as much as one. Leviathan, Kalman and Matias, Fast Inference from Transformers
    via Speculative Decoding (arXiv 2211.17192), Theorem 3.8; Eq. 1 of arXiv 2601.11580.
    """
    if not 0.0 <= alpha <= 1.0:
        raise rule("alpha", "from 0 to 1", alpha)
    if k < 1:
        raise rule("k", "at least 1", k)
    if c < 0.0:
        raise rule("c", "at least 0", c)
    tokens = sum(alpha**position for position in range(k + 1))  # the geometric sum, which has no gap at alpha = 1
    return float(tokens / (k * c + 1))


def by_positions(tokens_per_step: float, k: int, c: float, v: float) -> float:
    """Expected speedup from the tokens that a step really emits, with no assumption on where drafts are accepted.

    ``tokens_per_step / (k c + v)``; `v`: seconds of verifying k + 1 rows over those of one. Where every step drafts,
    tokens per step is the acceptance length. The same theorem with its numerator and its verification measured.
    """
    if v <= 0.0:
        raise rule("v", "more than 0", v)
    return tokens_per_step / (k * c + v)


def tokens_per_decode_step(outputs: Iterable[Output]) -> float | None:
    """Tokens per (request, decode step), steps without a draft included; None without decode steps.

    As in `Acceptance.tokens_per_step`, but without the prefill step and the token that it emits.
    """
    tokens = steps = 0
    for output in outputs:
        tokens += len(output.token_ids) - 1
        steps += engine_steps(output) - 1
    return tokens / steps if steps > 0 else None


def expected(acceptance: Acceptance, tokens: float | None, k: int, ours: StepCosts, base: StepCosts) -> Expected | None:
    """`tokens`: per decode step. None where nothing was drafted, or a forward took no time."""
    alpha = acceptance_rate(acceptance)
    if alpha is None or tokens is None or base.verify_s <= 0.0 or ours.verify_s <= 0.0 or ours.step_s <= 0.0:
        return None
    c, v = ours.draft_s / (k * base.verify_s), ours.verify_s / base.verify_s
    return Expected(
        k=k,
        alpha=alpha,
        c=c,
        v=v,
        tokens_per_step=tokens,
        iid=eq1(alpha, k, c),
        measured_positions=by_positions(tokens, k, c, v),
        whole_step=tokens * base.step_s / ours.step_s,
    )
