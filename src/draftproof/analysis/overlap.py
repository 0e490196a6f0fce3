"""How much of an output stands in its prompt already, and what n-gram lookup gains by it.

Overlap of a request is BLEU-4 (sacrebleu) on token ids: each id is one word of a string (``tokenize="none"``).
Hypothesis: no-SD's output; reference: the prompt, template included; so it is the precision of the output's 1- to
4-grams, with the brevity penalty for outputs shorter than their prompts. Smoothing ``exp``, effective order:
sacrebleu's own choice for single segments. Figure 9 of arXiv 2601.11580 does not say which of these it took.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from draftproof.analysis.stats import PairSums, Ratio, jackknife, ratio_of_totals

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Five equal bins, as in the figure; the last holds 1."""
FEW = 10
"""Bins of fewer prompts are marked."""


class Point(NamedTuple):
    """One prompt: its overlap, and what the n-gram arm and the learned one (`base_...`) took for it."""

    overlap: float
    sums: PairSums


class OverlapBin(msgspec.Struct, frozen=True, kw_only=True):
    low: float
    high: float
    prompts: int
    few: bool
    """Fewer than ten prompts: the figure hangs on single requests."""
    advantage: Ratio | None
    """Throughput of the n-gram variant over the learned one's, totals over the prompts; None below two prompts."""


def bleu_metric() -> Any:
    """sacrebleu's metric as stated above; loaded here, since it takes a while."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="none", smooth_method="exp", max_ngram_order=4, effective_order=True)


def bleu4(metric: Any, prompt: Sequence[int], output: Sequence[int]) -> float:
    """Overlap from 0 to 1; 0 for an empty output."""
    if not output:
        return 0.0
    found = metric.sentence_score(" ".join(map(str, output)), [" ".join(map(str, prompt))])
    return min(1.0, max(0.0, float(found.score) / 100))


def overlap_bins(points: Sequence[Point]) -> list[OverlapBin]:
    """All five bins, empty ones too."""
    found = []
    for number, (low, high) in enumerate(itertools.pairwise(EDGES)):
        sums = [point.sums for point in points if bin_of(point.overlap) == number]
        found.append(OverlapBin(low=low, high=high, prompts=len(sums), few=len(sums) < FEW, advantage=advantage(sums)))
    return found


def bin_of(overlap: float) -> int:
    return next(number for number, high in enumerate(EDGES[1:]) if overlap < high or high == EDGES[-1])


def advantage(sums: Sequence[PairSums]) -> Ratio | None:
    if len(sums) < 2:
        return None
    left_out = [ratio_of_totals([*sums[:at], *sums[at + 1 :]]) for at in range(len(sums))]
    return jackknife(ratio_of_totals(sums), left_out, "delete-one jackknife over prompts, t quantile")
