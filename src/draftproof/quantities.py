"""What a run and its baseline are compared in: one figure a gate, prompt set by prompt set. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from draftproof.snapshot import Series, SetTotals

GateName = Literal["drafter", "system", "end to end", "draft stage", "verify stage", "sample stage", "overhead stage"]

Figures = Callable[[Series], dict[str, float]]
"""Prompt set -> log of a positive figure of one cell in one run."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate looks at."""

    gate: GateName
    metric: str
    """Of the limit's row."""
    noun: str
    unit: str
    higher_is_better: bool
    logs: Figures
    own: tuple[Figures, Figures] | None = None
    """Where it is a ratio to no-SD: the figures of the arm and of no-SD, in the same direction."""
    only_adds: bool = False
    """It looks closer at what another gate judges as a whole: where it cannot tell, nothing is left unjudged."""

    @property
    def worse(self) -> int:
        """Sign of a change for the worse."""
        return -1 if self.higher_is_better else 1


def mean_logs(figures: Iterable[tuple[str, float]]) -> dict[str, float]:
    """(prompt set, positive figure) -> log of it; a set that came twice is averaged."""
    found: dict[str, list[float]] = {}
    for prompts, value in figures:
        found.setdefault(prompts, []).append(math.log(value))
    return {prompts: statistics.fmean(values) for prompts, values in found.items()}


def of_sets(value: Callable[[SetTotals], float]) -> Figures:
    """Of the arm itself."""
    return lambda series: mean_logs((ours.prompts, value(ours)) for ours in series.sets)


def of_base_sets(value: Callable[[SetTotals], float]) -> Figures:
    """Of the no-SD arm beside it."""
    return lambda series: mean_logs((base.prompts, value(base)) for base in series.base_sets)


def over(above: Figures, below: Figures) -> Figures:
    """The ratio of two figures on the prompt sets that both have."""

    def logs(series: Series) -> dict[str, float]:
        beside = below(series)
        return {name: value - beside[name] for name, value in above(series).items() if name in beside}

    return logs


def acceptance_length(totals: SetTotals) -> float:
    """Tokens per drafted step, bonus included; a set without a draft gets the bonus alone."""
    return 1 + totals.num_accepted_tokens / totals.num_drafts if totals.num_drafts else 1.0


def step_s(totals: SetTotals) -> float:
    return totals.seconds / totals.steps


def tokens_per_s(totals: SetTotals) -> float:
    return totals.tokens / totals.seconds


def stage_logs(stage: str) -> Figures:
    """Seconds of a stage in a decode step; blocks without such a step or without such seconds have no figure."""
    return lambda series: mean_logs(
        (block.prompts, block.seconds[stage] / block.decode_steps)
        for block in series.stages
        if block.decode_steps and block.seconds.get(stage)
    )


def base_decode_logs(series: Series) -> dict[str, float]:
    """Seconds of a whole decode step of the no-SD arm."""
    return mean_logs(
        (block.prompts, seconds / block.decode_steps)
        for block in series.base_stages
        if block.decode_steps and (seconds := sum(block.seconds[name] for name in block.seconds if name != "prefill"))
    )


def stage_quantity(gate: GateName, stage: str) -> Quantity:
    return Quantity(
        gate=gate,
        metric="stage_rise",
        noun=f"{stage} seconds over a decode step of no-SD",
        unit="x",
        higher_is_better=False,
        logs=over(stage_logs(stage), base_decode_logs),
        own=(stage_logs(stage), base_decode_logs),
        only_adds=True,
    )


SPECULATIVE = (
    Quantity(
        gate="drafter",
        metric="acceptance_drop",
        noun="acceptance length",
        unit="tokens",
        higher_is_better=True,
        logs=of_sets(acceptance_length),
    ),
    Quantity(
        gate="system",
        metric="system_cost_rise",
        noun="seconds of a step over no-SD's",
        unit="x",
        higher_is_better=False,
        logs=over(of_sets(step_s), of_base_sets(step_s)),
        own=(of_sets(step_s), of_base_sets(step_s)),
    ),
    Quantity(
        gate="end to end",
        metric="speedup_drop",
        noun="speedup",
        unit="x",
        higher_is_better=True,
        logs=over(of_sets(tokens_per_s), of_base_sets(tokens_per_s)),
        own=(of_sets(tokens_per_s), of_base_sets(tokens_per_s)),
    ),
)
"""Gates of a cell with speculation."""

STAGES = (
    stage_quantity("draft stage", "draft"),
    stage_quantity("verify stage", "verify"),
    stage_quantity("sample stage", "sample"),
    stage_quantity("overhead stage", "overhead"),
)
"""What the system gate judges as a whole, where both sides have the stage clock's blocks."""

OWN_THROUGHPUT = Quantity(
    gate="end to end",
    metric="throughput_drop",
    noun="throughput",
    unit="tokens/s",
    higher_is_better=True,
    logs=of_sets(tokens_per_s),
)

PLAIN = (OWN_THROUGHPUT,)
"""Gates of no-SD, whose tokens per step never change."""
