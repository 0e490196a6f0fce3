"""Benchmark of comparing a whole run; nothing here asserts a time. ``pytest --benchmark-verbose`` shows the table.

Medians of two measurements on one core of a shared AMD EPYC: 0.058 and 0.063 s where rows are of equal length
(``alike``), 0.086 and 0.075 s where some end early (``apart``). Making the rows is not part of it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from draftproof.analysis.tokendiff import TokenRows, first_differences_of_rows

PAIRS = 100_000
TOKENS = 256


def make_rows(ends: Literal["alike", "apart"]) -> tuple[TokenRows, TokenRows, int]:
    """Outputs of which every third goes its own way from some place on, and how many differ.

    ``apart``: half of these also end there, so that rows are of unequal length.
    """
    rng = np.random.default_rng(7)
    left = rng.integers(0, 50_000, (PAIRS, TOKENS), dtype=np.int32)
    places = np.where(np.arange(PAIRS) % 3 == 0, rng.integers(0, TOKENS, PAIRS), TOKENS)
    right = left + (np.arange(TOKENS) >= places[:, None]).astype(np.int32)
    short = (np.arange(PAIRS) % 6 == 0) & (ends == "apart")
    lengths = np.where(short, np.maximum(places, 1), TOKENS)
    kept = np.arange(TOKENS) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    whole = np.arange(PAIRS + 1) * TOKENS
    return TokenRows(left.ravel(), whole), TokenRows(right[kept], offsets), int((places < TOKENS).sum())


@pytest.mark.parametrize("ends", ["alike", "apart"])
def test_a_whole_run(benchmark: Any, ends: Literal["alike", "apart"]) -> None:
    references, others, differing = make_rows(ends)
    found = benchmark.pedantic(first_differences_of_rows, (references, others), rounds=5, warmup_rounds=1)
    assert (found >= 0).sum() == differing
