"""Scenarios: one line of JSON, exact prompt lengths, and stops that are looked up in the reference."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from draftproof.errors import DraftproofError
from draftproof.scenarios import (
    Length,
    Limits,
    Received,
    Request,
    Scenario,
    StopText,
    constrained,
    parse,
    prompt_ids,
    unconstrained,
)
from draftproof.strategies import K, batches, borders, plans, requests

LIMITS = Limits(context_tokens=100, block_tokens=16, vocabulary=50, k=5)
PROMPTS = [[10, 11, 12], [20, 21], [30]]


def reference(pieces: list[str]) -> Received:
    ends = [len("".join(pieces[: count + 1])) for count in range(len(pieces))]
    ids = list(range(40, 40 + len(pieces)))
    text = "".join(pieces)
    return Received(
        token_ids=ids, text=text, finish_reason="length", stop_reason=None, prompt_tokens=1, decoded=text, ends=ends
    )


@given(scenario=batches(requests(stops=True, lengths=borders())))
def test_a_scenario_is_one_line_of_json(scenario: Scenario) -> None:
    assert parse(scenario.json) == scenario
    assert "\n" not in scenario.json
    assert len(scenario.requests) <= 6
    for request in scenario.requests:
        assert all(len(draft) <= K for draft in request.drafts)
        assert request.min_tokens <= request.max_tokens


def test_defaults_are_left_out() -> None:
    assert Scenario(requests=[Request()]).json == '{"requests":[{}]}'


def test_what_is_no_scenario_is_told() -> None:
    with pytest.raises(DraftproofError, match="--sd-example must be the JSON of a scenario"):
        parse('{"requests":[{"max_tokens":0}]}')


@given(
    length=st.builds(Length, blocks=st.integers(0, 9), context=st.booleans(), plus=st.integers(-200, 200)),
    prompt=st.integers(0, 20),
    max_tokens=st.integers(1, 40),
)
def test_a_prompt_gets_the_length_that_is_asked_for(length: Length, prompt: int, max_tokens: int) -> None:
    """Cut or filled up at its beginning: it ends as it did. Never empty, never without room for a token."""
    found = prompt_ids(Request(prompt=prompt, length=length, max_tokens=max_tokens), PROMPTS, LIMITS)
    wanted = (100 - max_tokens if length.context else 16 * length.blocks) + length.plus
    assert len(found) == min(max(wanted, 1), 99)
    own = PROMPTS[prompt % 3]
    assert found[-len(own) :] == own[-len(found) :]


def test_a_prompt_may_be_given_and_is_cut_to_the_context() -> None:
    assert prompt_ids(Request(prompt=[7, 8, 9]), PROMPTS, LIMITS) == [7, 8, 9]
    assert len(prompt_ids(Request(prompt=[7] * 300), PROMPTS, LIMITS)) == 99
    assert prompt_ids(Request(prompt=[7, 8], length=Length(plus=4)), PROMPTS, LIMITS) == [20, 21, 7, 8]


def test_the_reference_outlasts_the_last_draft() -> None:
    asked = unconstrained(Request(max_tokens=9, min_tokens=4, stop_ids=[1]), [1, 2], LIMITS)
    assert (asked.max_tokens, asked.min_tokens, asked.ignore_eos, asked.stop_token_ids) == (14, 0, True, [])


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (StopText(at=0), "ab"),
        (StopText(at=1, tokens=2), "cde"),
        (StopText(at=1, tokens=2, trim=1), "cd"),
        (StopText(at=3, tokens=9), "fg"),
        (StopText(at=5), "c"),
        (StopText(at=0, trim=7), "a"),
    ],
)
def test_a_stop_string_is_a_piece_of_the_reference(stop: StopText, text: str) -> None:
    """Places count in a circle, and what is cut off leaves a character."""
    asked = constrained(Request(stop_texts=[stop]), [1], reference(["ab", "c", "de", "fg"]))
    assert asked.stop == [text]


def test_a_stop_without_text_is_left_out_and_each_is_there_once() -> None:
    stops = [StopText(at=1), StopText(at=0), StopText(at=2)]
    asked = constrained(Request(stop_texts=stops, stop_ids=[1, 4, 2]), [1], reference(["x", "", "x"]))
    assert asked.stop == ["x"]
    assert asked.stop_token_ids == [41, 42]


@pytest.mark.parametrize(
    "wanted",
    [
        lambda plan: plan == [],
        lambda plan: [] in plan and any(plan),
        lambda plan: [0] * K in plan,
        lambda plan: any(0 in draft[draft.index(1) :] for draft in plan if 1 in draft),
    ],
    ids=["no drafts", "now and then", "all right", "right again behind a wrong one"],
)
def test_plans_are_of_every_kind(wanted: Callable[[list[list[int]]], bool]) -> None:
    """So that batches mix rows with drafts and rows without."""
    assert find(plans(), wanted, settings=settings(max_examples=300, phases=[Phase.generate])) is not None


def test_the_beginning_of_an_output_is_one_that_ended_by_length() -> None:
    whole = msgspec.structs.replace(reference(["ab", "", "c", "d"]), finish_reason="stop", stop_reason=43, drafted=[1])
    assert whole.first(3) == reference(["ab", "", "c"])
    assert whole.first(9).token_ids == whole.token_ids


def test_scenarios_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Request().max_tokens = 3  # type: ignore[misc]
    assert msgspec.structs.replace(Request(), max_tokens=3).max_tokens == 3
