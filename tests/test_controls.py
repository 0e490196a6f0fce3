"""Control proposers: what they draft is known beforehand, whatever the prompts; and what they are fed."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.catalog import load_catalog
from draftproof.engines import ArmFacts, BlockRequest, BlockResult
from draftproof.engines.controls import SCRIPT, Control, Script
from draftproof.engines.worker import load_controls
from draftproof.feed import MAX_SETTLING_RUNS, Feed
from draftproof.plan import CONTROL_CLASS, build_plan, speculative_config
from draftproof.records import Output
from draftproof.spec import Sampling

VOCAB = 50
IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


def script(kind: str, prompts: list[list[int]], continuations: list[list[int]], rate: float = 1.0) -> Script:
    made = Script()
    made.kind, made.rate = kind, rate
    made.load(prompts, continuations)
    return made


@given(prompt=IDS, continuation=IDS, k=st.integers(1, 8), done=st.integers(0, 12))
def test_an_oracle_drafts_what_comes(prompt: list[int], continuation: list[int], k: int, done: int) -> None:
    done = min(done, len(continuation))
    known = prompt + continuation[:done]
    assert script("oracle", [prompt], [continuation]).draft(known, k, VOCAB) == continuation[done : done + k]


@given(prompt=IDS, continuation=IDS, k=st.integers(1, 8), done=st.integers(0, 12))
def test_an_adversary_is_wrong_at_every_position(prompt: list[int], continuation: list[int], k: int, done: int) -> None:
    done = min(done, len(continuation))
    drafts = script("adversarial", [prompt], [continuation]).draft(prompt + continuation[:done], k, VOCAB)
    coming = continuation[done : done + k]
    assert len(drafts) == len(coming)
    assert all(draft != token and 0 <= draft < VOCAB for draft, token in zip(drafts, coming, strict=True))


@given(prompt=IDS, continuation=IDS, k=st.integers(1, 8), rate=st.floats(0, 1))
def test_a_random_one_is_right_and_then_wrong(prompt: list[int], continuation: list[int], k: int, rate: float) -> None:
    """Once wrong it stays wrong, and a second pass drafts the same."""
    made = script("random", [prompt], [continuation], rate)
    drafts = made.draft(prompt, k, VOCAB)
    agreeing = [draft == token for draft, token in zip(drafts, continuation, strict=False)]
    assert agreeing == sorted(agreeing, reverse=True)
    assert made.draft(prompt, k, VOCAB) == drafts


def test_a_random_one_accepts_at_its_rate() -> None:
    """At the first position of 4,000 places a rate of 0.7 is met within 0.03 (four standard errors)."""
    continuation = [place % VOCAB for place in range(4000)]
    made = script("random", [[1]], [continuation], rate=0.7)
    right = sum(
        made.draft([1, *continuation[:place]], 1, VOCAB) == [continuation[place]] for place in range(len(continuation))
    )
    assert right / len(continuation) == pytest.approx(0.7, abs=0.03)


def test_a_text_that_left_its_reference_gets_no_drafts() -> None:
    made = script("oracle", [[1, 2]], [[3, 4, 5]])
    assert made.draft([1, 2, 9], 3, VOCAB) == []
    assert made.draft([1, 2, 3, 4, 5, 6], 3, VOCAB) == []
    assert made.draft([7], 3, VOCAB) == []


def test_rows_find_their_own_reference() -> None:
    """A prompt that is the beginning of another one's text is not taken for it."""
    made = script("oracle", [[1], [1, 2]], [[5, 6, 7], [8, 9, 10]])
    assert made.draft([1, 5], 2, VOCAB) == [6, 7]
    assert made.draft([1, 2, 8], 2, VOCAB) == [9, 10]


def scripted(references: list[tuple[list[int], list[int]]], plans: list[list[list[int]]]) -> Script:
    made = Script()
    made.kind = "scripted"
    made.load([prompt for prompt, _ in references], [known for _, known in references], plans)
    return made


@given(
    prompt=IDS,
    reference=IDS,
    plan=st.lists(st.lists(st.integers(0, 200), max_size=9), max_size=4),
    done=st.integers(0, 12),
    k=st.integers(1, 8),
)
def test_a_scripted_one_follows_its_plan(
    prompt: list[int], reference: list[int], plan: list[list[int]], done: int, k: int
) -> None:
    """An integer is an offset from the reference's token, and beyond the reference the token itself; k at most."""
    done = min(done, len(reference))
    drafts = scripted([(prompt, reference)], [plan]).draft(prompt + reference[:done], k, VOCAB)
    turn = plan[done % len(plan)] if plan else []
    expected = []
    for place, offset in enumerate(turn[:k], start=done):
        expected.append((reference[place] + offset) % VOCAB if place < len(reference) else offset % VOCAB)
    assert drafts == expected


def test_a_scripted_one_drafts_on_where_the_text_left_its_reference() -> None:
    """The integers themselves then; for a prompt that nobody planned for, nothing."""
    made = scripted([([1], [5, 6, 7]), ([1, 2], [8, 9])], [[[0, 3]], [[4]]])
    assert made.draft([1, 5], 3, VOCAB) == [6, 10]
    assert made.draft([1, 9, 9], 3, VOCAB) == [0, 3]
    assert made.draft([1, 2, 7], 3, VOCAB) == [4], "the longest prompt is its own"
    assert made.draft([3], 3, VOCAB) == []


def test_the_first_reference_that_still_holds_counts() -> None:
    """One prompt may have two: an output that nothing ends, and the one that min_tokens leads to."""
    made = scripted([([1], [5, 6, 7]), ([1], [5, 8, 9])], [[[0, 0]], [[0, 0]]])
    assert made.draft([1, 5], 3, VOCAB) == [6, 7]
    assert made.draft([1, 5, 8], 3, VOCAB) == [9, 0]


def test_a_scripted_one_without_plans_drafts_nothing() -> None:
    """As in a rotation, which gives references only."""
    assert scripted([([1], [5, 6])], []).draft([1, 5], 3, VOCAB) == []


class Config:
    """As much of a VllmConfig as the proposer reads."""

    class speculative_config:  # noqa: N801
        num_speculative_tokens = 2

    class model_config:  # noqa: N801
        @staticmethod
        def get_vocab_size() -> int:
            return VOCAB


def test_the_proposer_reads_the_rows_as_vllm_gives_them() -> None:
    """Ids beyond a row's length are remains of other requests; a row that sampled nothing gets no draft."""
    SCRIPT.kind = "oracle"
    SCRIPT.load([[1, 2], [4, 5]], [[3, 7, 8, 9], [6, 1, 1, 1]])
    proposer = Control(Config())
    rows = np.array([[1, 2, 3, 44, 44], [4, 5, 6, 1, 44], [4, 5, 44, 44, 44]])
    assert proposer.propose([[3], [6, 1], []], np.array([3, 4, 2]), rows) == [[7, 8], [1, 1], []]
    SCRIPT.load([], [])


def test_the_worker_makes_the_class_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name that `speculative_config` gives to vLLM, with the variant's settings."""
    monkeypatch.delitem(sys.modules, "draftproof_controls", raising=False)
    made = load_controls({"kind": "random", "rate": 0.25, "seed": 9})
    module, _, name = CONTROL_CLASS.rpartition(".")
    assert hasattr(sys.modules[module], name)
    assert (made.kind, made.rate, made.seed) == ("random", 0.25, 9)
    assert sys.modules[module].SCRIPT is made
    monkeypatch.delitem(sys.modules, "draftproof_controls")


class Echo:
    """An arm whose output is given, run by run."""

    facts = ArmFacts(load_s=0.0, environment={}, resolved={}, stages_reason="")

    def __init__(self, outputs: list[list[int]]) -> None:
        self.outputs = outputs
        self.asked: list[list[list[int]]] = []

    def run(self, request: BlockRequest) -> BlockResult:
        self.asked.append(request.references)
        found = self.outputs[min(len(self.asked), len(self.outputs)) - 1]
        return BlockResult(seconds=1.0, outputs=[Output(token_ids=found, finish_reason="length")], counters={})

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a feed has no use for {name}")


def feed_of_controls() -> tuple[Feed, BlockRequest]:
    catalog = load_catalog()
    plan = build_plan(catalog, catalog.studies["controls"], catalog.study_cells("controls"))
    unit = plan.groups[0].units[0]
    feed = Feed(plan.groups[0], unit, catalog.variants)
    feed.keep("no_sd", BlockResult(seconds=1.0, outputs=[Output([1, 2, 3], "length")], counters={}))
    request = BlockRequest(
        unit=unit.key, rotation=0, pass_index=0, purpose="speed", prompts=[[7]], sampling=Sampling(), output_tokens=3,
        ignore_eos=True,
    )  # fmt: skip
    return feed, request


def test_controls_are_fed_what_no_sd_wrote_and_others_nothing() -> None:
    feed, request = feed_of_controls()
    assert feed.fed("adversarial", request).references == [[1, 2, 3]]
    assert feed.fed("no_sd", request).references == []


def test_an_oracle_is_fed_its_own_output_until_it_repeats_it() -> None:
    """The second run leaves no-SD's text, the third repeats the second; the timed runs get what was settled."""
    feed, request = feed_of_controls()
    arm = Echo([[1, 2, 9], [1, 2, 9]])
    feed.settle("oracle", arm, request)
    assert arm.asked == [[[1, 2, 3]], [[1, 2, 9]]]
    assert feed.fed("oracle", request).references == [[1, 2, 9]]


def test_an_oracle_that_never_settles_is_left_after_a_few_runs() -> None:
    feed, request = feed_of_controls()
    arm = Echo([[number] for number in range(50)])
    feed.settle("oracle", arm, request)
    assert len(arm.asked) == MAX_SETTLING_RUNS


def test_only_oracles_settle() -> None:
    feed, request = feed_of_controls()
    arm = Echo([[9]])
    for key in ("adversarial", "random_half", "no_sd"):
        feed.settle(key, arm, request)
    assert arm.asked == []


def test_control_variants_are_custom_classes() -> None:
    catalog = load_catalog()
    config = speculative_config(catalog.variants["oracle_k7"], "smollm2-135m", None)
    assert config == {"method": "custom_class", "num_speculative_tokens": 7, "model": CONTROL_CLASS}
