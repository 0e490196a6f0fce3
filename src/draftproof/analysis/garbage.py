"""Is the reference worth agreeing with? Scores that are no numbers give one token for everything, time after time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

MIN_TOKENS = 8
"""A shorter output says nothing: "no, no, no" is an answer."""
MIN_PROMPTS = 2
NEARLY_ALL = 0.9
"""Share of one token from which an output is that token over and over."""
HALF = 0.5
"""Share of prompts with the same such token from which the model is garbage."""


def garbage(outputs: Sequence[tuple[str, Sequence[int]]], *, end_tokens: Collection[int] = ()) -> str:
    """Why the no-SD arm's outputs are garbage, as a sentence; empty where they are not.

    `outputs`: (prompt id, token ids), a prompt once or more. A model whose logits are NaN repeats itself perfectly, and
    every variant agrees with it. It also gives one token whatever it is asked, and that tells it from a model that was
    asked to repeat a word: there each prompt has a word of its own.

    `end_tokens`: what ends an answer. Where EOS is ignored, a model that has answered may repeat it up to the limit;
    an output that does not begin with it is then fine.
    """
    repeated: dict[str, set[int]] = {}
    for prompt_id, ids in outputs:
        if len(ids) >= MIN_TOKENS:
            tokens = repeated.setdefault(prompt_id, set())
            token, count = Counter(ids).most_common(1)[0]
            answered = token in end_tokens and ids[0] != token
            if count / len(ids) >= NEARLY_ALL and not answered:
                tokens.add(token)
    prompts = Counter(token for tokens in repeated.values() for token in tokens)
    if not prompts:
        return ""
    token, count = prompts.most_common(1)[0]
    if count < max(MIN_PROMPTS, HALF * len(repeated)):
        return ""
    return (
        f"outputs without speculation are garbage: for {count} of {len(repeated)} prompts at least {NEARLY_ALL:.0%} of "
        f"their tokens are token {token}; that they repeat says nothing: check the target's weights, dtype and scores "
        "(NaN?)"
    )


def not_finite(values: Iterable[float | None]) -> bool:
    """Whether some score is NaN or infinite; None (not scored) is neither."""
    return any(value is not None and not math.isfinite(value) for value in values)
