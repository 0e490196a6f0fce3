"""After the timed blocks: what separates two tokens at a first difference, and how wide a tie is on this machine.

Two scorers look at each first difference, in passes of their own, since asking for log-probabilities may change a run:
the no-SD arm in the engine's precision, which alone can tell an exact tie, and the target in float32, alone on the
machine after the other arms have ended.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from draftproof import tables
from draftproof.analysis import tokendiff
from draftproof.engines import Continuation, LiveArm, NoiseRequest, ScoreRequest
from draftproof.errors import EngineError
from draftproof.ledger import Ledger
from draftproof.live import LiveArms, Progress
from draftproof.plan import REFEREE, Group, Unit, references
from draftproof.records import NoiseLine, Output, RotationLine, ScoreLine

MAX_NOISE_ROTATIONS = 64
MIN_NOISE_POSITIONS = 1024
"""A maximum over fewer positions would be too low to judge by: wide ties are rare."""

AFTER_TOKENS = 8
"""Tokens from a difference on that are shown as text."""

PromptSet = Callable[[Unit, int], list[list[int]]]
"""Token ids of the prompts of a unit's rotation."""


class Sample(NamedTuple):
    """What the no-SD arm wrote in one batch, with its gaps while decoding, and the same gaps as a prompt."""

    unit: Unit
    rotation: int
    texts: list[Continuation]
    forced: list[list[float | None]]


class Referee:
    """Scores what a group's arms wrote; everything that it finds is recorded."""

    def __init__(self, group: Group, ledger: Ledger, arms: LiveArms, progress: Progress) -> None:
        self._group = group
        self._ledger = ledger
        self._arms = arms
        self._progress = progress

    def judge(self, prompt_set: PromptSet) -> None:
        """Score each first difference from no-SD that is not scored yet, and measure the width of a tie."""
        differences = self._differences()
        if not any(wanted for _, _, wanted in differences):
            return  # everything is identical: no limit is needed
        self._progress.say("scoring first differences")
        for unit, base, wanted in differences:
            if wanted and self._arms.alive(base):
                try:
                    self._score(self._arms.get(base), unit, wanted, "engine")
                except EngineError as error:
                    self._arms.fail(base, unit, "trace", error)
        samples = self._sample(prompt_set)
        self._arms.close()  # float32 needs room, and nothing is timed any more
        if not self._arms.alive(REFEREE):
            return
        self._progress.say("loading the float32 referee")
        asked: Unit | None = None
        try:
            referee = self._arms.get(REFEREE)
            for asked, _, wanted in differences:
                self._score(referee, asked, wanted, "referee")
            for sample in samples:
                asked = sample.unit
                self._note(sample, referee.forced_gaps(sample.texts))
        except EngineError as error:
            if self._arms.alive(REFEREE):  # it could start, but not answer
                self._arms.fail(REFEREE, asked, "trace", error)

    def _score(self, arm: LiveArm, unit: Unit, wanted: list[ScoreRequest], by: Literal["engine", "referee"]) -> None:
        known = {(s.unit, s.rotation, s.arm, s.request) for s in self._ledger.scores if s.by == by}
        wanted = [r for r in wanted if (r.unit, r.rotation, r.arm, r.request) not in known]
        if not wanted:
            return
        self._ledger.add_scores(
            [
                ScoreLine(
                    session=self._ledger.session,
                    group=self._group.index,
                    target=unit.key.target,
                    workload=unit.key.workload,
                    batch_size=unit.key.batch_size,
                    rotation=request.rotation,
                    arm=request.arm,
                    request=request.request,
                    position=request.position,
                    tokens=request.pair,
                    texts=score.texts,
                    best_logprob=score.best,
                    logprobs=score.pair,
                    before=score.before,
                    after=score.after,
                    by=by,
                )
                for request, score in zip(wanted, arm.score(wanted), strict=True)
            ]
        )

    def _differences(self) -> list[tuple[Unit, str, list[ScoreRequest]]]:
        """(unit, no-SD arm, first differences from it) of all arms whose tokens mean something."""
        ledger, group = self._ledger, self._group
        left_out = {line.arm for line in ledger.arms if line.group == group.index and line.meaningless}
        speed = [line for line in ledger.rotations if line.purpose == "speed" and line.group == group.index]
        outputs = tables.read_outputs(ledger.folder.path, {line.part for line in speed})
        found = []
        for unit in group.units:
            lines = [line for line in speed if line.unit == unit.key]
            for base, key in references(unit.arms):
                if key in left_out:
                    continue
                wanted = [request for line in lines for request in self._of_rotation(unit, line, outputs, base, key)]
                found.append((unit, base, wanted))
        return found

    def _of_rotation(
        self,
        unit: Unit,
        line: RotationLine,
        outputs: Mapping[tuple[str, str, int], list[Output]],
        base: str,
        key: str,
    ) -> Iterator[ScoreRequest]:
        reference, other = outputs.get((line.part, base, 0)), outputs.get((line.part, key, 0))
        if reference is None or other is None:
            return
        found = tokendiff.first_differences([o.token_ids for o in reference], [o.token_ids for o in other])
        for index, position in enumerate(found):
            left, right = reference[index].token_ids, other[index].token_ids
            if position is None or position >= min(len(left), len(right)):
                continue  # identical, or one merely ends: there is no second token to score
            prompt = self._ledger.prompts[unit.key.target, unit.key.workload, line.prompt_ids[index]]
            yield ScoreRequest(
                unit=unit.key,
                rotation=line.rotation,
                arm=key,
                request=index,
                position=position,
                prefix=[*prompt, *left[:position]],
                pair=(left[position], right[position]),
                after=(left[position:][:AFTER_TOKENS], right[position:][:AFTER_TOKENS]),
            )

    # -- the width of a tie ------------------------------------------------------------------------------------------

    def _sample(self, prompt_set: PromptSet) -> list[Sample]:
        """Texts of no-SD with gaps, of as many positions as the cell with the most had at risk, and at least 1,024.

        Of the no-SD arm alone: a variant with a fault must not widen the limit that it is judged by. Decoding and
        reading the text as a prompt together have the shapes of both arms: one row a request, and many.
        """
        group, ledger = self._group, self._ledger
        lines = [line for line in ledger.noise if line.target == group.target.name]  # an earlier group's count too
        measured = sum(line.positions for line in lines)
        done = {(line.workload, line.rotation) for line in lines}
        at_risk = max(MIN_NOISE_POSITIONS, *(self._positions_at_risk(unit) for unit in group.units))
        largest = max(unit.key.batch_size for unit in group.units)
        units = [unit for unit in group.units if unit.key.batch_size == largest]
        samples: list[Sample] = []
        for rotation, unit in itertools.product(range(MAX_NOISE_ROTATIONS), units):
            key = unit.arms[0]
            if measured >= at_risk or not self._arms.alive(key) or (unit.key.workload, rotation) in done:
                continue
            request = NoiseRequest(
                unit=unit.key,
                rotation=rotation,
                prompts=prompt_set(unit, rotation),
                output_tokens=unit.cells[0].output_tokens,
            )
            try:
                arm = self._arms.get(key)
                texts = arm.decode_gaps(request)
                samples.append(Sample(unit, rotation, texts, arm.forced_gaps(texts)))
            except EngineError as error:
                self._arms.fail(key, unit, "trace", error)
                break
            measured += sum(len(text.pairs) for text in texts)
        return samples

    def _note(self, sample: Sample, referee: list[list[float | None]]) -> None:
        differences, rows, unscored, not_finite = [], [0.0], 0, 0
        for text, forced, exact in zip(sample.texts, sample.forced, referee, strict=True):
            for decoded, read, true in zip(text.gaps_nats, forced, exact, strict=True):
                if read is None or true is None:
                    unscored += 1
                elif not all(map(math.isfinite, (decoded, read, true))):
                    not_finite += 1
                else:
                    differences.append(max(abs(decoded - true), abs(read - true)))
                    rows.append(abs(decoded - read))
        differences.sort(reverse=True)
        unit = sample.unit.key
        self._ledger.add(
            NoiseLine(
                session=self._ledger.session,
                group=self._group.index,
                target=unit.target,
                workload=unit.workload,
                batch_size=unit.batch_size,
                rotation=sample.rotation,
                arm=sample.unit.arms[0],
                positions=len(differences),
                width_nats=max(differences, default=0.0),
                largest_nats=differences[:10],
                rows_nats=max(rows),
                unscored=unscored,
                not_finite=not_finite,
            )
        )

    def _positions_at_risk(self, unit: Unit) -> int:
        return sum(
            line.output_tokens
            for line in self._ledger.blocks
            if (line.unit, line.arm, line.purpose, line.pass_index) == (unit.key, unit.arms[0], "speed", 0)
        )
