"""The ``stages`` blocks of a run as `calibrate` fits them, target by target, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from draftproof import tables
from draftproof.analysis.stages import sum_stages
from draftproof.errors import DraftproofError, rule, scrub, unknown
from draftproof.plan import AA
from draftproof.records import ArmLine, RunData, RunFolder
from draftproof.simulator.calibrate import Sample, check

Say = Callable[[str], None]
PARTS_S = [name for name in tables.PARTS_S if name != "step_s"]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a run holds of one target."""

    run: RunData
    target: str
    arms: dict[str, ArmLine]
    """Variant -> its arm; ``no_sd`` and every drafter that has stages records."""
    samples: list[Sample]
    mixed_steps: int
    """Steps that held prompt tokens and decoding requests: left out."""

    @property
    def k(self) -> dict[str, int]:
        """Drafter -> drafts of each request and step."""
        return {name: settings(arm)[1] for name, arm in self.arms.items() if name != "no_sd"}


def settings(arm: ArmLine) -> tuple[str, int]:
    """vLLM's method and k of a speculative arm."""
    config = arm.speculative_config
    return str(arm.resolved.get("speculative_method") or config.get("method", "")), int(
        config.get("num_speculative_tokens", 0)
    )


def read_targets(folder: RunFolder, only: str | None, say: Say) -> list[Measured]:
    """The targets of a run that can be calibrated; the first reason where there is none."""
    run = folder.read()
    if not run.header.finished:
        say(f"{run.header.run_id}: the run is not finished: its finished rotations are used")
    targets = list(dict.fromkeys(arm.target for arm in run.arms))
    if only is not None and only not in targets:
        raise unknown("--target", only, targets)
    stages = [line for line in run.rotations if line.purpose == "stages"]
    steps = tables.read_steps(folder.path, {line.part for line in stages})
    found, reasons = [], []
    for target in [only] if only else targets:
        try:
            found.append(measured(run, target, steps))
        except DraftproofError as error:
            reasons.append(error)
            if len(targets) > 1:
                say(f"{target}: left out: {error}")
    if not found:
        raise reasons[0] if reasons else rule("arms of the run", "at least one that started", [])
    return found


def measured(run: RunData, target: str, steps: Mapping[tuple[str, str], list[dict[str, Any]]]) -> Measured:
    """The steps of one target on the run's own build, checked."""
    lines = {
        (arm.group, arm.arm): arm
        for arm in run.arms
        if arm.target == target and arm.role == "run" and arm.build == "new"
    }
    rotations = [line for line in run.rotations if line.purpose == "stages" and line.target == target]
    arms: dict[str, ArmLine] = {}
    samples: list[Sample] = []
    mixed = 0
    for line in rotations:
        for key in line.arms:
            arm = lines.get((line.group, key))
            if arm is None or key.endswith(AA):
                continue
            arms.setdefault(arm.variant, arm)
            for step in steps.get((line.part, key), []):
                check_step(step)
                if step["kind"] == "mixed":
                    mixed += 1
                elif step["kind"] != "empty":
                    samples.append(sample_of(step, line.workload, line.part, arm.variant))
    if not samples:
        why = [failure.message for failure in run.failures if failure.purpose == "stages" and failure.target == target]
        raise rule(
            f"stages records of target {target}",
            "at least one block",
            0,
            do=f"run the study with tests_perf and stage_blocks of at least 1{f' ({scrub(why[0])})' if why else ''}",
        )
    if "no_sd" not in arms or len(arms) < 2:
        raise rule(
            f"arms of target {target} with stages records",
            "no_sd and at least one that speculates",
            sorted(arms),
            do="run a study whose matrix names both",
        )
    found = Measured(run=run, target=target, arms=arms, samples=samples, mixed_steps=mixed)
    check(samples, found.k)
    return found


def check_step(step: dict[str, Any]) -> None:
    """Seconds and counts of one recorded step are numbers that a step can have."""
    place = f"steps.parquet, part {step['part']}, arm {step['arm']}, step {step['step']}"
    do = "the records are damaged: run the study again"
    for name in ("step_s", *PARTS_S):
        if step[name] is None or not (math.isfinite(step[name]) and step[name] >= 0.0):
            raise rule(f"{place}: {name}", "a finite number of at least 0", step[name], do=do)
    if step["step_s"] <= 0.0:
        raise rule(f"{place}: step_s", "more than 0", step["step_s"], do=do)
    for name in ("requests", "rows", "draft_tokens", "kv_tokens"):
        if step[name] is None or step[name] < 0:
            raise rule(f"{place}: {name}", "at least 0", step[name], do=do)


def sample_of(step: dict[str, Any], workload: str, rotation: str, variant: str) -> Sample:
    """A recorded step as the fit sees it.

    The clock's ``kv_tokens`` are those in the cache after the step. Cached tokens of a cost model are prompt and
    committed tokens of a decode step (all but its drafts), and of a prefill those of earlier chunks.
    """
    prefill = step["kind"] == "prefill"
    parts = sum_stages([{**step, "kind": "decode"}]).seconds
    return Sample(
        workload=workload,
        rotation=rotation,
        drafter="" if variant == "no_sd" else variant,
        prefill=prefill,
        requests=step["requests"],
        tokens=step["rows"],
        drafts=step["draft_tokens"],
        cached_tokens=step["kv_tokens"] - (step["rows"] if prefill else step["draft_tokens"]),
        draft_s=parts["draft"],
        verify_s=parts["verify"],
        sample_s=parts["sample"],
        overhead_s=max(parts["overhead"], 0.0),  # negative by rounding where scopes claim all of a step
    )
