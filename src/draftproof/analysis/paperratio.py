"""The estimator of arXiv 2601.11580 beside ours: a ratio of unweighted means over blocks that ended by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from draftproof.analysis.stats import Ratio, jackknife

MOST_BLOCKS = 100
"""Surviving blocks of a batch size that the authors' code takes (``max_reqs``). A pass here is what their run is, so
that each pass has as many."""


class PaperBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One ``generate`` of B copies or prompts on one arm."""

    rotation: int
    pass_index: int
    tokens: int
    """Output tokens of all its requests."""
    seconds: float
    stopped: bool
    """Its first request ended with EOS (finish reason ``stop``)."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def survivors(blocks: Sequence[PaperBlock], *, ignore_eos: bool) -> list[PaperBlock]:
    """What counts, in the order of rotations. Where EOS is ignored nothing can end by itself: every block survives."""
    alive = sorted((b for b in blocks if ignore_eos or b.stopped), key=lambda b: (b.pass_index, b.rotation))
    kept: dict[int, list[PaperBlock]] = {}
    for block in alive:
        kept.setdefault(block.pass_index, []).append(block)
    return [block for of_pass in kept.values() for block in of_pass[:MOST_BLOCKS]]


def paper_ratio(ours: Sequence[PaperBlock], base: Sequence[PaperBlock], *, ignore_eos: bool) -> Ratio | None:
    """Mean tokens/s of `ours` over mean tokens/s of `base`, each over its own survivors.

    Source: the authors' scripts/vis_speedup.py: per block output tokens / wall seconds; of an arm the unweighted mean.
    The interval is ours: delete-one jackknife over prompt sets, a set left out of both arms. None where a set cannot be
    left out: fewer than two, or an arm with survivors of one set alone.

    Raises ValueError where a block that counts has no tokens or no seconds.
    """
    kept, base_kept = survivors(ours, ignore_eos=ignore_eos), survivors(base, ignore_eos=ignore_eos)
    for block in (*kept, *base_kept):
        if not (block.tokens > 0 and math.isfinite(block.seconds) and block.seconds > 0):
            raise ValueError(f"tokens and seconds of a block must be positive and finite (got {block})")
    if any(len({block.rotation for block in arm}) < 2 for arm in (kept, base_kept)):
        return None
    rotations = sorted({block.rotation for block in (*kept, *base_kept)})
    left_out = [ratio_of_means(without(kept, rotation), without(base_kept, rotation)) for rotation in rotations]
    which = "blocks, EOS ignored: none is left out" if ignore_eos else "blocks whose first request ended with EOS"
    method = f"unweighted means of {len(kept)} and {len(base_kept)} {which}; jackknife over prompt sets, t quantile"
    return jackknife(ratio_of_means(kept, base_kept), left_out, method)


def ratio_of_means(ours: Sequence[PaperBlock], base: Sequence[PaperBlock]) -> float:
    def mean(blocks: Sequence[PaperBlock]) -> float:
        return sum(block.tokens_per_s for block in blocks) / len(blocks)

    return mean(ours) / mean(base)


def without(blocks: Sequence[PaperBlock], rotation: int) -> list[PaperBlock]:
    return [block for block in blocks if block.rotation != rotation]
