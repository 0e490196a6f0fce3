"""From a run's records to what each cell shows: figures with intervals, comparisons, verdicts. Pure but for reading."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from draftproof import gate, tables
from draftproof.analysis.acceptance import Acceptance, acceptance_of, soundness
from draftproof.analysis.decay import Decay, Point, decay_of
from draftproof.analysis.health import DraftHealth, draft_invariants, one_token_alarms, step_invariants, tally_gap
from draftproof.analysis.held import unlike
from draftproof.analysis.latency import Latency, latency_of
from draftproof.analysis.pairs import waiting_share
from draftproof.analysis.paperratio import PaperBlock, paper_ratio
from draftproof.analysis.rowsprice import Interval
from draftproof.analysis.stages import StageSums, stage_shares, sum_stages
from draftproof.analysis.stats import Ratio, paired_ratio
from draftproof.anatomy import Anatomies, anatomies
from draftproof.bounds import Bounds, bounds
from draftproof.catalog import Catalog
from draftproof.determinism import (
    LengthTable,
    Sameness,
    compare,
    length_tables,
    near_tie_excesses,
)
from draftproof.gate import Excess, Judgement
from draftproof.limits import Judged, Limits, applicable
from draftproof.memorycosts import MemoryCost, memory_costs
from draftproof.noisefloor import UnitFloor, unit_floors
from draftproof.plan import AA
from draftproof.published import Published, published
from draftproof.records import (
    ArmLine,
    BlockLine,
    FailureLine,
    NoiseLine,
    Output,
    RunFolder,
    SessionLine,
    UnitKey,
)
from draftproof.rivals import Rival, rivals
from draftproof.runview import Placed, View
from draftproof.spec import Cell, Threshold
from draftproof.stagefindings import StageFindings, stage_findings


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
    paper_ratio: Ratio | None = None
    """The speedup by the estimator of arXiv 2601.11580 (`draftproof.analysis.paperratio`)."""
    published: Published | None = None
    """What others drew for this cell, by that same estimator."""
    latency: Latency | None = None
    base_latency: Latency | None = None
    """Of the no-SD arm on the same prompts."""
    acceptance: Acceptance | None
    sameness: Sameness | None
    stages: StageSums | None
    stage_rounds: list[dict[str, float]]
    """Seconds of each stage by block, in order."""
    stage_shares: dict[str, Interval] = {}
    """Of the decode steps' time; empty where there are too few steps for intervals."""
    problems: list[str]
    """Broken invariants of the records but for those of drafts, which `health` holds."""
    health: DraftHealth | None = None
    """None without speculation, and where the arm never ran."""
    excess: Excess | None = None
    """None without a control of the same k in the run."""
    failures: list[FailureLine]
    waiting: float | None = None
    """Share of their time in which the threads of the arm, or of its no-SD, had no CPU; the larger."""
    throughput: Judgement
    determinism: Judgement
    informing: list[str]
    """Limits that inform: metric, limit, distance."""
    meaningless: str = ""
    """Why its token ids are nobody's answer; empty where they are the target's own."""

    @property
    def speculative(self) -> bool:
        return self.arm != self.base_arm

    @property
    def unfit(self) -> str:
        """Why it is never advised, however fast; empty where nothing speaks against it."""
        return gate.unfit(self.throughput, self.determinism, self.speedup, self.broken)

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


class RunResults(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    run_id: str
    study: str
    title: str
    finished: bool
    partial: str
    cells: list[CellResult]
    aa: list[AaResult]
    floors: list[UnitFloor]
    lengths: list[LengthTable]
    """Where EOS ended the requests."""
    noise: list[NoiseLine]
    stage_findings: StageFindings = StageFindings()
    arms: list[ArmLine]
    skipped: dict[str, str]
    """Cell id -> why it was not run."""
    notes: list[str]
    decays: list[Decay] = []
    """Speedups over batch sizes, where a variant has several."""
    anatomies: Anatomies = Anatomies()
    """Where drafts were accepted and rejected."""
    bounds: Bounds = Bounds()
    """What the measured oracle and a simulation say would have been possible."""
    sessions: list[SessionLine] = []
    limits: Limits = Limits()
    """The thresholds that the cells are held against."""
    memory: list[MemoryCost] = []
    known_controls: list[str] = []
    """Variants of the run that the catalog calls controls, those that never started among them."""
    rivals: list[Rival] = []

    @functools.cached_property
    def several_targets(self) -> bool:
        return len({cell.cell.target for cell in self.cells}) > 1

    @functools.cached_property
    def several_builds(self) -> bool:
        return len({cell.build for cell in self.cells}) > 1

    @functools.cached_property
    def cells_by_id(self) -> dict[tuple[str, str], CellResult]:
        """(Cell id, build) -> cell."""
        return {(cell.cell.id, cell.build): cell for cell in self.cells}

    @functools.cached_property
    def arms_by_key(self) -> dict[tuple[str, str], ArmLine]:
        """(Target, arm key) -> the arm as it was first started."""
        found: dict[tuple[str, str], ArmLine] = {}
        for arm in self.arms:
            if arm.role == "run":
                found.setdefault((arm.target, arm.arm), arm)
        return found

    @functools.cached_property
    def controls(self) -> frozenset[str]:
        """Variants whose drafts' fate is known beforehand."""
        return frozenset(arm.variant for arm in self.arms if arm.control) | frozenset(self.known_controls)

    def full_name(self, name: str, target: str, build: str) -> str:
        """A variant or a workload with its target and build, where the run has several."""
        told = [target] * self.several_targets + [f"{build} build"] * self.several_builds
        return name + (f" ({', '.join(told)})" if told else "")

    def arm_of(self, cell: CellResult) -> ArmLine | None:
        """None: it never started."""
        return self.arms_by_key.get((cell.cell.target, cell.arm))


def analyse(
    folder: RunFolder,
    thresholds: dict[str, list[Threshold]],
    skipped: dict[str, str] | None = None,
    *,
    catalog: Catalog | None = None,
) -> RunResults:
    """Judge every cell of a run from its records alone.

    `catalog`: for what memory is expected, and for which variants are controls where they never started.
    """
    view = read_view(folder)
    data = view.data
    skipped = data.header.skipped | (skipped or {})
    controls = [c.variant for c in data.header.cells if catalog and catalog.is_control(c.variant, c.target)]
    controls = list(dict.fromkeys(controls))
    places = [
        view.place(cell, build) for cell in data.header.cells for build in data.header.builds if cell.id not in skipped
    ]
    compared = [(place, sameness_of(view, place, thresholds.get(place.cell.hardware, []))) for place in places]
    excesses = near_tie_excesses(compared, thresholds)
    cells = [
        cell_result(view, place, same, excesses.get(place.name), thresholds.get(place.cell.hardware, []))
        for place, same in compared
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
        floors=unit_floors(view),
        lengths=length_tables(view, places),
        noise=data.noise,
        stage_findings=stage_findings(
            view, [(place, cell.acceptance, cell.speedup) for place, cell in zip(places, cells, strict=True)]
        ),
        arms=data.arms,
        skipped=skipped,
        notes=notes,
        decays=decays(cells),
        anatomies=anatomies(view, places, folder.prompts()),
        sessions=data.sessions,
        limits=applicable(
            [Judged(place.cell, place.speculative) for place in places], thresholds, data.header.study.hardware
        ),
        memory=memory_costs(data.arms, catalog),
        known_controls=controls,
        rivals=rivals(view, contenders(places, cells, controls)),
        bounds=bounds(view, [(place, cell.speedup) for place, cell in zip(places, cells, strict=True)], folder.path),
    )


def contenders(places: list[Placed], cells: list[CellResult], controls: list[str]) -> list[tuple[Placed, Ratio]]:
    """Cells that might be advised, each with its speedup: no controls, and nothing that is unfit."""
    return [
        (place, cell.speedup)
        for place, cell in zip(places, cells, strict=True)
        if cell.speedup and place.arm and not place.arm.control and not cell.unfit
        if cell.cell.variant not in controls
    ]


def decays(cells: list[CellResult]) -> list[Decay]:
    """One curve for each (target, variant, workload, build), in the order of the cells."""
    curves: dict[tuple[str, str, str, str], list[Point]] = {}
    for found in cells:
        cell = found.cell
        if found.speedup is not None:
            point = Point(batch_size=cell.batch_size, output_tokens=cell.output_tokens, speedup=found.speedup)
            curves.setdefault((cell.target, cell.variant, cell.workload, found.build), []).append(point)
    made = [decay_of(*key, points) for key, points in curves.items()]
    return [decay for decay in made if decay is not None]


def read_view(folder: RunFolder) -> View:
    """Everything that a run recorded."""
    data = folder.read()
    parts = {line.part for line in data.rotations}
    return View(data, tables.read_outputs(folder.path, parts), tables.read_steps(folder.path, parts))


def sameness_of(view: View, place: Placed, limits: list[Threshold]) -> Sameness | None:
    """A speculative cell's outputs against no-SD's; None where there are none, or none that mean anything."""
    if place.unit is None or place.arm is None or not place.speculative or place.arm.meaningless:
        return None
    width = view.noise_width(place.cell.target)
    cap = gate.noise_cap(limits)
    return compare(
        view,
        place.unit,
        place.key,
        place.base_key,
        gate.tie_limit(limits, width, place.cell),
        noise_is_told=width is None or cap is None or width <= cap,
    )


def cell_result(
    view: View, place: Placed, sameness: Sameness | None, excess: Excess | None, limits: list[Threshold]
) -> CellResult:
    cell, key, base_key, unit = place.cell, place.key, place.base_key, place.unit
    failures = view.failures(place)
    problems: list[str] = []
    pairs = [*view.pairs(unit, key, base_key).values()] if unit and place.speculative else []
    study = view.data.header.study
    ours = arm_blocks(view, unit, key) if unit else []
    theirs = arm_blocks(view, unit, base_key) if unit and place.speculative else []
    spec_outputs = [output for _, outputs in ours for output in outputs]
    speedup = build_ratio = by_paper = None
    try:
        speedup = paired_ratio(pairs)
        by_paper = paper_ratio(paper_blocks(ours), paper_blocks(theirs), ignore_eos=study.ignore_eos)
        if unit and len(view.data.header.builds) > 1 and place.build == "new":
            build_ratio = paired_ratio([*view.pairs(unit, key, f"base:{key}").values()])
    except ValueError as error:
        problems.append(str(error))
    for block, outputs in ours:
        problems += soundness(block, outputs, cell.output_tokens if study.ignore_eos else None)
    samples = step_samples(view, unit, key) if unit else []
    meaningless = place.arm.meaningless if place.arm else ""
    waiting = waiting_of(view, place)
    differing = unlike(place.base, place.arm) if place.arm and place.base and place.speculative else []
    return CellResult(
        cell=cell,
        build=place.build,
        arm=key,
        base_arm=base_key,
        pairs=len(pairs),
        tokens_per_s=rate([block for block, _ in ours]),
        base_tokens_per_s=rate(view.blocks(unit, base_key, "speed")) if unit else None,
        speedup=speedup,
        build_ratio=build_ratio,
        paper_ratio=by_paper,
        published=published(cell, limits) if place.speculative else None,
        latency=latency_of(spec_outputs),
        base_latency=latency_of(output for _, outputs in theirs for output in outputs),
        acceptance=acceptance_of([block for block, _ in ours], spec_outputs) if place.speculative else None,
        sameness=sameness,
        stages=sum_stages([step for block in samples for step in block]) if samples else None,
        stage_rounds=[sum_stages(block).entries() for block in samples],
        stage_shares=stage_shares(samples),
        problems=problems,
        health=draft_health(view, unit, place.arm, failures) if unit and place.arm and place.speculative else None,
        failures=failures,
        throughput=gate.judge_throughput(
            cell,
            speedup,
            limits,
            failures,
            differing,
            needs_speedup=place.speculative,
            by_paper=by_paper,
            waiting=waiting,
        ),
        waiting=waiting,
        determinism=gate.judge_determinism(
            cell,
            sameness.causes if sameness else {},
            limits,
            failures,
            differing,
            garbage=sameness.garbage if sameness else "",
            excess=excess,
            meaningless=meaningless,
        ),
        excess=excess,
        informing=gate.informing(cell, {"speedup": speedup, gate.BY_PAPER: by_paper}, limits),
        meaningless=meaningless,
    )


def arm_blocks(view: View, unit: UnitKey, arm: str) -> list[tuple[BlockLine, list[Output]]]:
    """An arm's ``speed`` blocks, each with its requests' outputs."""
    parts = {line.rotation: line.part for line in view.rotations(unit, "speed")}
    return [
        (block, view.outputs.get((parts[block.rotation], arm, block.pass_index), []))
        for block in view.blocks(unit, arm, "speed")
    ]


def paper_blocks(blocks: list[tuple[BlockLine, list[Output]]]) -> list[PaperBlock]:
    return [
        PaperBlock(
            rotation=block.rotation,
            pass_index=block.pass_index,
            tokens=block.output_tokens,
            seconds=block.seconds,
            stopped=bool(outputs) and outputs[0].finish_reason == "stop",
        )
        for block, outputs in blocks
    ]


def waiting_of(view: View, place: Placed) -> float | None:
    """The larger share of time without a CPU of a cell's arm and its no-SD; None: not recorded."""
    shares = [
        waiting_share(view.blocks(place.unit, arm.arm, "speed"), arm.environment.get("threads"))
        for arm in (place.arm, place.base)
        if arm is not None and place.unit is not None
    ]
    return max((share for share in shares if share is not None), default=None)


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


def step_samples(view: View, unit: UnitKey, key: str) -> list[list[dict[str, Any]]]:
    """Of each ``stages`` block of an arm that has some."""
    rows = [view.steps.get((line.part, key), []) for line in view.rotations(unit, "stages")]
    return [block for block in rows if block]


def aa_results(view: View) -> list[AaResult]:
    results = []
    for line in {(r.unit): r for r in view.data.rotations if r.purpose == "speed"}.values():
        for twin in [key for key in line.arms if key.endswith(AA)]:
            pairs = [*view.pairs(line.unit, twin, twin.removesuffix(AA)).values()]
            results.append(
                AaResult(
                    target=line.target,
                    workload=line.workload,
                    batch_size=line.batch_size,
                    ratio=paired_ratio(pairs) if pairs else None,
                )
            )
    return results
