"""Slow, obvious simulators beside the fast one: one request, plain loops, no arrays."""

from __future__ import annotations

import itertools
import math
from functools import cache

from draftproof.simulator.costs import CostModel
from draftproof.simulator.rules import PAPER_MATCH_PROBABILITY
from draftproof.simulator.traces import Trace


def paper_seconds(trace: Trace, names: tuple[str, ...], costs: CostModel, size: int, k: int | None) -> float:
    """Mean latency of `size` copies under the paper's rules, each copy on its own; `k` None is the oracle.

    The n-gram coin is not thrown: every outcome of a step is gone through and weighed.
    """
    v = costs.verify
    lengths = [max(column) for column in zip(*(trace.lengths[name].tolist() for name in names), strict=False)]
    drafter = min((costs.drafter(name) for name in names), key=lambda d: d.fixed_s)
    lookup = names == ("ngram",)
    prompt, end = trace.prompt_tokens, len(lengths)
    total = paper_prefill(costs, size, prompt)
    total += sum(costs.drafter(name).per_prompt_token_s for name in names) * size * prompt
    kv, done = size * (prompt + 1), 1
    while done < end:
        length = lengths[done - 1]
        wanted = length if k is None else k + 1
        emitted = min(length, wanted)
        coin = lookup and k is not None and length == 1
        hit = PAPER_MATCH_PROBABILITY[trace.dataset]
        expected = 0.0
        for outcome in itertools.product([True, False] if coin else [True], repeat=size if coin else 1):
            tokens = [wanted if matched else 1 for matched in (outcome if coin else outcome * size)]
            weight = math.prod(hit if matched else 1 - hit for matched in outcome) if coin else 1.0
            verify = v.fixed_s + v.per_kv_token_s * kv + v.per_token_s * sum(tokens)
            beyond = beside(costs, size, sum(tokens) - size)
            seen = kv
            for mine in tokens:
                draft = drafter.share_of_verify * verify + drafter.fixed_s
                draft += drafter.per_kv_token_s * seen + drafter.per_token_s * mine
                if lookup and mine == 1:
                    draft = 0.0
                expected += weight * (verify + draft + beyond) / size
                seen += emitted
                if done + emitted >= end:
                    seen -= done + emitted + prompt
        total += expected
        done += emitted
        kv += size * emitted
    return total


def plain_seconds(trace: Trace, names: tuple[str, ...], costs: CostModel, size: int) -> float:
    """The same without speculation."""
    v, tokens = costs.verify, min(len(trace.lengths[name]) for name in names)
    total = paper_prefill(costs, size, trace.prompt_tokens)
    for done in range(1, tokens):
        total += v.fixed_s + v.per_kv_token_s * size * (trace.prompt_tokens + done) + v.per_token_s * size
        total += beside(costs, size, 0)
    return total


def paper_prefill(costs: CostModel, size: int, prompt: int) -> float:
    """All prompts in one forward, without padding and roofline."""
    price = costs.prefill or costs.verify
    return price.fixed_s + price.per_token_s * size * prompt + beside(costs, size, 0)


def forward(costs: CostModel, cached: int, tokens: int, *, prompt: bool = False) -> float:
    """One forward with graph sizes and roofline; `prompt`: all of its tokens are prompt tokens."""
    v = costs.verify
    wanted = tokens
    if costs.padding:
        tokens = next((size for size in costs.padding.sizes if size >= tokens), tokens)
    seconds = v.fixed_s + v.per_kv_token_s * cached + v.per_token_s * tokens
    if prompt and costs.prefill:  # padding is computed at the price of other tokens
        seconds = costs.prefill.fixed_s + v.per_kv_token_s * cached + costs.prefill.per_token_s * wanted
        seconds += v.per_token_s * (tokens - wanted)
    if costs.roofline:
        roof = costs.roofline
        seconds = max(seconds, tokens * roof.flops_per_token / roof.flops_per_s)
        seconds = max(seconds, (roof.weight_bytes + roof.kv_bytes_per_token * cached) / roof.bytes_per_s)
    return seconds


def beside(costs: CostModel, requests: int, drafts: int) -> float:
    """What a step costs beside its forwards."""
    step = costs.step
    return step.overhead_s + step.per_request_s * requests + step.per_draft_token_s * drafts


def step_seconds(costs: CostModel, name: str, size: int, context: int, drafts: int) -> float:
    """One step of the corrected rules."""
    drafter = costs.drafter(name)
    verify = forward(costs, size * context, size * (drafts + 1))
    if drafts == 0:
        return verify + beside(costs, size, 0)
    growth = drafts / drafter.fitted_k if drafter.fitted_k else 1.0
    draft = drafter.share_of_verify * verify + drafter.per_token_s * size * (drafts + 1)
    draft += growth * (drafter.fixed_s + drafter.per_kv_token_s * size * context)
    return verify + draft + beside(costs, size, size * drafts)


def prefill_seconds(costs: CostModel, names: tuple[str, ...], size: int, prompt: int) -> float:
    """The target's chunks, and what each drafter adds to read the prompt."""
    total, done = costs.step.per_request_s * size, 0
    while done < size * prompt:
        chunk = min(costs.step.max_batched_tokens, size * prompt - done)
        total += forward(costs, done, chunk, prompt=True) + costs.step.overhead_s
        done += chunk
    return total + sum(costs.drafter(name).per_prompt_token_s for name in names) * size * prompt


def least_seconds(trace: Trace, names: tuple[str, ...], costs: CostModel, size: int) -> float:
    """The least time under the corrected rules, over every choice of variant and of 0..limit drafts at every step."""
    tokens = len(trace.lengths[names[0]])

    @cache
    def rest(done: int) -> float:
        if done == tokens:
            return 0.0
        context = trace.prompt_tokens + done
        return min(
            step_seconds(costs, name, size, context, drafts)
            + rest(done + min(int(trace.lengths[name][done]), drafts + 1, tokens - done))
            for name in names
            for drafts in range(trace.limit + 1)
        )

    return prefill_seconds(costs, names, size, trace.prompt_tokens) + rest(1)
