"""Drafts of every position: kept with their request and place, and none of them reaches the scheduler."""

from __future__ import annotations

import sys
from types import ModuleType
from types import SimpleNamespace as Space
from typing import Any

import pytest

from draftproof.engines import worker
from draftproof.engines.drafttally import PROPOSE, TAKE, DraftTrace


class Tensor:
    """Of a tensor what the worker uses; a step writes into the memory of the last one."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def clone(self) -> Tensor:
        return Tensor([row[:] for row in self.rows])

    def tolist(self) -> list[list[int]]:
        return self.rows


class Runner:
    """Two requests: `a` of 3 prompt tokens, and `b` of 5, which is read in two parts."""

    def __init__(self, *, tensors: bool) -> None:
        self.tensors = tensors
        self.memory = Tensor([])
        self.requests = {
            "a": Space(prompt_token_ids=[1, 2, 3], num_computed_tokens=0),
            "b": Space(prompt_token_ids=[4, 5, 6, 7, 8], num_computed_tokens=0),
        }
        self.input_batch = Space(req_ids=["a", "b"])
        self.step = 0

    def propose_draft_token_ids(self, scheduled: Any, more: int) -> Any:
        self.step += 1
        rows = [[10 * self.step + row, 7 if more else -1, -1] for row in range(2)]
        if not self.tensors:
            return [[token for token in row if token >= 0] for row in rows]
        self.memory.rows[:] = rows
        return self.memory

    def take_draft_token_ids(self) -> Any:
        return "drafts"

    def run(self, **tokens: int) -> Any:
        drafts = self.propose_draft_token_ids(Space(num_scheduled_tokens=tokens), 1)
        self.compute(tokens)
        return drafts

    def compute(self, tokens: dict[str, int]) -> None:
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count


@pytest.mark.parametrize("tensors", [False, True])
def test_drafts_are_kept_by_request_and_committed_tokens(tensors: bool) -> None:
    """A part of a prompt commits nothing: what is drafted there is dropped. Lists and tensors alike."""
    runner = Runner(tensors=tensors)
    watch = DraftTrace(runner, async_scheduling=False)
    assert watch.reason == ""
    with watch.running():
        runner.run(a=3, b=2)
        runner.run(a=1, b=3)
        last = runner.run(a=1, b=1)
        assert runner.take_draft_token_ids() is None
    assert last is runner.memory if tensors else isinstance(last, list)
    assert watch.proposals() == {
        (1, 2, 3): {1: [10, 7], 2: [20, 7], 3: [30, 7]},
        (4, 5, 6, 7, 8): {1: [21, 7], 2: [31, 7]},
    }


def test_afterwards_the_runner_is_as_it_was() -> None:
    runner = Runner(tensors=False)
    watch = DraftTrace(runner, async_scheduling=False)
    with pytest.raises(RuntimeError, match="a step failed"), watch.running():
        raise RuntimeError("a step failed")
    assert not {PROPOSE, TAKE} & set(vars(runner))
    assert runner.take_draft_token_ids() == "drafts"


@pytest.mark.parametrize(
    ("runner", "ahead", "says"),
    [
        (None, False, "found the model runner in another process"),
        (Space(), False, "found no propose_draft_token_ids in types.SimpleNamespace"),
        (Space(propose_draft_token_ids=print), False, "found no take_draft_token_ids in types.SimpleNamespace"),
        (Runner(tensors=False), True, "found async scheduling, where drafts stay in the runner"),
    ],
)
def test_what_cannot_be_watched_says_why(runner: Any, ahead: bool, says: str) -> None:
    assert says in DraftTrace(runner, async_scheduling=ahead).reason


class Engine:
    """An `LLM` whose requests commit one token a step; `silent`: steps at which the proposer is not asked."""

    def __init__(self, *, silent: int = -1, ahead: bool = False) -> None:
        self.runner, self.silent = Runner(tensors=True), silent
        executor = Space(driver_worker=Space(worker=Space(model_runner=self.runner)))
        scheduler = Space(async_scheduling=ahead)
        self.llm_engine = Space(
            engine_core=Space(engine_core=Space(model_executor=executor)),
            vllm_config=Space(scheduler_config=scheduler),
        )

    def generate(self, prompts: list[dict[str, list[int]]], sampling: Any, use_tqdm: bool) -> list[Any]:
        assert (sampling.temperature, use_tqdm) == (0.0, False)
        for step in range(sampling.max_tokens):
            tokens = {"a": 1, "b": 1} if step else {"a": 3, "b": 5}
            if step != self.silent:
                self.runner.run(**tokens)
            else:
                self.runner.compute(tokens)
        ids = list(range(sampling.max_tokens))
        return [Space(outputs=[Space(token_ids=ids)]) for _ in prompts]


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> worker.Arm:
    vllm = ModuleType("vllm")
    vllm.__dict__["SamplingParams"] = Space
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    made = worker.Arm()
    made.speculative = True
    return made


REQUEST = {"prompts": [[4, 5, 6, 7, 8], [1, 2, 3]], "output_tokens": 3}


def test_the_worker_answers_in_the_order_of_the_prompts(arm: worker.Arm) -> None:
    arm.llm = Engine()
    assert arm.trace(REQUEST)["traced"] == [
        {"output": [0, 1, 2], "proposals": [[], [11, 7], [21, 7]]},
        {"output": [0, 1, 2], "proposals": [[], [10, 7], [20, 7]]},
    ]


def test_a_position_without_a_proposal_is_an_error_not_an_empty_draft(arm: worker.Arm) -> None:
    """Planted: the proposer is not asked at one step, as at the end of the context."""
    arm.llm = Engine(silent=1)
    with pytest.raises(worker.ArmError, match="vLLM asked no proposer after "):
        arm.trace(REQUEST)


def test_an_arm_that_cannot_be_traced_says_why(arm: worker.Arm) -> None:
    arm.llm = Engine(ahead=True)
    with pytest.raises(worker.ArmError, match="found async scheduling"):
        arm.trace(REQUEST)
    arm.llm, arm.speculative = Engine(), False
    with pytest.raises(worker.ArmError, match="an arm without speculation drafts nothing"):
        arm.trace(REQUEST)
