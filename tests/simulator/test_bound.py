"""Rules of the bound: the least time there is, and no policy is faster under the same rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from draftproof.simulator import bound
from draftproof.simulator.clock import Clock
from draftproof.simulator.costs import CostModel, Floats
from draftproof.simulator.policies import Adaptive, Bound, Combine, Fixed, Oracle, Policy, Router, Schedule
from draftproof.simulator.rules import CORRECTED, MENDS, Rules, rules_named
from draftproof.simulator.simulate import seconds_of, visit
from draftproof.simulator.traces import Trace
from tests.simulator.reference import least_seconds
from tests.simulator.toys import LIMIT, cost_models, make_table, make_trace, toy_costs, trace_lists

SIZES = st.integers(1, 9)
NAMES = st.sampled_from([("ngram",), ("eagle",), ("ngram", "eagle")])
SOME_MENDS = st.lists(st.sampled_from([mend for mend in MENDS if mend != "mixed"]), unique=True)


def seconds(
    traces: list[Trace], names: tuple[str, ...], policy: Policy, costs: CostModel, size: int, rules: Rules = CORRECTED
) -> Floats:
    table = make_table(traces, *names, rules=rules)
    clock = Clock(costs, rules, size, names)
    return seconds_of(table, visit(table, policy, clock), clock)


@settings(max_examples=150)
@given(trace_lists(longest=8), cost_models(), SIZES, NAMES)
def test_bound_is_the_least_over_all_choices(
    traces: list[Trace], costs: CostModel, size: int, names: tuple[str, ...]
) -> None:
    slow = [least_seconds(trace, names, costs, size) for trace in traces]
    assert seconds(traces, names, Bound(), costs, size) == pytest.approx(slow)


@settings(max_examples=150)
@given(
    trace_lists(),
    cost_models(),
    SIZES,
    st.sampled_from(["ngram", "eagle"]),
    st.sampled_from([Oracle(), *(Fixed(k) for k in (1, 2, 3, LIMIT)), Adaptive(), Router(), Schedule("1=0,2=3,5=1")]),
)
def test_no_policy_is_faster(traces: list[Trace], costs: CostModel, size: int, name: str, policy: Policy) -> None:
    least = seconds(traces, (name,), Bound(), costs, size)
    assert (least <= seconds(traces, (name,), policy, costs, size) * (1 + 1e-9)).all()


@settings(max_examples=100)
@given(trace_lists(), cost_models(), SIZES, st.sampled_from([Combine(), Router()]))
def test_combined_bound_is_at_least_each_single_one(
    traces: list[Trace], costs: CostModel, size: int, policy: Policy
) -> None:
    """But for the prompt, which a combination reads with every drafter."""
    drafters = {name: replace(drafter, per_prompt_token_s=0.0) for name, drafter in costs.drafters.items()}
    costs = replace(costs, drafters=drafters)
    both = seconds(traces, ("ngram", "eagle"), Bound(), costs, size)
    for name in ("ngram", "eagle"):
        assert (both <= seconds(traces, (name,), Bound(), costs, size) * (1 + 1e-9)).all()
    assert (both <= seconds(traces, ("ngram", "eagle"), policy, costs, size) * (1 + 1e-9)).all()


@settings(max_examples=200)
@given(trace_lists(), cost_models(), SIZES, SOME_MENDS, st.sampled_from([Oracle(), Fixed(3), Fixed(1), Adaptive()]))
def test_it_holds_under_any_mends(
    traces: list[Trace], costs: CostModel, size: int, mends: list[str], policy: Policy
) -> None:
    rules = rules_named("paper", mends, [])
    for name in ("ngram", "eagle"):
        least = seconds(traces, (name,), Bound(), costs, size, rules)
        assert (least <= seconds(traces, (name,), policy, costs, size, rules) * (1 + 1e-9)).all()


def test_a_shorter_jump_can_be_faster() -> None:
    """Planted: the long jump lands where nothing is accepted; one token less lands before another long one."""
    trace = make_trace(4, eagle=[1, 4, 1, 1, 6, 1, 1, 1, 1, 1, 1])
    costs = toy_costs()
    least = seconds([trace], ("eagle",), Bound(), costs, 1)
    assert least[0] < seconds([trace], ("eagle",), Oracle(), costs, 1)[0] * 0.95


def test_slabs_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [make_trace(3, eagle=[1, 4, 1, 3, 2, 1, 7, 2, 1]), make_trace(5, eagle=[1, 2]), make_trace(5, eagle=[1])]
    whole = seconds(traces, ("eagle",), Bound(), toy_costs(), 3)
    monkeypatch.setattr(bound, "SLAB_POSITIONS", 1)
    assert seconds(traces, ("eagle",), Bound(), toy_costs(), 3).tolist() == whole.tolist()
