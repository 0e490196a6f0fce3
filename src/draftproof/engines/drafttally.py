"""Which tokens were drafted: counted in a block, or kept position by position. Part of the worker: no other package."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

PROPOSE = "propose_draft_token_ids"
"""The V1 runner's one method through which every proposer's drafts pass: n-gram, custom classes, heads and models."""
TAKE = "take_draft_token_ids"
"""Its method by which the engine core fetches them for the scheduler, where scheduling waits for each step."""


def missing(runner: Any, *names: str) -> str:
    """Why the ids of draft tokens cannot be had from `runner`; empty where they can. `names`: methods it must have."""
    needs = "needs the ids of draft tokens"
    if runner is None:
        return (
            f"{needs}; found the model runner in another process; enable with tensor_parallel_size = 1 and "
            "VLLM_ENABLE_V1_MULTIPROCESSING=0"
        )
    for name in names:
        if not callable(getattr(runner, name, None)):
            found = f"{type(runner).__module__}.{type(runner).__name__}"
            return (
                f"{needs}; found no {name} in {found}; enable with vLLM's V1 model runner (VLLM_USE_V2_MODEL_RUNNER=0)"
            )
    return ""


def kept(drafts: Any) -> Any:
    """A copy: the scheduler may shorten lists, and the next step may write into a tensor's memory."""
    return [row[:] for row in drafts] if isinstance(drafts, list) else drafts.clone()


def rows_of(drafts: Any) -> list[list[int]]:
    """The draft tokens row by row; negative ids fill up rows that have no draft there, and are no tokens."""
    rows = drafts if isinstance(drafts, list) else drafts.tolist()
    return [[token for token in row if token >= 0] for row in rows]


class DraftTally:
    """Counts the draft tokens of a block where the model runner proposes them.

    While it runs, an attribute of the runner's own hides the method, and is taken off again. Each proposal is copied,
    lists (n-gram, custom classes) as well as tensors (heads, draft models), and counted when the block has ended: a
    tensor's copy stays on its device until then, so that no step waits for it, not with async scheduling either. At
    128 requests and k = 3 a copy takes about 10 microseconds of a step. Draft tokens that the scheduler then drops,
    those of requests that have just ended and of prompts that are still being read, are counted too. The zeros that the
    runner drafts at the end of the context do not pass here.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._kept: list[Any] = []
        self.reason = missing(runner, PROPOSE)

    @contextlib.contextmanager
    def running(self) -> Any:
        """Count every proposal inside the block; without a method to watch, nothing."""
        self._kept = []
        if self.reason:
            yield
            return
        runner, propose = self._runner, getattr(self._runner, PROPOSE)
        keep = self._kept.append

        def watched(*args: Any, **kwargs: Any) -> Any:
            drafts = propose(*args, **kwargs)
            if drafts is not None:
                keep(kept(drafts))
            return drafts

        setattr(runner, PROPOSE, watched)
        try:
            yield
        finally:
            delattr(runner, PROPOSE)

    def answer(self) -> dict[str, Any]:
        """Of the last block: ``draft_tally`` (four scalars), or ``draft_tally_reason`` where nothing can be counted."""
        if self.reason:
            return {"draft_tally_reason": self.reason}
        tokens = Counter(token for drafts in self._kept for row in rows_of(drafts) for token in row)
        top = max(tokens, key=lambda token: (tokens[token], -token), default=None)
        return {
            "draft_tally": {
                "tokens": tokens.total(),
                "distinct": len(tokens),
                "top_token": top,
                "top_count": tokens[top] if top is not None else 0,
            }
        }


class DraftTrace:
    """Keeps what is proposed after every committed token, and hands the scheduler nothing.

    Without drafts each step has one row a request and commits the target's own token, so that the proposer is asked at
    every position of the plain output. What it returns stays in the runner in the form that the runner expects, a list
    or a tensor; only the fetching of it for the scheduler is hidden.
    """

    def __init__(self, runner: Any, *, async_scheduling: bool) -> None:
        self._runner = runner
        self.reason = missing(runner, PROPOSE, TAKE)
        if not self.reason and async_scheduling:
            self.reason = (
                "needs a scheduler that waits for each step; found async scheduling, where drafts stay in the runner; "
                "enable with async_scheduling = false"
            )
        self._calls: list[tuple[list[tuple[str, int]], Any]] = []
        self._prompts: dict[str, tuple[int, ...]] = {}

    @contextlib.contextmanager
    def running(self) -> Any:
        self._calls, self._prompts = [], {}
        runner, propose = self._runner, getattr(self._runner, PROPOSE)

        def watched(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            drafts = propose(scheduled, *args, **kwargs)
            self._calls.append((self._places(scheduled), kept(drafts)))
            return drafts

        setattr(runner, PROPOSE, watched)
        setattr(runner, TAKE, lambda: None)
        try:
            yield
        finally:
            delattr(runner, PROPOSE)
            delattr(runner, TAKE)

    def _places(self, scheduled: Any) -> list[tuple[str, int]]:
        """Of each row of the batch, its request and the output tokens committed after this step; 0 within a prompt."""
        found = []
        for name in self._runner.input_batch.req_ids:
            state = self._runner.requests[name]
            self._prompts.setdefault(name, tuple(state.prompt_token_ids))
            computed = state.num_computed_tokens + scheduled.num_scheduled_tokens[name]
            found.append((name, max(0, computed - len(state.prompt_token_ids) + 1)))
        return found

    def proposals(self) -> dict[tuple[int, ...], dict[int, list[int]]]:
        """Prompt -> committed output tokens (1 or more) -> the draft from there."""
        found: dict[tuple[int, ...], dict[int, list[int]]] = {prompt: {} for prompt in self._prompts.values()}
        for places, drafts in self._calls:
            for (name, committed), row in zip(places, rows_of(drafts), strict=False):
                if committed:
                    found[self._prompts[name]][committed] = row
        return found
