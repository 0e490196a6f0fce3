"""Runs a plan, group after group of arms: starts them, has their blocks run, and has what differs judged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from draftproof import tables
from draftproof.analysis.held import changed
from draftproof.engines import Engine, LiveArm, StartRequest
from draftproof.errors import DraftproofError, EngineError
from draftproof.ledger import Ledger
from draftproof.live import Counter, LiveArms, Progress
from draftproof.plan import ArmSpec, Group, Plan, speculative_config
from draftproof.prompts import PromptSets
from draftproof.records import ArmLine, RunFolder, SessionLine
from draftproof.referee import Referee
from draftproof.rotations import Rotations
from draftproof.spec import Purpose, Target, Variant, Workload, digest, meaningless
from draftproof.workloads import LoadedWorkload

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
        arms = LiveArms(group, self.ledger, self._start_arm, self.progress)
        try:
            arms.start()
            if arms.any_alive():
                prompts = PromptSets(group, self.plan.study, self.ledger, arms, self.resolver)
                counter = Counter(group, self.ledger, purposes, self.plan.study, self.progress)
                rotations = Rotations(
                    self.plan, group, self.variants, self.ledger, arms, prompts, counter, self.progress
                )
                rotations.warm_up()
                if "speed" in purposes:
                    rotations.speed()
                if "stages" in purposes:
                    rotations.stages()
                if "trace" in purposes:
                    rotations.floor()
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
