"""Blocks of the same prompt sets on two arms, summed cluster by cluster."""

from __future__ import annotations

from collections.abc import Iterable

from draftproof.analysis.stats import PairSums
from draftproof.records import BlockLine, UnitKey


def speed_pairs(blocks: Iterable[BlockLine], unit: UnitKey, arm: str, base: str) -> list[PairSums]:
    """One `PairSums` a rotation that both arms finished: its passes on `arm` and on `base`, added.

    Only ``speed`` blocks count. A rotation is a cluster: it has a prompt set of its own.
    """
    return list(rotation_pairs(blocks, unit, arm, base).values())


def rotation_pairs(blocks: Iterable[BlockLine], unit: UnitKey, arm: str, base: str) -> dict[int, PairSums]:
    """The same by rotation, in order."""
    sums: dict[tuple[int, str], list[float]] = {}
    for block in blocks:
        if block.unit == unit and block.purpose == "speed" and block.arm in (arm, base):
            entry = sums.setdefault((block.rotation, block.arm), [0.0, 0.0])
            entry[0] += block.output_tokens
            entry[1] += block.seconds
    pairs = {}
    for rotation in sorted({rotation for rotation, _ in sums}):
        ours, theirs = sums.get((rotation, arm)), sums.get((rotation, base))
        if ours and theirs:
            pairs[rotation] = PairSums(tokens=ours[0], seconds=ours[1], base_tokens=theirs[0], base_seconds=theirs[1])
    return pairs


def waiting_share(blocks: list[BlockLine], threads: int | None) -> float | None:
    """Of an arm's blocks: how much of its threads' time they stood ready and had no CPU; None: not recorded."""
    seconds = sum(block.seconds for block in blocks)
    if not threads or seconds <= 0 or any(block.waited_s is None for block in blocks):
        return None
    lost = sum((block.waited_s or 0.0) + (block.stolen_s or 0.0) for block in blocks)
    return lost / (seconds * threads)
