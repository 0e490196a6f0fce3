"""Overlap of prompt and output: BLEU-4 on ids as stated, five bins, few prompts marked."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.overlap import EDGES, Point, bin_of, bleu4, bleu_metric, overlap_bins
from draftproof.analysis.stats import PairSums

METRIC = bleu_metric()


def slow_bleu(prompt: list[int], output: list[int]) -> float:
    """BLEU-4 as Papineni et al. (2002) write it, with sacrebleu's `exp` smoothing and effective order."""
    logs, smooth, order = [], 1.0, 0
    for n in range(1, 5):
        grams = Counter(tuple(output[i : i + n]) for i in range(len(output) - n + 1))
        inside = Counter(tuple(prompt[i : i + n]) for i in range(len(prompt) - n + 1))
        total = sum(grams.values())
        right = sum(min(count, inside[gram]) for gram, count in grams.items())
        if not total:
            break
        if n == 1 and not right:
            return 0.0
        order = n
        if not right:
            smooth *= 2
            logs.append(math.log(1 / (smooth * total)))
        else:
            logs.append(math.log(right / total))
    brevity = 1.0 if len(output) >= len(prompt) else math.exp(1 - len(prompt) / len(output))
    return brevity * math.exp(sum(logs) / order)


ids = st.lists(st.integers(0, 5), min_size=1, max_size=25)


@given(ids, ids)
def test_it_is_bleu_4_of_the_output_against_the_prompt(prompt: list[int], output: list[int]) -> None:
    assert bleu4(METRIC, prompt, output) == pytest.approx(slow_bleu(prompt, output), abs=1e-9)


def test_the_output_is_the_hypothesis() -> None:
    """A short output that stands in a long prompt bears the brevity penalty; the other way round it would not."""
    assert bleu4(METRIC, list(range(20)), list(range(10))) == pytest.approx(math.exp(-1))
    assert bleu4(METRIC, list(range(20)), list(range(20))) == pytest.approx(1.0)
    assert bleu4(METRIC, [1, 2, 3], [11, 12, 13]) == 0.0
    assert bleu4(METRIC, [1], []) == 0.0


def test_ids_are_words_not_digits() -> None:
    """Planted: 12 and 3 must not pass for 1 and 23."""
    assert bleu4(METRIC, [1, 23, 4, 5], [12, 3, 45, 6]) == 0.0


def test_bins_hold_their_lower_edge_and_the_last_one_holds_1() -> None:
    assert [bin_of(value) for value in (0.0, 0.19, 0.2, 0.5, 0.8, 1.0)] == [0, 0, 1, 2, 4, 4]


def point(overlap: float, ratio: float, weight: float = 1.0) -> Point:
    return Point(overlap, PairSums(tokens=weight, seconds=weight, base_tokens=weight, base_seconds=weight * ratio))


def test_a_planted_advantage_is_found_in_its_bin() -> None:
    """Half as fast again where the output stands in the prompt, slower where it does not."""
    points = [point(0.1, 0.8, 1 + n / 10) for n in range(12)] + [point(0.9, 1.5, 1 + n / 10) for n in range(4)]
    bins = overlap_bins(points)
    assert [found.prompts for found in bins] == [12, 0, 0, 0, 4]
    assert [found.few for found in bins] == [False, True, True, True, True]
    assert [found.low for found in bins] == list(EDGES[:-1])
    assert bins[0].advantage is not None
    assert bins[0].advantage.value == pytest.approx(0.8)
    assert bins[1].advantage is None
    assert bins[4].advantage is not None
    assert bins[4].advantage.value == pytest.approx(1.5)


def test_one_prompt_has_no_interval_and_so_no_figure() -> None:
    assert overlap_bins([point(0.5, 2.0)])[2].advantage is None
