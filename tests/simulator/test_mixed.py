"""Rules of mixed batches: slots are filled again at once, and a batch of one is a request after the other."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.simulator import mixed
from draftproof.simulator.clock import Clock
from draftproof.simulator.costs import CostModel
from draftproof.simulator.mixed import admissions
from draftproof.simulator.policies import Combine, Fixed, Policy
from draftproof.simulator.rules import CORRECTED, rules_named
from draftproof.simulator.simulate import seconds_of, spent_with, spent_without, visit
from draftproof.simulator.traces import Trace
from tests.simulator.reference import forward
from tests.simulator.toys import cost_models, make_table, make_trace, toy_costs, trace_lists

MIXED = rules_named("corrected", ["mixed"], [])


@pytest.fixture(scope="module", autouse=True)
def dealt_once() -> Iterator[None]:
    """Every request once, so that times can be added up by hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed, "ROUNDS", 0)
        yield


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 5))
def test_slots_are_filled_as_they_free_up(counts: list[int], slots: int) -> None:
    admitted = admissions(np.array(counts, dtype=np.int64), slots).tolist()
    assert admitted == sorted(admitted), "in order"
    busy: list[int] = []
    for start, count in zip(admitted, counts, strict=True):
        while busy and busy[0] <= start:
            heapq.heappop(busy)
        assert len(busy) < slots
        heapq.heappush(busy, start + 1 + count)
        assert start == 0 or len(busy) == slots or start in [s + 1 + c for s, c in zip(admitted, counts, strict=True)]


@settings(max_examples=60)
@given(
    trace_lists(),
    cost_models(),
    st.sampled_from([(Fixed(3), ("ngram",)), (Fixed(2), ("eagle",)), (Combine(), ("ngram", "eagle"))]),
)
def test_a_batch_of_one_is_a_copy_alone(
    traces: list[Trace], costs: CostModel, case: tuple[Policy, tuple[str, ...]]
) -> None:
    policy, names = case
    rules = rules_named("corrected", ["mixed"], ["chunked_prefill"])
    alone = rules_named("corrected", [], ["chunked_prefill"])
    table = make_table(traces, *names, rules=rules)
    clock, copies = Clock(costs, rules, 1, names), Clock(costs, alone, 1, names)
    visits = visit(table, policy, clock)
    spent = spent_with(table, visits, clock)
    assert spent.request_s == pytest.approx(seconds_of(table, visits, copies))
    assert spent.window_s == pytest.approx(spent.request_s.sum())
    assert spent_without(table, clock).request_s == pytest.approx(copies.plain_s(table))


def test_equal_requests_are_copies() -> None:
    """As many equal requests as slots, prefill within the budget: a batch of copies."""
    trace = make_trace(3, eagle=[1, 3, 1, 2, 1, 1])
    table = make_table([trace] * 4, "eagle", rules=MIXED)
    clock, copies = Clock(toy_costs(), MIXED, 4, ("eagle",)), Clock(toy_costs(), CORRECTED, 4, ("eagle",))
    visits = visit(table, Fixed(2), clock)
    assert spent_with(table, visits, clock).request_s == pytest.approx(seconds_of(table, visits, copies))


def test_two_slots_by_hand() -> None:
    """Three requests of 3, 1 and 2 tokens in two slots, without speculation: four engine steps."""
    traces = [make_trace(4, eagle=[1, 1, 1]), make_trace(2, eagle=[1]), make_trace(5, eagle=[1, 1])]
    table = make_table(traces, "eagle", rules=MIXED)
    costs = toy_costs()
    steps = [
        forward(costs, 0, 4 + 2),  # both prompts
        forward(costs, 5, 1 + 5),  # the first decodes while the third, in the second's slot, is prefilled
        forward(costs, 6 + 6, 2),
    ]
    spent = spent_without(table, Clock(costs, MIXED, 2, ("eagle",)))
    times = [seconds + 0.2 for seconds in steps]
    assert spent.window_s == pytest.approx(sum(times))
    assert spent.window_tokens == 6
    assert spent.request_s.tolist() == pytest.approx([sum(times), times[0], times[1] + times[2]])


def test_the_drain_is_left_out_of_the_throughput() -> None:
    """Two slots and two requests of 5 and 2 tokens: only the first two steps have both slots filled."""
    table = make_table([make_trace(4, eagle=[1] * 5), make_trace(4, eagle=[1, 1])], "eagle", rules=MIXED)
    spent = spent_without(table, Clock(toy_costs(), MIXED, 2, ("eagle",)))
    costs = toy_costs()
    assert spent.window_tokens == 4
    assert spent.window_s == pytest.approx(forward(costs, 0, 8) + forward(costs, 10, 2) + 0.4)
    assert spent.request_s[0] > spent.window_s


def test_a_file_smaller_than_the_batch_is_dealt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests for three slots: the same as the file with its requests six times over."""
    traces = [make_trace(4, eagle=[1, 2, 1, 1]), make_trace(2, eagle=[1, 3, 1])]
    clock = Clock(toy_costs(), MIXED, 3, ("eagle",))
    many = make_table(traces * 6, "eagle", rules=MIXED)
    whole = spent_with(many, visit(many, Fixed(2), clock), clock)
    monkeypatch.setattr(mixed, "ROUNDS", 4)
    few = make_table(traces, "eagle", rules=MIXED)
    dealt = spent_with(few, visit(few, Fixed(2), clock), clock)
    assert (dealt.window_s, dealt.window_tokens) == (whole.window_s, whole.window_tokens)
    assert dealt.request_s == pytest.approx(whole.request_s.reshape(6, 2).mean(axis=0))
