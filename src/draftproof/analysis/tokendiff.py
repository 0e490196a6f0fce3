"""Greedy outputs compared by token id, and the cause of a first difference.

Lists are compared one by one (`first_differences`), whole runs as flat arrays (`first_differences_of_rows`): 100,000
pairs of 256 tokens took 0.05 to 0.1 s on one core of a shared AMD EPYC (``tests/test_tokendiff_speed.py``). That is for
columns as Parquet holds them; making arrays of that many lists takes about 1 s a side, and comparing the lists 1.6 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from draftproof.errors import DraftproofError, rule

Cause = Literal["identical", "exact_tie", "near_tie", "divergent", "inconclusive"]
"""What a comparison of two outputs can come to.

``exact_tie``: at the first difference the engine itself gave both emitted tokens the same score, and none a better one:
either may come first. ``near_tie``: both lie within the limit of the best token, scored by the float32 referee in a
pass of its own. ``divergent``: one of them does not, or has no score. ``inconclusive``: the no-SD arm did not even
repeat itself on this request, or nothing was scored.
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
    """Distance from the referee's best token to the worse of the two; None: not scored, or not among its best."""
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
    if reference == other:  # mostly so, and much faster than a walk
        return None
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


def gap_to_best(best: float | None, pair: tuple[float | None, float | None]) -> float | None:
    """Nats from the referee's best token to the worse one of the pair; None where one is not among its scores.

    The best token may be a third one: two tokens that tie far below it are no near tie.
    """
    left, right = pair
    if best is None or left is None or right is None:
        return None
    return best - min(left, right)


SLACK_NATS = 1e-5
"""Log-probabilities are differences of float32 sums: a gap of exactly the limit may come out a little above it."""


def engine_tie(best: float | None, pair: tuple[float | None, float | None]) -> bool:
    """Whether both emitted tokens have the engine's own best score, bit by bit; one without a score ties with none."""
    return pair[0] is not None and pair[0] == pair[1] == best


def cause_of(
    position: int | None,
    gap_nats: float | None,
    *,
    limit_nats: float,
    reference_repeats: bool,
    scored: bool = True,
    engine_tie: bool = False,
) -> Cause:
    """The class of one comparison.

    `gap_nats`: `gap_to_best` of the float32 referee's scores. `scored`: whether a referee looked at the difference at
    all. `engine_tie`: `engine_tie` of the engine's own scores; it goes before the gap, since an engine cannot tell
    apart what its own precision makes equal.
    """
    if position is None:
        return "identical"
    if not reference_repeats or not scored:
        return "inconclusive"
    if engine_tie:
        return "exact_tie"
    return "near_tie" if gap_nats is not None and gap_nats <= limit_nats + SLACK_NATS else "divergent"


# -- whole runs as flat arrays -----------------------------------------------------------------------------------------


class TokenRows(msgspec.Struct, frozen=True, eq=False):
    """Outputs one behind the other: row i is ``values[offsets[i]:offsets[i + 1]]``."""

    values: NDArray[np.int32]
    """Token ids, shape (tokens,)."""
    offsets: NDArray[np.int64]
    """Shape (rows + 1,), never falling, from 0 to the number of tokens."""

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> TokenRows:
        """From one sequence of token ids a row."""
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(row) for row in lists], out=offsets[1:])
        return cls(narrow(np.fromiter(chain.from_iterable(lists), np.int64, count=int(offsets[-1]))), offsets)

    @classmethod
    def from_arrow(cls, array: Any) -> TokenRows:
        """From a column of lists of integers (pyarrow's ListArray, LargeListArray, or a chunked one of these).

        A row must be a whole output: differences to another row, as records store copies, are to be undone before.
        """
        if hasattr(array, "combine_chunks"):
            array = array.combine_chunks()
        if array.null_count:
            raise rule("rows of token ids", "lists", None, do=f"{array.null_count} of {len(array)} are null")
        offsets = array.offsets.to_numpy().astype(np.int64)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))  # a slice keeps all of its parent's
        if values.null_count:
            raise rule("token ids", "whole numbers", None, do=f"{values.null_count} of {len(values)} are null")
        return cls(narrow(values.to_numpy()), offsets - offsets[0])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, shape (rows,)."""
        return np.diff(self.offsets)

    def heads(self, tokens: NDArray[np.int64]) -> NDArray[np.int32]:
        """The first `tokens[i]` ids of each row i, one row behind the other."""
        lengths = self.lengths
        if np.array_equal(tokens, lengths):
            return self.values
        taken = np.tile([True, False], len(self))
        heads: NDArray[np.int32] = self.values[np.repeat(taken, np.column_stack([tokens, lengths - tokens]).ravel())]
        return heads


def narrow(ids: NDArray[Any]) -> NDArray[np.int32]:
    """Token ids in 32 bits; one that they do not hold is refused, never wrapped into another."""
    values = ids.astype(np.int32, copy=False)
    if not np.array_equal(values, ids):
        raise rule("token ids", "whole numbers of 32 bits", ids[values != ids][0].item())
    return values


def first_differences_of_rows(references: TokenRows, others: TokenRows) -> NDArray[np.int64]:
    """`first_differences` of all rows at once, shape (rows,); -1 where a pair is identical. Same errors."""
    if len(references) != len(others):
        raise DraftproofError(f"outputs to compare must be of equal number (got {len(references)} and {len(others)})")
    shorter = np.minimum(references.lengths, others.lengths)
    if not shorter.all():
        raise DraftproofError(f"outputs to compare must not be empty (request {int(np.argmin(shorter))})")
    ends = np.cumsum(shorter)
    starts = ends - shorter
    unequal = np.flatnonzero(references.heads(shorter) != others.heads(shorter))
    unequal = np.append(unequal, shorter.sum())  # beyond the last row: something is always found
    first = unequal[np.searchsorted(unequal, starts)]
    one_ends = np.where(references.lengths == others.lengths, -1, shorter)
    return np.where(first < ends, first - starts, one_ends)


# -- outputs of two runs -----------------------------------------------------------------------------------------------

SHOWN_NAMES = 5


class OutputSet(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm gave, and what it was asked: enough to refuse a comparison of unlike things."""

    name: str
    """For messages: which arm of which run."""
    prompts_sha256: dict[str, str]
    """Prompt id -> hash of the prompt's token ids."""
    tokenizer_sha256: str
    outputs: dict[str, list[int]]
    """Prompt id -> token ids."""


def pair_up(reference: OutputSet, other: OutputSet) -> list[tuple[str, list[int], list[int]]]:
    """(prompt id, the reference's output, the other's), in the reference's order.

    Requests meet by prompt id, never by their place. What does not meet, or answers another prompt, is an error: a
    request that was dropped would otherwise count as one that agrees.
    """
    for side in (reference, other):
        if not side.outputs:
            raise DraftproofError(f"outputs to compare must not be none at all ({side.name})")
        refuse(f"outputs of {side.name}", "to a prompt with a hash", without(side.outputs, side.prompts_sha256))
        refuse(f"prompts of {side.name}", "answered", without(side.prompts_sha256, side.outputs))
        refuse(f"outputs of {side.name}", "longer than 0 tokens", [key for key, ids in side.outputs.items() if not ids])
    if reference.tokenizer_sha256 != other.tokenizer_sha256:
        raise rule(
            f"tokenizer of {other.name}",
            f"that of {reference.name} ({reference.tokenizer_sha256})",
            other.tokenizer_sha256,
            do="token ids of two tokenizers cannot be compared",
        )
    refuse(f"requests of {other.name}", f"among those of {reference.name}", without(other.outputs, reference.outputs))
    refuse(f"requests of {reference.name}", f"among those of {other.name}", without(reference.outputs, other.outputs))
    hashes = other.prompts_sha256
    unlike = [key for key, sha256 in reference.prompts_sha256.items() if hashes[key] != sha256]
    refuse(f"prompts of {other.name}", f"those of {reference.name}, token by token", unlike)
    return [(key, ids, other.outputs[key]) for key, ids in reference.outputs.items()]


def without(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Names that only the left one has, in its order."""
    return [name for name in left if name not in right]


def refuse(what: str, must_be: str, names: Sequence[str]) -> None:
    """An error that says how many there are and names the first few; nothing where there are none."""
    if names:
        raise DraftproofError(f"{what} must be {must_be} (not so for {len(names)}: {first_few(names)})")


def first_few(names: Sequence[str]) -> str:
    """Names for a message that must stay short."""
    return ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
