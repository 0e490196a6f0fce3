"""Where does the time go? Stage seconds of each cell, captured through pytest-benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.analysis.stages import STAGES, UNATTRIBUTED_LIMIT
from draftproof.results import CellResult


class ReplayedClock:
    """A timer that stands still but for what `advance` adds: it lets pytest-benchmark time recorded seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._seconds: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def load(self, seconds: list[float]) -> None:
        self._seconds = list(reversed(seconds))

    def advance(self) -> None:
        self.now_s += self._seconds.pop()


CLOCK = ReplayedClock()


@pytest.mark.sd_cells("speed", "stages")
@pytest.mark.parametrize("stage", [*STAGES, "lm_head"])
@pytest.mark.benchmark(timer=CLOCK, disable_gc=False, warmup=False)
def test_stage_seconds(sd_result: CellResult, stage: str, request: pytest.FixtureRequest) -> None:
    """One entry per (variant, workload, batch size, stage); a round is a recorded block. LM head is part of verify."""
    if sd_result.stages is None:
        unavailable = [failure for failure in sd_result.failures if failure.kind == "unavailable"]
        if unavailable:
            pytest.skip(unavailable[0].message)
        pytest.fail(
            "no stage samples were recorded: " + "; ".join(f.message for f in sd_result.failures), pytrace=False
        )
    cell, stages = sd_result.cell, sd_result.stages
    benchmark: Any = request.getfixturevalue("benchmark")  # not before: unused, it would warn
    CLOCK.load([block[stage] for block in sd_result.stage_rounds])
    benchmark.group = f"{cell.target} {cell.workload} b{cell.batch_size} {stage}"
    benchmark.extra_info.update(
        variant=cell.variant,
        target=cell.target,
        workload=cell.workload,
        batch_size=cell.batch_size,
        stage=stage,
        share=stages.entries()[stage] / stages.decode_s if stage != "prefill" and stages.decode_s > 0 else None,
        overhead_s=stages.overhead_s if stage == "overhead" else None,
        unattributed_s=stages.unattributed_s if stage == "overhead" else None,
        device_busy_s=stages.device_busy_s,
        device_idle_s=stages.device_idle_s,
        workers=stages.workers,
        worker_spread_s=stages.spread_s,
        decode_steps=stages.decode_steps,
        prefill_steps=stages.prefill_steps,
        clock=stages.clock,
    )
    benchmark.pedantic(CLOCK.advance, rounds=len(sd_result.stage_rounds), iterations=1, warmup_rounds=0)
    assert all(block[stage] >= 0 for block in sd_result.stage_rounds), f"negative seconds of {stage}"
    missed = stages.unattributed_share or 0.0
    assert stage != "overhead" or missed <= UNATTRIBUTED_LIMIT, (
        f"no part claims {100 * missed:.1f} % of the decode steps (at most {100 * UNATTRIBUTED_LIMIT:g} %): has this "
        "vLLM moved work out of the scopes or methods that the stage clock knows?"
    )
