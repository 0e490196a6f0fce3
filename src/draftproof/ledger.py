"""What a run holds so far, in memory and on disk: whoever adds to it adds to both, the disk first."""

from __future__ import annotations

from typing import Any

from draftproof.records import (
    AnyLine,
    ArmLine,
    Axis,
    BlockLine,
    FailureLine,
    GroupLine,
    NoiseLine,
    Output,
    RotationLine,
    RunFolder,
    ScoreLine,
    SessionLine,
    UnitKey,
    WorkloadLine,
)
from draftproof.spec import Purpose


class Ledger:
    """One session's view of one run folder."""

    def __init__(self, folder: RunFolder, session: SessionLine) -> None:
        folder.repair()
        data = folder.read()
        self.folder = folder
        self.header = data.header
        self.session = session.session
        self.blocks: list[BlockLine] = data.blocks
        self.rotations: list[RotationLine] = data.rotations
        self.arms: list[ArmLine] = data.arms
        self.scores: list[ScoreLine] = data.scores
        self.noise: list[NoiseLine] = data.noise
        self.workloads: dict[tuple[str, str], WorkloadLine] = {(w.target, w.workload): w for w in data.workloads}
        self.prompts: dict[tuple[str, str, str], list[int]] = folder.prompts()
        self._failed: set[tuple[UnitKey, str, Purpose]] = set()
        self._dead: set[tuple[int, str]] = set()
        self._closed: dict[int, set[Purpose]] = {}
        for failure in data.failures:
            self._note_failure(failure)
        for closing in data.groups:
            self._closed.setdefault(closing.group, set()).update(closing.purposes)
        folder.append([session])

    def done(self, unit: UnitKey, purpose: Purpose, axis: Axis | None = None) -> set[int]:
        """Rotations of a unit that are recorded."""
        wanted = (unit, purpose, axis)
        return {line.rotation for line in self.rotations if (line.unit, line.purpose, line.axis) == wanted}

    def closed(self, group: int) -> set[Purpose]:
        """Purposes for which a group has nothing left to do."""
        return self._closed.get(group, set())

    def close(self, group: int, purposes: set[Purpose]) -> None:
        self.folder.append([GroupLine(session=self.session, group=group, purposes=sorted(purposes))])
        self._closed.setdefault(group, set()).update(purposes)

    def spent_s(self) -> float:
        """Seconds of all recorded blocks that a throughput figure may come from."""
        return sum(block.seconds for block in self.blocks if block.purpose == "speed")

    def is_dead(self, group: int, arm: str) -> bool:
        """Whether the arm could not be started in this run."""
        return (group, arm) in self._dead

    def has_failed(self, unit: UnitKey, arm: str, purpose: Purpose) -> bool:
        """A failed cell stays failed in its run: it is never run again until it happens to be green."""
        return (unit, arm, purpose) in self._failed or self.is_dead(unit.group, arm)

    def add(self, line: WorkloadLine | FailureLine | NoiseLine | AnyLine) -> None:
        self.folder.append([line])
        if isinstance(line, WorkloadLine):
            self.workloads[line.target, line.workload] = line
        elif isinstance(line, ArmLine):
            self.arms.append(line)
        elif isinstance(line, NoiseLine):
            self.noise.append(line)
        elif isinstance(line, FailureLine):
            self._note_failure(line)

    def add_scores(self, lines: list[ScoreLine]) -> None:
        self.folder.append(lines)
        self.scores.extend(lines)

    def add_prompts(self, prompts: dict[tuple[str, str, str], list[int]]) -> None:
        self.prompts.update(prompts)
        self.folder.write_prompts(self.prompts)

    def add_rotation(
        self,
        closing: RotationLine,
        blocks: list[BlockLine],
        outputs: list[list[Output]],
        steps: list[list[dict[str, Any]]],
    ) -> None:
        self.folder.add_rotation(closing, blocks, outputs, steps)
        self.blocks.extend(blocks)
        self.rotations.append(closing)

    def _note_failure(self, failure: FailureLine) -> None:
        if failure.workload is None or failure.batch_size is None:
            self._dead.add((failure.group, failure.arm))
            return
        unit = UnitKey(failure.group, failure.target, failure.workload, failure.batch_size)
        purposes: tuple[Purpose, ...] = ("speed", "stages") if failure.purpose == "speed" else (failure.purpose,)
        self._failed |= {(unit, failure.arm, purpose) for purpose in purposes}
