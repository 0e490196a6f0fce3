"""Rules of the second table and of the curves over batch sizes: the same figures in all three reports."""

from __future__ import annotations

import math

import pytest

from draftproof.analysis.acceptance import Acceptance, PerRequest
from draftproof.analysis.decay import Point, decay_of
from draftproof.analysis.latency import Latency, Spread
from draftproof.analysis.stats import Ratio
from draftproof.metrics import METRICS, OTHER_METRICS, spread_text
from draftproof.report.markdown import render_markdown
from draftproof.report.speed import break_even_text, decay_lines, outside_text, tables
from draftproof.report.terminal import summary_lines
from draftproof.results import CellResult, RunResults, decays
from tests.reporting import broken, cell, header, page, ratio, reference, run


def exact(value: float, error: float = 0.01) -> Ratio:
    reach = 2.2 * error
    low, high = value * math.exp(-reach), value * math.exp(reach)
    return Ratio(value=value, low=low, high=high, clusters=12, method="", log_error=error)


def latency(ttft_s: float, per_token_s: float) -> Latency:
    return Latency(
        ttft=Spread(requests=12, median_s=ttft_s, p95_s=2 * ttft_s),
        per_token=Spread(requests=12, median_s=per_token_s, p95_s=2 * per_token_s),
    )


ACCEPTANCE = Acceptance(
    num_drafts=100,
    num_draft_tokens=300,
    num_accepted_tokens=150,
    length=2.5,
    rate=0.5,
    per_position=[],
    tokens_per_step=2.1,
    per_request=PerRequest(requests=12, mean=2.61, quartiles=(2.05, 2.5, 3.25)),
)


def over_sizes(*speedups: float, variant: str = "ngram", sizes: tuple[int, ...] = (1, 4, 16, 64)) -> list[CellResult]:
    return [cell(variant, "chat", size, speedup=exact(value)) for size, value in zip(sizes, speedups, strict=True)]


def with_curves(*cells: CellResult) -> RunResults:
    return run(*cells, decays=decays(list(cells)))


FULL = with_curves(
    reference(),
    *over_sizes(1.6, 1.2, 1 / 1.2, 0.6),
    *over_sizes(1.9, 1.8, 1.7, 1.6, variant="oracle"),
    cell("eagle", paper_ratio=ratio(1.31, 1.2, 1.4), latency=latency(0.5, 0.0123), base_latency=latency(0.25, 0.031)),
    cell("eagle3", acceptance=ACCEPTANCE),
    broken(),
)


def test_all_of_it_is_in_the_three_reports() -> None:
    """The closing table has no column more; terminal lines hold the curves, page and Markdown both tables."""
    found, text = page(FULL), render_markdown(FULL, header())
    markdown = text.replace("\\", "")
    for what in (
        "1.31x [1.20, 1.40]",
        "500 / 1000",
        "250 / 500",
        "12.3 / 24.6",
        "31.0 / 62.0",
        "2.61 (2.05 / 2.50 / 3.25)",
        "not reached in the grid: above 64",
        break_even_text(FULL.decays[0]),
        "0.0 % below 1, 100.0 % above 64",
        *[metric.formula for metric in OTHER_METRICS],
    ):
        assert what in found.text, what
        assert what in markdown, what
    lines = summary_lines(FULL, width=200)
    assert (
        "  oracle on chat: 0.97x [0.97, 0.98] per doubling of B; break-even B not reached in the grid: above 64"
        in lines
    )
    assert len(METRICS) == 6


def test_a_run_without_a_speculative_cell_has_no_section() -> None:
    assert tables(run(reference())) == []
    assert "Latency" not in page(run(reference())).text
    assert "## Latency" not in render_markdown(run(reference()), header())


def test_what_was_not_recorded_is_a_dash() -> None:
    """Records from before the times were kept: no figure is made up."""
    (table,) = tables(run(cell()))
    assert table.body == [["ngram", "chat", "1", "-", "-", "-", "-", "-", "-"]]


@pytest.mark.parametrize(
    ("spread", "text"),
    [
        (None, "-"),
        (Spread(requests=1, median_s=0.0, p95_s=0.0), "0.0 / 0.0"),
        (Spread(requests=1, median_s=0.01234, p95_s=0.1234), "12.3 / 123"),
        (Spread(requests=1, median_s=61.2, p95_s=61.2), "61200 / 61200"),
    ],
)
def test_times_are_milliseconds(spread: Spread | None, text: str) -> None:
    assert spread_text(spread) == text


def told(*speedups: float, error: float = 0.01) -> tuple[str, str]:
    sizes = [2**index for index in range(len(speedups))]
    points = [
        Point(batch_size=size, output_tokens=64, speedup=exact(value, error))
        for size, value in zip(sizes, speedups, strict=True)
    ]
    decay = decay_of("tiny", "ngram", "chat", "new", points)
    assert decay is not None
    return break_even_text(decay), outside_text(decay)


def test_what_lies_outside_of_the_grid_is_said() -> None:
    assert told(0.9, 0.8) == ("not reached in the grid: below 1", "100.0 % below 1, 0.0 % above 2")
    assert told(1.5, 1.4) == ("not reached in the grid: above 2", "0.0 % below 1, 100.0 % above 2")
    text, outside = told(1.5, 1.0, error=0.1)
    assert text.endswith(", above 2]")
    assert 40 < float(outside.split(", ")[1].split(" %")[0]) < 60


def test_another_output_length_is_told_beside_its_figure() -> None:
    """A study may give its largest batch fewer tokens: the figure says so, the others do not."""
    points = [
        Point(batch_size=size, output_tokens=tokens, speedup=exact(1.5))
        for size, tokens in ((1, 64), (4, 64), (64, 32))
    ]
    decay = decay_of("tiny", "ngram", "chat", "new", points)
    assert decay is not None
    table = tables(run(cell(), decays=[decay]))[-1]
    assert [" (32 tokens)" in value for value in table.body[0]] == [
        False,
        False,
        False,
        False,
        True,
        False,
        False,
        False,
    ]


def test_curves_are_named_like_their_cells() -> None:
    """With the target and the build, where the run has several."""
    cells = [cell("ngram", "chat", size, target=target, speedup=exact(1.1)) for size in (1, 4) for target in ("a", "b")]
    lines = decay_lines(with_curves(*cells))
    assert [line.split(" on ")[0] for line in lines] == ["ngram (a)", "ngram (b)"]
