"""Requests of one data set side by side: flat arrays over their decoding positions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import DraftproofError, rule, unknown
from draftproof.simulator.rules import PAPER_MATCH_PROBABILITY, PAPER_REQUESTS, PAPER_SEED, Rules
from draftproof.simulator.traces import Trace, TraceFile

Ints = NDArray[np.int64]
CHUNK_REQUESTS, CHUNK_TOKENS = 512, 1_000_000
"""Requests and output tokens held at once: memory does not grow with the file."""


class Table:
    """R requests with N decoding positions in all; the prefill emits the first token, so a request has tokens - 1.

    Position p of a request is the step from p + 1 committed tokens. Arrays named `request_*` have shape (R,), those
    named `position_*` shape (N,), `lengths` has shape (variants, N).
    """

    def __init__(self, dataset: str, traces: list[Trace], variants: tuple[str, ...], rules: Rules) -> None:
        self.dataset = dataset
        self.variants = variants
        self.joint = len(variants) > 1
        self.limit = min((trace.limit for trace in traces), default=0)
        self.origin = min(traces, key=lambda trace: trace.limit).origin if traces else ""
        for trace in traces:
            for name in variants:
                if name not in trace.lengths:
                    raise DraftproofError(f"{trace.origin}: {unknown('variant', name, trace.lengths)}")
        if self.joint and rules.same_tokens:
            traces = [trace for trace in traces if trace.same_tokens(variants)]
        self.request_tokens: Ints = np.array(
            [min(len(trace.lengths[name]) for name in variants) for trace in traces], dtype=np.int64
        )
        self.request_prompt: Ints = np.array([trace.prompt_tokens for trace in traces], dtype=np.int64)
        self.request_steps: Ints = self.request_tokens - 1
        self.request_start: Ints = np.concatenate([[0], np.cumsum(self.request_steps)])[:-1].astype(np.int64)
        self.requests = len(traces)
        self.positions = int(self.request_steps.sum())
        first = 1 if rules.after_prefill else 0
        cut = [(trace, int(tokens) - 1) for trace, tokens in zip(traces, self.request_tokens, strict=True)]
        self.lengths: Ints = np.array(
            [joined([trace.lengths[name][first : first + steps] for trace, steps in cut]) for name in variants],
            dtype=np.int64,
        ).reshape(len(variants), self.positions)
        self.position_request: Ints = np.repeat(np.arange(self.requests), self.request_steps)
        self.position: Ints = np.arange(self.positions) - self.request_start[self.position_request]
        self.position_context: Ints = self.request_prompt[self.position_request] + 1 + self.position
        """Tokens in the cache of one copy before the step: the prompt and what is committed."""
        self.position_left: Ints = self.request_steps[self.position_request] - self.position
        """Output tokens that are still to come before the step."""
        self.end_clipped = rules.end_clipped
        if rules.end_clipped:
            self.lengths = np.minimum(self.lengths, self.position_left)
        self._traces = cut

    @cached_property
    def position_found(self) -> Ints:
        """Longest suffix of the context that occurs earlier in it; 0 where there is none or no ids are recorded."""
        return joined([decoding(trace.found, steps) for trace, steps in self._traces])

    def proposed(self, variant: int) -> Ints:
        """The most tokens that a variant that can miss would propose at each position: 0 where it misses."""
        name = self.variants[variant]
        parts = []
        for trace, steps in self._traces:
            if name in trace.drafted:
                parts.append(decoding(trace.drafted[name], steps))
            elif trace.found is not None:
                parts.append(np.where(decoding(trace.found, steps) > 0, trace.limit, 0))
            else:  # nothing recorded: a lookup that always finds something, the dearest case
                parts.append(np.full(steps, trace.limit, dtype=np.int64))
        # What was accepted was proposed, also where a rule reads the lengths one entry early.
        least: Ints = self.lengths[variant] - 1
        return np.maximum(joined(parts), least)

    def walk(self, emitted: Ints) -> Ints:
        """Flat indices of the positions that are visited when position i emits `emitted[i]` tokens."""
        following = np.arange(self.positions) + np.minimum(emitted, self.position_left)
        chain: list[int] = following.tolist()
        visited: list[int] = []
        append = visited.append
        index, end = 0, self.positions
        while index < end:
            append(index)
            index = chain[index]
        return np.array(visited, dtype=np.int64)

    def per_request(self, index: Ints, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the visited positions of each request."""
        sums = np.bincount(self.position_request[index], weights=values, minlength=self.requests)
        return sums.astype(np.float64)


def decoding(values: NDArray[np.uint8] | None, steps: int) -> Ints:
    """The entries of `steps` decoding positions; 0 where none is recorded (another variant's output was shorter)."""
    found = np.zeros(steps, dtype=np.int64)
    if values is not None:
        recorded = values[1 : steps + 1]
        found[: recorded.size] = recorded
    return found


def joined(parts: list[Any]) -> Ints:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)


def chunks(
    file: TraceFile, rules: Rules, *, matches: bool, sample: int | None = None, seed: int = PAPER_SEED
) -> Iterator[list[Trace]]:
    """The requests to simulate, some hundred at a time. Every line is checked, those that are not drawn too."""
    wanted: set[int] | None = None
    if sample is None and not rules.every_request:
        sample = PAPER_REQUESTS
    if sample is not None:
        count = file.count()
        if not 1 <= sample <= count:
            raise DraftproofError(
                f"{file.path}:{count}: {rule('requests', f'in 1..{count}, as many as there are', sample)}"
            )
        wanted = set(random.Random(seed).sample(range(count), sample))
    held: list[Trace] = []
    tokens = 0
    for index, trace in enumerate(file.read(matches=matches)):
        if wanted is None or index in wanted:
            held.append(trace)
            tokens += max(map(len, trace.lengths.values()))
        if len(held) == CHUNK_REQUESTS or tokens >= CHUNK_TOKENS:
            yield held
            held, tokens = [], 0
    if held:
        yield held


def match_probability(dataset: str, rules: Rules) -> float:
    """The paper's coin for that data set; 1 where the trace says what was missed."""
    if rules.trace_misses:
        return 1.0
    if dataset not in PAPER_MATCH_PROBABILITY:
        error = unknown("data set", dataset, PAPER_MATCH_PROBABILITY)
        raise DraftproofError(f"{error}; the paper's coin needs one of them: switch it off with --with trace_misses")
    return PAPER_MATCH_PROBABILITY[dataset]
