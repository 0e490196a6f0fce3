"""Rules of the policies: what they decide, and what they are allowed to know."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.errors import DraftproofError
from draftproof.simulator.clock import Clock
from draftproof.simulator.policies import Adaptive, Combine, Fixed, Known, Policy, Router, Stepwise, policies_named
from draftproof.simulator.rules import CORRECTED, PAPER, rules_named
from draftproof.simulator.simulate import Visits, seconds_of, visit
from tests.simulator.toys import LIMIT, make_table, make_trace, toy_costs, trace_lists


def steps(
    policy: Policy, *names: str, size: int = 1, found: list[int] | None = None, **lengths: list[int]
) -> list[tuple[int, int, int]]:
    """(variant, drafts, emitted) of each step through one request."""
    table = make_table([make_trace(5, found, LIMIT, **lengths)], *names)
    visits = visit(table, policy, Clock(toy_costs(), CORRECTED, size, names))
    return list(zip(visits.variant.tolist(), visits.drafts.tolist(), visits.emitted.tolist(), strict=True))


def test_fixed_reads_the_entry_after_the_prefill() -> None:
    assert steps(Fixed(2), "eagle", eagle=[1, 3, 1, 1, 2, 1, 1]) == [(0, 2, 3), (0, 2, 2), (0, 2, 1)]


def test_a_lookup_without_a_match_proposes_nothing() -> None:
    assert steps(Fixed(2), "ngram", ngram=[1, 1, 1, 2, 1], found=[0, 0, 3, 4, 0]) == [(0, 0, 1), (0, 2, 1), (0, 2, 2)]


def test_combine_prefers_the_first_where_equal() -> None:
    chosen = steps(Combine(), "ngram", "eagle", ngram=[1, 2, 1, 1, 1], eagle=[1, 2, 1, 2, 1])
    assert chosen == [(0, 1, 2), (1, 1, 2)]


def test_adaptive_rule() -> None:
    """Start 5; +2 when all are accepted, else -1; never beyond the trace's limit."""
    taken = [drafts for _, drafts, _ in steps(Adaptive(), "eagle", eagle=[1, *[6] * 6, *[1] * 20])]
    assert taken[:2] == [5, LIMIT]
    assert taken[2:] == [*range(LIMIT - 1, 0, -1), *[1] * (len(taken) - LIMIT - 1)]


def test_adaptive_does_not_learn_from_a_miss() -> None:
    taken = steps(Adaptive(), "ngram", ngram=[1] * 6, found=[0, 0, 0, 0, 3, 0])
    assert [drafts for _, drafts, _ in taken] == [0, 0, 0, 5, 0]


def test_schedule_goes_by_batch_size() -> None:
    (schedule,) = policies_named(["schedule:1=4,8=1,32=0"])
    assert schedule.label == "schedule:1=4,8=1,32=0"
    for size, k in ((1, 4), (7, 4), (8, 1), (31, 1), (32, 0), (500, 0)):
        assert steps(schedule, "eagle", size=size, eagle=[1] * 3)[0] == (0, k, 1)


def test_router_uses_a_lookup_only_with_a_match() -> None:
    taken = steps(Router(), "ngram", "eagle", ngram=[1] * 30, eagle=[1, *[3] * 29], found=[0] * 30)
    assert all(variant == 1 for variant, _, _ in taken)
    lookups = steps(Router(), "ngram", "eagle", ngram=[1, *[7] * 29], eagle=[1] * 30, found=[0, *[7] * 29])
    assert all(variant == 0 for variant, _, _ in lookups)


class Spy(Stepwise):
    """Records everything that it is shown."""

    name = "spy"
    seen: ClassVar[list[tuple[int, int, int, int]]] = []

    def choose(self, known: Known) -> tuple[int, int]:
        self.seen.append((known.prompt_tokens, known.generated, known.match, known.batch_size))
        return 0, 2


def test_a_stepwise_policy_sees_only_the_past() -> None:
    """Two traces that differ only ahead of the second step look the same until then."""
    for lengths in ([1, 3, 1, 1, 3, 1], [1, 3, 1, 1, 1, 1]):
        Spy.seen.clear()
        steps(Spy(), "eagle", size=4, eagle=lengths, found=[0, 0, 0, 0, 5, 0])
        assert Spy.seen[:2] == [(5, 1, 0, 4), (5, 4, 5, 4)]


class Greedy(Stepwise):
    def choose(self, known: Known) -> tuple[int, int]:
        return 0, LIMIT + 1


def test_own_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_policy_for_a_test.py").write_text(
        "from draftproof.simulator.policies import Fixed\n\n\nclass Two(Fixed):\n"
        "    name = 'two'\n\n    def __init__(self):\n        super().__init__(2)\n"
    )
    monkeypatch.chdir(tmp_path)
    (mine,) = policies_named(["my_policy_for_a_test:Two"])
    assert (mine.name, mine.k) == ("two", 2)
    with pytest.raises(DraftproofError, match=r"Greedy: \(variant, drafts\) must be in"):
        steps(Greedy(), "eagle", eagle=[1, 1])
    for word in ("json:loads", "json:Absent", "no_such_module_here:X"):
        with pytest.raises(DraftproofError, match=f"--policies {word}"):
            policies_named([word])


@pytest.mark.parametrize("word", ["fixed", "fixed:", "fixed:a", "fixed:0", "fastest", "oracle:3x", "schedule:2=1"])
def test_unknown_policies(word: str) -> None:
    with pytest.raises(DraftproofError):
        policies_named([word])


def test_k_beyond_the_trace_names_its_line() -> None:
    with pytest.raises(DraftproofError, match=r"toy:1: k must be at most the trace's limit, 6 \(got 7"):
        steps(Fixed(7), "eagle", eagle=[1, 1])


def test_unknown_variant_names_the_line() -> None:
    with pytest.raises(DraftproofError, match=r"toy:1: variant must be .*known: eagle"):
        steps(Fixed(1), "ngram", eagle=[1, 1])


@given(trace_lists(), st.integers(1, LIMIT), st.sampled_from(["ngram", "eagle"]))
def test_every_output_token_is_emitted_once(traces: list[object], k: int, name: str) -> None:
    table = make_table(traces, name)  # type: ignore[arg-type]
    visits: Visits = visit(table, Fixed(k), Clock(toy_costs(), CORRECTED, 1, (name,)))
    emitted = table.per_request(visits.index, visits.emitted.astype(float))
    assert emitted.tolist() == table.request_steps.tolist()


def test_mends_one_by_one() -> None:
    """Each cost mend against arithmetic by hand: one request, one step of three drafts, two accepted."""
    costs = toy_costs()
    trace = make_trace(10, [0] * 4, ngram=[3, 3, 1, 1], eagle=[3, 3, 1, 1])

    def decode(policy: Policy, *names: str, on: str = "", size: int = 2) -> float:
        rules = rules_named("paper", [on] if on else [], [])
        table = make_table([trace], *names, rules=rules)
        clock = Clock(costs, rules, size, names)
        return float((seconds_of(table, visit(table, policy, clock), clock) - clock.prefill_s(table.request_prompt))[0])

    step = 1.0 + 0.001 * 22 + 0.05 * 8 + 0.2
    eagle = 0.3 + 0.0001 * 11 * 1.5 + 0.002 * 4  # copies finish: mean of 22 and 11 cached tokens
    assert decode(Fixed(3), "eagle") == pytest.approx(step + eagle)
    assert decode(Fixed(3), "eagle", on="batch_draft") == pytest.approx(step + 0.3 + 0.0001 * 22 + 0.002 * 8)
    assert decode(Fixed(2), "eagle", on="draft_per_k") == pytest.approx(
        step - 0.05 * 2 + 2 / 3 * (0.3 + 0.0001 * 16.5) + 0.002 * 3
    )
    verify = 1.0 + 0.001 * 22 + 0.05 * 6
    assert decode(Combine(), "ngram", "eagle") == pytest.approx(verify * 1.01 + 0.2)
    idle = make_trace(10, ngram=[1, 1], eagle=[1, 1])
    plain = make_table([idle], "eagle", rules=PAPER)
    for on, paid in (("", 0.3 + 0.0001 * 16.5 + 0.002), ("idle_free", 0.0)):
        rules = rules_named("paper", [on] if on else [], [])
        clock = Clock(costs, rules, 2, ("eagle",))
        (oracle,) = policies_named(["oracle"])
        spent = seconds_of(plain, visit(plain, oracle, clock), clock) - clock.prefill_s(plain.request_prompt)
        assert float(spent[0]) == pytest.approx(1.0 + 0.001 * 22 + 0.05 * 2 + 0.2 + paid)


def test_prefill_in_chunks() -> None:
    """20 tokens at a budget of 16: a forward of 16, then one of 4 over 16 cached tokens."""
    for rules, expected in (
        (PAPER, 1.0 + 0.05 * 20 + 0.2),
        (CORRECTED, 2 * 1.2 + 0.05 * 20 + 0.001 * 16),
    ):
        clock = Clock(toy_costs(), rules, 2, ("eagle",))
        assert clock.prefill_s(np.array([10])).tolist() == pytest.approx([expected])


def test_the_coin_is_the_lookups_alone() -> None:
    """Under the paper's coin a step by EAGLE always proposes its drafts."""

    class Second(Stepwise):
        def choose(self, known: Known) -> tuple[int, int]:
            return 1, 2

    table = make_table([make_trace(5, ngram=[1, 1, 1], eagle=[1, 1, 1])], "ngram", "eagle", rules=PAPER)
    rules = rules_named("paper", ["winner_pays"], [])
    clock = Clock(toy_costs(), rules, 2, ("ngram", "eagle"))
    alone = make_table([make_trace(5, eagle=[1, 1, 1])], "eagle", rules=PAPER)
    only = Clock(toy_costs(), rules, 2, ("eagle",))
    together = seconds_of(table, visit(table, Second(), clock), clock)
    assert together == pytest.approx(seconds_of(alone, visit(alone, Fixed(2), only), only))


def test_a_lookup_of_which_nothing_is_known_always_proposes() -> None:
    assert steps(Fixed(2), "ngram", ngram=[1, 1, 1]) == [(0, 2, 1), (0, 2, 1)]
