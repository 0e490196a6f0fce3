"""Look-ups over one run's records."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from draftproof.analysis.pairs import rotation_pairs
from draftproof.analysis.stats import PairSums
from draftproof.plan import is_no_sd
from draftproof.records import (
    ArmLine,
    BlockLine,
    FailureLine,
    NoiseLine,
    Output,
    RotationLine,
    RunData,
    ScoreLine,
    UnitKey,
)
from draftproof.spec import Cell

Line = TypeVar("Line")


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cell was run: its arm and the no-SD arm beside it."""

    cell: Cell
    build: str
    arm: ArmLine | None
    """None: it never started."""
    base: ArmLine | None
    key: str
    base_key: str
    unit: UnitKey | None

    @property
    def name(self) -> tuple[str, str]:
        return self.cell.id, self.build

    @property
    def speculative(self) -> bool:
        return self.key != self.base_key


class View:
    """Look-ups over one run's records."""

    def __init__(
        self,
        data: RunData,
        outputs: Mapping[tuple[str, str, int], list[Output]],
        steps: Mapping[tuple[str, str], list[dict[str, Any]]],
    ) -> None:
        self.data = data
        self.outputs = outputs
        self.steps = steps
        self._rotations = grouped(data.rotations, lambda line: (line.unit, line.purpose))
        self._blocks = grouped(data.blocks, lambda block: (block.unit, block.arm, block.purpose))
        self._scores = grouped(data.scores, lambda line: (line.unit, line.arm))
        self._noise = grouped(data.noise, lambda line: line.target)
        self._failures = grouped(enumerate(data.failures), lambda found: (found[1].target, found[1].arm))
        self._arms = grouped(
            (arm for arm in data.arms if arm.role == "run"), lambda arm: (arm.target, arm.variant, arm.build)
        )
        self._bases = grouped(
            (arm for arm in data.arms if arm.role == "run" and arm.variant == "no_sd"),
            lambda arm: (arm.group, arm.build),
        )

    def arm_of(self, cell: Cell, build: str) -> ArmLine | None:
        return next(iter(self._arms.get((cell.target, cell.variant, build), [])), None)

    def place(self, cell: Cell, build: str) -> Placed:
        arm = self.arm_of(cell, build)
        base = self.base_of(arm, build) if arm else None
        return Placed(
            cell=cell,
            build=build,
            arm=arm,
            base=base,
            key=arm.arm if arm else ("base:" if build == "base" else "") + cell.variant,
            base_key=base.arm if base else self.missing_base(arm, build),
            unit=UnitKey(arm.group, cell.target, cell.workload, cell.batch_size) if arm else None,
        )

    def base_of(self, arm: ArmLine, build: str) -> ArmLine | None:
        """The no-SD arm that was alive together with this one."""
        return next(iter(self._bases.get((arm.group, build), [])), None)

    def noise(self, target: str) -> list[NoiseLine]:
        return self._noise.get(target, [])

    def noise_width(self, target: str) -> float | None:
        """Largest distance of an engine's gap between two tokens from the referee's; None: not measured."""
        return max((line.width_nats for line in self.noise(target)), default=None)

    def scores(self, unit: UnitKey, arm: str) -> list[ScoreLine]:
        """Of an arm's first differences from no-SD."""
        return self._scores.get((unit, arm), [])

    def failures(self, place: Placed) -> list[FailureLine]:
        """Of a cell's arm or its no-SD, at its workload and batch size or before any."""
        cell = place.cell
        found = [
            (number, line)
            for arm in {place.key, place.base_key}
            for number, line in self._failures.get((cell.target, arm), [])
            if line.workload in (None, cell.workload) and line.batch_size in (None, cell.batch_size)
        ]
        return [line for _, line in sorted(found, key=lambda pair: pair[0])]

    def missing_base(self, arm: ArmLine | None, build: str) -> str:
        """Key of the no-SD arm that should have been there: the one that failed to start beside `arm`."""
        own = "base:" if build == "base" else ""
        failed = [f.arm for f in self.data.failures if f.workload is None and (arm is None or f.group == arm.group)]
        return next((key for key in failed if is_no_sd(key) and key.startswith("base:") == bool(own)), f"{own}no_sd")

    def first(self, line: RotationLine, arm: str) -> list[Output] | None:
        """What an arm wrote in the first pass of a rotation; None where it has no block there."""
        return self.outputs.get((line.part, arm, 0))

    def answers(self, unit: UnitKey, arm: str) -> Iterator[tuple[str, Output]]:
        """(Prompt, output) of each request of an arm's first passes."""
        for line in self.rotations(unit, "speed"):
            yield from zip(line.prompt_ids, self.first(line, arm) or [], strict=False)

    def rotations(self, unit: UnitKey, purpose: str) -> list[RotationLine]:
        return self._rotations.get((unit, purpose), [])

    def blocks(self, unit: UnitKey, arm: str, purpose: str) -> list[BlockLine]:
        return self._blocks.get((unit, arm, purpose), [])

    def pairs(self, unit: UnitKey, arm: str, base: str) -> dict[int, PairSums]:
        """Rotation -> totals of both arms, see `draftproof.analysis.pairs.rotation_pairs`."""
        blocks = [*self.blocks(unit, arm, "speed"), *self.blocks(unit, base, "speed")]
        return rotation_pairs(blocks, unit, arm, base)


def grouped(lines: Iterable[Line], key: Callable[[Line], Hashable]) -> dict[Hashable, list[Line]]:
    """Key -> the lines that have it, in their order."""
    found: dict[Hashable, list[Line]] = {}
    for line in lines:
        found.setdefault(key(line), []).append(line)
    return found
