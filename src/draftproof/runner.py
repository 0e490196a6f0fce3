"""Runs a plan: groups of live arms, rotation after rotation, each recorded before the next begins."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from draftproof import tables
from draftproof.analysis.held import changed
from draftproof.analysis.pairs import speed_pairs
from draftproof.analysis.stats import paired_ratio
from draftproof.engines import BlockRequest, BlockResult, Engine, LiveArm, StartRequest
from draftproof.errors import DraftproofError, EngineError
from draftproof.feed import Feed
from draftproof.ledger import Ledger
from draftproof.live import Counter, LiveArms, Progress
from draftproof.plan import (
    AA,
    ArmSpec,
    Group,
    Plan,
    Unit,
    references,
    speculative_config,
)
from draftproof.prompts import Prompt, PromptSets, token_ids
from draftproof.records import ArmLine, Axis, BlockLine, RotationLine, RunFolder, SessionLine
from draftproof.referee import Referee
from draftproof.spec import Purpose, Target, Variant, Workload, digest, meaningless
from draftproof.workloads import LoadedWorkload

WARMUP_TOKENS = 8
NO_MODEL = "model"
"""Kind of failure of an arm whose target or drafter cannot be had."""


class Resolver(Protocol):
    """Turns catalog entries into what an engine loads; the only part that may build or look up models."""

    def model(self, target: Target) -> str: ...

    def drafter(self, target: Target, variant: Variant, model: str) -> str | None: ...

    def workload(self, name: str) -> tuple[Workload, LoadedWorkload]: ...


class Runner:
    """One session's work on one run folder."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        engine: Engine,
        resolver: Resolver,
        variants: dict[str, Variant],
        pythons: dict[str, str],
        progress: Progress,
        session: SessionLine,
    ) -> None:
        self.plan = plan
        self.engine = engine
        self.resolver = resolver
        self.variants = variants
        self.pythons = pythons
        self.progress = progress
        self.ledger = Ledger(folder, session)

    def execute(self, purposes: Iterable[Purpose]) -> None:
        """Run what is missing of the plan for these purposes, then mark the run as finished."""
        wanted = set(purposes)
        problems = []
        for group in self.plan.groups:
            try:
                self._run_group(group, wanted)
            except EngineError as error:
                problems.append(str(error))
        ledger = self.ledger
        with ledger.folder.writing("compact the Parquet parts"):
            tables.compact(ledger.folder.path, {line.part for line in ledger.rotations})
            ledger.folder.write_header(
                msgspec.structs.replace(ledger.header, finished=not problems, partial="; ".join(problems))
            )

    def _run_group(self, group: Group, wanted: set[Purpose]) -> None:
        purposes = wanted - self.ledger.closed(group.index)
        if not purposes:
            return
        study = self.plan.study
        arms = LiveArms(group, self.ledger, self._start_arm, self.progress)
        try:
            arms.start_all()
            if arms.any_alive():
                prompts = PromptSets(group, study, self.ledger, arms, self.resolver)
                counter = Counter(group, self.ledger, purposes, study, self.progress)
                self._warm_up(group, arms, prompts)
                if "speed" in purposes:
                    self._speed(group, arms, prompts, counter)
                if "stages" in purposes:
                    self._stages(group, arms, prompts, counter)
                if "trace" in purposes:
                    self._floor(group, arms, prompts)
                    referee = Referee(group, self.ledger, arms, self.progress)
                    referee.judge(prompts.ids)
            self.ledger.close(group.index, purposes)
        finally:
            arms.close()

    def _start_arm(self, group: Group, spec: ArmSpec) -> LiveArm:
        log = self.ledger.folder.path / "logs" / f"g{group.index}-{log_name(spec.key)}.log"
        variant = self.variants[spec.variant]
        request = start_request(self.resolver, variant, group, spec, self.pythons[spec.build], log)
        config = request.speculative_config
        arm = self.engine.start(request)
        public = {name: Path(str(value)).name if name == "model" else value for name, value in (config or {}).items()}
        line = ArmLine(
            session=self.ledger.session,
            group=group.index,
            arm=spec.key,
            target=group.target.name,
            variant=spec.variant,
            role=spec.role,
            build=spec.build,
            target_sha256=group.target.weights_sha256,
            load_s=arm.facts.load_s,
            environment=arm.facts.environment,
            resolved=arm.facts.resolved,
            speculative_config=public,
            config_sha256=digest(arm.facts.resolved),
            control=variant.control.kind if variant.control else "",
            meaningless=meaningless(variant, group.target),
        )
        self._check_unchanged(arm, line)
        self.ledger.add(line)
        return arm

    def _check_unchanged(self, arm: LiveArm, line: ArmLine) -> None:
        """A run may only go on with the engine that it began with."""
        for earlier in self.ledger.arms:
            if (earlier.group, earlier.arm) == (line.group, line.arm) and (found := changed(earlier, line)):
                arm.close()
                raise DraftproofError(
                    f"arm {line.arm!r} is not what it was when this run began: {'; '.join(found)}; "
                    "start a new run with --sd-fresh"
                )

    # -- rotations ---------------------------------------------------------------------------------------------------

    def _warm_up(self, group: Group, arms: LiveArms, prompts: PromptSets) -> None:
        """Run every shape once on every arm before anything is timed."""
        self.progress.say("warming up")
        for size in dict.fromkeys(unit.key.batch_size for unit in group.units):
            unit = next(unit for unit in group.units if unit.key.batch_size == size)
            feed = Feed(group, unit, self.variants)
            for key in unit.arms:
                if self.ledger.has_failed(unit.key, key, "speed"):
                    continue
                request = self._request(unit, prompts.of(unit, 0), 0, 0, "trace", WARMUP_TOKENS)
                try:
                    feed.keep(key, arms.get(key).run(feed.fed(key, request)))
                except EngineError as error:
                    arms.fail(key, unit, "speed", error)

    def _request(
        self,
        unit: Unit,
        chosen: list[Prompt],
        rotation: int,
        pass_index: int,
        purpose: Purpose,
        output_tokens: int,
        axis: Axis | None = None,
    ) -> BlockRequest:
        study = self.plan.study
        return BlockRequest(
            unit=unit.key,
            rotation=rotation,
            pass_index=pass_index,
            purpose=purpose,
            prompts=token_ids(chosen),
            sampling=study.sampling,
            output_tokens=output_tokens,
            ignore_eos=study.ignore_eos,
            axis=axis,
        )

    def _speed(self, group: Group, arms: LiveArms, prompts: PromptSets, counter: Counter) -> None:
        """Rotations of all units in turn, so that a drift of the machine meets them all; then those still too wide.

        What claims to be faster is judged: it is the first to be repeated.
        """
        ranges = {unit.key: self.plan.study.rotations_of(unit.key.batch_size) for unit in group.units}
        everywhere = range(max(most for _, most in ranges.values()))
        claiming = [unit for unit in group.units if any(cell.claims_speedup for cell in unit.cells)]
        for repeats, units in ((False, group.units), (True, claiming), (True, group.units)):
            for rotation, unit in itertools.product(everywhere, units):
                least, most = ranges[unit.key]
                if rotation not in range(least, most) if repeats else rotation >= least:
                    continue
                if rotation in self.ledger.done(unit.key, "speed") or (repeats and not self._goes_on(unit)):
                    continue
                self._rotate(
                    group, unit, arms, prompts, rotation, "speed", unit.cells[0].output_tokens, (0, 1), counter
                )

    def _goes_on(self, unit: Unit) -> bool:
        """Rule: stop on width, never on verdict; and never beyond the budget."""
        if self.ledger.spent_s() + self._rotation_s(unit) > self.plan.study.budget_s:
            return False
        for base, key in references(unit.arms):
            if key.endswith(AA) or any(self.ledger.has_failed(unit.key, arm, "speed") for arm in (base, key)):
                continue
            ratio = paired_ratio(speed_pairs(self.ledger.blocks, unit.key, key, base))
            if ratio is None or ratio.half_width > self.plan.study.half_width:
                return True
        return False

    def _rotation_s(self, unit: Unit) -> float:
        """Mean seconds of this unit's rotations so far."""
        seconds = [block.seconds for block in self.ledger.blocks if block.unit == unit.key and block.purpose == "speed"]
        return sum(seconds) / max(1, len(self.ledger.done(unit.key, "speed")))

    def _stages(self, group: Group, arms: LiveArms, prompts: PromptSets, counter: Counter) -> None:
        for rotation in range(self.plan.study.stage_blocks):
            for unit in group.units:
                if rotation not in self.ledger.done(unit.key, "stages"):
                    tokens = min(self.plan.study.stage_output_tokens, unit.cells[0].output_tokens)
                    self._rotate(group, unit, arms, prompts, rotation, "stages", tokens, (0,), counter)

    def _floor(self, group: Group, arms: LiveArms, prompts: PromptSets) -> None:
        """What order and company alone change: no-SD on the prompt sets of its first rotations, otherwise arranged."""
        axes: tuple[Axis, ...] = ("order", "copies")
        units = [unit for unit in group.units if unit.key.batch_size > 1 and self.plan.runs_first(unit)]
        for rotation, unit, axis in itertools.product(range(self.plan.study.floor_rotations), units, axes):
            known = self.ledger.done(unit.key, "trace", axis)
            if rotation in known or rotation not in self.ledger.done(unit.key, "speed"):
                continue
            self.progress.say(f"noise floor: {axis} of {unit.key.workload} b{unit.key.batch_size}")
            chosen = prompts.of(unit, rotation)
            chosen = chosen[::-1] if axis == "order" else chosen[:1] * len(chosen)
            tokens = unit.cells[0].output_tokens
            key = unit.arms[0]
            request = self._request(unit, chosen, rotation, 0, "trace", tokens, axis)
            try:
                result = arms.get(key).run(request)
            except EngineError as error:
                arms.fail(key, unit, "trace", error)
                return
            self._record(request, chosen, [(self._block(key, 0, request, result), result)])

    def _rotate(
        self,
        group: Group,
        unit: Unit,
        arms: LiveArms,
        prompts: PromptSets,
        rotation: int,
        purpose: Purpose,
        output_tokens: int,
        passes: tuple[int, ...],
        counter: Counter,
    ) -> None:
        """Run one prompt set on every arm, then again in reverse order, and record it all at once."""
        chosen = prompts.of(unit, rotation)
        keys = [key for key in unit.arms if purpose == "speed" or not key.endswith(AA)]
        results: dict[tuple[str, int], tuple[BlockLine, BlockResult]] = {}
        feed = Feed(group, unit, self.variants)
        for pass_index in passes:
            for key in keys if pass_index == 0 else reversed(keys):
                counter.next(unit, key)
                if self.ledger.has_failed(unit.key, key, purpose):
                    continue
                request = self._request(unit, chosen, rotation, pass_index, purpose, output_tokens)
                try:
                    if pass_index == 0:
                        feed.settle(key, arms.get(key), request)
                    result = arms.get(key).run(feed.fed(key, request))
                    feed.keep(key, result)
                    if result.stages_reason:
                        raise EngineError("unavailable", f"stages cannot be clocked: {result.stages_reason}")
                except EngineError as error:
                    arms.fail(key, unit, purpose, error)
                    continue
                counter.took(unit, key, result.seconds)
                results[key, pass_index] = (self._block(key, len(results), request, result), result)
        complete = [key for key in keys if all((key, index) in results for index in passes)]
        if not complete:
            return
        kept = [results[key, index] for index in passes for key in (complete if index == 0 else reversed(complete))]
        self._record(self._request(unit, chosen, rotation, 0, purpose, output_tokens), chosen, kept)

    def _record(self, request: BlockRequest, chosen: list[Prompt], kept: list[tuple[BlockLine, BlockResult]]) -> None:
        """Record the blocks of one rotation; `request`: of any of them."""
        unit = request.unit
        axis = f"-{request.axis}" if request.axis else ""
        self.ledger.add_rotation(
            RotationLine(
                session=self.ledger.session,
                group=unit.group,
                target=unit.target,
                workload=unit.workload,
                batch_size=unit.batch_size,
                rotation=request.rotation,
                purpose=request.purpose,
                arms=list(dict.fromkeys(block.arm for block, _ in kept)),
                prompt_ids=[prompt.id for prompt in chosen],
                part=f"g{unit.group}-{unit.workload}-b{unit.batch_size}-r{request.rotation:04d}-{request.purpose}{axis}",
                axis=request.axis,
            ),
            [block for block, _ in kept],
            [result.outputs for _, result in kept],
            [result.steps for _, result in kept],
        )

    def _block(self, key: str, order: int, request: BlockRequest, result: BlockResult) -> BlockLine:
        return BlockLine(
            session=self.ledger.session,
            group=request.unit.group,
            target=request.unit.target,
            workload=request.unit.workload,
            batch_size=request.unit.batch_size,
            rotation=request.rotation,
            pass_index=request.pass_index,
            order=order,
            arm=key,
            purpose=request.purpose,
            seconds=result.seconds,
            requests=len(request.prompts),
            prompt_tokens=sum(map(len, request.prompts)),
            output_tokens=sum(len(output.token_ids) for output in result.outputs),
            draft_tally=result.draft_tally,
            draft_tally_reason=result.draft_tally_reason,
            axis=request.axis,
            **result.counters,
        )


def start_request(
    resolver: Resolver, variant: Variant, group: Group, spec: ArmSpec, python: str, log: Path
) -> StartRequest:
    """What an engine is told to start an arm; a model that cannot be had is this arm's failure."""
    try:
        model = resolver.model(group.target)
        config = speculative_config(variant, group.target.name, resolver.drafter(group.target, variant, model))
    except DraftproofError as error:
        raise EngineError(NO_MODEL, str(error)) from error
    return StartRequest(
        spec=spec,
        group=group.index,
        hardware=group.hardware,
        model=model,
        revision=group.target.revision,
        speculative_config=config,
        control=variant.control,
        python=python,
        log=log,
    )


def log_name(key: str) -> str:
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in key)
