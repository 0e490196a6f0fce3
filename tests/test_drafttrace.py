"""Drafts of every position: kept with their request and place, and none of them reaches the scheduler."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

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
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count
        return drafts


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
