"""One table of what is shown: name -> unit, direction, formula, format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from draftproof.analysis.latency import Latency, Spread
from draftproof.analysis.stats import Ratio
from draftproof.results import CellResult


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    formula: str
    text: Callable[[CellResult], str]


def ratio_text(ratio: Ratio | None) -> str:
    """A ratio without an interval is not printed."""
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else "-"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def same_text(cell: CellResult) -> str:
    same = cell.sameness
    return (
        "-"
        if same is None
        else f"{same.identical}/{same.requests} ({100 * same.share_low:.0f}-{100 * same.share_high:.0f} %)"
    )


def floor_text(cell: CellResult) -> str:
    same = cell.sameness
    if same is None:
        return "-"
    floor = same.floor
    aa = "" if floor.aa_identical is None else f", {floor.aa_identical}/{floor.requests}"
    return f"{floor.repeat_identical}/{floor.requests}{aa}"


def per_request_text(cell: CellResult) -> str:
    found = cell.acceptance.per_request if cell.acceptance else None
    return "-" if found is None else f"{found.mean:.2f} ({' / '.join(f'{q:.2f}' for q in found.quartiles)})"


def spread_text(spread: Spread | None) -> str:
    """Milliseconds: median / 95th percentile."""

    def text(seconds: float) -> str:
        return f"{1000 * seconds:.{1 if seconds < 0.1 else 0}f}"

    return "-" if spread is None else f"{text(spread.median_s)} / {text(spread.p95_s)}"


def ttft_text(latency: Latency | None) -> str:
    return spread_text(latency.ttft if latency else None)


def per_token_text(latency: Latency | None) -> str:
    return spread_text(latency.per_token if latency else None)


METRICS = (
    Metric(
        name="speedup",
        title="speedup [95 %]",
        unit="x",
        better="higher",
        formula="(tokens / seconds) over no-SD's, totals over the same prompt sets, both passes",
        text=lambda c: ratio_text(c.speedup),
    ),
    Metric(
        name="tokens_per_s",
        title="tok/s",
        unit="tokens/s",
        better="higher",
        formula="output tokens / seconds",
        text=lambda c: number(c.tokens_per_s, 1),
    ),
    Metric(
        name="acceptance_length",
        title="AL",
        unit="tokens",
        better="higher",
        formula="1 + accepted / num_drafts (vLLM's convention, bonus included)",
        text=lambda c: number(c.acceptance.length if c.acceptance else None, 2),
    ),
    Metric(
        name="tokens_per_step",
        title="tok/step",
        unit="tokens",
        better="higher",
        formula="emitted tokens / (request, engine step) pairs, steps without a draft included",
        text=lambda c: number(c.acceptance.tokens_per_step if c.acceptance else None, 2),
    ),
    Metric(
        name="identical_share",
        title="same output",
        unit="share",
        better="higher",
        formula="requests whose token ids equal no-SD's / requests, with Wilson's 95 % interval over prompts",
        text=same_text,
    ),
    Metric(
        name="floor",
        title="no-SD itself",
        unit="share",
        better="neither",
        formula="the same comparison of no-SD with itself: its second pass, then a second process",
        text=floor_text,
    ),
)

OTHER_METRICS = (
    Metric(
        name="paper_ratio",
        title="speedup, paper's estimator [95 %]",
        unit="x",
        better="higher",
        formula="arXiv 2601.11580: output tokens / seconds of each block, unweighted mean over blocks, over no-SD's; "
        "each arm over its own blocks whose first request ended with EOS, the first 100 of a pass (EOS ignored: "
        "over all blocks); jackknife over prompt sets",
        text=lambda c: ratio_text(c.paper_ratio),
    ),
    Metric(
        name="acceptance_length_per_request",
        title="AL of a request: mean (quartiles)",
        unit="tokens",
        better="higher",
        formula="1 + accepted / drafted steps of each request: unweighted mean and quartiles; AL pools the requests",
        text=per_request_text,
    ),
    Metric(
        name="ttft",
        title="TTFT",
        unit="ms",
        better="lower",
        formula="time to first token, from the request's arrival",
        text=lambda c: ttft_text(c.latency),
    ),
    Metric(
        name="base_ttft",
        title="no-SD's TTFT",
        unit="ms",
        better="lower",
        formula="the same of no-SD on the same prompts",
        text=lambda c: ttft_text(c.base_latency),
    ),
    Metric(
        name="per_token",
        title="TPOT",
        unit="ms",
        better="lower",
        formula="time per output token: from a request's first token to its last / (tokens - 1), not between chunks",
        text=lambda c: per_token_text(c.latency),
    ),
    Metric(
        name="base_per_token",
        title="no-SD's TPOT",
        unit="ms",
        better="lower",
        formula="the same of no-SD on the same prompts",
        text=lambda c: per_token_text(c.base_latency),
    ),
)
"""Of a second table: what would make the closing one too wide."""
