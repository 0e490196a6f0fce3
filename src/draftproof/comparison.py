"""A run against its baseline: three gates, each arm by its name, Holm over all tests. Pure.

For each speculative cell: **drafter** (acceptance length), **system** (seconds of an engine step over no-SD's) and
**end to end** (speedup). Throughput is tokens per step over seconds per step, so that what moved end to end shows in
one of the first two. For no-SD, whose tokens per step never change, its own throughput is all there is.

A ratio to no-SD moves when either arm does. The arm whose own figure left its baseline further is the one that moved: a
machine that is faster today moves both, and neither ratio.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from draftproof.analysis.held import differences
from draftproof.analysis.moves import Between, Move, between_runs, geometric_mean, move
from draftproof.analysis.survival import holm
from draftproof.errors import DraftproofError
from draftproof.gate import GREEN, RED, SIGNIFICANCE, Judgement, Verdict
from draftproof.snapshot import Series, SetTotals, Snapshot, StageTotals
from draftproof.spec import Cell, Threshold

GateName = Literal["drafter", "system", "end to end"]

WORST_FIRST: tuple[Verdict, ...] = (
    "FAILED",
    "REGRESSED",
    "INCOMPARABLE",
    "NO_BASELINE",
    "INSUFFICIENT",
    "UNSTABLE",
    "PASS",
    "IMPROVED",
)

GREEN_EXIT, RED_EXIT, USAGE_EXIT, UNJUDGED_EXIT = 0, 1, 2, 3


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate looks at."""

    gate: GateName
    metric: str
    """Of the limit's row."""
    noun: str
    unit: str
    higher_is_better: bool
    value: Callable[[SetTotals, SetTotals], float | None]
    """Of one prompt set: (the arm, no-SD beside it) -> the figure; None where it is not defined."""
    own: Callable[[SetTotals], float] | None = None
    """Where `value` is a ratio to no-SD: the figure of one arm, in the same direction."""


def acceptance_length(ours: SetTotals, _: SetTotals) -> float | None:
    return 1 + ours.num_accepted_tokens / ours.num_drafts if ours.num_drafts else None


def step_s(ours: SetTotals) -> float:
    return ours.seconds / ours.steps


def tokens_per_s(ours: SetTotals) -> float:
    return ours.tokens / ours.seconds


SPECULATIVE = (
    Quantity(
        gate="drafter",
        metric="acceptance_drop",
        noun="acceptance length",
        unit="tokens",
        higher_is_better=True,
        value=acceptance_length,
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
PLAIN = (
    Quantity(
        gate="end to end",
        metric="throughput_drop",
        noun="throughput",
        unit="tokens/s",
        higher_is_better=True,
        value=lambda ours, _: tokens_per_s(ours),
    ),
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One gate of one cell, or of all cells of a variant together."""

    place: str
    """The cell's id, or `mean_place` of its variant."""
    gate: GateName
    arm: str
    """Whose change it is: the variant, or ``no_sd``."""
    verdict: Verdict
    base: float | None
    """Geometric mean over the common prompt sets."""
    new: float | None
    change: float | None
    """Relative: -0.15 is 15 % less."""
    low: float | None
    high: float | None
    p: float | None
    """Of a change for the worse beyond the limit, after Holm."""
    reason: str


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What `compare` says."""

    base: list[str]
    """Run ids."""
    new: list[str]
    same_run: bool
    tests: int
    """Tests that Holm's method was applied to."""
    findings: list[Finding]
    notes: list[str]

    def of(self, place: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.place == place]

    def judgement(self, place: str) -> Judgement:
        """The worst of a place's gates, and what all of them say that are no better."""
        found = self.of(place)
        if not found:
            return Judgement(verdict="NO_BASELINE", reason="nothing was compared here")
        worst = min((one.verdict for one in found), key=WORST_FIRST.index)
        return Judgement(
            verdict=worst,
            reason="; ".join(f"{one.gate} [{one.arm}]: {one.reason}" for one in found if one.verdict == worst),
        )

    @property
    def exit_code(self) -> int:
        verdicts = {finding.verdict for finding in self.findings}
        if verdicts & RED:
            return RED_EXIT
        return GREEN_EXIT if verdicts and verdicts <= GREEN else UNJUDGED_EXIT


class Limits:
    """Rows of a hardware's thresholds, by metric and cell."""

    def __init__(self, rows: Sequence[Threshold], hardware: str) -> None:
        self._rows = rows
        self._hardware = hardware

    def of(self, metric: str, series: Series, study: str) -> Threshold:
        """The last row that covers the cell. Raises DraftproofError where there is none."""
        cell = Cell(
            study=study,
            hardware=self._hardware,
            target=series.target,
            variant=series.variant,
            workload=series.workload,
            batch_size=series.batch_size,
            batching="mixed",
            output_tokens=1,
            num_prompts=None,
        )
        found = [row for row in self._rows if row.metric == metric and row.gating and row.covers(cell)]
        if not found:
            raise DraftproofError(
                f"thresholds of {self._hardware!r} hold no gating row for metric {metric!r} that covers {series.id}; "
                f"add one with its source to fixtures/thresholds/{self._hardware}.toml"
            )
        return found[-1]


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """One cell in the runs of both sides."""

    base: list[Series]
    new: list[Series]

    @property
    def last(self) -> Series:
        return self.new[-1]

    def shared(self) -> list[str]:
        """Prompt sets that every run holds, in the order of the newest one."""
        known = set.intersection(*({totals.prompts for totals in one.sets} for one in (*self.base, *self.new)))
        return list(dict.fromkeys(totals.prompts for totals in self.last.sets if totals.prompts in known))


class Tested(msgspec.Struct, kw_only=True):
    """A gate before Holm: its move against its limit."""

    place: str
    series: Series
    quantity: Quantity
    limit: Threshold
    between: Between
    runs: tuple[int, int]
    found: Move
    base: float
    new: float
    own: tuple[float, float] | None
    """How much better the arm's and no-SD's own figure became (log), where the quantity is a ratio of both."""
    stages: str = ""


def compare(
    base: list[Snapshot], new: list[Snapshot], rows: Sequence[Threshold], *, same_run: bool = False
) -> Compared:
    """Judge `new` against `base`: runs of one study each, oldest first; of more than one the mean is taken.

    Without a run in `base` every cell is `NO_BASELINE`.

    `same_run`: both are builds that ran in the same rotations; then nothing is added for the spread between runs.

    Raises DraftproofError for a missing limit.
    """
    latest = new[-1]
    limits = Limits(rows, latest.hardware)
    unlike = [
        text
        for other in (*base, *new[:-1])
        for text in differences(
            {"hardware": other.hardware, **other.held}, {"hardware": latest.hardware, **latest.held}
        )
    ]
    findings: list[Finding] = []
    tested: list[Tested] = []
    base_series, new_series = by_id(base), by_id(new)
    for series in latest.series:
        sides = Sides(base=base_series.get(series.id, []), new=new_series[series.id])
        gates = SPECULATIVE if series.speculative else PLAIN
        if (refused := refusal(sides, unlike, limits, latest.study)) is not None:
            findings += [unjudged(series, quantity, *refused) for quantity in gates]
            continue
        for quantity in gates:
            outcome = tested_of(sides, quantity, limits, latest.study, same_run=same_run)
            if isinstance(outcome, Tested):
                tested.append(outcome)
            else:
                findings.append(outcome)
    tested += variant_means(tested)
    findings += judged(tested)
    order = {series.id: index for index, series in enumerate(latest.series)}
    findings.sort(key=lambda finding: order.get(finding.place, -1))  # geometric means first
    missing = [name for name in base_series if name not in order]
    return Compared(
        base=[run.run_id for run in base],
        new=[run.run_id for run in new],
        same_run=same_run,
        tests=len(tested),
        findings=findings,
        notes=[f"only in the baseline: {', '.join(missing)}"] if missing else [],
    )


def by_id(runs: Sequence[Snapshot]) -> dict[str, list[Series]]:
    """Cell's id -> that cell in each run that holds it."""
    found: dict[str, list[Series]] = {}
    for run in runs:
        for series in run.series:
            found.setdefault(series.id, []).append(series)
    return found


def refusal(sides: Sides, unlike: list[str], limits: Limits, study: str) -> tuple[Verdict, str] | None:
    """Why no gate of a cell can be judged; None where all can."""
    series = sides.last
    if "FAILED" in (series.throughput, series.determinism):
        return "FAILED", series.reason
    if unlike:
        return "INCOMPARABLE", "held fields differ: " + "; ".join(dict.fromkeys(unlike))
    usable = [one for one in sides.base if one.throughput != "FAILED" and one.sets]
    if not usable:
        return "NO_BASELINE", "the baseline does not hold this cell, or it failed there"
    found = [text for one in usable for text in differences(one.held, series.held)]
    if found:
        return "INCOMPARABLE", "held fields differ: " + "; ".join(dict.fromkeys(found))
    if not series.sets:
        return "INSUFFICIENT", "no finished pair"
    if not sides.shared():
        return "INCOMPARABLE", "no prompt set in common: other prompts, or dealt otherwise"
    least = limits.of("pairs", series, study).limit
    if len(sides.shared()) < least:
        return "INSUFFICIENT", f"{len(sides.shared())} prompt sets in common; a gate needs {least:g}"
    return None


def tested_of(sides: Sides, quantity: Quantity, limits: Limits, study: str, *, same_run: bool) -> Tested | Finding:
    """One gate's move, or why it is not judged."""
    series = sides.last
    limit = limits.of(quantity.metric, series, study)
    base_runs = [figures(one, quantity) for one in sides.base]
    new_runs = [figures(one, quantity) for one in sides.new]
    shared = [name for name in sides.shared() if all(name in run for run in (*base_runs, *new_runs))]
    if quantity.gate == "drafter" and not shared:
        return unjudged(series, quantity, "PASS", "no draft on either side: nothing that could be accepted less")
    before = {name: statistics.fmean([run[name] for run in base_runs]) for name in shared}
    after = {name: statistics.fmean([run[name] for run in new_runs]) for name in shared}
    sign = -1 if quantity.higher_is_better else 1
    means = [statistics.fmean([run[name] for name in shared]) for run in base_runs]
    between = Between(sd=0.0) if same_run else between_runs(means, limit.between_run_sd)
    runs = (len(base_runs), len(new_runs))
    found = move([sign * (after[name] - before[name]) for name in shared], between, *runs)
    if found is None:
        return unjudged(series, quantity, "INSUFFICIENT", f"{len(shared)} prompt sets say anything of it")
    if quantity.gate != "drafter" and (told := busy(sides, limits, study)):
        return unjudged(series, quantity, "UNSTABLE", told)
    return Tested(
        place=series.id,
        series=series,
        quantity=quantity,
        limit=limit,
        between=between,
        runs=runs,
        found=found,
        base=math.exp(statistics.fmean(before.values())),
        new=math.exp(statistics.fmean(after.values())),
        own=own_moves(sides, quantity, shared) if quantity.own else None,
        stages=stage_text(sides.base[-1].stages, series.stages) if quantity.gate == "system" else "",
    )


def figures(series: Series, quantity: Quantity) -> dict[str, float]:
    """Prompt set -> log of the quantity; a set that came twice is averaged."""
    found: dict[str, list[float]] = {}
    for ours, base in zip(series.sets, series.base_sets or series.sets, strict=True):
        value = quantity.value(ours, base)
        if value is not None:
            found.setdefault(ours.prompts, []).append(math.log(value))
    return {name: statistics.fmean(values) for name, values in found.items()}


def own_moves(sides: Sides, quantity: Quantity, shared: list[str]) -> tuple[float, float]:
    """How much better the arm's and no-SD's own figure became, in logs."""
    assert quantity.own is not None
    own, common = quantity.own, set(shared)

    def mean(runs: Iterable[Series], pick: Callable[[Series], list[SetTotals]]) -> float:
        return statistics.fmean(
            [math.log(own(totals)) for one in runs for totals in pick(one) if totals.prompts in common]
        )

    sign = 1 if quantity.higher_is_better else -1
    arm = mean(sides.new, lambda one: one.sets) - mean(sides.base, lambda one: one.sets)
    base = mean(sides.new, lambda one: one.base_sets) - mean(sides.base, lambda one: one.base_sets)
    return sign * arm, sign * base


def busy(sides: Sides, limits: Limits, study: str) -> str:
    """Why the machine was too busy to speak of seconds; empty where it was not, or where nobody recorded it."""
    limit = limits.of("waiting_share", sides.last, study).limit
    for name, runs in (("this run", sides.new), ("the baseline", sides.base)):
        shares = [t.waiting for one in runs for t in (*one.sets, *one.base_sets) if t.waiting is not None]
        if shares and statistics.median(shares) > limit:
            return (
                f"the machine was busy: in {name} the engines' threads stood without a CPU for "
                f"{statistics.median(shares):.0%} of the time, above {limit:.0%}"
            )
    return ""


def stage_text(base: Sequence[StageTotals], new: Sequence[StageTotals]) -> str:
    """The stage whose seconds per decode step rose most; empty where either side has no stage blocks."""

    def per_step(blocks: Sequence[StageTotals]) -> dict[str, float]:
        steps = sum(block.decode_steps for block in blocks)
        names = {name for block in blocks for name in block.seconds if name != "prefill"}
        return {name: sum(block.seconds[name] for block in blocks) / steps for name in names} if steps else {}

    before, after = per_step(base), per_step(new)
    rises = {name: after[name] - before[name] for name in sorted(before) if name in after}
    if not rises:
        return ""
    name = max(rises, key=lambda key: rises[key])
    return (
        f"of the stages {name} rose most: {1e3 * before[name]:.2f} -> {1e3 * after[name]:.2f} ms of a decode step"
        if rises[name] > 0
        else "no stage rose"
    )


def mean_place(target: str, variant: str) -> str:
    """What the cells of a variant are called together."""
    return f"{target} {variant}, geometric mean"


def variant_means(tested: Sequence[Tested]) -> list[Tested]:
    """Per target, variant and gate: the geometric mean over its cells, the primary figure, where there are several."""
    means = []
    keys = dict.fromkeys((t.series.target, t.series.variant, t.quantity.gate) for t in tested)
    for target, variant, gate in keys:
        members = [t for t in tested if (t.series.target, t.series.variant, t.quantity.gate) == (target, variant, gate)]
        if len(members) < 2:
            continue
        first = members[0]
        widest = max((t.between for t in members), key=lambda between: between.sd)
        found = geometric_mean([t.found for t in members], widest, *first.runs)
        assert found is not None
        owns = [t.own for t in members if t.own is not None]
        means.append(
            Tested(
                place=mean_place(target, variant),
                series=first.series,
                quantity=first.quantity,
                limit=max((t.limit for t in members), key=lambda row: row.limit),
                between=widest,
                runs=first.runs,
                found=found,
                base=math.exp(statistics.fmean(math.log(t.base) for t in members)),
                new=math.exp(statistics.fmean(math.log(t.new) for t in members)),
                own=(statistics.fmean(own[0] for own in owns), statistics.fmean(own[1] for own in owns))
                if owns
                else None,
            )
        )
    return means


def judged(tested: Sequence[Tested]) -> list[Finding]:
    """Holm over all gates at once, for the worse; and once more for the better."""
    bounds = [log_limit(t) for t in tested]
    worse = holm([t.found.p_worse(bound) for t, bound in zip(tested, bounds, strict=True)])
    better = holm([t.found.p_better(bound) for t, bound in zip(tested, bounds, strict=True)])
    return [finding(*each) for each in zip(tested, bounds, worse, better, strict=True)]


def log_limit(tested: Tested) -> float:
    """The relative limit on the log scale, in the direction that is worse."""
    limit = tested.limit.limit
    return -math.log(1 - limit) if tested.quantity.higher_is_better else math.log(1 + limit)


def finding(tested: Tested, bound: float, worse: float, better: float) -> Finding:
    quantity, found = tested.quantity, tested.found
    sign = -1 if quantity.higher_is_better else 1
    low, high = sorted(math.expm1(sign * end) for end in found.interval())
    change = math.expm1(sign * found.worse)
    large = tested.limit.absolute is None or abs(tested.new - tested.base) > tested.limit.absolute
    arm, why = tested.series.variant, ""
    verdict: Verdict = "PASS"
    if worse < SIGNIFICANCE and large:
        verdict = "REGRESSED"
        if tested.own is not None and tested.own[1] > -tested.own[0]:
            verdict, arm = "PASS", "no_sd"
            why = (
                f"it is no-SD that moved: its own figure is {describe(tested.own[1])}, "
                f"{tested.series.variant}'s {describe(tested.own[0])}"
            )
    elif better < SIGNIFICANCE and large:
        verdict = "IMPROVED"
        if tested.own is not None and -tested.own[1] > tested.own[0]:
            verdict, arm, why = "PASS", "no_sd", "it is no-SD that became slower"
    elif found.reach > bound:
        verdict = "UNSTABLE"
        why = f"the limit of {tested.limit.limit:.0%} lies inside the noise of {math.expm1(found.reach):.1%}"
    told = (
        f"{quantity.noun} {number(tested.base)} -> {number(tested.new)} {quantity.unit} "
        f"({change:+.1%} [{low:+.1%}, {high:+.1%}], {found.sets} prompt sets, limit {tested.limit.limit:.0%}, "
        f"p = {worse:.2g} after Holm)"
    )
    stages = tested.stages if verdict == "REGRESSED" else ""
    return Finding(
        place=tested.place,
        gate=quantity.gate,
        arm=arm,
        verdict=verdict,
        base=tested.base,
        new=tested.new,
        change=change,
        low=low,
        high=high,
        p=worse,
        reason="; ".join(part for part in (told, why, stages) if part),
    )


def describe(log_better: float) -> str:
    return f"{math.expm1(abs(log_better)):.1%} {'better' if log_better > 0 else 'worse'}"


def number(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def unjudged(series: Series, quantity: Quantity, verdict: Verdict, reason: str) -> Finding:
    return Finding(
        place=series.id,
        gate=quantity.gate,
        arm=series.variant,
        verdict=verdict,
        base=None,
        new=None,
        change=None,
        low=None,
        high=None,
        p=None,
        reason=reason,
    )
