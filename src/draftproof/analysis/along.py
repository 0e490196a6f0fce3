"""Tokens per step along the outputs of a cell: every token carries its part of the step that emitted it.

The first token comes from the prefill and is left out. All tokens of a cell lie in flat arrays, one entry a token: a
run of thousands of cells has a hundred thousand short outputs, and an array for each would take most of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

MAP_BINS = 64


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request of one block."""

    prompt_id: str
    emitted: int
    accepted: list[int]
    """Of each drafted step."""
    drafted: list[int]
    steps: int
    """The prefill included."""
    sizes: list[int] | None
    """Tokens that each step emitted, the prefill first; None: it is not known where the steps without a draft were."""


class Along:
    """The requests of a cell whose steps have a known place, token by token."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.width = bin_width(requests)
        """Tokens of a bin such that the longest output has at most 64."""
        self.requests = [request for request in requests if request.sizes is not None and request.emitted > 1]
        self.names = list(dict.fromkeys(request.prompt_id for request in requests))
        """All prompts, in the order of first sight."""
        steps = [request.sizes[1:] for request in self.requests if request.sizes is not None]
        sizes = np.array([*chain.from_iterable(steps)], np.int64)
        self.shares: NDArray[np.float64] = np.repeat(1 / sizes, sizes)
        """For each token its part of a step: 1 / tokens of the step that emitted it."""
        self.counts = np.array([*map(sum, steps)], np.int64)
        """Tokens of each request."""
        self._owners = np.repeat(np.arange(len(steps)), self.counts)
        self._places = np.arange(len(self.shares)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        self._bins: dict[int, dict[str, NDArray[np.float64]]] = {}

    def parts(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Tokens and steps in each of `count` equal parts of each request's output; both of shape (requests, count)."""
        return self._sums(self._places * count // self.counts[self._owners], count)

    def bins(self, width: int) -> dict[str, NDArray[np.float64]]:
        """Prompt -> tokens per step in each bin of `width` tokens, all its runs added; in the order of first sight."""
        if width not in self._bins:
            self._bins[width] = self._made(width)
        return self._bins[width]

    def _made(self, width: int) -> dict[str, NDArray[np.float64]]:
        lengths: dict[str, int] = {}
        for request, count in zip(self.requests, self.counts.tolist(), strict=True):
            lengths[request.prompt_id] = max(-(-count // width), lengths.get(request.prompt_id, 0))
        sums = self._sums(self._places // width, max(lengths.values(), default=0))
        tokens, steps = self.by_prompt(range(len(self.requests)), *sums)
        rows = {name: number for number, name in enumerate(lengths)}
        found = [(name, rows[name], lengths[name]) for name in self.names if name in rows]
        return {name: tokens[row, :length] / steps[row, :length] for name, row, length in found}

    def by_prompt(
        self, members: Iterable[int], tokens: NDArray[np.int64], steps: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows of these requests added prompt by prompt, in the order of first sight."""
        members = list(members)
        rows: dict[str, int] = {}
        owners = [rows.setdefault(self.requests[number].prompt_id, len(rows)) for number in members]
        added = np.zeros((len(rows), tokens.shape[1]), np.int64), np.zeros((len(rows), steps.shape[1]))
        np.add.at(added[0], owners, tokens[members])
        np.add.at(added[1], owners, steps[members])
        return added

    def _sums(self, parts: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Tokens and steps of each request by part; `parts`: that of each token."""
        shape = (len(self.requests), count)
        flat = self._owners * count + parts
        size = shape[0] * count
        tokens = np.bincount(flat, minlength=size).astype(np.int64, copy=False)
        steps = np.bincount(flat, self.shares, size).astype(np.float64, copy=False)
        return tokens.reshape(shape), steps.reshape(shape)


def bin_width(requests: Iterable[Request]) -> int:
    """Tokens of a bin such that the longest output has at most 64."""
    return max(1, -(-max((request.emitted - 1 for request in requests), default=0) // MAP_BINS))
