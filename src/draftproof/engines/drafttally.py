"""Which tokens were drafted in a block, counted. Part of the worker: no other package."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

PROPOSE = "propose_draft_token_ids"
"""The V1 runner's one method through which every proposer's drafts pass: n-gram, custom classes, heads and models."""


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
        self.reason = ""
        needs = "needs the ids of draft tokens"
        if runner is None:
            self.reason = (
                f"{needs}; found the model runner in another process; enable with tensor_parallel_size = 1 and "
                "VLLM_ENABLE_V1_MULTIPROCESSING=0"
            )
        elif not callable(getattr(runner, PROPOSE, None)):
            found = f"{type(runner).__module__}.{type(runner).__name__}"
            self.reason = (
                f"{needs}; found no {PROPOSE} in {found}; enable with vLLM's V1 model runner "
                "(VLLM_USE_V2_MODEL_RUNNER=0)"
            )

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
            if isinstance(drafts, list):
                keep([row[:] for row in drafts])  # the scheduler may shorten them
            elif drafts is not None:
                keep(drafts.clone())  # the next step may write into the same memory
            return drafts

        setattr(runner, PROPOSE, watched)
        try:
            yield
        finally:
            delattr(runner, PROPOSE)

    def answer(self) -> dict[str, Any]:
        """Of the last block: ``draft_tally`` (four scalars), or ``draft_tally_reason`` where nothing can be counted.

        Negative ids fill up rows that have no draft there, and are no tokens.
        """
        if self.reason:
            return {"draft_tally_reason": self.reason}
        rows = (row for drafts in self._kept for row in (drafts if isinstance(drafts, list) else drafts.tolist()))
        tokens = Counter(token for row in rows for token in row if token >= 0)
        top = max(tokens, key=lambda token: (tokens[token], -token), default=None)
        return {
            "draft_tally": {
                "tokens": tokens.total(),
                "distinct": len(tokens),
                "top_token": top,
                "top_count": tokens[top] if top is not None else 0,
            }
        }
