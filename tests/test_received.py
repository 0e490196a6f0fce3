"""What users receive: a clean engine passes every invented example, and each planted fault is found and named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from draftproof.analysis.received import KNOWN, Difference, ProblemName, expected_end, fits_shifted
from draftproof.engines import Answers, LiveArm, ServeRequest
from draftproof.examples import ExampleLine, Opinion, VerdictLine, judge, play
from draftproof.scenarios import Asked, Received, Request, Scenario, StopText
from draftproof.strategies import borders, requests, scenarios
from tests.toy_server import LIMITS, TEXTS, VOCABULARY, Fault, ToyServer, decoded, one_by_one

K = LIMITS.k
PROMPTS = [[(7 * number + 3 * place) % VOCABULARY for place in range(4 + number)] for number in range(5)]
KNOWN_OUTPUTS = {
    tuple(ids): one_by_one(Asked(prompt=ids, max_tokens=24 + K, ignore_eos=True), LIMITS) for ids in PROMPTS
}
ARMS = ("no_sd", "scripted")
RIGHT = [[0] * K]


def strict(differences: Sequence[Difference]) -> list[Opinion]:
    """The toy does not round: nothing is a tie."""
    return [Opinion(False, f"{found.pair} at {found.position}") for found in differences]


def lenient(differences: Sequence[Difference]) -> list[Opinion]:
    return [Opinion(True, "a tie") for _ in differences]


def served(scenario: Scenario, fault: Fault | None = None) -> ExampleLine:
    base: Any = ToyServer(0)
    other: Any = ToyServer(fault=fault)
    line = play(scenario, PROMPTS, LIMITS, KNOWN_OUTPUTS, base, other)
    assert line.error == ""
    return line


def verdict(scenario: Scenario, fault: Fault | None = None) -> VerdictLine:
    return judge(served(scenario, fault), ARMS, strict)


def names(scenario: Scenario, fault: Fault | None = None) -> set[str]:
    return {problem.name for problem in verdict(scenario, fault).problems}


anything = scenarios(
    st.one_of(
        requests(k=K, most_tokens=24),
        requests(k=K, most_tokens=24, stops=True),
        requests(k=K, most_tokens=20, lengths=borders(around=9), stops=True),
    )
)
stopping = scenarios(requests(k=K, most_tokens=16, stops=True))

# --- a clean engine ---------------------------------------------------------------------------------------------------


@settings(max_examples=120)
@given(scenario=anything)
def test_a_clean_engine_has_no_problems(scenario: Scenario) -> None:
    """Token by token and run by run, whatever is asked and drafted; and a scenario is its JSON."""
    found = verdict(scenario)
    assert found == VerdictLine(ties=[], problems=[])


def test_invented_examples_reach_what_they_are_for() -> None:
    """Ends of every kind within an accepted run, full and empty drafts, the border of the context."""
    seen: set[str] = set()

    @settings(max_examples=100, phases=[Phase.generate])
    @given(scenario=anything)
    def look(scenario: Scenario) -> None:
        line = served(scenario)
        for asked, base, other in zip(line.asked, line.bases, line.others, strict=True):
            seen.add(f"ends by {base.finish_reason}, {type(base.stop_reason).__name__}")
            if asked.min_tokens and len(base.token_ids) > asked.min_tokens:
                seen.add("goes beyond min_tokens")
            if len(asked.prompt) + len(base.token_ids) == LIMITS.context_tokens:
                seen.add("fills the context")
            if other.accepted and sum(other.accepted) + len(other.accepted) + 1 > len(other.token_ids):
                seen.add("cuts an accepted run")
            seen.update(["drafts nothing"] if not other.drafted else [f"accepts {n}" for n in other.accepted])

    look()
    expected = {f"accepts {number}" for number in (0, 1, K)} | {"drafts nothing", "goes beyond min_tokens"}
    expected |= {"fills the context", "cuts an accepted run"}
    expected |= {"ends by length, NoneType", "ends by stop, NoneType", "ends by stop, int", "ends by stop, str"}
    assert expected <= seen


def test_references_are_served_only_where_stops_are_looked_up_in_them() -> None:
    """Known outputs are used as far as they go; without one, and without stops, no-SD's answer is the reference."""
    batch = Scenario(
        requests=[
            Request(prompt=0, max_tokens=9, stop_ids=[3]),
            Request(prompt=[1, 2], max_tokens=12, stop_ids=[4]),
            Request(prompt=[3, 4], max_tokens=6, ignore_eos=True, drafts=RIGHT),
        ]
    )
    base: Any = Counting(0)
    other: Any = ToyServer()
    line = play(batch, PROMPTS, LIMITS, KNOWN_OUTPUTS, base, other)
    assert base.batches == [1, 3]
    assert line.references[0].token_ids == KNOWN_OUTPUTS[tuple(PROMPTS[0])].token_ids[: 9 + K]
    assert len(line.references[1].token_ids) == 12 + K
    assert line.references[2] == line.bases[2]
    assert line.others[2].accepted == [5]


class Counting(ToyServer):
    """Notes how many requests it was asked for, batch by batch."""

    def serve(self, request: ServeRequest) -> Answers:
        self.batches = [*getattr(self, "batches", []), len(request.requests)]
        return super().serve(request)


# --- planted faults ---------------------------------------------------------------------------------------------------

BY_ID = Request(prompt=0, max_tokens=16, ignore_eos=True, stop_ids=[5], drafts=RIGHT)
BY_STRING = Request(prompt=2, max_tokens=16, ignore_eos=True, stop_texts=[StopText(at=4, tokens=2)], drafts=RIGHT)
BY_LENGTH = Request(prompt=1, max_tokens=12, ignore_eos=True, drafts=RIGHT)
LONG = Request(prompt=3, max_tokens=20, ignore_eos=True, drafts=[[0, 0, 0], [], [1]])
MASKED = Request(prompt=0, max_tokens=16, min_tokens=8, ignore_eos=True, stop_ids=[5], drafts=RIGHT)
BONUS = Request(prompt=0, max_tokens=16, min_tokens=2, ignore_eos=True, stop_ids=[5], drafts=[[], [0, 0, 0, 0]])
PLAIN = Request(prompt=4, max_tokens=9, ignore_eos=True)

PLANTED: list[tuple[Fault, Request, ProblemName]] = [
    ("swallows a stop id", BY_ID, "missed_stop"),
    ("loses a stop id", BY_ID, "lost_stop_token"),
    ("keeps what is behind a stop id", BY_ID, "tokens_after_stop"),
    ("keeps what is behind a stop string", BY_STRING, "tokens_after_stop"),
    ("ignores min_tokens", MASKED, "too_few_tokens"),
    ("overruns max_tokens", BY_LENGTH, "too_many_tokens"),
    ("swaps two outputs", BY_LENGTH, "swapped"),
    ("slips by one position", BY_LENGTH, "shifted"),
    ("flips a token", LONG, "divergent"),
    ("garbles the text", LONG, "text"),
    ("gives another reason", BY_ID, "finish_reason"),
    ("gives another reason", BY_LENGTH, "finish_reason"),
    ("gives no stop reason", BY_ID, "stop_reason"),
    ("counts one more", LONG, "drafts"),
    ("drafts nothing", LONG, "drafts"),
    ("masks the bonus token", BONUS, "late_mask"),
    ("tells of another prompt", PLAIN, "prompt_tokens"),
]


@pytest.mark.parametrize(("fault", "request_", "name"), PLANTED, ids=[f"{fault}: {name}" for fault, _, name in PLANTED])
def test_a_planted_fault_is_found_and_named(fault: Fault, request_: Request, name: ProblemName) -> None:
    """Beside a request without drafts; without the fault the same batch is clean."""
    batch = Scenario(requests=[request_, PLAIN])
    assert names(batch) == set()
    found = verdict(batch, fault).problems
    assert name in {problem.name for problem in found}
    assert {problem.arm for problem in found} == {"scripted"}
    assert all(f"request {p.request} on scripted: {p.name}: " in p.line for p in found)


@pytest.mark.parametrize("fault", get_args(Fault))
def test_every_fault_is_found_by_an_invented_example(fault: Fault) -> None:
    """The same batch is clean without it."""
    quick = settings(max_examples=500, phases=[Phase.generate])
    found = find(stopping, lambda scenario: bool(names(scenario, fault)), settings=quick)
    assert names(found) == set()


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("keeps what is behind a stop id", "tokens_after_stop"),
        ("flips a token", "divergent"),
    ],
)
def test_an_example_shrinks_to_a_short_one(fault: Fault, name: ProblemName) -> None:
    """What is left is fit to be read: requests, stops and drafts that have no part in it are gone."""
    smallest = find(stopping, lambda scenario: name in names(scenario, fault), settings=settings(max_examples=500))
    assert len(smallest.requests) <= 2
    assert len(smallest.json) < 200
    assert names(smallest) == set()


def test_only_a_mask_that_outlasts_its_step_is_called_late() -> None:
    """A stop that is missed at another place of the run, or where nothing was masked, is no known fault."""
    for request in (
        msgspec.structs.replace(BONUS, drafts=[[], [0, 0, 0, 0, 0]]),
        msgspec.structs.replace(BONUS, drafts=[[], [0, 0]]),
        BY_ID,
    ):
        assert "missed_stop" in names(Scenario(requests=[request]), "swallows a stop id")
    assert set(KNOWN) == {"late_mask"}


def test_steps_near_the_contexts_end_may_verify_zeros() -> None:
    """As vLLM has it, for every request of the batch; far from it the script alone counts."""
    line = served(Scenario(requests=[msgspec.structs.replace(PLAIN, max_tokens=6), BY_LENGTH]))
    zeros = msgspec.structs.replace(line.others[0], drafted=[K] * 5, accepted=[0] * 5)
    assert 0 not in zeros.token_ids
    line = msgspec.structs.replace(line, others=[zeros, line.others[1]])
    assert {problem.name for problem in judge(line, ARMS, strict).problems} == {"drafts"}
    longest = len(line.asked[1].prompt) + len(line.others[1].token_ids)
    near = msgspec.structs.replace(line.limits, context_tokens=longest + 2 * K)
    assert judge(msgspec.structs.replace(line, limits=near), ARMS, strict).problems == []


def test_after_a_tie_only_each_answers_own_promises_are_kept() -> None:
    """The continuation is another text; an end that is wrong is still wrong."""
    batch = Scenario(requests=[LONG, PLAIN])
    found = judge(served(batch, "flips a token"), ARMS, lenient)
    assert found.problems == []
    assert found.ties == ["request 0, position 6: a tie"]
    line = served(batch, "flips a token")
    spoilt = msgspec.structs.replace(line.others[0], finish_reason="stop")
    line = msgspec.structs.replace(line, others=[spoilt, line.others[1]])
    assert {problem.name for problem in judge(line, ARMS, lenient).problems} == {"finish_reason"}


def test_the_no_sd_arm_must_keep_its_promises_as_well() -> None:
    """And its fault is not told of the other arm again."""
    line = served(Scenario(requests=[PLAIN]))
    spoilt = msgspec.structs.replace(line.bases[0], text="something else")
    found = judge(msgspec.structs.replace(line, bases=[spoilt]), ARMS, strict).problems
    assert {(problem.arm, problem.name) for problem in found} == {("no_sd", "text")}


def test_an_output_that_ends_elsewhere_is_told_without_a_referee() -> None:
    """Where the shorter output is all of the longer one's beginning there are no two tokens to score."""
    line = served(Scenario(requests=[PLAIN]))
    ids = line.others[0].token_ids[:5]
    text, ends = decoded(ids)
    fields = {"token_ids": ids, "decoded": text, "ends": ends, "text": text}
    line = msgspec.structs.replace(line, others=[msgspec.structs.replace(line.others[0], **fields)])
    assert {p.name for p in judge(line, ARMS, strict).problems} == {"ends_elsewhere", "ends_early"}


def test_where_stops_are_masked_the_referee_is_told() -> None:
    """The best token of all may be a masked one there."""
    asked: list[Difference] = []

    def note(differences: Sequence[Difference]) -> list[Opinion]:
        asked.extend(differences)
        return lenient(differences)

    judge(served(Scenario(requests=[msgspec.structs.replace(LONG, min_tokens=7)]), "flips a token"), ARMS, note)
    judge(served(Scenario(requests=[msgspec.structs.replace(LONG, min_tokens=6)]), "flips a token"), ARMS, note)
    assert [found.stops_masked for found in asked] == [True, False]
    assert all(found.position == 6 and len(found.prefix) == len(PROMPTS[3]) + 6 for found in asked)


# --- reading an output ------------------------------------------------------------------------------------------------


def received(ids: list[int], **fields: Any) -> Received:
    text, ends = decoded(ids)
    known = {"text": text, "finish_reason": "length", "stop_reason": None, "prompt_tokens": 1} | fields
    return Received(token_ids=ids, decoded=text, ends=ends, **known)


@given(ids=st.lists(st.integers(1, VOCABULARY - 1), min_size=2, max_size=12), stops=st.lists(st.sampled_from("abc")))
def test_a_stop_string_ends_at_the_token_that_completes_it(ids: list[int], stops: list[str]) -> None:
    """Against a search that knows only the whole text: the first completion, wherever tokens end."""
    asked = Asked(prompt=[1], max_tokens=len(ids), ignore_eos=True, stop=stops)
    end = expected_end(asked, received(ids), LIMITS)
    text = "".join(TEXTS[token] for token in ids)
    completed = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=None)
    assert end is not None
    if completed is None:
        assert (end.tokens, end.finish_reason) == (len(ids), "length")
        return
    assert end.finish_reason == "stop"
    assert decoded(ids[: end.tokens - 1])[1][-1:] < [completed] or end.tokens == 1
    assert decoded(ids[: end.tokens])[1][-1] >= completed
    assert end.characters == completed - len(str(end.stop_reason))


def test_a_shift_needs_several_tokens_in_common() -> None:
    assert fits_shifted([1, 2, 3, 4, 5], [2, 3, 4, 9, 9])
    assert not fits_shifted([1, 2, 3], [2, 3, 4])
    assert not fits_shifted([1, 2, 3, 4, 5], [2, 3, 9, 5, 6])
    assert not fits_shifted([1, 2, 3], [2, 3])


def test_toys_are_arms_as_far_as_they_serve() -> None:
    """The toy server answers the protocol's operation."""
    assert set(dir(ToyServer)) >= {"serve"} <= set(dir(LiveArm))
