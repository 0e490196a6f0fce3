"""Benchmarks of the simulator; nothing here asserts a time. ``pytest --benchmark-verbose`` shows the table."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from draftproof.simulator.clock import Clock
from draftproof.simulator.costs import load_costs
from draftproof.simulator.policies import Bound, Fixed, Policy, policies_named
from draftproof.simulator.rules import CORRECTED, PAPER
from draftproof.simulator.simulate import seconds_of, simulate, visit
from draftproof.simulator.table import Table
from draftproof.simulator.traces import trace_files
from tests.simulator.toys import make_table, make_trace, public_traces, toy_costs


@pytest.fixture(scope="module")
def table() -> Table:
    rng = np.random.default_rng(7)
    lengths = [[1, *rng.integers(1, 7, rng.integers(50, 400)).tolist()] for _ in range(100)]
    return make_table([make_trace(200, eagle=one) for one in lengths], "eagle")


@pytest.mark.parametrize("policy", [Fixed(3), Bound()], ids=lambda policy: policy.name)
@pytest.mark.parametrize("size", [1, 128])
def test_one_cell(benchmark: Any, table: Table, policy: Policy, size: int) -> None:
    clock = Clock(toy_costs(), CORRECTED, size, ("eagle",))
    benchmark(lambda: seconds_of(table, visit(table, policy, clock), clock))


def test_the_published_grid(benchmark: Any) -> None:
    files = trace_files([public_traces()])
    costs = load_costs("llama3.1-8b-h100")
    policies = policies_named(["fixed:1,3,5", "oracle", "combine"])
    sizes = [1, 8, 16, 32, 64, 128]

    def grid() -> int:
        return sum(1 for file in files for _ in simulate(file, costs, PAPER, policies, ["ngram", "eagle"], sizes))

    assert benchmark.pedantic(grid, rounds=2) == 216


def test_memory_does_not_grow_with_the_batch(table: Table) -> None:
    peaks = []
    for size in (1, 4096):
        clock = Clock(toy_costs(), CORRECTED, size, ("eagle",))
        tracemalloc.start()
        seconds_of(table, visit(table, Fixed(3), clock), clock)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= peaks[0] * 1.05
