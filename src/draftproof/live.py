"""The started engines of a group, and how far its work is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from draftproof.engines import LiveArm
from draftproof.errors import EngineError, scrub
from draftproof.ledger import Ledger
from draftproof.plan import ArmSpec, Group, Unit
from draftproof.records import FailureLine
from draftproof.spec import Purpose, Study


class Progress(Protocol):
    """Where a run tells how far it is."""

    def say(self, text: str) -> None: ...

    def block(self, done: int, total: int, left_s: float | None, what: str) -> None: ...


def start_together(
    group: Group, specs: Sequence[ArmSpec], start: Callable[[Group, ArmSpec], LiveArm]
) -> dict[str, LiveArm | EngineError]:
    """Arms by key, or why they did not start: two at a time on a CPU, one by one where each measures free GPU memory.

    Any other error, an interrupt among them, ends those that did start.
    """
    found: dict[str, LiveArm | EngineError] = {}
    with ThreadPoolExecutor(2 if group.hardware.device == "cpu" else 1) as pool:
        futures = {spec.key: pool.submit(start, group, spec) for spec in specs}
        try:
            for key, future in futures.items():
                try:
                    found[key] = future.result()
                except EngineError as error:
                    found[key] = error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            for future in futures.values():
                with contextlib.suppress(BaseException):
                    future.result().close()
            raise
    return found


class LiveArms:
    """The started arms of a group; a crashed one is started again when its next cell comes.

    Where the hardware does not hold all of them, starting one ends the one before.
    """

    def __init__(
        self, group: Group, ledger: Ledger, start: Callable[[Group, ArmSpec], LiveArm], progress: Progress
    ) -> None:
        self._group = group
        self._ledger = ledger
        self._start = start
        self._progress = progress
        self._specs = {spec.key: spec for spec in (*group.arms, group.referee)}
        self._live: dict[str, LiveArm] = {}
        self._one_at_a_time = group.hardware.interleave != "live"

    def start(self) -> None:
        """Start every arm; one at a time: the first that starts, which is then there to read the prompts."""
        keys = [spec.key for spec in self._group.arms if self.alive(spec.key)]
        if self._one_at_a_time:
            for key in keys:
                with contextlib.suppress(EngineError):
                    self.get(key)
                    return
            return
        self._progress.say(f"loading {len(keys)} engines ({self._group.target.title}): {', '.join(keys)}")
        started = start_together(self._group, [self._specs[key] for key in keys], self._start)
        self._live |= {key: arm for key, arm in started.items() if not isinstance(arm, EngineError)}
        for key, error in started.items():
            if isinstance(error, EngineError):
                self.fail(key, None, "speed", error)

    def any_alive(self) -> bool:
        return any(self.alive(spec.key) for spec in self._group.arms)

    def alive(self, key: str) -> bool:
        return not self._ledger.is_dead(self._group.index, key)

    def loaded(self) -> list[str]:
        """Keys of the arms that are running now, in order."""
        return list(self._live)

    def get(self, key: str) -> LiveArm:
        """The running arm, started where it is not; EngineError, and recorded, where it cannot start."""
        if key not in self._live:
            if self._one_at_a_time:
                self.close()
                self._progress.say(f"loading {key} ({self._group.target.title})")
            try:
                self._live[key] = self._start(self._group, self._specs[key])
            except EngineError as error:
                self.fail(key, None, "speed", error)
                raise
        return self._live[key]

    def first(self) -> LiveArm:
        return next(iter(self._live.values()))

    def fail(self, key: str, unit: Unit | None, purpose: Purpose, error: EngineError) -> None:
        """Record a failure of one arm (no unit: it could not start) and end its process; the others go on."""
        self._ledger.add(
            FailureLine(
                session=self._ledger.session,
                group=self._group.index,
                target=self._group.target.name,
                arm=key,
                workload=unit.key.workload if unit else None,
                batch_size=unit.key.batch_size if unit else None,
                purpose=purpose,
                kind=error.kind,
                message=scrub(str(error)),
                log_tail=error.log_tail,
            )
        )
        if error.kind != "unavailable":
            self._progress.say(f"arm {key} failed: {error}")
            arm = self._live.pop(key, None)
            if arm is not None:
                arm.close()

    def close(self) -> None:
        """End all processes; what is asked for afterwards is started again."""
        for arm in self._live.values():
            arm.close()
        self._live.clear()


class Counter:
    """Blocks done, blocks to come, and the time left, from the seconds of the blocks so far."""

    def __init__(
        self,
        group: Group,
        ledger: Ledger,
        purposes: set[Purpose],
        study: Study,
        progress: Progress,
    ) -> None:
        self._progress = progress
        self._seconds: dict[tuple[int, str], list[float]] = {}
        self._left: list[tuple[int, str]] = []
        runs = [spec.key for spec in group.arms if spec.role == "run"]
        for unit in group.units:
            size = unit.key.batch_size
            if "speed" in purposes:
                missing = max(0, study.rotations_of(size)[0] - len(ledger.done(unit.key, "speed")))
                self._left += [(size, key) for key in unit.arms] * 2 * missing
            if "stages" in purposes:
                missing = max(0, study.stage_blocks - len(ledger.done(unit.key, "stages")))
                self._left += [(size, key) for key in unit.arms if key in runs] * missing
        self._total = len(self._left)
        self._done = 0

    def next(self, unit: Unit, key: str) -> None:
        """A block begins; those beyond the planned ones (repeats until the intervals are narrow) raise the total."""
        shape = (unit.key.batch_size, key)
        self._done += 1
        if shape in self._left:
            self._left.remove(shape)
        self._total = self._done + len(self._left)
        left_s = None
        if all(other in self._seconds for other in {*self._left, shape}):
            left_s = sum(self._mean(other) for other in [*self._left, shape])
        self._progress.block(self._done, self._total, left_s, f"{unit.key.workload} b{unit.key.batch_size} {key}")

    def took(self, unit: Unit, key: str, seconds: float) -> None:
        self._seconds.setdefault((unit.key.batch_size, key), []).append(seconds)

    def _mean(self, shape: tuple[int, str]) -> float:
        return sum(self._seconds[shape]) / len(self._seconds[shape])
