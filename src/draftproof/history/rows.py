"""A night's figures: one row for each metric of each cell of a run. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from draftproof.analysis.stats import PairSums, paired_ratio
from draftproof.gate import Verdict
from draftproof.snapshot import Series, SetTotals, Snapshot


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of the history: what it is, and which limit its change is judged by."""

    better: Literal["higher", "lower"]
    limit: str
    """Metric of the threshold row: a relative change; empty: shown, not judged."""
    same_unit: bool = True
    """Whether the row's `absolute` is in this figure's unit."""
    of: Callable[[SetTotals, SetTotals | None], float | None]
    """From totals of the cell's arm and of the no-SD arm beside it."""


def quotient(above: float, below: float) -> float | None:
    """None where it is no positive, finite number: its logarithm is what is compared."""
    value = above / below if below > 0 else 0.0
    return value if math.isfinite(value) and value > 0 else None


def speedup(ours: SetTotals, base: SetTotals | None) -> float | None:
    mine = quotient(ours.tokens, ours.seconds)
    theirs = quotient(base.tokens, base.seconds) if base else None
    return quotient(mine, theirs) if mine and theirs else None


FIGURES = {
    "speedup": Figure(better="higher", limit="speedup_drop", of=speedup),
    "tokens_per_s": Figure(
        better="higher", limit="throughput_drop", of=lambda ours, base: quotient(ours.tokens, ours.seconds)
    ),
    "base_tokens_per_s": Figure(
        better="higher", limit="", of=lambda ours, base: quotient(base.tokens, base.seconds) if base else None
    ),
    "acceptance_length": Figure(
        better="higher",
        limit="acceptance_drop",
        of=lambda ours, base: 1 + ours.num_accepted_tokens / ours.num_drafts if ours.num_drafts else None,
    ),
    "seconds_per_step": Figure(
        better="lower",
        limit="system_cost_rise",  # whose absolute limit is of a ratio to no-SD's
        same_unit=False,
        of=lambda ours, base: quotient(ours.seconds, ours.steps),
    ),
}
OF_NO_SD = ("tokens_per_s", "seconds_per_step")
"""What is kept of a cell without speculation."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one cell on one night."""

    run_id: str
    taken: str
    """UTC, ISO 8601."""
    study: str
    hardware: str
    fingerprint: str
    held: str
    """JSON of what the snapshot and the cell hold: nights that differ in it are never compared."""
    git_commit: str | None
    git_dirty: bool | None
    vllm: str | None
    vllm_files_sha256: str | None
    commit_under_test: str
    ref: str
    command: str
    target: str
    variant: str
    workload: str
    batch_size: int
    metric: str
    value: float | None
    """Over all prompt sets, as the run's report shows it; None: the night has no such figure."""
    low: float | None
    high: float | None
    """95 % interval, of speedups."""
    pairs: int
    """Prompt sets."""
    sets: list[str]
    """Digests of the prompt sets that have the figure, in the order of rotations."""
    by_set: list[float]
    """The figure of each of them."""
    waiting: float | None
    """Largest share of its threads' time that an arm waited for a CPU, over both arms' prompt sets."""
    throughput: Verdict
    determinism: Verdict
    reason: str

    @property
    def cell(self) -> str:
        return f"{self.target}-{self.variant}-{self.workload}-b{self.batch_size}"


JUDGED = ("throughput", "determinism", "reason")
"""Fields that depend on the limits of the day, not on what was measured."""


def rows_of(snapshot: Snapshot, commit: str = "", ref: str = "") -> list[Row]:
    """A run's rows; `commit`: what was under test (default: vLLM's version and the digest of its files)."""
    version = snapshot.versions.get("vllm")
    files = snapshot.versions.get("vllm_files_sha256")
    known = [f"vllm {version}"] * bool(version) + [f"files {str(files)[:12]}"] * bool(files)
    return [
        row_of(snapshot, series, metric, commit or " ".join(known) or "unknown", ref)
        for series in snapshot.series
        for metric in (FIGURES if series.speculative else OF_NO_SD)
    ]


def row_of(snapshot: Snapshot, series: Series, metric: str, commit: str, ref: str) -> Row:
    figure = FIGURES[metric]
    bases: Sequence[SetTotals | None] = series.base_sets or [None] * len(series.sets)
    by_set = [(ours.prompts, figure.of(ours, base)) for ours, base in zip(series.sets, bases, strict=True)]
    value, low, high = pooled(series, metric)
    waits = [totals.waiting for totals in (*series.sets, *series.base_sets) if totals.waiting is not None]
    held = msgspec.json.encode({**snapshot.held, **series.held}, order="sorted").decode()
    return Row(
        run_id=snapshot.run_id,
        taken=snapshot.taken,
        study=snapshot.study,
        hardware=snapshot.hardware,
        fingerprint=snapshot.fingerprint,
        held=held,
        git_commit=snapshot.git_commit,
        git_dirty=snapshot.git_dirty,
        vllm=snapshot.versions.get("vllm"),
        vllm_files_sha256=snapshot.versions.get("vllm_files_sha256"),
        commit_under_test=commit,
        ref=ref,
        command=shlex.join(snapshot.command),
        target=series.target,
        variant=series.variant,
        workload=series.workload,
        batch_size=series.batch_size,
        metric=metric,
        value=value,
        low=low,
        high=high,
        pairs=len(series.sets),
        sets=[prompts for prompts, found in by_set if found is not None],
        by_set=[found for _, found in by_set if found is not None],
        waiting=max(waits, default=None),
        throughput=series.throughput,
        determinism=series.determinism,
        reason=series.reason,
    )


def pooled(series: Series, metric: str) -> tuple[float | None, float | None, float | None]:
    """The figure over all prompt sets, and a speedup's interval; a ratio without an interval is not kept."""
    if not series.sets:
        return None, None, None
    if metric != "speedup":
        return FIGURES[metric].of(added(series.sets), added(series.base_sets) if series.base_sets else None), None, None
    pairs = [
        PairSums(tokens=ours.tokens, seconds=ours.seconds, base_tokens=base.tokens, base_seconds=base.seconds)
        for ours, base in zip(series.sets, series.base_sets, strict=False)
    ]
    try:
        ratio = paired_ratio(pairs)
    except ValueError:  # a total that is not positive: the run itself says so
        ratio = None
    return (ratio.value, ratio.low, ratio.high) if ratio else (None, None, None)


def added(sets: Sequence[SetTotals]) -> SetTotals:
    """Totals over all prompt sets."""
    return SetTotals(
        prompts="",
        tokens=sum(totals.tokens for totals in sets),
        seconds=sum(totals.seconds for totals in sets),
        steps=sum(totals.steps for totals in sets),
        num_drafts=sum(totals.num_drafts for totals in sets),
        num_accepted_tokens=sum(totals.num_accepted_tokens for totals in sets),
    )
