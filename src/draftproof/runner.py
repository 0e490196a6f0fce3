"""Runs a plan: groups of live arms, rotation after rotation, each recorded before the next begins."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from draftproof import records
from draftproof.analysis import tokendiff
from draftproof.analysis.pairs import speed_pairs
from draftproof.analysis.stats import paired_ratio
from draftproof.engines import BlockRequest, BlockResult, Engine, LiveArm, ScoreRequest, StartRequest, TokenizeRequest
from draftproof.errors import DraftproofError, EngineError
from draftproof.plan import ArmSpec, Group, Plan, Unit, check_context, max_model_tokens, speculative_config
from draftproof.records import BlockLine, FailureLine, RotationLine, RunFolder, ScoreLine, UnitKey
from draftproof.spec import Purpose, Target, Variant, Workload, digest
from draftproof.workloads import LoadedWorkload, deal

WARMUP_TOKENS = 8


class Progress(Protocol):
    """Where the runner tells how far it is."""

    def say(self, text: str) -> None: ...

    def block(self, done: int, total: int, left_s: float | None, what: str) -> None: ...


class Resolver(Protocol):
    """Turns catalog entries into what an engine loads; the only part that may build or look up models."""

    def model(self, target: Target) -> str: ...

    def drafter(self, target: Target, variant: Variant, model: str) -> str | None: ...

    def workload(self, name: str) -> tuple[Workload, LoadedWorkload]: ...


class Prompt(msgspec.Struct, frozen=True):
    id: str
    token_ids: list[int]


class Runner:
    """One session's work on one run folder."""

    def __init__(self, plan: Plan, folder: RunFolder, engine: Engine, resolver: Resolver, variants: dict[str, Variant],
                 pythons: dict[str, str], progress: Progress, session: records.SessionLine) -> None:
        self.plan = plan
        self.folder = folder
        self.engine = engine
        self.resolver = resolver
        self.variants = variants
        self.pythons = pythons
        self.progress = progress
        self.session = session.session
        folder.repair()
        data = folder.read()
        self.header = data.header
        self.finished_before = data.header.finished
        self.blocks: list[BlockLine] = data.blocks
        self.rotations: list[RotationLine] = data.rotations
        self.failed: set[tuple[UnitKey, str, Purpose]] = set()
        self.dead: set[tuple[int, str]] = set()
        for failure in data.failures:
            self._note_failure(failure)
        self.scored = {(s.group, s.target, s.workload, s.batch_size, s.rotation, s.arm, s.request) for s in data.scores}
        self.known_workloads = {(line.target, line.workload): line for line in data.workloads}
        self.prompts = folder.prompts()
        folder.append([session])

    def execute(self, purposes: Iterable[Purpose]) -> None:
        """Run what is missing of the plan for these purposes, then mark the run as finished."""
        wanted = set(purposes)
        problems = []
        for group in self.plan.groups:
            try:
                self._run_group(group, wanted)
            except EngineError as error:
                problems.append(str(error))
        parts = {line.part for line in self.rotations}
        from draftproof import tables

        with self.folder.writing("compact the Parquet parts"):
            tables.compact(self.folder.path, parts)
            self.folder.write_header(msgspec.structs.replace(self.header, finished=not problems, partial="; ".join(problems)))

    # -- one group ---------------------------------------------------------------------------------------------------

    def _run_group(self, group: Group, purposes: set[Purpose]) -> None:
        if not self._pending(group, purposes):
            return
        arms = LiveArms(self, group)
        try:
            arms.start_all()
            if not any(arms.alive(spec.key) for spec in group.arms):
                return
            prompts = {name: self._tokenize(group, arms, name) for name in dict.fromkeys(u.key.workload for u in group.units)}
            counter = Counter(self, group, purposes)
            self._warm_up(group, arms, prompts)
            if "speed" in purposes:
                self._speed(group, arms, prompts, counter)
            if "stages" in purposes:
                self._stages(group, arms, prompts, counter)
            if "trace" in purposes:
                self._score(group, arms)
        finally:
            arms.close()

    def _pending(self, group: Group, purposes: set[Purpose]) -> bool:
        for unit in group.units:
            if "speed" in purposes and len(self._done(unit, "speed")) < self._rotation_floor():
                return True
            if "stages" in purposes and len(self._done(unit, "stages")) < self.plan.study.stage_blocks:
                return True
        return not self.finished_before

    def _rotation_floor(self) -> int:
        return self.plan.study.rotations

    def _done(self, unit: Unit, purpose: Purpose) -> set[int]:
        return {line.rotation for line in self.rotations if line.unit == unit.key and line.purpose == purpose}

    def _tokenize(self, group: Group, arms: LiveArms, name: str) -> list[Prompt]:
        """Token ids of a workload's prompts, once a run: every arm then gets the same ids."""
        study, target = self.plan.study, group.target
        known = self.known_workloads.get((target.name, name))
        if known is None:
            workload, loaded = self.resolver.workload(name)
            tokenized = arms.first().tokenize(TokenizeRequest(
                target=target.name, workload=name, ids=[prompt.id for prompt in loaded.prompts],
                prompts=[prompt.messages if prompt.messages is not None else prompt.text for prompt in loaded.prompts],
                template_options={**target.template_options, **workload.template_options},
            ))
            rows = {prompt.id: ids for prompt, ids in zip(loaded.prompts, tokenized.token_ids, strict=True)}
            check_bos(name, rows, tokenized.bos_token_id)
            self.prompts.update({(target.name, name, prompt_id): ids for prompt_id, ids in rows.items()})
            kept = [ids for ids in rows.values() if fits(ids, study.max_prompt_tokens)]
            known = records.WorkloadLine(
                session=self.session, target=target.name, workload=name, num_prompts=len(kept),
                left_out=len(rows) - len(kept), revision=loaded.revision, prompts_sha256=digest(list(rows.values())),
                tokenizer_sha256=tokenized.tokenizer_sha256,
            )
            self.folder.write_prompts(self.prompts)
            self.folder.append([known])
            self.known_workloads[target.name, name] = known
        found = [
            Prompt(prompt_id, ids) for (target_name, workload_name, prompt_id), ids in self.prompts.items()
            if (target_name, workload_name) == (target.name, name) and fits(ids, study.max_prompt_tokens)
        ]
        if not found:
            raise DraftproofError(f"workload {name!r} has no prompt left: all {known.left_out} are longer than "
                                  f"max_prompt_tokens = {study.max_prompt_tokens}; raise it or give shorter prompts")
        output_tokens = max(cell.output_tokens for unit in group.units for cell in unit.cells if unit.key.workload == name)
        for prompt in found:
            check_context(f"workload {name!r}, prompt {prompt.id!r}", len(prompt.token_ids), output_tokens,
                          max_model_tokens(group))
        return found

    def _prompt_set(self, unit: Unit, prompts: list[Prompt], rotation: int) -> list[Prompt]:
        """The prompts of one rotation: B different ones, or B copies of one (the paper's batches)."""
        size = unit.key.batch_size
        if self.plan.study.batching == "identical":
            return [prompts[index] for index in deal(len(prompts), 1, rotation, self.plan.study.seed)] * size
        return [prompts[index] for index in deal(len(prompts), size, rotation, self.plan.study.seed)]

    def _warm_up(self, group: Group, arms: LiveArms, prompts: dict[str, list[Prompt]]) -> None:
        """Run every shape once on every arm before anything is timed."""
        self.progress.say("warming up")
        for size in dict.fromkeys(unit.key.batch_size for unit in group.units):
            unit = next(unit for unit in group.units if unit.key.batch_size == size)
            for key in unit.arms:
                if not arms.alive(key):
                    continue
                request = self._request(unit, prompts, 0, 0, "trace", WARMUP_TOKENS)
                try:
                    arms.get(key).run(request)
                except EngineError as error:
                    self._fail(group, key, unit, "speed", error, arms)

    def _request(self, unit: Unit, prompts: dict[str, list[Prompt]], rotation: int, pass_index: int, purpose: Purpose,
                 output_tokens: int) -> BlockRequest:
        chosen = self._prompt_set(unit, prompts[unit.key.workload], rotation)
        study = self.plan.study
        return BlockRequest(unit=unit.key, rotation=rotation, pass_index=pass_index, purpose=purpose,
                            prompts=[prompt.token_ids for prompt in chosen], sampling=study.sampling,
                            output_tokens=output_tokens, ignore_eos=study.ignore_eos)

    def _speed(self, group: Group, arms: LiveArms, prompts: dict[str, list[Prompt]], counter: Counter) -> None:
        """Rotations of all units in turn, so that a drift of the machine meets them all; then those still too wide."""
        study = self.plan.study
        for rotation in range(study.max_rotations):
            for unit in group.units:
                if rotation in self._done(unit, "speed"):
                    continue
                if rotation >= study.rotations and (self.finished_before or not self._goes_on(unit)):
                    continue
                output_tokens = unit.cells[0].output_tokens
                self._rotate(group, unit, arms, prompts, rotation, "speed", output_tokens, (0, 1), counter)

    def _goes_on(self, unit: Unit) -> bool:
        """Rule: stop on width, never on verdict; and never beyond the budget."""
        spent = sum(block.seconds for block in self.blocks if block.purpose == "speed")
        done = max(1, len([line for line in self.rotations if line.purpose == "speed"]))
        if spent * (1 + 1 / done) >= self.plan.study.budget_s:
            return False
        for base, key in references(unit.arms):
            ratio = paired_ratio(speed_pairs(self.blocks, unit.key, key, base))
            if ratio is None or ratio.half_width > self.plan.study.half_width:
                return True
        return False

    def _stages(self, group: Group, arms: LiveArms, prompts: dict[str, list[Prompt]], counter: Counter) -> None:
        for rotation in range(self.plan.study.stage_blocks):
            for unit in group.units:
                if rotation not in self._done(unit, "stages"):
                    tokens = min(self.plan.study.stage_output_tokens, unit.cells[0].output_tokens)
                    self._rotate(group, unit, arms, prompts, rotation, "stages", tokens, (0,), counter)

    def _rotate(self, group: Group, unit: Unit, arms: LiveArms, prompts: dict[str, list[Prompt]], rotation: int,
                purpose: Purpose, output_tokens: int, passes: tuple[int, ...], counter: Counter) -> None:
        """Run one prompt set on every arm, then again in reverse order, and record it all at once."""
        roles = {spec.key: spec.role for spec in group.arms}
        keys = [key for key in unit.arms if purpose == "speed" or roles[key] == "run"]
        results: dict[tuple[str, int], tuple[BlockLine, BlockResult]] = {}
        order = 0
        for pass_index in passes:
            for key in keys if pass_index == 0 else reversed(keys):
                counter.next(unit, key)
                if not arms.alive(key) or (unit.key, key, purpose) in self.failed:
                    continue
                request = self._request(unit, prompts, rotation, pass_index, purpose, output_tokens)
                try:
                    result = arms.get(key).run(request)
                    if result.stages_reason:
                        raise EngineError("unavailable", f"stages cannot be clocked: {result.stages_reason}")
                except EngineError as error:
                    self._fail(group, key, unit, purpose, error, arms)
                    continue
                counter.took(unit, key, result.seconds)
                results[key, pass_index] = (self._block(unit, key, rotation, pass_index, order, request, result), result)
                order += 1
        complete = [key for key in keys if all((key, p) in results for p in passes)]
        if not complete:
            return
        part = f"g{group.index}-{unit.key.workload}-b{unit.key.batch_size}-r{rotation:04d}-{purpose}"
        chosen = self._prompt_set(unit, prompts[unit.key.workload], rotation)
        closing = RotationLine(
            session=self.session, group=group.index, target=unit.key.target, workload=unit.key.workload,
            batch_size=unit.key.batch_size, rotation=rotation, purpose=purpose, arms=complete,
            prompt_ids=[prompt.id for prompt in chosen], part=part,
        )
        kept = [results[key, p] for p in passes for key in (complete if p == 0 else reversed(complete))]
        blocks = [block for block, _ in kept]
        self.folder.add_rotation(closing, blocks, [result.outputs for _, result in kept], [result.steps for _, result in kept])
        self.blocks.extend(blocks)
        self.rotations.append(closing)

    def _block(self, unit: Unit, key: str, rotation: int, pass_index: int, order: int, request: BlockRequest,
               result: BlockResult) -> BlockLine:
        return BlockLine(
            session=self.session, group=unit.key.group, target=unit.key.target, workload=unit.key.workload,
            batch_size=unit.key.batch_size, rotation=rotation, pass_index=pass_index, order=order, arm=key,
            purpose=request.purpose, seconds=result.seconds, requests=len(request.prompts),
            prompt_tokens=sum(map(len, request.prompts)),
            output_tokens=sum(len(output.token_ids) for output in result.outputs), **result.counters,
        )

    def _score(self, group: Group, arms: LiveArms) -> None:
        """Score each first difference from no-SD in a pass of its own, by the no-SD arm."""
        from draftproof import tables

        parts = {line.part for line in self.rotations if line.purpose == "speed" and line.group == group.index}
        outputs = tables.read_outputs(self.folder.path, parts)
        for unit in group.units:
            lines = [line for line in self.rotations if line.unit == unit.key and line.purpose == "speed"]
            for reference_key, key in references(unit.arms):
                wanted = self._differences(unit, lines, outputs, reference_key, key)
                if not wanted or not arms.alive(reference_key):
                    continue
                try:
                    scores = arms.get(reference_key).score(wanted)
                except EngineError as error:
                    self._fail(group, reference_key, unit, "trace", error, arms)
                    continue
                self.folder.append(
                    ScoreLine(
                        session=self.session, group=group.index, target=unit.key.target, workload=unit.key.workload,
                        batch_size=unit.key.batch_size, rotation=request.rotation, arm=key, request=request.request,
                        position=request.position, tokens=request.pair, texts=score.texts, best_logprob=score.best,
                        logprobs=score.pair,
                    )
                    for request, score in zip(wanted, scores, strict=True)
                )

    def _differences(self, unit: Unit, lines: list[RotationLine], outputs: dict[tuple[str, str, int], list[records.Output]],
                     reference_key: str, key: str) -> list[ScoreRequest]:
        wanted = []
        for line in lines:
            reference, other = outputs.get((line.part, reference_key, 0)), outputs.get((line.part, key, 0))
            if reference is None or other is None:
                continue
            found = tokendiff.first_differences([o.token_ids for o in reference], [o.token_ids for o in other])
            for index, position in enumerate(found):
                identity = (*unit.key, line.rotation, key, index)
                left, right = reference[index].token_ids, other[index].token_ids
                if position is None or identity in self.scored or position >= min(len(left), len(right)):
                    continue
                prompt = self.prompts[unit.key.target, unit.key.workload, line.prompt_ids[index]]
                wanted.append(ScoreRequest(
                    unit=unit.key, rotation=line.rotation, arm=key, request=index, position=position,
                    prefix=[*prompt, *left[:position]], pair=(left[position], right[position]),
                ))
        return wanted

    # -- failures ----------------------------------------------------------------------------------------------------

    def _fail(self, group: Group, key: str, unit: Unit | None, purpose: Purpose, error: EngineError,
              arms: LiveArms) -> None:
        failure = FailureLine(
            session=self.session, group=group.index, target=group.target.name, arm=key,
            workload=unit.key.workload if unit else None, batch_size=unit.key.batch_size if unit else None,
            purpose=purpose, kind=error.kind, message=str(error), log_tail=error.log_tail,
        )
        self.folder.append([failure])
        self._note_failure(failure)
        if error.kind != "unavailable":
            self.progress.say(f"arm {key} failed: {error}")
            arms.discard(key)

    def _note_failure(self, failure: FailureLine) -> None:
        """A failed cell stays failed in this run: it is never run again until it happens to be green."""
        if failure.workload is None or failure.batch_size is None:
            self.dead.add((failure.group, failure.arm))
        else:
            unit = UnitKey(failure.group, failure.target, failure.workload, failure.batch_size)
            purposes: tuple[Purpose, ...] = ("speed", "stages") if failure.purpose == "speed" else (failure.purpose,)
            self.failed |= {(unit, failure.arm, purpose) for purpose in purposes}

    # -- used by LiveArms --------------------------------------------------------------------------------------------

    def start_arm(self, group: Group, spec: ArmSpec) -> LiveArm:
        model = self.resolver.model(group.target)
        variant = self.variants[spec.variant]
        config = speculative_config(variant, group.target.name, self.resolver.drafter(group.target, variant, model))
        arm = self.engine.start(StartRequest(
            spec=spec, group=group.index, hardware=group.hardware, model=model, revision=group.target.revision,
            speculative_config=config, python=self.pythons[spec.build],
            log=self.folder.path / "logs" / f"g{group.index}-{log_name(spec.key)}.log",
        ))
        public = {name: Path(str(value)).name if name == "model" else value for name, value in (config or {}).items()}
        self.folder.append([records.ArmLine(
            session=self.session, group=group.index, arm=spec.key, target=group.target.name, variant=spec.variant,
            role=spec.role, build=spec.build, target_sha256=weights_sha256(group.target), load_s=arm.facts.load_s, environment=arm.facts.environment,
            resolved=arm.facts.resolved, speculative_config=public, config_sha256=digest(arm.facts.resolved),
        )])
        return arm


class LiveArms:
    """The started arms of a group; a crashed one is started again when its next cell comes."""

    def __init__(self, runner: Runner, group: Group) -> None:
        self._runner = runner
        self._group = group
        self._specs = {spec.key: spec for spec in group.arms}
        self._live: dict[str, LiveArm] = {}

    def start_all(self) -> None:
        """Start every arm: two at a time on a CPU, one after the other where each measures the free GPU memory."""
        keys = [key for key in self._specs if (self._group.index, key) not in self._runner.dead]
        self._runner.resolver.model(self._group.target)  # build it once, before several arms ask for it
        self._runner.progress.say(f"loading {len(keys)} engines ({self._group.target.title}): {', '.join(keys)}")
        workers = 2 if self._group.hardware.device == "cpu" else 1
        with ThreadPoolExecutor(workers) as pool:
            futures = {key: pool.submit(self._runner.start_arm, self._group, self._specs[key]) for key in keys}
            try:
                for key, future in futures.items():
                    try:
                        self._live[key] = future.result()
                    except EngineError as error:
                        self._runner._fail(self._group, key, None, "speed", error, self)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                for future in futures.values():
                    with contextlib.suppress(BaseException):
                        future.result().close()
                raise

    def alive(self, key: str) -> bool:
        return (self._group.index, key) not in self._runner.dead

    def get(self, key: str) -> LiveArm:
        if key not in self._live:
            try:
                self._live[key] = self._runner.start_arm(self._group, self._specs[key])
            except EngineError as error:
                self._runner._fail(self._group, key, None, "speed", error, self)
                raise
        return self._live[key]

    def first(self) -> LiveArm:
        return next(iter(self._live.values()))

    def discard(self, key: str) -> None:
        arm = self._live.pop(key, None)
        if arm is not None:
            arm.close()

    def close(self) -> None:
        for arm in self._live.values():
            arm.close()
        self._live.clear()


class Counter:
    """Blocks done, blocks to come, and the time left, from the seconds of the blocks so far."""

    def __init__(self, runner: Runner, group: Group, purposes: set[Purpose], clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = runner.progress
        self._seconds: dict[tuple[int, str], list[float]] = {}
        study = runner.plan.study
        self._left: list[tuple[int, str]] = []
        for unit in group.units:
            if "speed" in purposes:
                missing = max(0, study.rotations - len(runner._done(unit, "speed")))
                self._left += [(unit.key.batch_size, key) for key in unit.arms] * 2 * missing
            if "stages" in purposes:
                missing = max(0, study.stage_blocks - len(runner._done(unit, "stages")))
                runs = [spec.key for spec in group.arms if spec.role == "run" and spec.key in unit.arms]
                self._left += [(unit.key.batch_size, key) for key in runs] * missing
        self._total = len(self._left)
        self._done = 0

    def next(self, unit: Unit, key: str) -> None:
        self._done += 1
        self._total = max(self._total, self._done)
        shape = (unit.key.batch_size, key)
        if shape in self._left:
            self._left.remove(shape)
        left_s = None
        if all(other in self._seconds for other in set(self._left)):
            left_s = sum(sum(self._seconds[o]) / len(self._seconds[o]) for o in self._left)
        self._progress.block(self._done, self._total, left_s, f"{unit.key.workload} b{unit.key.batch_size} {key}")

    def took(self, unit: Unit, key: str, seconds: float) -> None:
        self._seconds.setdefault((unit.key.batch_size, key), []).append(seconds)


def references(keys: tuple[str, ...]) -> list[tuple[str, str]]:
    """(no-SD arm, arm compared with it): each build's arms with that build's no-SD."""
    pairs = []
    for key in keys:
        base = next(k for k in keys if is_no_sd(k) and k.startswith("base:") == key.startswith("base:"))
        if key != base:
            pairs.append((base, key))
    return pairs


def is_no_sd(key: str) -> bool:
    """Whether an arm key is a no-SD reference (not its A/A twin)."""
    name = key.removeprefix("base:")
    return name == "no_sd" or (name.startswith("no_sd[") and not name.endswith(".aa"))


def fits(token_ids: list[int], limit: int | None) -> bool:
    return limit is None or len(token_ids) <= limit


def check_bos(workload: str, rows: dict[str, list[int]], bos: int | None) -> None:
    """Exactly one BOS: the paper's prompts began with two, since text with a BOS in it was tokenised again."""
    for prompt_id, ids in rows.items():
        if not ids:
            raise DraftproofError(f"workload {workload!r}, prompt {prompt_id!r}: no tokens")
        if bos is not None and ids[:2] == [bos, bos]:
            raise DraftproofError(f"workload {workload!r}, prompt {prompt_id!r} begins with two BOS tokens ({bos}); "
                                  "the text must not hold the one that the tokenizer adds")


def weights_sha256(target: Target) -> str | None:
    """Known for embedded targets, whose build is checked against it."""
    return target.embedded.weights_sha256 if target.embedded else None


def log_name(key: str) -> str:
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in key)


def now_utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
