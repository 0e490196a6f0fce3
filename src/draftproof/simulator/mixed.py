"""Batches of different requests: B slots, each filled again as soon as its request ends (continuous batching).

What a request does in its steps does not depend on the others, only how long a step takes does. So the schedule is laid
out in engine steps first: a request takes one step for its prefill, then one per visit; a slot that frees up is given
to the next request of the file. Then every engine step is timed from the sums over the requests in it. A step with more
tokens than the engine's budget is as many forwards as it needs (with chunked prefill; else one of any size).

Tokens and seconds for the throughput are taken while every slot is filled: the drain at the end, where the longest
requests run in a batch that shrinks, would weigh more than all the rest in a file of some hundred requests. For that
reason, too, requests are dealt again from the first until there are `ROUNDS` for every slot.
"""

from __future__ import annotations

import heapq

import msgspec
import numpy as np

from draftproof.simulator.clock import Clock
from draftproof.simulator.costs import Floats
from draftproof.simulator.table import Ints, Table

ROUNDS = 4


class Spent(msgspec.Struct, frozen=True):
    """What a set of requests took; throughput is ``window_tokens / window_s``."""

    request_s: Floats
    """Seconds from admission to end of each request, shape (R,)."""
    window_s: float
    window_tokens: float


class Steps(msgspec.Struct, frozen=True):
    """The decoding steps of all requests, requests in order: arrays of one entry per step."""

    request: Ints
    context: Ints
    variant: Ints
    drafts: Ints
    emitted: Ints
    hit_probability: Floats
    """Probability that the drafts are proposed at all (the paper's coin)."""


def serve(table: Table, steps: Steps, clock: Clock, *, speculate: bool = True) -> Spent:
    """All requests through the slots of one engine."""
    rounds = max(1, -(-ROUNDS * clock.batch_size // table.requests)) if table.requests else 1
    steps, prompt = again(steps, table.request_prompt, rounds)
    counts = np.bincount(steps.request, minlength=prompt.size)
    admitted = admissions(counts, clock.batch_size)
    first = np.cumsum(counts) - counts
    rank = np.arange(steps.request.size) - first[steps.request]
    at = admitted[steps.request] + 1 + rank
    ends = admitted + 1 + counts
    total = int(ends.max(initial=0))

    def summed(values: Floats | Ints) -> Floats:
        return np.bincount(at, weights=values, minlength=total).astype(float)

    prompts = np.bincount(admitted, weights=prompt, minlength=total).astype(float)
    cached = summed(steps.context)
    requests = summed(np.ones(at.size)) + np.bincount(admitted, minlength=total)
    drafts = summed(steps.drafts * steps.hit_probability)
    tokens = summed(1 + steps.drafts * steps.hit_probability) + prompts
    overhead = clock.costs.step.overhead_s
    seconds = clock.forward_s(cached, tokens, prompts) + clock.costs.step.beside_s(requests, drafts)
    if clock.rules.chunked_prefill:
        more = np.ceil(tokens / clock.costs.step.max_batched_tokens) - 1
        seconds = seconds + np.maximum(more, 0) * (clock.forward_s(cached, np.ones(total)) + overhead)
    if speculate:
        seconds = seconds + clock.per_prompt_token_s * prompts
        verify = clock.forward_s(cached, summed(1 + steps.drafts * steps.hit_probability))
        for number in range(len(clock.variants)):
            seconds = seconds + drafting(clock, number, steps, at, total, verify)
    until = np.concatenate([[0.0], np.cumsum(seconds)])
    running = np.cumsum(np.bincount(admitted, minlength=total + 1) - np.bincount(ends, minlength=total + 1))
    filled = int(np.flatnonzero(running == running[0])[-1]) + 1
    tokens_out = summed(steps.emitted) + np.bincount(admitted, minlength=total)
    request_s = (until[ends] - until[admitted]).reshape(rounds, table.requests).mean(axis=0)
    return Spent(request_s, float(until[filled]), float(tokens_out[:filled].sum()))


def again(steps: Steps, prompt: Ints, rounds: int) -> tuple[Steps, Ints]:
    """The same requests dealt `rounds` times."""
    if rounds == 1:
        return steps, prompt
    tiled = {field: np.tile(getattr(steps, field), rounds) for field in steps.__struct_fields__}
    tiled["request"] = tiled["request"] + np.repeat(np.arange(rounds) * prompt.size, steps.request.size)
    return Steps(**tiled), np.tile(prompt, rounds)


def drafting(clock: Clock, number: int, steps: Steps, at: Ints, total: int, verify: Floats) -> Floats:
    """Seconds that one drafter takes in each engine step: one pass per draft of the longest, for all who use it."""
    uses = steps.variant == number
    if clock.idle_free:
        uses = uses & (steps.drafts > 0)
    where = at[uses]
    drafts = steps.drafts[uses]
    share, deepest = np.zeros(total), np.zeros(total)
    np.maximum.at(share, where, steps.hit_probability[uses])
    np.maximum.at(deepest, where, drafts)
    context = np.bincount(where, weights=steps.context[uses], minlength=total)
    tokens = np.bincount(where, weights=drafts + 1, minlength=total)
    fitted = int(clock.fitted_k[number])
    growth = deepest / fitted if clock.rules.draft_per_k and fitted else np.ones(total)
    passes = growth * (clock.fixed_s[number] + clock.per_kv_token_s[number] * context)
    spent = clock.share[number] * share * verify + passes + clock.per_token_s[number] * tokens
    return np.where(tokens > 0, spent, 0.0)


def admissions(steps: Ints, slots: int) -> Ints:
    """The engine step at which each request is admitted: in order, each into the slot that is free first."""
    free = [0] * slots
    admitted = np.zeros(steps.size, dtype=np.int64)
    for request, count in enumerate(steps.tolist()):
        admitted[request] = heapq.heappop(free)
        heapq.heappush(free, int(admitted[request]) + 1 + count)
    return admitted
