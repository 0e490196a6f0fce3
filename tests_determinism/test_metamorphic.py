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

from draftproof.examples import Examples, Told
from draftproof.scenarios import Length, Request, Scenario, StopText
from draftproof.strategies import K, batches, borders, live, requests

RIGHT = [[0] * K]
"""A plan: every draft is right, as long as can be."""
WRONG = [[1] * K]
HALF = [[0] * 7 + [1] * 8]


def check(served: Examples, scenario: Scenario) -> Told:
    told = served.told(scenario)
    if told.wrong:
        pytest.fail(told.failure, pytrace=False)
    return told


def settle(all_told: list[Told]) -> None:
    """Nothing unknown is wrong; a fault that a released engine is known for is an expected failure, never a pass."""
    met = [told for told in all_told if told.known]
    if met:
        pytest.xfail(f"{'; '.join(met[0].known)}; seen with: {met[0].command}")


def hold(served: Examples, invented: SearchStrategy[Scenario], *chosen: Scenario) -> None:
    """The chosen examples first, then invented ones."""
    all_told: list[Told] = []

    @live(served.invented)
    @given(scenario=invented)
    def holds(scenario: Scenario) -> None:
        all_told.append(check(served, scenario))

    for scenario in reversed(chosen):
        holds = example(scenario=scenario)(holds)
    holds()
    settle(all_told)


def test_drafts_change_nothing(sd_served: Examples) -> None:
    """Right, wrong, short and no drafts side by side, changing from step to step; ends in the middle of a run."""
    unlike = Scenario(
        requests=[
            Request(prompt=0, max_tokens=25, ignore_eos=True, drafts=RIGHT),
            Request(prompt=1, max_tokens=18, ignore_eos=True),
            Request(prompt=2, max_tokens=10, ignore_eos=True, drafts=WRONG),
            Request(prompt=3, max_tokens=24, ignore_eos=True, drafts=[[0] * 3, [], [0] * 8 + [5], [0], [7] * 15]),
        ]
    )
    hold(sd_served, batches(requests(most_tokens=24), most=4), unlike)


def test_borders_change_nothing(sd_served: Examples) -> None:
    """Prompts and accepted runs that end before, at and behind a border of blocks, or of the context."""
    of_blocks = Scenario(
        requests=[
            Request(prompt=0, length=Length(blocks=1, plus=-1), max_tokens=18, ignore_eos=True, drafts=RIGHT),
            Request(prompt=1, length=Length(blocks=1), max_tokens=18, ignore_eos=True, drafts=HALF),
            Request(prompt=2, length=Length(blocks=1, plus=1), max_tokens=18, ignore_eos=True, drafts=[[0] * 14]),
            Request(prompt=3, length=Length(blocks=1, plus=-17), max_tokens=18, ignore_eos=True, drafts=RIGHT),
        ]
    )
    # A full run that ends with the context, and one that the context cuts. Nearer to it nothing is drafted.
    of_the_context = Scenario(
        requests=[
            Request(prompt=0, length=Length(context=True), max_tokens=K + 2, ignore_eos=True, drafts=RIGHT),
            Request(prompt=1, length=Length(context=True, plus=2), max_tokens=K + 2, ignore_eos=True, drafts=RIGHT),
            Request(prompt=3, max_tokens=6, ignore_eos=True),
        ]
    )
    invented = batches(requests(lengths=borders(), most_tokens=20), most=3)
    hold(sd_served, invented, of_blocks, of_the_context)


def test_stops_end_where_they_end_without_drafts(sd_served: Examples) -> None:
    """Stop strings, stop ids and min_tokens within an accepted run; what was drafted behind the end is not received."""
    within_a_run = Scenario(
        requests=[
            Request(prompt=0, max_tokens=22, drafts=RIGHT),  # the shipped target ends it by EOS after 8 tokens
            Request(prompt=2, max_tokens=22, min_tokens=14, drafts=RIGHT),  # and this one after 12
            Request(prompt=3, max_tokens=22, stop_texts=[StopText(at=9, tokens=2, trim=1)], drafts=RIGHT),
            Request(prompt=5, max_tokens=22, stop_ids=[11], drafts=RIGHT),
            Request(prompt=7, max_tokens=22, stop_texts=[StopText(at=5)], min_tokens=10, drafts=HALF),
            Request(prompt=5, max_tokens=21, stop_ids=[20], stop_texts=[StopText(at=19)], drafts=[[0] * 9, [0] * 2]),
        ]
    )
    hold(sd_served, batches(requests(stops=True, most_tokens=24)), within_a_run)


def test_stops_count_again_from_min_tokens_on(sd_served: Examples) -> None:
    """A stop id right behind an accepted run, which began before min_tokens and ends there, or beyond."""
    crossing = Scenario(
        requests=[
            Request(prompt=3, min_tokens=2, ignore_eos=True, stop_ids=[6], drafts=[[], [0] * 5]),
            Request(prompt=5, min_tokens=6, ignore_eos=True, stop_ids=[6], drafts=[[], [0] * 5]),
            Request(prompt=0, min_tokens=3, drafts=[[], [0] * 6]),  # by EOS, on the shipped target
            Request(prompt=1, min_tokens=1, ignore_eos=True, stop_ids=[5], drafts=[[], [0] * 4]),
        ]
    )
    settle([check(sd_served, crossing)])


def test_the_given_example(sd_served: Examples, sd_example: Scenario) -> None:
    """``--sd-example JSON``."""
    settle([check(sd_served, sd_example)])
