"""Whether this vLLM can accept drafts at a set rate.

Loaded by the worker under any interpreter with a vLLM, so it imports the standard library alone; torch comes with vLLM.
"""

from __future__ import annotations

import importlib
import types
from typing import Any


def gap() -> str:
    """Why it cannot; empty where it can. Asked once an engine has been built.

    On a CPU it is tried: one wrong draft at a rate of 1 must come out. On a GPU the kernels are Triton's, which can.
    """
    if not importlib.import_module("vllm.platforms").current_platform.is_cpu():
        return ""
    greedy = types.SimpleNamespace(all_greedy=True, all_random=False, generators={}, temperature=None)
    draft, bonus = 1, 2
    try:
        torch = importlib.import_module("torch")
        sampler = importlib.import_module("vllm.v1.sample.rejection_sampler")
        found: Any = sampler.rejection_sample(
            torch.tensor([draft], dtype=torch.int32),
            [1],
            1,
            torch.tensor([1], dtype=torch.int32),
            None,
            torch.zeros(1, 4),
            torch.tensor([[bonus]], dtype=torch.int32),
            greedy,
            synthetic_mode=True,
            synthetic_conditional_rates=torch.tensor([1.0]),
        ).tolist()
    except Exception as error:  # an assertion, an absent module, another signature: each is the answer
        return f"{type(error).__name__}: {error}"
    return "" if found == [[draft, bonus]] else f"a draft that must be accepted came out as {found}"


def missing(found_version: str | None) -> str:
    """The same as ``needs ...; found ...; enable with ...``."""
    reason = gap()
    if not reason:
        return ""
    return (
        "needs a vLLM that accepts drafts at a set rate (rejection_sample_method = 'synthetic'); "
        f"found {found_version} for CPUs, which does not ({reason}); enable with a GPU"
    )
