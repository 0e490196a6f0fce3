"""Look-ups over one run's records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from draftproof.plan import is_no_sd
from draftproof.records import ArmLine, BlockLine, Output, RotationLine, RunData, UnitKey
from draftproof.spec import Cell


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
        outputs: dict[tuple[str, str, int], list[Output]],
        steps: dict[tuple[str, str], list[dict[str, Any]]],
    ) -> None:
        self.data = data
        self.outputs = outputs
        self.steps = steps
        self._rotations: dict[UnitKey, list[RotationLine]] = {}
        self._blocks: dict[UnitKey, list[BlockLine]] = {}
        for line in data.rotations:
            self._rotations.setdefault(line.unit, []).append(line)
        for block in data.blocks:
            self._blocks.setdefault(block.unit, []).append(block)

    def arm_of(self, cell: Cell, build: str) -> ArmLine | None:
        return next(
            (
                arm
                for arm in self.data.arms
                if (arm.target, arm.variant, arm.build, arm.role) == (cell.target, cell.variant, build, "run")
            ),
            None,
        )

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
        return next(
            (
                other
                for other in self.data.arms
                if (other.group, other.variant, other.build, other.role) == (arm.group, "no_sd", build, "run")
            ),
            None,
        )

    def noise_width(self, target: str) -> float | None:
        """Largest distance of an engine's gap between two tokens from the referee's; None: not measured."""
        return max((line.width_nats for line in self.data.noise if line.target == target), default=None)

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
        return [line for line in self._rotations.get(unit, []) if line.purpose == purpose]

    def unit_blocks(self, unit: UnitKey) -> list[BlockLine]:
        """All blocks of a unit, of every arm and purpose."""
        return self._blocks.get(unit, [])

    def blocks(self, unit: UnitKey, arm: str, purpose: str) -> list[BlockLine]:
        return [b for b in self.unit_blocks(unit) if b.arm == arm and b.purpose == purpose]
