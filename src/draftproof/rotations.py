"""The rotations of one group: which blocks its arms run, in whose turn, and what is recorded of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from draftproof.analysis.pairs import speed_pairs
from draftproof.analysis.stats import paired_ratio
from draftproof.engines import BlockRequest, BlockResult, LiveArm
from draftproof.errors import EngineError
from draftproof.feed import Feed
from draftproof.ledger import Ledger
from draftproof.live import Counter, LiveArms, Progress
from draftproof.plan import AA, Group, Plan, Unit, references
from draftproof.prompts import Prompt, PromptSets, token_ids
from draftproof.records import Axis, BlockLine, RotationLine, UnitKey
from draftproof.spec import Interleave, Purpose, Variant

WARMUP_TOKENS = 8


class Step(NamedTuple):
    """One rotation of one unit."""

    rotation: int
    unit: Unit


class Work(NamedTuple):
    """A step under way."""

    step: Step
    feed: Feed
    results: dict[tuple[str, int], tuple[BlockLine, BlockResult]]
    """(Arm, pass) -> its block."""


def turns(steps: Iterable[Step], interleave: Interleave) -> list[list[Step]]:
    """What each arm runs before the next one's turn: one step, a rotation of all units, or everything.

    `steps`: rotation after rotation.
    """
    if interleave == "live":
        return [[step] for step in steps]
    if interleave == "restart":
        return [list(turn) for _, turn in itertools.groupby(steps, lambda step: step.rotation)]
    everything = list(steps)
    return [everything] if everything else []


class Rotations:
    """Runs what is missing of a group's blocks."""

    def __init__(
        self,
        plan: Plan,
        group: Group,
        variants: Mapping[str, Variant],
        ledger: Ledger,
        arms: LiveArms,
        prompts: PromptSets,
        counter: Counter,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._study = plan.study
        self._group = group
        self._interleave = group.hardware.interleave
        self._variants = variants
        self._ledger = ledger
        self._arms = arms
        self._prompts = prompts
        self._counter = counter
        self._progress = progress
        self._warm: dict[str, LiveArm] = {}
        self._warm_up_feeds: dict[UnitKey, Feed] = {}

    # -- what is run -------------------------------------------------------------------------------------------------

    def speed(self) -> None:
        """Rotations of all units in turn, so that a drift of the machine meets them all; then those still too wide.

        What claims to be faster is judged: it is the first to be repeated.
        """
        units = self._group.units
        ranges = {unit.key: self._study.rotations_of(unit.key.batch_size) for unit in units}
        everywhere = range(max(most for _, most in ranges.values()))
        claiming = [unit for unit in units if any(cell.claims_speedup for cell in unit.cells)]
        for repeats, chosen in ((False, units), (True, claiming), (True, units)):
            if repeats and self._interleave == "block":
                return  # its one turn is over
            steps = []
            for rotation, unit in itertools.product(everywhere, chosen):
                least, most = ranges[unit.key]
                if rotation in (range(least, most) if repeats else range(least)):
                    steps.append(Step(rotation, unit))
            for turn in turns(steps, self._interleave):
                missing = [s for s in turn if s.rotation not in self._ledger.done(s.unit.key, "speed")]
                self._take(self._worth_it(missing) if repeats else missing, "speed", (0, 1))

    def _worth_it(self, turn: list[Step]) -> list[Step]:
        """Rule: stop on width, never on verdict; and never beyond the budget."""
        spent_s = self._ledger.spent_s()
        kept = []
        for step in turn:
            after_s = spent_s + self._rotation_s(step.unit)
            if after_s <= self._study.budget_s and self._is_too_wide(step.unit):
                kept.append(step)
                spent_s = after_s
        return kept

    def _is_too_wide(self, unit: Unit) -> bool:
        for base, key in references(unit.arms):
            if key.endswith(AA) or any(self._ledger.has_failed(unit.key, arm, "speed") for arm in (base, key)):
                continue
            ratio = paired_ratio(speed_pairs(self._ledger.blocks, unit.key, key, base))
            if ratio is None or ratio.half_width > self._study.half_width:
                return True
        return False

    def _rotation_s(self, unit: Unit) -> float:
        """Mean seconds of this unit's rotations so far."""
        blocks = self._ledger.blocks
        seconds = [block.seconds for block in blocks if block.unit == unit.key and block.purpose == "speed"]
        return sum(seconds) / max(1, len(self._ledger.done(unit.key, "speed")))

    def stages(self) -> None:
        """No pairs are formed of these, so that an arm that has to be loaded for them is loaded once."""
        steps = [Step(*each) for each in itertools.product(range(self._study.stage_blocks), self._group.units)]
        missing = [step for step in steps if step.rotation not in self._ledger.done(step.unit.key, "stages")]
        for turn in turns(missing, "live" if self._interleave == "live" else "block"):
            self._take(turn, "stages", (0,))

    def floor(self) -> None:
        """What order and company alone change: no-SD on the prompt sets of its first rotations, otherwise arranged."""
        axes: tuple[Axis, ...] = ("order", "copies")
        units = [unit for unit in self._group.units if unit.key.batch_size > 1 and self._plan.runs_first(unit)]
        for rotation, unit, axis in itertools.product(range(self._study.floor_rotations), units, axes):
            known = self._ledger.done(unit.key, "trace", axis)
            if rotation in known or rotation not in self._ledger.done(unit.key, "speed"):
                continue
            self._progress.say(f"noise floor: {axis} of {unit.key.workload} b{unit.key.batch_size}")
            chosen = self._prompts.of(unit, rotation)
            chosen = chosen[::-1] if axis == "order" else chosen[:1] * len(chosen)
            key = unit.arms[0]
            request = self._request(Step(rotation, unit), chosen, 0, "trace", axis)
            arm = self._ready(key)
            if arm is None:
                return
            try:
                result = arm.run(request)
            except EngineError as error:
                self._arms.fail(key, unit, "trace", error)
                return
            self._record(request, chosen, [(block_line(self._ledger.session, key, 0, request, result), result)])

    # -- arms --------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Make every arm ready that is loaded by now, before anything is timed."""
        self._progress.say("warming up")
        for key in self._arms.loaded():
            self._ready(key)

    def _ready(self, key: str) -> LiveArm | None:
        """The arm, loaded, with every shape run once since; None: it cannot start, and that is recorded."""
        while True:
            try:
                arm = self._arms.get(key)
            except EngineError:
                return None
            if self._warm.get(key) is arm or self._run_shapes(key, arm):
                self._warm[key] = arm
                return arm

    def _run_shapes(self, key: str, arm: LiveArm) -> bool:
        """Whether the arm has outlived it; else one more cell has failed, and will not be tried again."""
        for size in dict.fromkeys(unit.key.batch_size for unit in self._group.units):
            unit = next((unit for unit in self._group.units if self._can_run(unit, key, size)), None)
            if unit is None:
                continue
            feed = self._warm_up_feeds.setdefault(unit.key, Feed(self._group, unit, self._variants))
            request = self._request(Step(0, unit), self._prompts.of(unit, 0), 0, "trace", tokens=WARMUP_TOKENS)
            try:
                feed.keep(key, arm.run(feed.fed(key, request)))
            except EngineError as error:
                self._arms.fail(key, unit, "speed", error)
                return False
        return True

    def _can_run(self, unit: Unit, key: str, size: int) -> bool:
        mine = unit.key.batch_size == size and key in unit.arms
        return mine and not self._ledger.has_failed(unit.key, key, "speed")

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _take(self, turn: Sequence[Step], purpose: Purpose, passes: tuple[int, ...]) -> None:
        """Every arm in order runs the whole turn, then all of it backwards; recorded rotation by rotation at the end.

        Backwards in steps as in arms: both passes of an arm on a prompt set then lie as far before the middle of the
        turn as after it, so that a steady drift of the machine adds the same to all arms.
        """
        work = [Work(step, Feed(self._group, step.unit, self._variants), {}) for step in turn]
        keys = [spec.key for spec in self._group.arms if purpose == "speed" or spec.role != "aa"]
        for pass_index in passes:
            forwards = pass_index == 0
            for key in keys if forwards else reversed(keys):
                for each in work if forwards else reversed(work):
                    if key in each.step.unit.arms:
                        self._run_block(key, each, pass_index, purpose)
        for step, _, results in work:
            complete = [key for key in keys if all((key, index) in results for index in passes)]
            kept = [results[key, index] for index in passes for key in (complete if index == 0 else reversed(complete))]
            if kept:
                chosen = self._prompts.of(step.unit, step.rotation)
                self._record(self._request(step, chosen, 0, purpose), chosen, kept)

    def _run_block(self, key: str, work: Work, pass_index: int, purpose: Purpose) -> None:
        (rotation, unit), feed, results = work
        self._counter.next(unit, key)
        if self._ledger.has_failed(unit.key, key, purpose):
            return
        arm = self._ready(key)
        if arm is None or self._ledger.has_failed(unit.key, key, purpose):
            return
        request = self._request(work.step, self._prompts.of(unit, rotation), pass_index, purpose)
        try:
            if pass_index == 0:
                feed.settle(key, arm, request)
            result = arm.run(feed.fed(key, request))
            feed.keep(key, result)
            if result.stages_reason:
                raise EngineError("unavailable", f"stages cannot be clocked: {result.stages_reason}")
        except EngineError as error:
            self._arms.fail(key, unit, purpose, error)
            return
        self._counter.took(unit, key, result.seconds)
        results[key, pass_index] = (block_line(self._ledger.session, key, len(results), request, result), result)

    def _request(
        self,
        step: Step,
        chosen: list[Prompt],
        pass_index: int,
        purpose: Purpose,
        axis: Axis | None = None,
        tokens: int | None = None,
    ) -> BlockRequest:
        """`tokens`: of each output; None: what the cells ask for, or less where stages are clocked."""
        study, asked = self._study, step.unit.cells[0].output_tokens
        if tokens is None:
            tokens = min(study.stage_output_tokens, asked) if purpose == "stages" else asked
        return BlockRequest(
            unit=step.unit.key,
            rotation=step.rotation,
            pass_index=pass_index,
            purpose=purpose,
            prompts=token_ids(chosen),
            sampling=study.sampling,
            output_tokens=tokens,
            ignore_eos=study.ignore_eos,
            axis=axis,
        )

    def _record(self, request: BlockRequest, chosen: list[Prompt], kept: list[tuple[BlockLine, BlockResult]]) -> None:
        """Record the blocks of one rotation; `request`: of any of them."""
        unit = request.unit
        axis = f"-{request.axis}" if request.axis else ""
        self._ledger.add_rotation(
            RotationLine(
                session=self._ledger.session,
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
                interleave=self._interleave,
            ),
            [block for block, _ in kept],
            [result.outputs for _, result in kept],
            [result.steps for _, result in kept],
        )


def block_line(session: int, key: str, order: int, request: BlockRequest, result: BlockResult) -> BlockLine:
    """The record of one block; `order`: how many of its rotation were run before."""
    return BlockLine(
        session=session,
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
        waited_s=result.waited_s,
        stolen_s=result.stolen_s,
        axis=request.axis,
        **result.counters,
    )
