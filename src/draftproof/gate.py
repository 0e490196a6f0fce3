"""Verdicts: what a figure means against its limits, and what pytest is told. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from draftproof.analysis.health import Alarm
from draftproof.analysis.stats import Ratio
from draftproof.errors import DraftproofError
from draftproof.records import FailureLine
from draftproof.spec import Cell, Threshold

Verdict = Literal["PASS", "IMPROVED", "REGRESSED", "UNSTABLE", "INSUFFICIENT", "INCOMPARABLE", "NO_BASELINE", "FAILED"]

GREEN: frozenset[Verdict] = frozenset({"PASS", "IMPROVED"})
RED: frozenset[Verdict] = frozenset({"REGRESSED", "FAILED"})


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    reason: str


def outcome(verdict: Verdict, *, gating: bool) -> Literal["passed", "failed", "skipped"]:
    """The one mapping of verdicts to pytest outcomes.

    Green verdicts pass and red ones fail. The rest are not judged: skipped with the reason in a plain run, failed under
    ``--sd-gate``. Nothing that was not judged counts as passed.
    """
    if verdict in GREEN:
        return "passed"
    if verdict in RED or gating:
        return "failed"
    return "skipped"


def failed(failures: list[FailureLine]) -> Judgement | None:
    """A cell whose arm, or whose no-SD arm, did not run."""
    blocking = [failure for failure in failures if failure.purpose == "speed"]
    if not blocking:
        return None
    first = blocking[0]
    log = f"; end of its log: {last_line(first.log_tail)}" if first.kind == "crash" and first.log_tail.strip() else ""
    return Judgement(verdict="FAILED", reason=f"arm {first.arm!r} ({first.kind}): {first.message}{log}")


def last_line(log: str) -> str:
    return log.strip().splitlines()[-1][:300]


def incomparable(unlike: list[str]) -> Judgement | None:
    """Arms that differ in a held field say nothing about each other."""
    if not unlike:
        return None
    return Judgement(verdict="INCOMPARABLE", reason="held fields differ from no-SD's: " + "; ".join(unlike))


def judge_throughput(
    cell: Cell,
    speedup: Ratio | None,
    limits: list[Threshold],
    failures: list[FailureLine],
    unlike: list[str],
    *,
    needs_speedup: bool,
) -> Judgement:
    """The speedup's interval against the gating limits that cover the cell."""
    broken = failed(failures) or incomparable(unlike)
    if broken:
        return broken
    if not needs_speedup:
        return Judgement(verdict="PASS", reason="the reference itself")
    if speedup is not None and not (math.isfinite(speedup.low) and math.isfinite(speedup.high)):
        return Judgement(verdict="INSUFFICIENT", reason=f"the interval of the speedup is not finite: {show(speedup)}")
    if speedup is None:
        return Judgement(verdict="INSUFFICIENT", reason="fewer than two finished pairs: no interval, so no figure")
    rows = [row for row in limits if row.metric == "speedup" and row.gating and row.covers(cell)]
    if not rows:
        return Judgement(verdict="NO_BASELINE", reason="shown, not judged: no gating limit covers this cell")
    for row in rows:
        if speedup.high < row.limit:
            return Judgement(
                verdict="REGRESSED",
                reason=f"speedup {show(speedup)} lies wholly below {row.limit:g} ({row.source})",
            )
    return Judgement(verdict="PASS", reason=f"speedup {show(speedup)} does not lie wholly below {rows[0].limit:g}")


def judge_determinism(causes: dict[str, int], failures: list[FailureLine], unlike: list[str]) -> Judgement:
    """Zero tolerance for divergent outputs; near ties are what rounding may do."""
    broken = failed(failures) or incomparable(unlike)
    if broken:
        return broken
    total = sum(causes.values())
    if not total:
        return Judgement(verdict="INSUFFICIENT", reason="no outputs to compare")
    told = ", ".join(f"{count} {cause.replace('_', ' ')}" for cause, count in sorted(causes.items()))
    if causes.get("divergent"):
        return Judgement(verdict="FAILED", reason=f"divergent outputs: {told} of {total}")
    if causes.get("inconclusive"):
        return Judgement(
            verdict="UNSTABLE",
            reason="no-SD does not repeat itself, its noise is too wide to judge by, or a difference was not scored: "
            f"{told} of {total}",
        )
    return Judgement(verdict="PASS", reason=f"{told} of {total}")


SHOWN_ALARMS = 8


def judge_health(
    alarms: Sequence[Alarm], failures: list[FailureLine], *, healthy: str, enough: bool = True
) -> Judgement:
    """Any alarm on a drafter fails its cell; where there is too little to judge by (not `enough`) it is not judged.

    `healthy`: what is said where there is no alarm.
    """
    broken = failed(failures)
    if broken:
        return broken
    if not alarms:
        return Judgement(verdict="PASS", reason=healthy)
    left_out = len(alarms) - SHOWN_ALARMS
    told = "; ".join(alarm.line for alarm in alarms[:SHOWN_ALARMS]) + (f"; and {left_out} more" if left_out > 0 else "")
    if not enough:
        return Judgement(verdict="INSUFFICIENT", reason=f"too few drafts to judge by: {told}")
    return Judgement(verdict="FAILED", reason=told)


def tie_limit(limits: list[Threshold], measured_nats: float | None) -> float:
    """Nats within which a first difference is a near tie: the row's limit, or this run's measured noise if larger."""
    return max(gap_limit(limits), measured_nats or 0.0)


def noise_cap(limits: list[Threshold]) -> float | None:
    """Measured noise above this tells nothing apart; None: no such row."""
    rows = [row for row in limits if row.metric == "noise_width_nats"]
    return rows[-1].limit if rows else None


def gap_limit(limits: list[Threshold]) -> float:
    """Nats within which a first difference is a near tie, whatever was measured."""
    rows = [row for row in limits if row.metric == "divergence_gap_nats"]
    if not rows:
        raise DraftproofError(
            "thresholds hold no row for metric 'divergence_gap_nats'; add one with its source to "
            "fixtures/thresholds/<hardware>.toml"
        )
    return rows[-1].limit


def informing(cell: Cell, values: dict[str, float | None], limits: list[Threshold]) -> list[str]:
    """Sentences on the limits that inform but do not gate."""
    sentences = []
    for row in limits:
        value = values.get(row.metric)
        if not row.gating and value is not None and row.covers(cell):
            sentences.append(f"{row.metric} {value:.3f} beside {row.limit:g} ({row.source}; {row.estimator})")
    return sentences


def show(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
