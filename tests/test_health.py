"""Rules of a drafter's health: sound counts raise no alarm, and each planted fault raises the one of its name."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from draftproof.analysis.acceptance import Acceptance
from draftproof.analysis.health import (
    MIN_DRAFT_TOKENS,
    Alarm,
    acceptance_alarms,
    draft_invariants,
    one_token_alarms,
    step_invariants,
    tally_gap,
)
from draftproof.catalog import load_catalog
from draftproof.gate import SHOWN_ALARMS, judge_health
from draftproof.records import BlockLine, DraftTally, Output
from draftproof.spec import Drafter, ExpectedAcceptance, Variant
from tests.factories import make_block, make_failure


def names(alarms: list[Alarm]) -> list[str]:
    return [alarm.name for alarm in alarms]


# -- a played block ----------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """A block of requests that were played step by step, so that its counts are true."""

    block: BlockLine
    outputs: list[Output]
    steps: list[dict[str, Any]]
    k: int


def play(k: int, requests: list[list[tuple[int, int] | None]], cuts: list[int]) -> Played:
    """Requests of (drafted, accepted) steps, None where nothing was drafted, after one prefill step each.

    `cuts[i]`: tokens that request i's end takes off its last step, of those that it accepted.
    """
    outputs = []
    for steps, cut in zip(requests, cuts, strict=True):
        drafts = [step for step in steps if step is not None]
        most = steps[-1][1] if steps and steps[-1] is not None else 0
        emitted = 1 + len(steps) + sum(accepted for _, accepted in drafts) - min(cut, most)
        outputs.append(
            Output(
                token_ids=list(range(emitted)),
                finish_reason="length",
                accepted=[accepted for _, accepted in drafts],
                drafted=[drafted for drafted, _ in drafts],
            )
        )
    flat = [accepted for output in outputs for accepted in output.accepted]
    rows: list[dict[str, Any]] = [{"kind": "prefill", "requests": len(requests), "draft_tokens": 0}]
    for number in range(max(map(len, requests), default=0)):
        alive = [steps[number] for steps in requests if number < len(steps)]
        drafted = sum(step[0] for step in alive if step is not None)
        rows.append({"kind": "decode", "requests": len(alive), "draft_tokens": drafted})
    block = make_block(
        requests=len(requests),
        output_tokens=sum(len(output.token_ids) for output in outputs),
        num_drafts=len(flat),
        num_draft_tokens=sum(sum(output.drafted) for output in outputs),
        num_accepted_tokens=sum(flat),
        num_accepted_tokens_per_pos=[sum(accepted > place for accepted in flat) for place in range(k)],
    )
    return Played(block, outputs, rows, k)


def drafted_steps(k: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.integers(1, k).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d)))


@st.composite
def played(draw: st.DrawFn, *, drafts: bool = False) -> Played:
    """`drafts`: at least one step has drafts."""
    k = draw(st.integers(1, 6))
    steps = st.lists(st.none() | drafted_steps(k), max_size=6)
    requests = draw(st.lists(steps, min_size=1, max_size=4))
    if drafts:
        requests.append([draw(drafted_steps(k))])
    return play(k, requests, [draw(st.integers(0, k)) for _ in requests])


def all_alarms(case: Played) -> list[Alarm]:
    found = draft_invariants(case.block, case.outputs, k=case.k)
    return found + step_invariants(case.block, case.outputs, case.steps, async_scheduling=False)


@given(played())
def test_a_played_block_raises_no_alarm(case: Played) -> None:
    assert all_alarms(case) == []


@given(played())
def test_counters_alone_raise_no_alarm(case: Played) -> None:
    """Older releases of vLLM do not say what a request drafted."""
    bare = [msgspec.structs.replace(output, accepted=[], drafted=[]) for output in case.outputs]
    assert draft_invariants(case.block, bare, k=case.k) == []


@given(played(), st.integers(0, 20), st.integers(0, 3))
def test_steps_planned_ahead_raise_no_alarm(case: Played, drafted: int, extra: int) -> None:
    """With async scheduling the engine plans steps for requests that have just ended."""
    ahead = [*case.steps, {"kind": "decode", "requests": extra, "draft_tokens": drafted}]
    assert step_invariants(case.block, case.outputs, ahead, async_scheduling=True) == []


def test_a_prompt_that_is_read_in_parts_raises_no_alarm() -> None:
    """A step that computes a part of a prompt emits nothing."""
    case = play(3, [[(3, 2)], [(3, 1), None]], [0, 0])
    parts = [{"kind": "prefill", "requests": 2, "draft_tokens": 0}, *case.steps]
    assert step_invariants(case.block, case.outputs, parts, async_scheduling=False) == []


# -- planted faults ----------------------------------------------------------------------------------------------------


def with_block(case: Played, **changes: Any) -> Played:
    return case._replace(block=msgspec.structs.replace(case.block, **changes))


def with_last(case: Played, **changes: Any) -> Played:
    """The last request's output changed; it has drafts."""
    return case._replace(outputs=[*case.outputs[:-1], msgspec.structs.replace(case.outputs[-1], **changes)])


def swap_positions(case: Played) -> Played:
    """A later position accepted more often than an earlier one."""
    counts = case.block.num_accepted_tokens_per_pos
    assume(len(set(counts)) > 1)
    return with_block(case, num_accepted_tokens_per_pos=sorted(counts))


def lose_tokens(case: Played) -> Played:
    """One token fewer than the last request's end can have cut off."""
    return with_last(case, token_ids=[0] * len(case.outputs[-1].accepted))


FAULTS: dict[str, Callable[[Played], Played]] = {
    "accepted_within_drafted": lambda c: with_block(c, num_accepted_tokens=c.block.num_draft_tokens + 1),
    "positions_add_up": lambda c: with_block(c, num_accepted_tokens=c.block.num_accepted_tokens + 1),
    "positions_fall": swap_positions,
    "first_position_within_drafts": lambda c: with_block(
        c, num_accepted_tokens_per_pos=[c.block.num_drafts + 1, *c.block.num_accepted_tokens_per_pos[1:]]
    ),
    "k_is_kept": lambda c: with_block(c, num_draft_tokens=c.k * c.block.num_drafts + 1),
    "emitted_adds_up": lose_tokens,
    "traces_pair_up": lambda c: with_last(c, accepted=[*c.outputs[-1].accepted, 0]),
    "step_within_drafted": lambda c: with_last(c, accepted=[d + 1 for d in c.outputs[-1].drafted]),
    "drafts_agree": lambda c: with_block(c, num_drafts=c.block.num_drafts + 1),
    "drafted_agree": lambda c: with_block(c, num_draft_tokens=c.block.num_draft_tokens - 1),
    "accepted_agree": lambda c: with_block(c, num_accepted_tokens=c.block.num_accepted_tokens + 1),
    "positions_agree": lambda c: with_block(
        c, num_accepted_tokens_per_pos=[n + 1 for n in c.block.num_accepted_tokens_per_pos]
    ),
    "steps_drafted_agree": lambda c: c._replace(steps=[*c.steps, {"kind": "decode", "requests": 0, "draft_tokens": 1}]),
    "steps_emitted_agree": lambda c: with_block(c, output_tokens=c.block.output_tokens + 1000),
}


@pytest.mark.parametrize("name", FAULTS)
@given(played(drafts=True))
def test_each_planted_fault_raises_its_alarm(name: str, case: Played) -> None:
    """With the block that it lies in, and its numbers."""
    found = {alarm.name: alarm for alarm in all_alarms(FAULTS[name](case))}
    assert name in found
    assert found[name].text.startswith("ngram, w b2, rotation 0, pass 0: ")
    assert any(char.isdigit() for char in found[name].text.partition(": ")[2])


@given(played(drafts=True))
def test_a_step_of_more_than_k_drafts_is_named(case: Played) -> None:
    """Also where the sums hide it."""
    longer = with_last(case, drafted=[case.k + 1] * len(case.outputs[-1].drafted))
    assert "k_is_kept" in names(draft_invariants(longer.block, longer.outputs, k=case.k))


@given(played(drafts=True))
def test_missing_tokens_are_named_without_traces_too(case: Played) -> None:
    bare = [msgspec.structs.replace(output, accepted=[], drafted=[]) for output in case.outputs]
    least = case.block.requests + case.block.num_drafts + case.block.num_accepted_tokens - case.k * case.block.requests
    block = msgspec.structs.replace(case.block, output_tokens=least - 1)
    assert names(draft_invariants(block, bare, k=case.k)) == ["emitted_adds_up"]


@given(played(drafts=True), st.integers(1, 50))
def test_steps_that_emitted_nothing_are_named(case: Played, lost: int) -> None:
    """A decode step that gave a request no token, which neither the end nor a prompt explains."""
    most = sum(output.accepted[-1] for output in case.outputs if output.accepted)
    steps = [*case.steps, {"kind": "decode", "requests": most + lost, "draft_tokens": 0}]
    found = step_invariants(case.block, case.outputs, steps, async_scheduling=False)
    assert names(found) == ["steps_emitted_agree"]


# -- acceptance --------------------------------------------------------------------------------------------------------


def make_acceptance(drafts: int, accepted: int, *, drafted: int | None = None, requests: int = 4) -> Acceptance:
    return Acceptance(
        num_drafts=drafts,
        num_draft_tokens=3 * drafts if drafted is None else drafted,
        num_accepted_tokens=accepted,
        requests=requests,
        length=1 + accepted / drafts if drafts else None,
        rate=None,
        per_position=[],
        tokens_per_step=None,
    )


def expect(at_least: float | None = None, at_most: float | None = None) -> ExpectedAcceptance:
    return ExpectedAcceptance(at_least=at_least, at_most=at_most, source="a test")


@pytest.mark.parametrize(
    ("accepted", "expected", "alarm"),
    [
        (0, None, "acceptance_is_one"),
        (300, None, "all_accepted"),
        (1, None, ""),
        (299, None, ""),
        (0, expect(at_least=1), ""),  # an n-gram lookup
        (150, expect(at_least=1), ""),
        (300, expect(at_least=1), "all_accepted"),
        (300, expect(at_least=4), ""),  # an oracle
        (299, expect(at_least=4), "below_expected"),
        (0, expect(at_least=4), "acceptance_is_one"),
        (0, expect(at_most=1), ""),  # an adversary
        (1, expect(at_most=1), "above_expected"),
        (300, expect(at_most=1), "all_accepted"),
        (88, expect(1.4, 2.35), ""),  # right with probability 0.5 a position: 1.875
        (33, expect(1.4, 2.35), "below_expected"),  # 0.25
        (153, expect(1.4, 2.35), "above_expected"),  # 0.7
        (0, expect(1.4, 2.35), "acceptance_is_one"),
        (300, expect(1.4, 2.35), "all_accepted"),
        (300, expect(3.88, 4), ""),  # a model that drafts for itself
        (288, expect(3.88, 4), ""),
        (287, expect(3.88, 4), "below_expected"),
        (150, expect(2.5, None), ""),  # ends belong to the range
        (150, expect(None, 2.5), ""),
        (149, expect(2.5, None), "below_expected"),
        (151, expect(None, 2.5), "above_expected"),
    ],
)
def test_acceptance_by_hand(accepted: int, expected: ExpectedAcceptance | None, alarm: str) -> None:
    """100 drafts of k = 3 tokens: AL is 1 + accepted / 100."""
    found = acceptance_alarms(make_acceptance(100, accepted), k=3, expected=expected)
    assert names(found) == ([alarm] if alarm else [])
    for said in found:
        assert f"100 drafts ({accepted} of 300 draft tokens accepted)" in said.text


def test_alarms_say_what_to_do() -> None:
    (dead,) = acceptance_alarms(make_acceptance(384, 0), k=3, expected=None)
    assert "acceptance length exactly 1.00 over 384 drafts" in dead.text
    assert "check that all of its tensors were loaded (names, d2t)" in dead.text
    (low,) = acceptance_alarms(make_acceptance(100, 99), k=3, expected=expect(at_least=2.0))
    assert "acceptance length 1.990 over 100 drafts" in low.text
    assert "at least 2 (a test); check" in low.text


ENDS = st.none() | st.integers(100, 400).map(lambda hundredths: hundredths / 100)


@given(st.integers(1, 400), st.data(), ENDS, ENDS)
def test_ranges_are_those_of_exact_fractions(
    drafts: int, data: st.DataObject, low: float | None, high: float | None
) -> None:
    """Alarm or none, as a slow comparison of fractions says for k = 3."""
    assume((low or high) is not None and (low is None or high is None or low <= high))
    accepted = data.draw(st.integers(0, 3 * drafts) | st.sampled_from([0, 3 * drafts]))
    length = 1 + Fraction(accepted, drafts)
    least = Fraction(str(low)) if low is not None else None
    most = Fraction(str(high)) if high is not None else None
    above = length >= least if least is not None else length > 1 or most == 1
    below = length <= most if most is not None else length < 4 or least == 4
    found = acceptance_alarms(make_acceptance(drafts, accepted), k=3, expected=expect(low, high))
    assert (found == []) == (above and below)
    assert len(found) <= 1


def test_an_oracle_may_draft_less_where_its_output_ends() -> None:
    """4 requests whose last drafts are 1 of 3 tokens, all accepted: nothing more was there to draft."""
    at_ends = make_acceptance(100, 292, drafted=292, requests=4)
    assert acceptance_alarms(at_ends, k=3, expected=expect(at_least=4)) == []
    always_less = make_acceptance(100, 200, drafted=200, requests=4)
    assert names(acceptance_alarms(always_less, k=3, expected=expect(at_least=4))) == ["below_expected"]
    one_wrong = make_acceptance(100, 291, drafted=292, requests=4)
    assert names(acceptance_alarms(one_wrong, k=3, expected=expect(at_least=4))) == ["below_expected"]


@pytest.mark.parametrize(
    ("expected", "alarms"),
    [
        (None, ["no_drafts"]),
        (expect(at_least=4), ["no_drafts"]),
        (expect(at_most=1), ["no_drafts"]),
        (expect(at_least=1), []),
    ],
)
def test_no_draft_at_all_is_an_alarm_but_for_a_lookup(expected: ExpectedAcceptance | None, alarms: list[str]) -> None:
    """An adversary that drafts nothing is no control."""
    assert names(acceptance_alarms(make_acceptance(0, 0), k=3, expected=expected)) == alarms


# -- one token ---------------------------------------------------------------------------------------------------------


def tallied(tokens: int = 30, distinct: int = 1, accepted: int = 0, **fields: Any) -> BlockLine:
    top = fields.pop("top_token", 7)
    tally = DraftTally(tokens=tokens, distinct=distinct, top_token=top, top_count=tokens - distinct + 1)
    counts = {"num_drafts": tokens // 3, "num_draft_tokens": tokens, "num_accepted_tokens": accepted}
    return make_block(purpose="stages", draft_tally=tally, **(counts | fields))


@pytest.mark.parametrize(
    ("blocks", "alarms"),
    [
        ([tallied()], ["one_token"]),
        ([tallied(), tallied()], ["one_token"]),
        ([tallied(tokens=9), tallied(tokens=9)], ["one_token"]),
        ([tallied(accepted=26)], ["one_token"]),
        ([tallied(accepted=27)], []),  # the text repeats it: nine in ten are right
        ([tallied(distinct=2)], []),
        ([tallied(), tallied(distinct=2)], []),
        ([tallied(), tallied(top_token=8)], []),
        ([tallied(tokens=MIN_DRAFT_TOKENS - 1)], []),
        ([tallied(tokens=MIN_DRAFT_TOKENS)], ["one_token"]),
        ([tallied(), tallied(tokens=0, distinct=0, top_token=None)], ["one_token"]),
        ([tallied(num_draft_tokens=0)], ["one_token"]),  # nothing of it was verified
        ([], []),
    ],
)
def test_one_token_by_hand(blocks: list[BlockLine], alarms: list[str]) -> None:
    assert names(one_token_alarms(blocks)) == alarms


def test_the_token_and_its_counts_are_told() -> None:
    (alarm,) = one_token_alarms([tallied(accepted=2)])
    assert "all 30 draft tokens are token 7, and 2 of 30 verified ones were accepted" in alarm.text


@pytest.mark.parametrize(
    ("blocks", "unavailable", "said"),
    [
        ([tallied()], [], ""),
        ([], [], "found that there is none: no stages block in the records; enable with"),
        ([], ["stages cannot be clocked: x"], "found that there is none: stages cannot be clocked: x; enable with"),
        ([make_block(draft_tally_reason="needs a; found b; enable with c")], [], "needs a; found b; enable with c"),
        ([make_block()], [], "found records from before they were counted; enable with a new run (--sd-fresh)"),
        (
            [tallied(tokens=3), tallied(tokens=3)],
            [],
            f"at least {MIN_DRAFT_TOKENS} draft tokens; found 6 (vLLM's counter: 6) in 2 stages blocks; enable with",
        ),
    ],
)
def test_ids_that_cannot_be_judged_say_why(blocks: list[BlockLine], unavailable: list[str], said: str) -> None:
    """In the form of every skip."""
    found = tally_gap(blocks, unavailable)
    assert said in found
    assert bool(said) == bool(found)
    if found:
        assert found.startswith("needs ")


# -- the verdict -------------------------------------------------------------------------------------------------------


ALARM = Alarm("one_token", "all 30 draft tokens are token 7")


def test_an_alarm_fails_its_cell() -> None:
    assert judge_health([], [], healthy="well") == judge_health([], [], healthy="well", enough=False)
    assert judge_health([], [], healthy="well").verdict == "PASS"
    found = judge_health([ALARM], [], healthy="well")
    assert (found.verdict, found.reason) == ("FAILED", "one_token: all 30 draft tokens are token 7")


def test_too_few_drafts_are_not_judged() -> None:
    found = judge_health([ALARM], [], healthy="well", enough=False)
    assert found.verdict == "INSUFFICIENT"
    assert "token 7" in found.reason


def test_an_arm_that_failed_is_told_first() -> None:
    assert "it fell" in judge_health([ALARM], [make_failure()], healthy="well").reason


def test_many_alarms_are_cut() -> None:
    reason = judge_health([ALARM] * (SHOWN_ALARMS + 3), [], healthy="well").reason
    assert reason.count("one_token") == SHOWN_ALARMS
    assert reason.endswith("; and 3 more")


# -- the entries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"at_least": 2.0, "source": " "}, r"source must be where the expectation comes from \(got ' '\)"),
        ({"source": "s"}, r"at_least must be given where at_most is not \(got None\)"),
        ({"at_least": 0.9, "source": "s"}, r"at_least must be at least 1 .* \(got 0\.9\)"),
        ({"at_most": 0.9, "source": "s"}, r"at_most must be at least 1 .* \(got 0\.9\)"),
        ({"at_least": 3.0, "at_most": 2.0, "source": "s"}, r"at_least must be at most at_most = 2\.0 \(got 3\.0\)"),
    ],
)
def test_a_wrong_expectation_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExpectedAcceptance(**fields)


@pytest.mark.parametrize("place", ["variant", "drafter"])
@pytest.mark.parametrize(("low", "high"), [(4.5, None), (None, 4.5)])
def test_no_expectation_lies_above_k_plus_1(place: str, low: float | None, high: float | None) -> None:
    wrong = expect(low, high)
    fields: dict[str, Any] = {"expected_acceptance": wrong}
    if place == "drafter":
        fields = {"drafters": {"t": Drafter(source="self", expected_acceptance=wrong)}}
    with pytest.raises(
        ValueError, match=r"expected_acceptance: at_(least|most) must be at most k \+ 1 = 4 \(got 4\.5\)"
    ):
        Variant(name="v", title="", method="draft_model", k=3, **fields)


def test_without_speculation_nothing_is_expected() -> None:
    with pytest.raises(ValueError, match="expected_acceptance must be absent without speculative decoding"):
        Variant(name="v", title="", method="none", expected_acceptance=expect(2.0))


def test_a_drafters_expectation_goes_before_its_variants() -> None:
    own, general = expect(2.0), expect(1.5)
    drafters = {"a": Drafter(source="self", expected_acceptance=own), "b": Drafter(source="self")}
    variant = Variant(name="v", title="", method="draft_model", k=3, drafters=drafters, expected_acceptance=general)
    assert [variant.expected_for(target) for target in "abc"] == [own, general, general]
    bare = msgspec.structs.replace(variant, expected_acceptance=None)
    assert [bare.expected_for(target) for target in "abc"] == [own, None, None]


def test_every_control_states_what_it_expects() -> None:
    """A control's acceptance is known beforehand, that is what it is for; a scripted one's only with its example."""
    variants = load_catalog().variants.values()
    controls = [variant for variant in variants if variant.control and variant.control.kind != "scripted"]
    assert len(controls) >= 5
    for variant in controls:
        assert variant.control is not None
        assert variant.k is not None
        assert variant.expected_acceptance is not None
        rate = {"oracle": 1.0, "adversarial": 0.0}.get(variant.control.kind, variant.control.rate)
        mean = 1 + sum(rate**place for place in range(1, variant.k + 1))
        low, high = variant.expected_acceptance.at_least, variant.expected_acceptance.at_most
        assert (low or 1.0) <= mean <= (high or variant.k + 1)
