"""Verdicts: what a figure means against its limits, and what pytest is told. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from draftproof.analysis.acceptance import AcceptanceRepeat
from draftproof.analysis.health import Alarm
from draftproof.analysis.stats import CONFIDENCE, Ratio
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


BY_PAPER = "paper_speedup"
"""Metric of limits on the speedup by the estimator of arXiv 2601.11580."""

TOLD = {"speedup": "speedup", BY_PAPER: "speedup by the paper's estimator"}
"""Metric -> its name in a reason; all that `judge_throughput` judges."""


def judge_throughput(
    cell: Cell,
    speedup: Ratio | None,
    limits: list[Threshold],
    failures: list[FailureLine],
    unlike: list[str],
    *,
    needs_speedup: bool,
    by_paper: Ratio | None = None,
    waiting: float | None = None,
) -> Judgement:
    """The speedup's intervals, by our estimator and by the paper's, against the gating limits that cover the cell.

    `waiting`: the larger of both arms' shares of time without a CPU. Pairs do not cancel it: steps of one row suffer
    more from other work than steps of many.
    """
    broken = failed(failures) or incomparable(unlike)
    if broken:
        return broken
    if not needs_speedup:
        return Judgement(verdict="PASS", reason="the reference itself")
    if speedup is not None and not (math.isfinite(speedup.low) and math.isfinite(speedup.high)):
        return Judgement(verdict="INSUFFICIENT", reason=f"the interval of the speedup is not finite: {show(speedup)}")
    if speedup is None:
        return Judgement(verdict="INSUFFICIENT", reason="fewer than two finished pairs: no interval, so no figure")
    rows = [row for row in limits if row.metric in TOLD and row.gating and row.covers(cell)]
    if not rows:
        return Judgement(verdict="NO_BASELINE", reason="shown, not judged: no gating limit covers this cell")
    if waiting is not None and any(waiting > row.limit for row in waiting_limits(limits, cell)):
        return Judgement(
            verdict="UNSTABLE",
            reason=f"the machine was busy: the engines' threads stood without a CPU for {waiting:.0%} of the time; "
            f"speedup {show(speedup)}",
        )
    values = {"speedup": speedup, BY_PAPER: by_paper}
    missing, held = [], []
    for row in rows:
        value, what = values[row.metric], TOLD[row.metric]
        if value is None or not (math.isfinite(value.low) and math.isfinite(value.high)):
            missing.append(f"{what}: no interval to hold against {floor_text(row)} ({row.source})")
        elif value.high < row.floor:
            reason = f"{what} {show(value)} lies wholly below {floor_text(row)} ({row.source})"
            return Judgement(verdict="REGRESSED", reason=reason)
        else:
            held.append(f"{what} {show(value)} does not lie wholly below {floor_text(row)}")
    if missing:
        return Judgement(verdict="INSUFFICIENT", reason="; ".join(missing))
    return Judgement(verdict="PASS", reason="; ".join(held))


def waiting_limits(limits: list[Threshold], cell: Cell) -> list[Threshold]:
    """The last row that says how busy a machine may be, if any covers the cell."""
    return [row for row in limits if row.metric == "waiting_share" and row.gating and row.covers(cell)][-1:]


def floor_text(row: Threshold) -> str:
    """A limit that must not be fallen below, with its tolerance."""
    return f"{row.limit:g}" + (f" less {100 * row.tolerance:g} %" if row.tolerance else "")


NO_FIGURE: frozenset[Verdict] = frozenset({"FAILED", "UNSTABLE", "INCOMPARABLE"})
"""Verdicts on throughput that leave a speedup, where there is one, without a meaning."""


def figure(throughput: Judgement, speedup: Ratio | None) -> Ratio | None:
    """A speedup that may be read: with a finite interval, and with a verdict that does not take its meaning away."""
    if speedup is None or throughput.verdict in NO_FIGURE:
        return None
    return speedup if 0 < speedup.low <= speedup.value <= speedup.high < math.inf else None


def unfit(throughput: Judgement, determinism: Judgement, speedup: Ratio | None, broken: list[str]) -> str:
    """Why a variant must not be advised where it was judged so, however fast; empty where nothing speaks against it.

    Outputs must have been compared and found green: what nobody compared may be anybody's answer.
    """
    if throughput.verdict in NO_FIGURE | RED:
        return f"speedup {throughput.verdict}: {throughput.reason}"
    if determinism.verdict not in GREEN:
        return f"outputs {determinism.verdict}: {determinism.reason}"
    if broken:
        return f"its records contradict themselves: {broken[0]}"
    return "" if figure(throughput, speedup) else "no finite interval of the speedup"


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """Near ties of a variant against those of the control that drafts the same number of tokens."""

    control: str
    """The variant whose drafts change nothing but the number of rows."""
    p: float
    """One-sided, adjusted for all such tests of the run (Holm)."""
    per_1000: float
    """Near ties per 1,000 tokens at risk, of the variant."""
    control_per_1000: float


SIGNIFICANCE = 1 - CONFIDENCE


def judge_determinism(
    cell: Cell,
    causes: dict[str, int],
    limits: list[Threshold],
    failures: list[FailureLine],
    unlike: list[str],
    *,
    garbage: str = "",
    excess: Excess | None = None,
    meaningless: str = "",
) -> Judgement:
    """Zero tolerance for divergent outputs; near ties are what rounding may do, as often as for drafts of no effect.

    `meaningless`: why the cell's token ids are nobody's answer, so that there is nothing to judge.
    """
    broken = failed(failures) or incomparable(unlike)
    if broken:
        return broken
    if meaningless:
        return Judgement(verdict="INSUFFICIENT", reason=f"outputs are not compared: {meaningless}")
    if garbage:
        return Judgement(verdict="FAILED", reason=garbage)
    total = sum(causes.values())
    if not total:
        return Judgement(verdict="INSUFFICIENT", reason="no outputs to compare")
    told = ", ".join(f"{count} {cause.replace('_', ' ')}" for cause, count in sorted(causes.items())) + f" of {total}"
    if causes.get("divergent", 0) / total > limit_of(limits, "divergent_share", cell).limit:
        return Judgement(verdict="FAILED", reason=f"divergent outputs: {told}")
    if causes.get("inconclusive", 0) / total > limit_of(limits, "inconclusive_share", cell).limit:
        return Judgement(
            verdict="UNSTABLE",
            reason="no-SD does not repeat itself, its noise is too wide to judge by, or a difference was not scored: "
            + told,
        )
    if excess is None:
        return Judgement(verdict="PASS", reason=told)
    compared = (
        f"near ties per 1,000 tokens at risk: {excess.per_1000:.2f}, with {excess.control} "
        f"{excess.control_per_1000:.2f} (p = {excess.p:.2g} after Holm)"
    )
    if excess.p < SIGNIFICANCE:
        return Judgement(
            verdict="REGRESSED",
            reason=f"more near ties than {excess.control} times {limit_of(limits, 'near_tie_ratio', cell).limit:g}: "
            f"{told}; {compared}",
        )
    return Judgement(verdict="PASS", reason=f"{told}; {compared}")


def judge_invariance(plain: dict[str, int] | None, invariant: dict[str, int] | None) -> Judgement:
    """vLLM's claim of batch invariance: it counts only where outputs differ without it."""
    if not plain or not invariant:
        return Judgement(verdict="INSUFFICIENT", reason="needs the cell with batch invariance and the one without")

    def differing(causes: dict[str, int]) -> str:
        return f"{sum(causes.values()) - causes.get('identical', 0)} of {sum(causes.values())} outputs differ"

    told = f"{differing(invariant)} with VLLM_BATCH_INVARIANT, {differing(plain)} without"
    if set(invariant) - {"identical"}:
        return Judgement(verdict="REGRESSED", reason=told)
    if not set(plain) - {"identical"}:
        return Judgement(verdict="INSUFFICIENT", reason=f"nothing to be seen of the claim: {told}")
    return Judgement(verdict="PASS", reason=told)


def judge_repeats(repeats: AcceptanceRepeat | None, failures: list[FailureLine]) -> Judgement:
    """Acceptance traces must repeat where the text does; where they do not, a throughput figure carries that noise."""
    broken = failed(failures)
    if broken:
        return broken
    if repeats is None or not repeats.requests:
        return Judgement(verdict="INSUFFICIENT", reason="no request wrote the same text in both passes")
    if not repeats.differing:
        return Judgement(verdict="PASS", reason=f"{repeats.requests} requests with equal text were accepted alike")
    return Judgement(
        verdict="UNSTABLE",
        reason=f"{repeats.differing} of {repeats.requests} requests with equal text were accepted otherwise in the "
        f"second pass: {repeats.steps[0]} steps of these requests, then {repeats.steps[1]}",
    )


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


def tie_limit(limits: list[Threshold], measured_nats: float | None, cell: Cell) -> float:
    """Nats within which a first difference is a near tie: the row's limit, or this run's measured noise if larger."""
    return max(limit_of(limits, "divergence_gap_nats", cell).limit, measured_nats or 0.0)


def noise_cap(limits: list[Threshold]) -> float | None:
    """Measured noise above this tells nothing apart; None: no such row."""
    rows = [row for row in limits if row.metric == "noise_width_nats"]
    return rows[-1].limit if rows else None


def limit_of(limits: list[Threshold], metric: str, cell: Cell) -> Threshold:
    """The last row of a metric that covers the cell. Raises DraftproofError where there is none."""
    rows = [row for row in limits if row.metric == metric and row.covers(cell)]
    if not rows:
        raise DraftproofError(
            f"thresholds of {cell.hardware!r} hold no row for metric {metric!r} that covers {cell.id}; add one with "
            f"its source to fixtures/thresholds/{cell.hardware}.toml"
        )
    return rows[-1]


NEEDED = ("divergence_gap_nats", "divergent_share", "inconclusive_share", "near_tie_ratio")
"""Metrics without whose limits outputs cannot be judged."""


def check_limits(limits: list[Threshold], cell: Cell, metrics: Sequence[str] = NEEDED) -> None:
    """Raises DraftproofError where a limit is missing that the cell is judged by."""
    for metric in metrics:
        limit_of(limits, metric, cell)


def informing(cell: Cell, values: dict[str, Ratio | None], limits: list[Threshold]) -> list[str]:
    """Sentences on the limits that inform but do not gate."""
    sentences = []
    for row in limits:
        value = values.get(row.metric)
        if not row.gating and value is not None and row.covers(cell):
            told = TOLD.get(row.metric, row.metric)
            sentences.append(f"{told} {show(value)} beside {row.limit:g} ({row.source}; {row.estimator})")
    return sentences


def show(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
