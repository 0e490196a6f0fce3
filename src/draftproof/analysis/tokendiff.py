"""Greedy outputs compared by token id, and the cause of a first difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from draftproof.errors import DraftproofError

Cause = Literal["identical", "near_tie", "divergent", "inconclusive"]
"""What a comparison of two outputs can come to.

``near_tie``: at the first difference both emitted tokens lie within the limit of the best one, scored in a pass of its
own. ``divergent``: one of them does not. ``inconclusive``: the no-SD arm did not even repeat itself on this request.
"""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One request on two arms."""

    rotation: int
    request: int
    prompt_id: str
    position: int | None
    """First output position that differs, from 0; None: identical."""
    tokens_at_risk: int
    """Positions compared up to and including the first difference."""
    cause: Cause
    gap_nats: float | None = None
    """Larger distance of the two tokens to the referee's best; None: not scored, or not among the 20 best."""
    texts: tuple[str, str] | None = None
    """The two tokens."""
    before: str = ""
    """The end of the text up to the difference."""
    after: tuple[str, str] = ("", "")
    """How the two outputs go on, the two tokens included."""


def first_difference(reference: Sequence[int], other: Sequence[int]) -> int | None:
    """First index at which two token-id sequences differ, None when they are equal.

    A sequence that ends early differs at its end: nothing is cut to equal length.
    """
    for index, (left, right) in enumerate(zip(reference, other, strict=False)):
        if left != right:
            return index
    return None if len(reference) == len(other) else min(len(reference), len(other))


def first_differences(references: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> list[int | None]:
    """`first_difference` request by request; both sides must hold the same number of non-empty outputs."""
    if len(references) != len(others):
        raise DraftproofError(f"outputs to compare must be of equal number (got {len(references)} and {len(others)})")
    for index, (reference, other) in enumerate(zip(references, others, strict=True)):
        if not reference or not other:
            raise DraftproofError(f"outputs to compare must not be empty (request {index})")
    return [first_difference(left, right) for left, right in zip(references, others, strict=True)]


def gap_to_best(best: float, pair: tuple[float | None, float | None]) -> float | None:
    """Nats from the best token to the worse one of the pair; None where one is not among the scored tokens."""
    left, right = pair
    if left is None or right is None:
        return None
    return best - min(left, right)


SLACK_NATS = 1e-5
"""Log-probabilities are differences of float32 sums: a gap of exactly the limit may come out a little above it."""


def cause_of(
    position: int | None, gap_nats: float | None, *, limit_nats: float, reference_repeats: bool, scored: bool = True
) -> Cause:
    """The class of one comparison; `scored`: whether a referee looked at the difference at all."""
    if position is None:
        return "identical"
    if not reference_repeats or not scored:
        return "inconclusive"
    return "near_tie" if gap_nats is not None and gap_nats <= limit_nats + SLACK_NATS else "divergent"
