"""Control proposers for vLLM's ``custom_class`` method: drafts whose fate is known beforehand.

Loaded by the worker into the arm's process under the name ``draftproof_controls``, so it imports the standard library
only. Before each block the worker writes into `SCRIPT` what each prompt's continuation will be; `Control` then proposes
from it, and what vLLM does with the drafts is measured, not simulated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


class Script:
    """What is drafted in the block at hand.

    ``oracle``: the reference continuation itself. ``adversarial``: at each position another token than the reference's.
    ``random``: right with probability `rate` at each position, and wrong from the first wrong one on, seeded by prompt
    and position, so that a second pass drafts the same. Where the text has left its reference nothing is drafted.

    ``scripted``: by a plan of its own for each prompt, a list of drafts that are lists of integers. After `done` output
    tokens the draft is ``plan[done % len(plan)]``; an integer n stands for the reference's token there plus n, and
    where the reference has ended or was left, for token n itself, both modulo the vocabulary. No plan, no draft. One
    prompt may have several references: the first that still holds counts.
    """

    def __init__(self) -> None:
        self.kind = "oracle"
        self.rate = 1.0
        self.seed = 0
        self._references: list[tuple[list[int], list[int]]] = []
        self._plans: list[list[list[int]]] = []

    def load(
        self,
        prompts: Sequence[Sequence[int]],
        continuations: Sequence[Sequence[int]],
        plans: Sequence[list[list[int]]] = (),
    ) -> None:
        """Set the block's references: prompt ids and the output ids that follow them; and the plans, one a prompt."""
        self._references = [(list(p), list(c)) for p, c in zip(prompts, continuations, strict=True)]
        self._plans = list(plans)

    def upcoming(self, known: list[int], k: int) -> tuple[int, list[int]] | None:
        """(Index of the reference that `known` is the beginning of, its next k tokens); None where there is none."""
        for index, (prompt, continuation) in enumerate(self._references):
            done = len(known) - len(prompt)
            if (
                0 <= done <= len(continuation)
                and known[: len(prompt)] == prompt
                and known[len(prompt) :] == continuation[:done]
            ):
                return index, continuation[done : done + k]
        return None

    def draft(self, known: list[int], k: int, vocab_size: int) -> list[int]:
        """Up to k draft tokens after `known`."""
        if self.kind == "scripted":
            return self._planned(known, k, vocab_size)
        found = self.upcoming(known, k)
        if found is None:
            return []
        index, tokens = found
        if self.kind == "oracle":
            return tokens
        right = 0
        if self.kind == "random":
            chance = random.Random(f"{self.seed}-{index}-{len(known)}")
            while right < len(tokens) and chance.random() < self.rate:
                right += 1
        return tokens[:right] + [(token + 1) % vocab_size for token in tokens[right:]]

    def _planned(self, known: list[int], k: int, vocab_size: int) -> list[int]:
        index, tokens = self.upcoming(known, k) or (self._owner(known), [])
        plan = self._plans[index] if index is not None and index < len(self._plans) else []
        if index is None or not plan:
            return []
        done = len(known) - len(self._references[index][0])
        draft = plan[done % len(plan)][:k]
        coming = tokens + [0] * (len(draft) - len(tokens))
        return [(token + offset) % vocab_size for token, offset in zip(coming, draft, strict=False)]

    def _owner(self, known: list[int]) -> int | None:
        """The longest prompt that `known` begins with."""
        mine = [index for index, (prompt, _) in enumerate(self._references) if known[: len(prompt)] == prompt]
        return max(mine, key=lambda index: len(self._references[index][0]), default=None)


SCRIPT = Script()
"""The running block's script. One engine lives in a process, so one script does."""


class Control:
    """vLLM's proposer interface over `SCRIPT`."""

    def __init__(self, vllm_config: Any) -> None:
        self._k = int(vllm_config.speculative_config.num_speculative_tokens)
        self._vocab_size = int(vllm_config.model_config.get_vocab_size())

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There are no weights."""

    def propose(
        self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """Drafts for each row of the batch; a row that sampled nothing (a prefill chunk) gets none."""
        drafts = []
        for row, sampled in enumerate(sampled_token_ids):
            known = token_ids_cpu[row, : int(num_tokens_no_spec[row])].tolist() if sampled else []
            drafts.append(SCRIPT.draft(known, self._k, self._vocab_size) if sampled else [])
        return drafts
