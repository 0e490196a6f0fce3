"""Noise of a recorded run's blocks, in the order of time, to draw simulated noise from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec

from draftproof.records import BlockLine
from tests.power.sessions import Noise

RECORDED = Path(__file__).parent / "residuals.json"


class Residuals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a recorded run's noise looks like."""

    source: str
    """Which run, on which machine: nothing else is kept of it."""
    stretches: list[list[float]]
    """Log noise of blocks that followed each other on one pass of a rotation."""


def residuals(blocks: Iterable[BlockLine]) -> list[list[float]]:
    """One stretch a pass of a rotation: log seconds less what the arm takes for the prompt set, its mean over passes.

    Two passes share one mean, which takes half of the variance with it: multiplied by sqrt(passes / (passes - 1)). What
    an arm has from one pass it lacks on the other, so passes are stretches of their own; drawn together they would
    cancel. Noise that lasts from a pass to the next is in the mean and does not show.
    """
    rotations: dict[object, dict[str, list[BlockLine]]] = {}
    for block in blocks:
        if block.purpose == "speed":
            rotations.setdefault((block.unit, block.rotation), {}).setdefault(block.arm, []).append(block)
    found = []
    for arms in rotations.values():
        passes: dict[int, list[tuple[int, float]]] = {}
        for ours in arms.values():
            if len(ours) < 2:
                continue
            scale = math.sqrt(len(ours) / (len(ours) - 1))
            mean = sum(math.log(block.seconds) for block in ours) / len(ours)
            for block in ours:
                noise = scale * (math.log(block.seconds) - mean)
                passes.setdefault(block.pass_index, []).append((block.order, noise))
        found += [[value for _, value in sorted(one)] for one in passes.values()]
    return found


def recorded_noise(path: Path = RECORDED) -> Noise:
    """Noise whose blocks are drawn from a recorded run's."""
    recorded = msgspec.json.decode(path.read_bytes(), type=Residuals)
    return Noise(residuals=tuple(map(tuple, recorded.stretches)))
