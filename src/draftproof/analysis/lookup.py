"""N-gram lookup replayed on recorded text: what it would draft from each position, and how much of it comes true.

The rule, which is that of vLLM's n-gram proposer and of the public traces of arXiv 2601.11580:

* The text so far is the prompt and the tokens committed so far. Its last `max_n` tokens are looked up in it, then one
  less, down to `min_n`: the longest that occurs before decides, and of its occurrences the first. An earlier
  occurrence may overlap the end of the text.
* The draft is what followed there, at most `limit` tokens and no more than the text so far holds.
* The leading tokens of the draft that the output goes on with are accepted; a step emits these and one more. Then one
  token is committed, whatever was accepted, and the next position is looked up.

Entry i is that from i committed tokens. Entry 0 is the prefill, which emits one token without a draft.

What would have come after the output's end is in no record. A draft that agrees up to there counts the tokens within
the output alone: such a length is a lower bound. The public traces were counted in the engine, where the model goes on.

No position is compared with all that came before. A sequence of n tokens gets one number, made of the number of its
first n - 1 tokens and of its last token, so that a length costs one sort of the whole text and nothing is hashed: equal
numbers are equal tokens. 1 million positions of the text in ``tests/test_lookup.py`` took 1.4 to 1.5 s of processor
time (1.8 to 2.6 s by the clock) on one core of a shared AMD EPYC.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from draftproof.errors import rule

MIN_N, MAX_N, LIMIT = 3, 7, 20
"""The public traces: shortest and longest suffix looked up, and draft tokens of a step (paper.md 1.1 and 4.2)."""


class LookupTrace(msgspec.Struct, frozen=True, eq=False):
    """One request, entry by entry; both of shape (output tokens,)."""

    lengths: NDArray[np.int64]
    """Tokens that the step would emit, 1..limit + 1 and at most drafted + 1."""
    drafted: NDArray[np.int64]
    """Tokens that it would draft, 0..limit; 0 where nothing is found, and in entry 0."""


def lookup_trace(
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    min_n: int = MIN_N,
    max_n: int = MAX_N,
    limit: int = LIMIT,
) -> LookupTrace:
    """The trace of one request by the rule above."""
    check_settings(min_n, max_n, limit)
    for name, given in (("prompt_ids", prompt_ids), ("output_ids", output_ids)):
        if len(given) == 0:
            raise rule(name, "at least one token", list(given))
    ids = np.concatenate([np.asarray(prompt_ids, np.int64), np.asarray(output_ids, np.int64)])
    ends = np.arange(len(prompt_ids), ids.size)
    """Tokens of the text so far, entry by entry: also where the output goes on."""
    matched, follows = suffix_matches(ids[:-1], min_n, max_n)
    starts = follows[ends - 1]
    drafted = np.where(matched[ends - 1] > 0, np.minimum(ends - starts, limit), 0)
    drafted[0] = 0
    return LookupTrace(1 + agreeing(ids, ends, starts, np.minimum(drafted, ids.size - ends)), drafted)


def agreeing(
    ids: NDArray[np.int64], ends: NDArray[np.int64], starts: NDArray[np.int64], most: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Leading tokens from `starts` that are those from `ends`, at most `most`, entry by entry."""
    counts = np.zeros_like(most)
    alive = np.flatnonzero(most)
    for place in range(int(most.max(initial=0))):
        alive = alive[most[alive] > place]
        alive = alive[ids[starts[alive] + place] == ids[ends[alive] + place]]
        counts[alive] += 1
    return counts


def check_settings(min_n: int, max_n: int, limit: int) -> None:
    if min_n < 1:
        raise rule("min_n", "at least 1", min_n)
    if max_n < min_n:
        raise rule("max_n", f"at least min_n, {min_n}", max_n)
    if limit < 1:
        raise rule("limit", "at least 1", limit)


def suffix_matches(ids: NDArray[np.int64], min_n: int, max_n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of the text up to and with each token, the longest suffix that occurs earlier in it, and where that went on.

    Both of shape (tokens,): the suffix's tokens (0 where none of `min_n` to `max_n` occurs earlier), and the index of
    the token behind its first occurrence (0 there).
    """
    matched, follows = np.zeros_like(ids), np.zeros_like(ids)
    if ids.size == 0:
        return matched, follows
    _, first, token = np.unique(ids, return_index=True, return_inverse=True)
    base = int(token.max()) + 1
    number = token
    for n in range(1, min(max_n, ids.size) + 1):
        if n > 1:
            _, first, number = np.unique(number[:-1] * base + token[n - 1 :], return_index=True, return_inverse=True)
        if n >= min_n:
            begins = first[number]
            found = np.flatnonzero(begins < np.arange(number.size))
            matched[found + n - 1] = n
            follows[found + n - 1] = begins[found] + n
    return matched, follows
