"""After the timed blocks: what separates two tokens at a first difference, and how wide a tie is on this machine."""

from __future__ import annotations

from collections.abc import Callable

from draftproof import tables
from draftproof.analysis import tokendiff
from draftproof.engines import NoiseRequest, ScoreRequest
from draftproof.errors import EngineError
from draftproof.ledger import Ledger
from draftproof.live import LiveArms
from draftproof.plan import Group, Unit, references
from draftproof.records import NoiseLine, Output, RotationLine, ScoreLine

MAX_NOISE_ROTATIONS = 64
MIN_NOISE_POSITIONS = 1024
"""A maximum over fewer positions would be too low to judge by: wide ties are rare."""


class Referee:
    """Scores by the no-SD arm, in passes of their own: asking for log-probabilities may change a run."""

    def __init__(self, group: Group, ledger: Ledger, arms: LiveArms) -> None:
        self._group = group
        self._ledger = ledger
        self._arms = arms

    def score_differences(self) -> None:
        """Score the two tokens of each first difference from no-SD that is not scored yet."""
        ledger, group = self._ledger, self._group
        parts = {line.part for line in ledger.rotations if line.purpose == "speed" and line.group == group.index}
        outputs = tables.read_outputs(ledger.folder.path, parts)
        for unit in group.units:
            lines = [line for line in ledger.rotations if line.unit == unit.key and line.purpose == "speed"]
            for reference_key, key in references(unit.arms):
                wanted = self._differences(unit, lines, outputs, reference_key, key)
                if not wanted or not self._arms.alive(reference_key):
                    continue
                try:
                    scores = self._arms.get(reference_key).score(wanted)
                except EngineError as error:
                    self._arms.fail(reference_key, unit, "trace", error)
                    continue
                ledger.add_scores(
                    [
                        ScoreLine(
                            session=ledger.session,
                            group=group.index,
                            target=unit.key.target,
                            workload=unit.key.workload,
                            batch_size=unit.key.batch_size,
                            rotation=request.rotation,
                            arm=key,
                            request=request.request,
                            position=request.position,
                            tokens=request.pair,
                            texts=score.texts,
                            best_logprob=score.best,
                            logprobs=score.pair,
                        )
                        for request, score in zip(wanted, scores, strict=True)
                    ]
                )

    def _differences(
        self,
        unit: Unit,
        lines: list[RotationLine],
        outputs: dict[tuple[str, str, int], list[Output]],
        reference_key: str,
        key: str,
    ) -> list[ScoreRequest]:
        wanted = []
        known = {(s.unit, s.rotation, s.arm, s.request) for s in self._ledger.scores}
        for line in lines:
            reference, other = outputs.get((line.part, reference_key, 0)), outputs.get((line.part, key, 0))
            if reference is None or other is None:
                continue
            found = tokendiff.first_differences([o.token_ids for o in reference], [o.token_ids for o in other])
            for index, position in enumerate(found):
                left, right = reference[index].token_ids, other[index].token_ids
                if position is None or position >= min(len(left), len(right)):
                    continue
                if (unit.key, line.rotation, key, index) in known:
                    continue
                prompt = self._ledger.prompts[unit.key.target, unit.key.workload, line.prompt_ids[index]]
                wanted.append(
                    ScoreRequest(
                        unit=unit.key,
                        rotation=line.rotation,
                        arm=key,
                        request=index,
                        position=position,
                        prefix=[*prompt, *left[:position]],
                        pair=(left[position], right[position]),
                    )
                )
        return wanted

    def measure_noise(self, prompt_set: Callable[[Unit, int], list[list[int]]]) -> None:
        """Measure the width of a tie, over as many positions as the cell with the most had at risk, and at least 1,024.

        On the no-SD arm alone: a variant with a fault must not widen the limit that it is judged by. `prompt_set` gives
        the prompts' token ids of a unit's rotation.
        """
        group, ledger = self._group, self._ledger
        if not any(line.group == group.index for line in ledger.scores):
            return  # everything is identical: no limit is needed
        measured = sum(line.positions for line in ledger.noise if line.group == group.index)
        done = {(line.workload, line.rotation) for line in ledger.noise if line.group == group.index}
        at_risk = max(MIN_NOISE_POSITIONS, *(self._positions_at_risk(unit) for unit in group.units))
        largest = max(unit.key.batch_size for unit in group.units)
        units = [unit for unit in group.units if unit.key.batch_size == largest]
        for rotation in range(MAX_NOISE_ROTATIONS):
            for unit in units:
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
                    found = sorted(self._arms.get(key).noise(request), reverse=True)
                except EngineError as error:
                    self._arms.fail(key, unit, "trace", error)
                    return
                measured += len(found)
                ledger.add(
                    NoiseLine(
                        session=ledger.session,
                        group=group.index,
                        target=group.target.name,
                        workload=unit.key.workload,
                        batch_size=largest,
                        rotation=rotation,
                        arm=key,
                        positions=len(found),
                        width_nats=max(found, default=0.0),
                        largest_nats=found[:10],
                    )
                )

    def _positions_at_risk(self, unit: Unit) -> int:
        requests = sum(
            line.requests
            for line in self._ledger.blocks
            if (line.unit, line.arm, line.purpose, line.pass_index) == (unit.key, unit.arms[0], "speed", 0)
        )
        return requests * unit.cells[0].output_tokens
