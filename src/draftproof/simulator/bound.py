"""The bound: the least total time of a request over every sequence of drafts, by dynamic programming over positions.

From a position with n tokens left a step may emit j = 1..length tokens with j - 1 drafts (more are only dearer while
costs do not fall with drafts), by any variant whose length reaches j. The least time to the end is the least, over j
and variant, of the step's time and the least time from n - j. Positions are gone through from the end of all requests
at once; the step times are computed for slabs of positions.
"""

from __future__ import annotations

import numpy as np

from draftproof.simulator.clock import Clock
from draftproof.simulator.policies import Plan
from draftproof.simulator.table import Ints, Table

SLAB_POSITIONS = 40_000
"""Positions whose step times are held at once: about 7 MB for 21 lengths."""


def least_time(table: Table, clock: Clock) -> Plan:
    """The decisions of a fastest run for every position."""
    longest = int(table.lengths.max(initial=1))
    variant = np.zeros(table.positions, dtype=np.int64)
    drafts = np.zeros(table.positions, dtype=np.int64)
    order = np.argsort(-table.request_steps, kind="stable")
    steps = table.request_steps[order]
    start = table.request_start[order]
    most = int(steps.max(initial=0))
    # least[r, longest + n]: least time with n tokens left; no time at the end and beyond it.
    least = np.zeros((table.requests, longest + most + 1))
    running = np.searchsorted(-steps, -np.arange(1, most + 1), side="right")  # requests that have n tokens left
    n = 1
    while n <= most:
        last = n
        held = 0
        while last <= most and held < SLAB_POSITIONS:
            held += int(running[last - 1])
            last += 1
        levels = range(n, last)
        index = np.concatenate([start[: running[m - 1]] + steps[: running[m - 1]] - m for m in levels])
        step_s, by = slab(table, clock, index, longest)
        offset = 0
        for m in levels:
            count = int(running[m - 1])
            # Column c emits longest - c tokens and leaves m - longest + c.
            total = step_s[offset : offset + count] + least[:count, m : m + longest]
            choice = np.argmin(total, axis=1)
            rows = np.arange(count)
            least[:count, longest + m] = total[rows, choice]
            here = index[offset : offset + count]
            drafts[here] = longest - 1 - choice
            variant[here] = by[offset + rows, choice]
            offset += count
        n = last
    return Plan(variant, drafts)


def slab(
    table: Table, clock: Clock, index: Ints, longest: int
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], Ints]:
    """Least step time and its variant for every position of `index` and every emission, longest first."""
    emitted = np.arange(longest, 0, -1)[None, :]
    context = table.position_context[index][:, None]
    left = table.position_left[index][:, None]
    best = np.full((index.size, longest), np.inf)
    by = np.zeros((index.size, longest), dtype=np.int64)
    for number in range(len(table.variants)):
        seconds = clock.step_s(number, context, emitted - 1, emitted, left)
        seconds = np.where(emitted <= table.lengths[number][index][:, None], seconds, np.inf)
        better = seconds < best
        best = np.where(better, seconds, best)
        by[better] = number
    return best, by
