"""Snapshots of invented runs whose truth is known: each arm has a cost of a step and an acceptance length."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from draftproof.snapshot import Series, SetTotals, Snapshot, StageTotals
from draftproof.spec import Threshold

TOKENS = 1000
"""Output tokens of a prompt set."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What is true of an arm."""

    step_s: float = 0.01
    length: float = 1.0
    """Tokens of a step; without drafts 1."""
    sigma: float = 0.01
    """Log-normal noise of a prompt set's seconds."""
    waiting: float | None = None
    draft_s: float = 0.002
    """Of a decode step, in stages blocks; the rest of the step is the target's forward pass."""

    def totals(self, prompts: str, luck: str) -> SetTotals:
        steps = round(TOKENS / self.length)
        noise = random.Random(f"{luck}-{prompts}").gauss(0.0, self.sigma)
        return SetTotals(
            prompts=prompts,
            tokens=TOKENS,
            seconds=steps * self.step_s * math.exp(noise),
            steps=steps,
            num_drafts=steps if self.length > 1 else 0,
            num_accepted_tokens=TOKENS - steps,
            waiting=self.waiting,
        )

    def stages(self, luck: str, blocks: int = 4) -> list[StageTotals]:
        """Blocks of 100 decode steps."""
        draft_s = self.draft_s if self.length > 1 else 0.0
        made = []
        for number in range(blocks):
            noise = math.exp(random.Random(f"{luck}-stage-{number}").gauss(0.0, self.sigma))
            seconds = {"draft": draft_s, "verify": self.step_s - draft_s, "prefill": 1e3 * draft_s}
            spent = {name: 100 * value * noise for name, value in seconds.items()}
            made.append(StageTotals(prompts=f"p{number}", decode_steps=100, seconds=spent))
        return made


NO_SD = Arm()
NGRAM = Arm(step_s=0.012, length=2.0)
"""1.67 times no-SD's throughput."""


def make_series(arm: Arm | None = None, no_sd: Arm = NO_SD, *, luck: str = "", sets: int = 12, **fields: Any) -> Series:
    """A cell's series: of `arm` beside `no_sd`, or of no-SD alone."""
    prompts = [f"p{number}" for number in range(sets)]
    base = [no_sd.totals(name, f"{luck}-no_sd-{fields.get('workload', 'w')}") for name in prompts]
    ours = base if arm is None else [arm.totals(name, f"{luck}-{fields.get('workload', 'w')}") for name in prompts]
    given: dict[str, Any] = {
        "target": "t",
        "variant": "no_sd" if arm is None else "ngram",
        "workload": "w",
        "batch_size": 2,
        "held": {"dtype": "bfloat16", "threads": 2},
        "sets": ours,
        "base_sets": [] if arm is None else base,
        "stages": [] if arm is None else arm.stages(f"{luck}-arm"),
        "throughput": "PASS",
        "determinism": "PASS",
    }
    return Series(**(given | fields))


def with_stage_gates(run: Snapshot, no_sd: Arm = NO_SD, blocks: int = 4) -> Snapshot:
    """The same run with no-SD's stage blocks beside those of its speculative cells, `blocks` of each."""
    return msgspec.structs.replace(
        run,
        series=[
            msgspec.structs.replace(
                one, stages=one.stages[:blocks], base_stages=no_sd.stages(f"{run.run_id}-no_sd", blocks)
            )
            if one.base_sets
            else one
            for one in run.series
        ],
    )


def make_snapshot(run_id: str = "new", series: Sequence[Series] = (), **fields: Any) -> Snapshot:
    given: dict[str, Any] = {
        "study": "s",
        "hardware": "cpu",
        "taken": "2026-01-02T00:00:00Z",
        "command": ["pytest"],
        "git_commit": None,
        "git_dirty": None,
        "versions": {"vllm": "1"},
        "held": {"cpu": "a CPU", "seed": 7},
    }
    return Snapshot(run_id=run_id, series=list(series), **(given | fields))


def make_run(run_id: str = "new", arm: Arm = NGRAM, no_sd: Arm = NO_SD, *, sets: int = 12, **fields: Any) -> Snapshot:
    """A run of no-SD and one variant on one workload; its luck follows from its id."""
    cells = [make_series(None, no_sd, luck=run_id, sets=sets), make_series(arm, no_sd, luck=run_id, sets=sets)]
    return make_snapshot(run_id, cells, **fields)


LIMITS: dict[str, dict[str, float]] = {
    "pairs": {"limit": 12},
    "acceptance_drop": {"limit": 0.03, "absolute": 0.03},
    "system_cost_rise": {"limit": 0.05, "absolute": 0.03, "between_run_sd": 0.01},
    "stage_rise": {"limit": 0.1, "absolute": 0.03, "between_run_sd": 0.02},
    "speedup_drop": {"limit": 0.05, "absolute": 0.03, "between_run_sd": 0.01},
    "throughput_drop": {"limit": 0.1, "absolute": 0.5, "between_run_sd": 0.03},
    "waiting_share": {"limit": 0.1},
}


def make_limits(**changes: dict[str, Any]) -> list[Threshold]:
    """All rows that a comparison needs; ``speedup_drop={"limit": 0.1}`` changes fields of one."""
    said: dict[str, Any] = {"estimator": "", "gating": True, "source": "a test"}
    return [Threshold(**({"metric": metric} | said | row | changes.get(metric, {}))) for metric, row in LIMITS.items()]
