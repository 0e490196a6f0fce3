"""Step samples of the stage clock summed into the stages of the paper's Figure 4."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

STAGES = ("draft", "verify", "sample", "overhead", "prefill")
"""What a block's time is split into. ``verify`` holds the target's forward pass and the LM head; ``overhead`` is the
rest of decode steps; ``prefill`` is every step that computes prompt tokens, whole."""

OVERHEAD_PARTS = ("schedule_s", "prepare_s", "bookkeep_s", "update_s", "output_s")


class StageSums(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each stage over some steps, and the number of steps."""

    seconds: dict[str, float]
    lm_head_s: float
    unattributed_s: float
    """The part of ``overhead`` that no scope claims."""
    decode_steps: int
    prefill_steps: int

    def shares(self) -> dict[str, float]:
        """Share of each stage in the decode steps' time; ``prefill`` is kept apart."""
        total = sum(self.seconds[stage] for stage in STAGES if stage != "prefill")
        return {stage: self.seconds[stage] / total for stage in STAGES if stage != "prefill"} if total > 0 else {}


def sum_stages(steps: Iterable[dict[str, Any]]) -> StageSums:
    """Sum step samples (keys as in ``steps.parquet``, seconds)."""
    seconds = dict.fromkeys(STAGES, 0.0)
    lm_head = unattributed = 0.0
    decode = prefill = 0
    for step in steps:
        if step["kind"] != "decode":
            seconds["prefill"] += step["step_s"]
            prefill += 1
            continue
        decode += 1
        verify = step["forward_s"] + step["lm_head_s"]
        overhead = step["step_s"] - step["draft_s"] - verify - step["sample_s"]
        seconds["draft"] += step["draft_s"]
        seconds["verify"] += verify
        seconds["sample"] += step["sample_s"]
        seconds["overhead"] += overhead
        lm_head += step["lm_head_s"]
        unattributed += overhead - sum(step[part] for part in OVERHEAD_PARTS)
    return StageSums(
        seconds=seconds, lm_head_s=lm_head, unattributed_s=unattributed, decode_steps=decode, prefill_steps=prefill
    )
