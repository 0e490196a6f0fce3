"""Rules of the table of output lengths: a prompt is one observation, differences are paired, nothing is left out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from draftproof.analysis.lengths import LengthRow, layout, length_rows
from draftproof.errors import DraftproofError

LIMIT = 64
TOKENS = st.lists(st.integers(1, LIMIT), min_size=1, max_size=3)
CELLS = st.lists(st.tuples(TOKENS, TOKENS), min_size=2, max_size=8)


def row_of(own: dict[str, list[int]], reference: dict[str, list[int]], limit: int = LIMIT) -> LengthRow:
    """The row of n-gram lookup against no-SD."""
    _, row = length_rows({("no_sd", 1): reference, ("ngram", 1): own}, limit)
    return row


def test_a_row_by_hand() -> None:
    """Lengths 10, 20, 30 against 10, 24, 32: the mean falls by 2, one prompt by 0, one by 4, one by 2."""
    first, row = length_rows(
        {
            ("no_sd", 1): {"p": [10], "q": [24], "r": [32]},
            ("ngram", 8): {"p": [10], "q": [20], "r": [30]},
        },
        32,
    )
    assert (first.variant, first.batch_size, first.prompts, first.mean, first.capped) == ("no_sd", 1, 3, 22.0, 1)
    assert (first.difference, first.low, first.high) == (None, None, None)
    assert (row.variant, row.batch_size, row.prompts, row.mean, row.capped) == ("ngram", 8, 3, 20.0, 0)
    assert row.deviation == pytest.approx(10.0)
    assert row.difference == pytest.approx(-2.0)
    reach = 4.302652729749464 * 2 / math.sqrt(3)  # t at 2 degrees of freedom
    assert (row.low, row.high) == pytest.approx((-2 - reach, -2 + reach))


@given(CELLS)
def test_a_row_is_the_slow_one(pairs: list[tuple[list[int], list[int]]]) -> None:
    row = row_of({str(i): own for i, (own, _) in enumerate(pairs)}, {str(i): base for i, (_, base) in enumerate(pairs)})
    own = [sum(tokens) / len(tokens) for tokens, _ in pairs]
    base = [sum(tokens) / len(tokens) for _, tokens in pairs]
    mean = sum(own) / len(own)
    assert row.mean == pytest.approx(mean)
    assert row.deviation == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in own) / (len(own) - 1)))
    assert row.capped == sum(max(tokens) == LIMIT for tokens, _ in pairs)
    shifts = [a - b for a, b in zip(own, base, strict=True)]
    assert row.difference == pytest.approx(sum(shifts) / len(shifts))
    if max(shifts) - min(shifts) > 1e-9:  # scipy's interval of no spread is NaN, with a warning
        interval = scipy_stats.ttest_1samp(shifts, 0).confidence_interval()
        assert (row.low, row.high) == pytest.approx((interval.low, interval.high))
    else:
        assert (row.low, row.high) == pytest.approx((row.difference, row.difference))


@given(CELLS)
def test_the_difference_is_that_of_the_means_with_its_sign(pairs: list[tuple[list[int], list[int]]]) -> None:
    own = {str(i): tokens for i, (tokens, _) in enumerate(pairs)}
    base = {str(i): tokens for i, (_, tokens) in enumerate(pairs)}
    there, back = row_of(own, base), row_of(base, own)
    assert there.difference == pytest.approx(there.mean - back.mean)
    assert back.difference == pytest.approx(back.mean - there.mean)
    assert back.low is not None
    assert back.high is not None
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_a_prompt_seen_often_is_one_observation() -> None:
    """128 copies of one prompt weigh no more than the one output of another, and narrow nothing."""
    once = {"p": [10], "q": [30], "r": [33]}
    often = once | {"p": [10] * 128}
    assert row_of(often, once) == row_of(once, once)
    assert row_of(often, once).mean == pytest.approx(73 / 3)
    assert row_of({"p": [8, 12], "q": [30], "r": [33]}, once) == row_of(once, once)


def test_a_shift_shows_where_means_hide_it() -> None:
    """Every prompt stops four tokens late: small beside what prompts differ by, and clear prompt by prompt."""
    base = {str(i): [10 + 7 * i] for i in range(40)}
    late = {key: [tokens[0] + 4 + i % 2] for i, (key, tokens) in enumerate(base.items())}
    row = row_of(late, base, 1000)
    assert row.deviation is not None
    assert row.difference is not None
    assert row.low is not None
    assert row.low > 4 > row.difference / row.deviation
    same = row_of(base, base, 1000)
    assert (same.difference, same.low, same.high) == (0.0, 0.0, 0.0)


def test_the_reference_is_no_sd_at_its_smallest_batch() -> None:
    rows = length_rows(
        {
            ("ngram", 1): {"p": [5], "q": [7]},
            ("no_sd", 8): {"p": [4], "q": [6]},
            ("no_sd", 2): {"p": [3], "q": [3]},
        },
        LIMIT,
    )
    assert [(row.variant, row.batch_size, row.difference) for row in rows] == [
        ("ngram", 1, 3.0),
        ("no_sd", 8, 2.0),
        ("no_sd", 2, None),
    ]


def test_one_prompt_has_neither_spread_nor_difference() -> None:
    row = row_of({"p": [5]}, {"p": [7]})
    assert (row.prompts, row.mean, row.deviation) == (1, 5.0, None)
    assert (row.difference, row.low, row.high) == (None, None, None)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"p": [1]}, r"prompts of ngram at B = 1 must be the reference's \(it lacks 1: q\)"),
        ({"p": [1], "q": [1], "s": [1]}, r"\(it has besides 1: s\)"),
        ({"p": [1], "s": [1]}, r"\(it lacks 1: q and has besides 1: s\)"),
        (
            {"p": [1], "q": [1]} | {f"s{i}": [1] for i in range(7)},
            r"\(it has besides 7: s0, s1, s2, s3, s4, \.\.\.\)",
        ),
        ({}, r"must be given for every prompt \(ngram at B = 1\)"),
        ({"p": [1], "q": []}, r"must be given for every prompt \(ngram at B = 1\)"),
        ({"p": [1], "q": [65]}, r"output tokens of q \(ngram at B = 1\) must be from 1 to the limit of 64 \(got 65\)"),
        ({"p": [0], "q": [1]}, r"output tokens of p \(ngram at B = 1\) must be from 1 to the limit of 64 \(got 0\)"),
    ],
)
def test_a_cell_that_cannot_be_compared_is_an_error(own: dict[str, list[int]], message: str) -> None:
    """The mean of other prompts is another mean; nothing is cut to what both have."""
    with pytest.raises(DraftproofError, match=message):
        row_of(own, {"p": [1], "q": [1]})


def test_without_no_sd_there_is_no_reference() -> None:
    with pytest.raises(DraftproofError, match=r"got 'no_sd'\); known: eagle, ngram; run no-SD as well"):
        length_rows({("ngram", 1): {"p": [1]}, ("eagle", 1): {"p": [1]}}, LIMIT)


# -- the table -------------------------------------------------------------------------------------------------------


def test_the_table_has_the_papers_layout() -> None:
    """Variants down in the order given, batch sizes across and rising; a cell that was not run stays empty."""
    rows = length_rows(
        {
            ("no_sd", 8): {"p": [10], "q": [21]},
            ("no_sd", 1): {"p": [10], "q": [20]},
            ("eagle", 8): {"p": [12], "q": [64]},
        },
        LIMIT,
    )
    head, body = layout(rows)
    assert head == ["variant", "B = 1", "B = 8"]
    assert body == [
        ["no_sd", "15.0 ± 7.1", "15.5 ± 7.8"],
        ["", "reference", "Δ +0.5 [-5.9, 6.9]"],
        ["eagle", "", "38.0 ± 36.8"],
        ["", "", "Δ +23.0 [-243.8, 289.8], 1 of 2 at the limit"],
    ]


def test_a_table_of_one_prompt_claims_no_spread() -> None:
    rows = length_rows({("no_sd", 1): {"p": [10]}, ("ngram", 1): {"p": [64]}}, LIMIT)
    assert layout(rows)[1] == [
        ["no_sd", "10.0"],
        ["", "no Δ of one prompt"],
        ["ngram", "64.0"],
        ["", "no Δ of one prompt, 1 of 1 at the limit"],
    ]


def test_a_table_of_nothing_is_a_head() -> None:
    assert layout([]) == (["variant"], [])
