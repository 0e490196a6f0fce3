"""What one run measured, small enough to keep: the currency of baselines, comparisons and the history.

A snapshot is made from a run's records alone and holds, for each cell, the totals of each prompt set on the cell's arm
and on the no-SD arm beside it. Ratios are formed by those who read it.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from draftproof.analysis.acceptance import engine_steps
from draftproof.analysis.held import BUILD, held
from draftproof.analysis.pairs import waiting_share
from draftproof.analysis.stages import sum_stages
from draftproof.gate import RED, Verdict
from draftproof.plan import AA
from draftproof.records import BlockLine, RotationLine, RunFolder, UnitKey
from draftproof.results import CellResult, RunResults, read_view
from draftproof.runview import View
from draftproof.spec import Study, digest, require

SNAPSHOT_VERSION = 1

HELD_STUDY = ("batching", "output_tokens", "ignore_eos", "sampling", "seed", "max_prompt_tokens")
"""Of the study: what must be equal before two runs are compared. How many rotations were run is no part of it."""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of what is kept in a snapshot's file."""


class SetTotals(Kept, frozen=True, kw_only=True):
    """One arm on one prompt set: the passes of its rotation, added."""

    prompts: str
    """Digest of the token ids of the set, in order."""
    tokens: int
    """Output tokens."""
    seconds: float
    steps: int
    """Engine steps: those of the request that takes most, the prefill step included."""
    num_drafts: int = 0
    num_accepted_tokens: int = 0
    waiting: float | None = None
    """Share of its threads' time in which they had no CPU: (waited + stolen) / (seconds x threads)."""

    def __post_init__(self) -> None:
        for name in ("tokens", "seconds", "steps"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, "positive and finite", value)
        for name in ("num_drafts", "num_accepted_tokens"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        require(self.waiting is None or 0 <= self.waiting < math.inf, "waiting", "at least 0, finite", self.waiting)


class StageTotals(Kept, frozen=True, kw_only=True):
    """Stage seconds of one ``stages`` block."""

    prompts: str
    decode_steps: int
    seconds: dict[str, float]
    """Of the decode steps, by stage; ``prefill`` apart."""

    def __post_init__(self) -> None:
        for name, value in self.seconds.items():
            require(0 <= value < math.inf, f"seconds of {name}", "at least 0 and finite", value)


class Series(Kept, frozen=True, kw_only=True):
    """What one cell measured, prompt set by prompt set, in the order of rotations."""

    target: str
    variant: str
    workload: str
    batch_size: int
    held: dict[str, Any]
    """What must be equal on the other side."""
    sets: list[SetTotals]
    base_sets: list[SetTotals] = []
    """The no-SD arm beside it on the same prompt sets, in the same order; empty for no-SD itself."""
    aa_sets: list[SetTotals] = []
    """Of no-SD: its A/A twin, where it ran."""
    stages: list[StageTotals] = []
    base_stages: list[StageTotals] = []
    """Of the no-SD arm on the same prompts."""
    throughput: Verdict
    """What the run itself said."""
    determinism: Verdict
    reason: str = ""
    """Of the first of both that is red."""

    def __post_init__(self) -> None:
        beside = [base.prompts for base in self.base_sets]
        paired = not beside or beside == [ours.prompts for ours in self.sets]
        require(paired, "base_sets", "empty or of the same prompts as sets", beside)

    @property
    def usable(self) -> bool:
        """Whether it holds figures that may be compared."""
        return bool(self.sets) and self.throughput != "FAILED"

    @property
    def id(self) -> str:
        return f"{self.target}-{self.variant}-{self.workload}-b{self.batch_size}"

    @property
    def speculative(self) -> bool:
        return bool(self.base_sets) or self.variant != "no_sd"


class Snapshot(Kept, frozen=True, kw_only=True):
    """One run, or one build of a run of two."""

    snapshot_version: int = SNAPSHOT_VERSION
    run_id: str
    study: str
    hardware: str
    build: Literal["new", "base"] = "new"
    taken: str
    """UTC, ISO 8601: when the run's first session began."""
    command: list[str]
    git_commit: str | None
    """Of the checkout that the first session was started in."""
    git_dirty: bool | None
    versions: dict[str, Any]
    """vLLM, its files' SHA-256, torch, ...: under test, never held."""
    held: dict[str, Any]
    """Of the machine and the study: what every cell shares."""
    partial: str = ""
    series: list[Series]

    @property
    def fingerprint(self) -> str:
        """Names the runs that may be compared with each other: 12 hex digits of the digest of `held`."""
        return digest([self.hardware, self.held])[:12]

    @property
    def name(self) -> str:
        """``<hardware>-<study>-<fingerprint>``: of its baseline, and of the baseline's file."""
        return f"{self.hardware}-{self.study}-{self.fingerprint}"


def take(folder: RunFolder, results: RunResults, build: Literal["new", "base"] = "new") -> Snapshot:
    """The snapshot of a run; `results`: what `draftproof.results.analyse` makes of the same folder.

    Raises DraftproofError for a folder that holds no run.
    """
    view = read_view(folder)
    data = view.data
    arms = [arm for arm in data.arms if arm.build == build and arm.role == "run"]
    environment = arms[0].environment if arms else {}
    study = data.header.study
    session = data.sessions[0] if data.sessions else None
    return Snapshot(
        run_id=data.header.run_id,
        study=study.name,
        hardware=data.header.cells[0].hardware if data.header.cells else study.hardware,
        build=build,
        taken=session.started if session else "",
        command=session.command if session else [],
        git_commit=session.git_commit if session else None,
        git_dirty=session.git_dirty if session else None,
        versions={name: environment.get(name) for name in BUILD},
        held=common_held(study, environment)
        | {"interleave": next((line.interleave for line in data.rotations), "live")},
        partial=data.header.partial if data.header.finished else data.header.partial or "not finished",
        series=[series_of(view, cell) for cell in results.cells if cell.build == build],
    )


def common_held(study: Study, environment: dict[str, Any]) -> dict[str, Any]:
    """Held fields that all cells share."""
    settings = msgspec.to_builtins(study)
    machine: dict[str, Any] = {
        name: environment[name] for name in ("cpu", "cores", "threads", "gpus", "driver") if name in environment
    }
    return {**{name: settings[name] for name in HELD_STUDY}, **machine}


def series_of(view: View, cell: CellResult) -> Series:
    """One cell's series; totals that make no sense (no tokens, a clock that went backwards) make it a failed one."""
    red = [judged for judged in (cell.throughput, cell.determinism) if judged.verdict in RED]
    place = view.place(cell.cell, cell.build)
    series = Series(
        target=cell.cell.target,
        variant=cell.cell.variant,
        workload=cell.cell.workload,
        batch_size=cell.cell.batch_size,
        held={**(held(place.arm) if place.arm else {}), "output_tokens": cell.cell.output_tokens},
        sets=[],
        throughput=cell.throughput.verdict,
        determinism=cell.determinism.verdict,
        reason=red[0].reason if red else "",
    )
    unit, key, base = place.unit, place.key, place.base_key
    if unit is None:
        return series
    try:
        sets = set_totals(view, unit, key)
        base_sets = set_totals(view, unit, base) if place.speculative else sets
        twins = {} if place.speculative else set_totals(view, unit, f"{key}{AA}")
        shared = [rotation for rotation in sets if rotation in base_sets]
        return msgspec.structs.replace(
            series,
            sets=[sets[rotation] for rotation in shared],
            base_sets=[base_sets[rotation] for rotation in shared] if place.speculative else [],
            aa_sets=[twins[rotation] for rotation in shared if rotation in twins],
            stages=stage_totals(view, unit, key),
            base_stages=stage_totals(view, unit, base) if place.speculative else [],
        )
    except ValueError as error:
        return msgspec.structs.replace(series, throughput="FAILED", reason=str(error))


def set_totals(view: View, unit: UnitKey, key: str) -> dict[int, SetTotals]:
    """Rotation -> totals of one arm, in the order of rotations."""
    blocks: dict[int, list[BlockLine]] = {}
    for block in view.blocks(unit, key, "speed"):
        blocks.setdefault(block.rotation, []).append(block)
    threads = next((arm.environment.get("threads") for arm in view.data.arms if arm.arm == key), None)
    found = {}
    for line in sorted(view.rotations(unit, "speed"), key=lambda line: line.rotation):
        ours = blocks.get(line.rotation, [])
        if not ours:
            continue
        outputs = [view.outputs.get((line.part, key, block.pass_index), []) for block in ours]
        found[line.rotation] = SetTotals(
            prompts=prompts_digest(view, line),
            tokens=sum(block.output_tokens for block in ours),
            seconds=sum(block.seconds for block in ours),
            steps=sum(max(map(engine_steps, answers), default=0) for answers in outputs),
            num_drafts=sum(block.num_drafts for block in ours),
            num_accepted_tokens=sum(block.num_accepted_tokens for block in ours),
            waiting=waiting_share(ours, threads),
        )
    return found


def prompts_digest(view: View, line: RotationLine) -> str:
    """Of a rotation's prompts: the workload's token ids and which of them, in order."""
    hashes = [w.prompts_sha256 for w in view.data.workloads if (w.target, w.workload) == (line.target, line.workload)]
    return digest([hashes[-1] if hashes else "", line.prompt_ids])[:16]


def stage_totals(view: View, unit: UnitKey, key: str) -> list[StageTotals]:
    found = []
    for line in view.rotations(unit, "stages"):
        if steps := view.steps.get((line.part, key)):
            sums = sum_stages(steps)
            found.append(
                StageTotals(prompts=prompts_digest(view, line), decode_steps=sums.decode_steps, seconds=sums.seconds)
            )
    return found
