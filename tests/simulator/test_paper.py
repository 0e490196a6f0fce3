"""The paper's rules: against plain loops on arbitrary traces, and against the published figures on the public ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.simulator.clock import Clock
from draftproof.simulator.costs import CostModel, load_costs
from draftproof.simulator.policies import Combine, Fixed, Oracle, Planned, policies_named
from draftproof.simulator.rules import PAPER, rules_named
from draftproof.simulator.simulate import seconds_of, simulate, visit
from draftproof.simulator.traces import Trace, TraceFile, trace_files
from tests.simulator.published import BATCH_SIZES, FIGURES
from tests.simulator.reference import paper_seconds, plain_seconds
from tests.simulator.toys import cost_models, make_table, make_trace, public_traces, toy_costs, trace_lists


@settings(max_examples=60)
@given(
    trace_lists(),
    cost_models(),
    st.integers(1, 4),
    st.sampled_from([("ngram",), ("eagle",), ("ngram", "eagle")]),
    st.sampled_from([None, 1, 3, 5]),
)
def test_paper_rules_are_the_plain_loops(
    traces: list[Trace], costs: CostModel, size: int, names: tuple[str, ...], k: int | None
) -> None:
    policy: Planned = Fixed(k) if k else Oracle()
    if len(names) > 1:
        policy, k = Combine(), None
    if costs.drafter("eagle").fixed_s == 0.0:
        return  # the paper's rule charges the cheapest drafter; a tie is not what is tested
    table = make_table(traces, *names, rules=PAPER)
    clock = Clock(costs, PAPER, size, names)
    ours = seconds_of(table, visit(table, policy, clock), clock)
    assert ours == pytest.approx([paper_seconds(trace, names, costs, size, k) for trace in traces])
    plain = [plain_seconds(trace, names, costs, size) for trace in traces]
    assert clock.plain_s(table) == pytest.approx(plain)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("k", [1, 3])
def test_the_coin_is_an_exact_expectation(size: int, k: int) -> None:
    """Steps that emit one token, where each copy finds a match or not: every outcome gone through and weighed."""
    trace = make_trace(5, ngram=[1, 1, 3, 1, 1, 1, 1])
    costs = toy_costs(drafters={"ngram": {"share_of_verify": 0.3, "can_miss": True}})
    table = make_table([trace], "ngram", rules=PAPER)
    clock = Clock(costs, PAPER, size, ("ngram",))
    (ours,) = seconds_of(table, visit(table, Fixed(k), clock), clock)
    assert ours == pytest.approx(paper_seconds(trace, ("ngram",), costs, size, k))


def test_both_means_over_requests(tmp_path: Path) -> None:
    """A short request that gains and a long one that does not: the paper weighs requests, the mend weighs tokens."""
    lengths = ([1, 6, 1, 1, 1, 1, 1], [1] * 30)
    lines = [
        {"id": str(n), "prompt_token_ids": [1], "generated_token_ids": [2], "acc_eagle": {"acc_len": eagle}}
        for n, eagle in enumerate(lengths)
    ]
    path = tmp_path / "two_gsm8k.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    costs, tokens = toy_costs(), [7, 30]
    with_sd: list[float] = []
    without: list[float] = []
    for eagle in lengths:
        trace = make_trace(1, eagle=eagle)
        with_sd.append(paper_seconds(trace, ("eagle",), costs, 2, 5))
        without.append(plain_seconds(trace, ("eagle",), costs, 2))
    rates = [sum(t / s for t, s in zip(tokens, seconds, strict=True)) for seconds in (with_sd, without)]
    for mends, expected in (([], rates[0] / rates[1]), (["token_weighted"], sum(without) / sum(with_sd))):
        rules = rules_named("paper", ["every_request", *mends], [])
        (cell,) = simulate(TraceFile(path), costs, rules, [Fixed(5)], ["eagle"], [2])
        assert cell.speedup == pytest.approx(expected)


@pytest.mark.parametrize("dataset", sorted(FIGURES))
def test_figures_10_and_12(dataset: str) -> None:
    """All 54 numbers of the data set, to the last printed digit; n-gram's coin is an exact expectation."""
    (file,) = (file for file in trace_files([public_traces()]) if file.name == dataset)
    policies = policies_named(["fixed:1,3,5", "oracle", "combine"])
    costs = load_costs("llama3.1-8b-h100")
    seen = 0
    for cell in simulate(file, costs, PAPER, policies, ["ngram", "eagle"], BATCH_SIZES):
        series = f"{cell.variant}_k{cell.k}" if cell.k else f"{cell.variant}_{cell.policy}"
        published = FIGURES[dataset][series][BATCH_SIZES.index(cell.batch_size)]
        assert cell.speedup == pytest.approx(published, abs=0.00501), (series, cell.batch_size)
        assert cell.requests == 300
        seen += 1
    assert seen == 54
