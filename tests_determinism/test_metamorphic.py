"""Whatever is drafted, users receive the same: live requests with invented drafts against no speculation.

Two engines are started once: no speculation, and a proposer that drafts what each example says (k = 15, any length, any
content). Each example is a batch of unlike requests. Greedy ids must be equal up to a tie that rounding decides; text,
finish reason and counts must agree, and each answer must keep its own promises. A failure prints the command that runs
its example again. How many examples are invented is up to the study (``live_examples``); the chosen ones always run.
"""

from __future__ import annotations

import pytest

pytest.importorskip(
    "hypothesis", reason="needs hypothesis; found none; enable with pip install 'draftproof[dev]' (or hypothesis alone)"
)

from hypothesis import example, given
from hypothesis.strategies import SearchStrategy

from draftproof.examples import Examples
from draftproof.scenarios import Length, Request, Scenario, StopText
from draftproof.strategies import K, batches, borders, live, requests

RIGHT = [[0] * K]
"""A plan: every draft is right, as long as can be."""
WRONG = [[1] * K]
HALF = [[0] * 7 + [1] * 8]


def check(served: Examples, scenario: Scenario) -> None:
    told = served.failure(scenario)
    if told is not None:
        pytest.fail(told, pytrace=False)


def hold(served: Examples, invented: SearchStrategy[Scenario], *chosen: Scenario) -> None:
    """The chosen examples first, then invented ones."""

    @live(served.invented)
    @given(scenario=invented)
    def holds(scenario: Scenario) -> None:
        check(served, scenario)

    for scenario in reversed(chosen):
        holds = example(scenario=scenario)(holds)
    holds()


def test_drafts_change_nothing(sd_served: Examples) -> None:
    """Right, wrong, short and no drafts side by side, changing from step to step; ends in the middle of a run."""
    unlike = Scenario(
        requests=[
            Request(prompt=0, max_tokens=33, ignore_eos=True, drafts=RIGHT),
            Request(prompt=1, max_tokens=24, ignore_eos=True),
            Request(prompt=2, max_tokens=17, ignore_eos=True, drafts=WRONG),
            Request(prompt=3, max_tokens=40, ignore_eos=True, drafts=[[0] * 3, [], [0] * 8 + [5], [0], [7] * 15]),
        ]
    )
    hold(sd_served, batches(requests()), unlike)


def test_borders_change_nothing(sd_served: Examples) -> None:
    """Prompts and accepted runs that end before, at and behind a border of blocks, or of the context."""
    at_borders = Scenario(
        requests=[
            Request(prompt=0, length=Length(blocks=1, plus=-1), max_tokens=20, ignore_eos=True, drafts=RIGHT),
            Request(prompt=1, length=Length(blocks=1), max_tokens=20, ignore_eos=True, drafts=HALF),
            Request(prompt=2, length=Length(blocks=1, plus=1), max_tokens=20, ignore_eos=True, drafts=[[0] * 14]),
            Request(prompt=3, length=Length(blocks=2, plus=-8), max_tokens=20, ignore_eos=True, drafts=RIGHT),
            Request(prompt=4, length=Length(context=True), max_tokens=20, ignore_eos=True, drafts=RIGHT),
            Request(prompt=5, length=Length(context=True, plus=9), max_tokens=20, ignore_eos=True, drafts=RIGHT),
        ]
    )
    hold(sd_served, batches(requests(lengths=borders(), most_tokens=20), most=4), at_borders)


def test_stops_end_where_they_end_without_drafts(sd_served: Examples) -> None:
    """Stop strings, stop ids and min_tokens within an accepted run; what was drafted behind the end is not received."""
    within_a_run = Scenario(
        requests=[
            Request(prompt=0, max_tokens=30, stop_texts=[StopText(at=9, tokens=2, trim=1)], drafts=RIGHT),
            Request(prompt=1, max_tokens=30, stop_ids=[11], drafts=RIGHT),
            Request(prompt=2, max_tokens=30, stop_ids=[4], min_tokens=8, drafts=RIGHT),
            Request(prompt=3, max_tokens=30, stop_texts=[StopText(at=5)], min_tokens=10, drafts=HALF),
            Request(prompt=4, max_tokens=22, stop_ids=[6], stop_texts=[StopText(at=5)], drafts=[[0] * 9, [0] * 2]),
            Request(prompt=5, max_tokens=21, stop_ids=[20], drafts=RIGHT),
        ]
    )
    hold(sd_served, batches(requests(stops=True, most_tokens=24)), within_a_run)


def test_the_given_example(sd_served: Examples, sd_example: Scenario) -> None:
    """``--sd-example JSON``."""
    check(sd_served, sd_example)
