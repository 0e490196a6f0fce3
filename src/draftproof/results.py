"""From a run's records to what each cell shows: figures with intervals, comparisons, verdicts. Pure but for reading."""

from __future__ import annotations

from typing import Any

import msgspec

from draftproof import gate, tables
from draftproof.analysis import tokendiff
from draftproof.analysis.acceptance import Acceptance, acceptance_of, soundness
from draftproof.analysis.health import DraftHealth, draft_invariants, one_token_alarms, step_invariants, tally_gap
from draftproof.analysis.held import unlike
from draftproof.analysis.pairs import speed_pairs
from draftproof.analysis.stages import StageSums, sum_stages
from draftproof.analysis.stats import Ratio, paired_ratio, wilson
from draftproof.analysis.tokendiff import Comparison
from draftproof.gate import Judgement
from draftproof.plan import AA, is_no_sd
from draftproof.records import (
    ArmLine,
    BlockLine,
    FailureLine,
    NoiseLine,
    Output,
    RotationLine,
    RunData,
    RunFolder,
    UnitKey,
)
from draftproof.spec import Cell, Threshold


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What the reference does against itself on the same prompts."""

    requests: int
    repeat_identical: int
    """no-SD's first pass against its second, one process."""
    aa_identical: int | None
    """no-SD against a second no-SD process; None without one."""
    variant_repeat_identical: int
    """The variant's first pass against its second."""


class Sameness(msgspec.Struct, frozen=True, kw_only=True):
    """Outputs of a variant against no-SD, request by request."""

    requests: int
    identical: int
    share: float
    share_low: float
    share_high: float
    """Wilson interval over requests."""
    causes: dict[str, int]
    limit_nats: float
    """A first difference within this gap is a near tie."""
    differences: list[Comparison]
    floor: Floor


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is said about one cell."""

    cell: Cell
    build: str
    """``new``, or ``base`` where the run has two builds."""
    arm: str
    base_arm: str
    pairs: int
    tokens_per_s: float | None
    base_tokens_per_s: float | None
    speedup: Ratio | None
    build_ratio: Ratio | None
    """Throughput of this build over the base build's, where the run has two."""
    acceptance: Acceptance | None
    sameness: Sameness | None
    stages: StageSums | None
    stage_rounds: list[dict[str, float]]
    """Seconds of each stage by block, in order."""
    problems: list[str]
    """Broken invariants of the records but for those of drafts, which `health` holds."""
    health: DraftHealth | None = None
    """None without speculation, and where the arm never ran."""
    failures: list[FailureLine]
    throughput: Judgement
    determinism: Judgement
    informing: list[str]
    """Limits that inform: metric, limit, distance."""

    @property
    def broken(self) -> list[str]:
        """All broken invariants of the records."""
        return self.problems + [alarm.line for alarm in (self.health.broken if self.health else [])]


class AaResult(msgspec.Struct, frozen=True, kw_only=True):
    """Two no-SD processes in the same rotations: the run's own noise."""

    target: str
    workload: str
    batch_size: int
    ratio: Ratio | None


class RunResults(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    study: str
    title: str
    finished: bool
    partial: str
    cells: list[CellResult]
    aa: list[AaResult]
    noise: list[NoiseLine]
    arms: list[ArmLine]
    skipped: dict[str, str]
    """Cell id -> why it was not run."""
    notes: list[str]


def analyse(
    folder: RunFolder, thresholds: dict[str, list[Threshold]], skipped: dict[str, str] | None = None
) -> RunResults:
    """Judge every cell of a run from its records alone."""
    data = folder.read()
    parts = {line.part for line in data.rotations}
    view = View(data, tables.read_outputs(folder.path, parts), tables.read_steps(folder.path, parts))
    cells = [
        cell_result(view, cell, build, thresholds.get(cell.hardware, []))
        for cell in data.header.cells
        for build in data.header.builds
        if cell.id not in (skipped or {})
    ]
    notes = []
    if data.torn:
        notes.append(
            "the last record was cut off by a kill and left out; its rotation is run again by the next session"
        )
    for line in data.workloads:
        if line.left_out:
            notes.append(
                f"{line.workload}: {line.left_out} prompts are longer than the study's limit and were left out"
            )
    return RunResults(
        run_id=data.header.run_id,
        study=data.header.study.name,
        title=data.header.study.title,
        finished=data.header.finished,
        partial=data.header.partial,
        cells=cells,
        aa=aa_results(view),
        noise=data.noise,
        arms=data.arms,
        skipped=skipped or {},
        notes=notes,
    )


class View:
    """Look-ups over one run's records."""

    def __init__(
        self,
        data: RunData,
        outputs: dict[tuple[str, str, int], list[Output]],
        steps: dict[tuple[str, str], list[dict[str, Any]]],
    ) -> None:
        self.data = data
        self.outputs = outputs
        self.steps = steps

    def arm_of(self, cell: Cell, build: str) -> ArmLine | None:
        return next(
            (
                arm
                for arm in self.data.arms
                if (arm.target, arm.variant, arm.build, arm.role) == (cell.target, cell.variant, build, "run")
            ),
            None,
        )

    def unit(self, cell: Cell, arm: ArmLine) -> UnitKey:
        return UnitKey(arm.group, cell.target, cell.workload, cell.batch_size)

    def base_of(self, arm: ArmLine, build: str) -> ArmLine | None:
        """The no-SD arm that was alive together with this one."""
        return next(
            (
                other
                for other in self.data.arms
                if (other.group, other.variant, other.build, other.role) == (arm.group, "no_sd", build, "run")
            ),
            None,
        )

    def noise_width(self, target: str) -> float | None:
        """Most that the number of rows alone changed a gap between two tokens in this run; None: not measured."""
        return max((line.width_nats for line in self.data.noise if line.target == target), default=None)

    def missing_base(self, arm: ArmLine | None, build: str) -> str:
        """Key of the no-SD arm that should have been there: the one that failed to start beside `arm`."""
        own = "base:" if build == "base" else ""
        failed = [f.arm for f in self.data.failures if f.workload is None and (arm is None or f.group == arm.group)]
        return next((key for key in failed if is_no_sd(key) and key.startswith("base:") == bool(own)), f"{own}no_sd")

    def rotations(self, unit: UnitKey, purpose: str) -> list[RotationLine]:
        return [line for line in self.data.rotations if line.unit == unit and line.purpose == purpose]

    def blocks(self, unit: UnitKey, arm: str, purpose: str) -> list[BlockLine]:
        return [b for b in self.data.blocks if b.unit == unit and b.arm == arm and b.purpose == purpose]


def cell_result(view: View, cell: Cell, build: str, limits: list[Threshold]) -> CellResult:
    arm = view.arm_of(cell, build)
    key = arm.arm if arm else ("base:" if build == "base" else "") + cell.variant
    base = view.base_of(arm, build) if arm else None
    base_key = base.arm if base else view.missing_base(arm, build)
    failures = [
        f
        for f in view.data.failures
        if f.target == cell.target
        and f.arm in (key, base_key)
        and f.workload in (None, cell.workload)
        and f.batch_size in (None, cell.batch_size)
    ]
    unit = view.unit(cell, arm) if arm else None
    speculative = key != base_key
    blocks = view.blocks(unit, key, "speed") if unit else []
    problems: list[str] = []
    pairs = speed_pairs(view.data.blocks, unit, key, base_key) if unit and speculative else []
    speedup = build_ratio = None
    try:
        speedup = paired_ratio(pairs)
        if unit and arm and len(view.data.header.builds) > 1 and build == "new":
            build_ratio = paired_ratio(speed_pairs(view.data.blocks, unit, key, f"base:{key}"))
    except ValueError as error:
        problems.append(str(error))
    spec_outputs = [
        output
        for line in (view.rotations(unit, "speed") if unit else [])
        for pass_index in (0, 1)
        for output in view.outputs.get((line.part, key, pass_index), [])
    ]
    study = view.data.header.study
    for block in blocks:
        line = next(r for r in view.rotations(block.unit, "speed") if r.rotation == block.rotation)
        block_outputs = view.outputs.get((line.part, key, block.pass_index), [])
        problems += soundness(block, block_outputs, cell.output_tokens if study.ignore_eos else None)
    health = draft_health(view, unit, arm, failures) if unit and arm and speculative else None
    width = view.noise_width(cell.target)
    cap = gate.noise_cap(limits)
    sameness = (
        compare(
            view,
            unit,
            key,
            base_key,
            gate.tie_limit(limits, width),
            noise_is_told=width is None or cap is None or width <= cap,
        )
        if unit and speculative
        else None
    )
    rounds, stages = stage_rounds(view, unit, key) if unit else ([], None)
    differing = unlike(base, arm) if arm and base and speculative else []
    throughput = gate.judge_throughput(cell, speedup, limits, failures, differing, needs_speedup=speculative)
    return CellResult(
        cell=cell,
        build=build,
        arm=key,
        base_arm=base_key,
        pairs=len(pairs),
        tokens_per_s=rate(blocks),
        base_tokens_per_s=rate(view.blocks(unit, base_key, "speed")) if unit else None,
        speedup=speedup,
        build_ratio=build_ratio,
        acceptance=acceptance_of(blocks, spec_outputs) if speculative else None,
        sameness=sameness,
        stages=stages,
        stage_rounds=rounds,
        problems=problems,
        health=health,
        failures=failures,
        throughput=throughput,
        determinism=gate.judge_determinism(sameness.causes if sameness else {}, failures, differing),
        informing=gate.informing(cell, {"speedup": speedup.value if speedup else None}, limits),
    )


def draft_health(view: View, unit: UnitKey, arm: ArmLine, failures: list[FailureLine]) -> DraftHealth:
    """The counts of a cell's drafts in its ``speed`` and ``stages`` blocks."""
    k = int(arm.speculative_config.get("num_speculative_tokens", 0))
    broken = []
    for purpose in ("speed", "stages"):
        parts = {line.rotation: line.part for line in view.rotations(unit, purpose)}
        for block in view.blocks(unit, arm.arm, purpose):
            part = parts[block.rotation]
            outputs = view.outputs.get((part, arm.arm, block.pass_index), [])
            broken += draft_invariants(block, outputs, k=k)
            if purpose == "stages" and (steps := view.steps.get((part, arm.arm))):
                ahead = bool(arm.resolved.get("async_scheduling"))
                broken += step_invariants(block, outputs, steps, async_scheduling=ahead)
    stages = view.blocks(unit, arm.arm, "stages")
    unavailable = [failure.message for failure in failures if failure.purpose == "stages"]
    return DraftHealth(
        broken=broken,
        one_token=one_token_alarms(stages),
        tallied_tokens=sum(block.draft_tally.tokens for block in stages if block.draft_tally is not None),
        tally_gap=tally_gap(stages, unavailable),
    )


def rate(blocks: list[BlockLine]) -> float | None:
    """Total output tokens over total seconds."""
    seconds = sum(block.seconds for block in blocks)
    return sum(block.output_tokens for block in blocks) / seconds if seconds > 0 else None


def compare(
    view: View, unit: UnitKey, key: str, base_key: str, limit_nats: float, *, noise_is_told: bool
) -> Sameness | None:
    """Every request of every rotation: the variant's first pass against no-SD's first pass.

    `noise_is_told`: False where the measured noise is so wide that no difference can be told from a tie.
    """
    scores = {(s.rotation, s.request): s for s in view.data.scores if (s.unit, s.arm) == (unit, key)}
    comparisons: list[Comparison] = []
    repeat = aa = variant_repeat = 0
    has_aa = False
    for line in view.rotations(unit, "speed"):
        reference = view.outputs.get((line.part, base_key, 0))
        other = view.outputs.get((line.part, key, 0))
        if reference is None or other is None:
            continue
        found = tokendiff.first_differences(ids(reference), ids(other))
        again = tokendiff.first_differences(ids(reference), ids(view.outputs[line.part, base_key, 1]))
        own = tokendiff.first_differences(ids(other), ids(view.outputs[line.part, key, 1]))
        twin = view.outputs.get((line.part, base_key + AA, 0))
        twin_found = tokendiff.first_differences(ids(reference), ids(twin)) if twin else None
        for index, position in enumerate(found):
            repeats = again[index] is None and (twin_found is None or twin_found[index] is None)
            score = scores.get((line.rotation, index))
            gap = tokendiff.gap_to_best(score.best_logprob, score.logprobs) if score else None
            comparisons.append(
                Comparison(
                    rotation=line.rotation,
                    request=index,
                    prompt_id=line.prompt_ids[index],
                    position=position,
                    tokens_at_risk=len(reference[index].token_ids) if position is None else position + 1,
                    cause=tokendiff.cause_of(
                        position,
                        gap,
                        limit_nats=limit_nats,
                        reference_repeats=repeats and noise_is_told,
                        scored=score is not None or ends_early(position, reference[index], other[index]),
                    ),
                    gap_nats=gap,
                    texts=score.texts if score else None,
                )
            )
            repeat += again[index] is None
            variant_repeat += own[index] is None
            if twin_found is not None:
                has_aa = True
                aa += twin_found[index] is None
    if not comparisons:
        return None
    identical = sum(comparison.position is None for comparison in comparisons)
    low, high = wilson(identical, len(comparisons))
    causes: dict[str, int] = {}
    for comparison in comparisons:
        causes[comparison.cause] = causes.get(comparison.cause, 0) + 1
    return Sameness(
        requests=len(comparisons),
        identical=identical,
        share=identical / len(comparisons),
        share_low=low,
        share_high=high,
        causes=causes,
        limit_nats=limit_nats,
        differences=[c for c in comparisons if c.position is not None],
        floor=Floor(
            requests=len(comparisons),
            repeat_identical=repeat,
            aa_identical=aa if has_aa else None,
            variant_repeat_identical=variant_repeat,
        ),
    )


def ends_early(position: int | None, left: Output, right: Output) -> bool:
    """Whether one output merely stops where the other goes on: there is no second token to score."""
    return position is not None and position >= min(len(left.token_ids), len(right.token_ids))


def ids(outputs: list[Output]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def stage_rounds(view: View, unit: UnitKey, key: str) -> tuple[list[dict[str, float]], StageSums | None]:
    rows = [view.steps.get((line.part, key), []) for line in view.rotations(unit, "stages")]
    rows = [block for block in rows if block]
    if not rows:
        return [], None
    return [sum_stages(block).seconds for block in rows], sum_stages([step for block in rows for step in block])


def aa_results(view: View) -> list[AaResult]:
    results = []
    for line in {(r.unit): r for r in view.data.rotations if r.purpose == "speed"}.values():
        for twin in [key for key in line.arms if key.endswith(AA)]:
            pairs = speed_pairs(view.data.blocks, line.unit, twin, twin.removesuffix(AA))
            results.append(
                AaResult(
                    target=line.target,
                    workload=line.workload,
                    batch_size=line.batch_size,
                    ratio=paired_ratio(pairs) if pairs else None,
                )
            )
    return results
