"""Step samples of the stage clock summed into the stages of the paper's Figure 4."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from draftproof.analysis.rowsprice import Interval
from draftproof.analysis.stats import t_quantile

STAGES = ("draft", "verify", "sample", "overhead", "prefill")
"""What a block's time is split into. ``verify`` holds the target's forward pass and the LM head; ``overhead`` is the
rest of decode steps; ``prefill`` is every step that computes prompt tokens, whole."""

OVERHEAD = {
    "schedule": ("schedule_s",),
    "prepare": ("prepare_s",),
    "bookkeeping": ("bookkeep_s",),
    "output processing": ("update_s", "output_s"),
    "outside the worker": ("outside_s",),
}
"""Parts of ``overhead`` -> columns of the step samples. The last one is of workers in processes of their own: messages,
and where the engine core is in another process too, all of its work."""

OVERHEAD_PARTS = tuple(column for columns in OVERHEAD.values() for column in columns if column != "outside_s")

UNATTRIBUTED_LIMIT = 0.05
"""Share of the decode steps that no part may leave unclaimed: this project's own bound on what its clock may miss. Real
vLLM on two cores left 0.1 to 0.3 %."""

GROUPS = 10
"""Runs of neighbouring decode steps that stage shares are jackknifed over, all blocks together; at least half of them
are needed."""

SCOPES = "named scopes, host seconds"
"""How the seconds of runs were measured that do not say so."""


class StageSums(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each stage over some steps, and the number of steps. Prefill and mixed steps are in no other field."""

    seconds: dict[str, float]
    lm_head_s: float
    unattributed_s: float | None
    """The part of ``overhead`` that no part claims. None on a GPU: host work overlaps the device's there, so that the
    parts do not add up to the step."""
    decode_steps: int
    prefill_steps: int
    overhead_s: dict[str, float] = {}
    """``overhead`` by part. On a GPU these are host seconds, whether or not the device waited for them."""
    device_busy_s: float | None = None
    """On a GPU: device seconds inside draft, verify and sample; gaps between the kernels of a stage count as busy."""
    device_idle_s: float | None = None
    """On a GPU: device seconds of the steps outside of them."""
    workers: int = 1
    spread_s: float = 0.0
    """With several workers the slowest of each step is summed; by so much the fastest of each step was faster."""
    clock: str = SCOPES

    @property
    def decode_s(self) -> float:
        """Seconds of the decode steps."""
        return sum(self.seconds[stage] for stage in STAGES if stage != "prefill")

    @property
    def unattributed_share(self) -> float | None:
        """Of the decode steps; None where there are none, and on a GPU."""
        return None if self.unattributed_s is None or self.decode_s <= 0 else self.unattributed_s / self.decode_s

    def entries(self) -> dict[str, float]:
        """The stages and, beside verify, the LM head that is part of it."""
        return {**self.seconds, "lm_head": self.lm_head_s}

    def shares(self) -> dict[str, float]:
        """Share of each stage in the decode steps' time; ``prefill`` is kept apart."""
        total = self.decode_s
        return {stage: self.seconds[stage] / total for stage in STAGES if stage != "prefill"} if total > 0 else {}


def sum_stages(steps: Iterable[dict[str, Any]]) -> StageSums:
    """Sum step samples (keys as in ``steps.parquet``, seconds)."""
    seconds = dict.fromkeys(STAGES, 0.0)
    overhead = dict.fromkeys(OVERHEAD, 0.0)
    lm_head = busy = idle = spread = 0.0
    decode = prefill = 0
    workers, clock, on_device = 1, SCOPES, False
    for step in steps:
        workers, clock = max(workers, step.get("workers") or 1), step.get("clock") or clock
        if step["kind"] != "decode":
            seconds["prefill"] += step["step_s"]
            prefill += 1
            continue
        decode += 1
        verify = step["forward_s"] + step["lm_head_s"]
        seconds["draft"] += step["draft_s"]
        seconds["verify"] += verify
        seconds["sample"] += step["sample_s"]
        seconds["overhead"] += step["step_s"] - step["draft_s"] - verify - step["sample_s"]
        lm_head += step["lm_head_s"]
        for part, columns in OVERHEAD.items():
            overhead[part] += sum(step.get(column) or 0.0 for column in columns)
        spread += step.get("spread_s") or 0.0
        on_device |= step.get("device_busy_s") is not None
        busy += step.get("device_busy_s") or 0.0
        idle += step.get("device_idle_s") or 0.0
    return StageSums(
        seconds=seconds,
        lm_head_s=lm_head,
        unattributed_s=None if on_device else seconds["overhead"] - sum(overhead.values()),
        decode_steps=decode,
        prefill_steps=prefill,
        overhead_s=overhead,
        device_busy_s=busy if on_device else None,
        device_idle_s=idle if on_device else None,
        workers=workers,
        spread_s=spread,
        clock=clock,
    )


def stage_shares(blocks: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Interval]:
    """Share of each stage in the decode steps' time with its 95 % interval; `blocks`: step samples of each block.

    Jackknife over groups of neighbouring steps (they resemble each other: over single steps it would be too narrow),
    t quantile. What differs between two blocks is in it only where there are several. Empty with too few steps.
    """
    groups = []
    for block in blocks:
        steps = [step for step in block if step["kind"] == "decode"]
        count = min(len(steps), math.ceil(GROUPS / len(blocks)))
        edges = [len(steps) * part // count for part in range(count + 1)] if count else []
        groups += [sum_stages(steps[low:high]) for low, high in itertools.pairwise(edges)]
    whole = sum(group.decode_s for group in groups)
    if len(groups) < GROUPS / 2 or not all(group.decode_s > 0 for group in groups):
        return {}
    reach = t_quantile(len(groups) - 1)
    found = {}
    for stage in (stage for stage in STAGES if stage != "prefill"):
        total = sum(group.seconds[stage] for group in groups)
        left_out = [(total - group.seconds[stage]) / (whole - group.decode_s) for group in groups]
        middle = sum(left_out) / len(groups)
        error = math.sqrt((len(groups) - 1) / len(groups) * sum((share - middle) ** 2 for share in left_out))
        share = total / whole
        found[stage] = Interval(share, max(0.0, share - reach * error), min(1.0, share + reach * error))
    return found
