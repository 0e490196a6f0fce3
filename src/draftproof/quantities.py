"""What a run and its baseline are compared in: one figure a gate, prompt set by prompt set. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Literal

import msgspec

from draftproof.snapshot import Series, SetTotals

GateName = Literal["drafter", "system", "end to end"]

PairFigure = Callable[[SetTotals, SetTotals], float]
"""Of one prompt set: (the arm, no-SD beside it) -> a positive figure."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate looks at."""

    gate: GateName
    metric: str
    """Of the limit's row."""
    noun: str
    unit: str
    higher_is_better: bool
    value: PairFigure
    own: Callable[[SetTotals], float] | None = None
    """Where `value` is a ratio to no-SD: the figure of one arm, in the same direction."""

    @property
    def worse(self) -> int:
        """Sign of a change for the worse."""
        return -1 if self.higher_is_better else 1


def acceptance_length(totals: SetTotals) -> float:
    """Tokens per drafted step, bonus included; a set without a draft gets the bonus alone."""
    return 1 + totals.num_accepted_tokens / totals.num_drafts if totals.num_drafts else 1.0


def step_s(totals: SetTotals) -> float:
    return totals.seconds / totals.steps


def tokens_per_s(totals: SetTotals) -> float:
    return totals.tokens / totals.seconds


SPECULATIVE = (
    Quantity(
        gate="drafter",
        metric="acceptance_drop",
        noun="acceptance length",
        unit="tokens",
        higher_is_better=True,
        value=lambda ours, _: acceptance_length(ours),
    ),
    Quantity(
        gate="system",
        metric="system_cost_rise",
        noun="seconds of a step over no-SD's",
        unit="x",
        higher_is_better=False,
        value=lambda ours, base: step_s(ours) / step_s(base),
        own=step_s,
    ),
    Quantity(
        gate="end to end",
        metric="speedup_drop",
        noun="speedup",
        unit="x",
        higher_is_better=True,
        value=lambda ours, base: tokens_per_s(ours) / tokens_per_s(base),
        own=tokens_per_s,
    ),
)
"""Gates of a cell with speculation."""

OWN_THROUGHPUT = Quantity(
    gate="end to end",
    metric="throughput_drop",
    noun="throughput",
    unit="tokens/s",
    higher_is_better=True,
    value=lambda ours, _: tokens_per_s(ours),
)

PLAIN = (OWN_THROUGHPUT,)
"""Gates of no-SD, whose tokens per step never change."""


def logs(series: Series, value: PairFigure) -> dict[str, float]:
    """Prompt set -> log of a figure; a set that came twice is averaged."""
    found: dict[str, list[float]] = {}
    for ours, base in zip(series.sets, series.base_sets or series.sets, strict=True):
        found.setdefault(ours.prompts, []).append(math.log(value(ours, base)))
    return {name: statistics.fmean(values) for name, values in found.items()}
