"""A run against its baseline: three gates, each arm by its name, Holm over all tests. Pure.

For each speculative cell: **drafter** (acceptance length), **system** (seconds of an engine step over no-SD's) and
**end to end** (speedup). Throughput is tokens per step over seconds per step, so that what moved end to end shows in
one of the first two. Where both sides have blocks of the stage clock, each **stage** is judged too, one-sided and over
a decode step of no-SD, in the geometric mean over a variant's cells: one that cannot be told leaves nothing unjudged,
since the system gate holds them all.
For no-SD, whose tokens per step never change, its own throughput is all there is.

A ratio to no-SD moves when either arm does: `draftproof.movers` says whose change it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from draftproof.analysis.held import Changed, changes
from draftproof.analysis.moves import (
    Between,
    between_runs,
    geometric_mean,
    move,
    noise_of_mean,
)
from draftproof.analysis.survival import holm
from draftproof.comparable import Limits, Sides, busy, held_apart, refusal
from draftproof.gate import GREEN, RED, SIGNIFICANCE, Judgement, Verdict
from draftproof.movers import Own, Peers, Tested, log_limit, mean_place, whose
from draftproof.quantities import OWN_THROUGHPUT, PLAIN, SPECULATIVE, STAGES, Figures, GateName, Quantity
from draftproof.snapshot import Series, Snapshot, StageTotals
from draftproof.spec import Threshold

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

GREEN_EXIT, RED_EXIT, UNJUDGED_EXIT = 0, 1, 3
"""Exit statuses of ``compare``; 2 is a mistake of the user's."""


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
    mean: str = ""
    """`mean_place` of the variant, where this cell is part of that figure."""
    only_adds: bool = False
    """As its `Quantity`: where it cannot tell, nothing is left unjudged."""
    metric: str = ""
    """Of the limit's row."""
    noun: str = ""
    """What the figures are, and their unit."""
    unit: str = ""
    limit: float | None = None
    """The relative change that is too much: -0.05 where a drop of 5 % is, 0.05 where a rise is."""
    beyond: float | None = None
    """Of the change for the worse: how far it lies beyond the limit, relative too; negative: within."""
    sets: int | None = None
    """Prompt sets in common."""
    why: str = ""
    """The reason without the figures above: why nothing could be judged, whose change it is, which stage rose."""

    @property
    def counts(self) -> bool:
        """Whether it has a say in what is made of its place and of the run."""
        return not (self.only_adds and self.verdict == "UNSTABLE")


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """A field that differs between the two sides; both values as Python writes them."""

    field: str
    base: str
    new: str
    places: list[str] = []
    """Cells that it concerns; empty: all."""


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
    unlike: list[Apart] = []
    """Held fields that differ: what they concern is not judged."""
    under_test: list[Apart] = []
    """What differs and may: versions and the commit, of the newest run of each side."""

    def of(self, place: str) -> list[Finding]:
        """Findings that have a say there."""
        return [finding for finding in self.findings if finding.place == place and finding.counts]

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
        """Red where anything is; green where all is, but for cells whose noise averages out in a green mean."""
        if any(finding.verdict in RED for finding in self.findings):
            return RED_EXIT
        green = {(finding.place, finding.gate) for finding in self.findings if finding.verdict in GREEN}
        answered = [
            finding.verdict in GREEN or (finding.verdict == "UNSTABLE" and (finding.mean, finding.gate) in green)
            for finding in self.findings
            if finding.counts
        ]
        return GREEN_EXIT if answered and all(answered) else UNJUDGED_EXIT


def compare(
    base: list[Snapshot], new: list[Snapshot], rows: Sequence[Threshold], *, same_run: bool = False
) -> Compared:
    """Judge `new` against `base`: runs of one study each, oldest first; of more than one the mean is taken.

    Without a run in `base` every cell is `NO_BASELINE`.

    `same_run`: both are builds that ran in the same rotations; then nothing is added for the spread between runs.

    Raises DraftproofError for a missing limit.
    """
    latest = new[-1]
    limits = Limits(rows, latest)
    unlike = [
        change
        for other in (*base, *new[:-1])
        for change in changes({"hardware": other.hardware, **other.held}, {"hardware": latest.hardware, **latest.held})
    ]
    unlike_cells: dict[Changed, list[str]] = {change: [] for change in unlike}
    findings: list[Finding] = []
    tested: list[Tested] = []
    stages: list[Tested] = []
    base_series, new_series = by_id(base), by_id(new)
    for series in latest.series:
        sides = Sides(
            base=[one for one in base_series.get(series.id, []) if one.usable],
            new=[one for one in new_series[series.id] if one.usable or one is series],
        )
        apart = [] if unlike else held_apart(sides)
        refused = refusal(sides, unlike, apart, limits)
        if refused is not None and refused[0] == "INCOMPARABLE":
            for change in apart:
                unlike_cells.setdefault(change, []).append(series.id)
        sets = len(sides.shared()) if refused is not None and refused[0] == "INSUFFICIENT" else None
        few = sets is not None and sets > 1  # to show, not to judge
        waited = busy(sides, limits) if refused is None or few else ""
        for quantity in SPECULATIVE if series.speculative else PLAIN:
            if refused is not None:
                shown = few and (not waited or quantity.gate == "drafter")
                moved = tested_of(sides, quantity, limits, sides.shared(), same_run=same_run) if shown else None
                verdict, why = refused[0], refused[1] if shown or not waited else f"{refused[1]}; {waited}"
                findings.append(unjudged(series, quantity, verdict, why, sets=sets, moved=moved))
            elif waited and quantity.gate != "drafter":
                findings.append(unjudged(series, quantity, "UNSTABLE", waited))
            else:
                tested.append(tested_of(sides, quantity, limits, sides.shared(), same_run=same_run))
        for quantity in STAGES if series.speculative and refused is None and not waited else ():
            shared = shared_sets(sides, quantity.logs)
            if len(shared) > 1:
                stages.append(tested_of(sides, quantity, limits, shared, same_run=same_run))
    tested += variant_means(tested) + whole_variants(stages)
    findings += judged(tested)
    order = {series.id: index for index, series in enumerate(latest.series)}
    findings.sort(key=lambda finding: order.get(finding.place, -1))  # geometric means first
    notes = [] if base else [f"no run of {latest.name} to compare with; save one with draftproof baseline save RUN"]
    if missing := [name for name in base_series if name not in order]:
        notes.append(f"only in the baseline: {', '.join(missing)}")
    if others := sorted({run.study for run in base} - {latest.study}):
        notes.append(
            f"the baseline is of another study, {', '.join(map(repr, others))}, this run of {latest.study!r}: only "
            "cells with the same prompts and the same held fields are compared"
        )
    return Compared(
        base=[run.run_id for run in base],
        new=[run.run_id for run in new],
        same_run=same_run,
        tests=len(tested),
        findings=findings,
        notes=notes,
        unlike=[
            Apart(field=change.field, base=change.reference, new=change.other, places=places)
            for change, places in unlike_cells.items()
        ],
        under_test=[
            Apart(field=change.field, base=change.reference, new=change.other)
            for older in base[-1:]
            for change in changes(tested_facts(older), tested_facts(latest))
        ],
    )


def tested_facts(run: Snapshot) -> dict[str, Any]:
    """What a run was made with and is not held."""
    return {**run.versions, "commit of the checkout": run.git_commit}


def by_id(runs: Sequence[Snapshot]) -> dict[str, list[Series]]:
    """Cell's id -> that cell in each run that holds it."""
    found: dict[str, list[Series]] = {}
    for run in runs:
        for series in run.series:
            found.setdefault(series.id, []).append(series)
    return found


def shared_sets(sides: Sides, logs: Figures) -> list[str]:
    """Prompt sets of which every run has the figure."""
    found = [logs(one) for one in (*sides.base, *sides.new)]
    return [name for name in found[-1] if all(name in run for run in found)]


def tested_of(sides: Sides, quantity: Quantity, limits: Limits, shared: list[str], *, same_run: bool) -> Tested:
    """One gate's move over the prompt sets in `shared`, two at least."""
    limit = limits.of(quantity.metric, sides.last)
    base_runs = [quantity.logs(one) for one in sides.base]
    new_runs = [quantity.logs(one) for one in sides.new]
    before = [statistics.fmean([run[name] for run in base_runs]) for name in shared]
    after = [statistics.fmean([run[name] for run in new_runs]) for name in shared]
    means = [statistics.fmean([run[name] for name in shared]) for run in base_runs]
    noise = noise_of_mean([[run[name] for name in shared] for run in base_runs])
    between = Between(sd=0.0) if same_run else between_runs(means, limit.between_run_sd, noise)
    runs = (len(base_runs), len(new_runs))
    own_limit = limits.of(OWN_THROUGHPUT.metric, sides.last)
    found = move([quantity.worse * (b - a) for a, b in zip(before, after, strict=True)], between, *runs)
    assert found is not None, "two prompt sets at least"
    return Tested(
        place=sides.last.id,
        series=sides.last,
        quantity=quantity,
        limit=limit,
        own_limit=own_limit,
        between=between,
        means=means,
        noise=noise,
        machine=0.0 if same_run else own_limit.between_run_sd**2 * (1 / runs[0] + 1 / runs[1]),
        runs=runs,
        found=found,
        base=math.exp(statistics.fmean(before)),
        new=math.exp(statistics.fmean(after)),
        own=own_moves(sides, quantity, shared),
        stages=stage_text(sides.base[-1].stages, sides.last.stages) if quantity.gate == "system" else "",
    )


def own_moves(sides: Sides, quantity: Quantity, shared: list[str]) -> Own | None:
    """Of a ratio to no-SD: what each of its two arms did."""
    if quantity.own is None:
        return None

    def better(logs: Figures) -> float:
        new, base = (
            statistics.fmean([found[name] for found in map(logs, runs) for name in shared])
            for runs in (sides.new, sides.base)
        )
        return -quantity.worse * (new - base)

    arm, no_sd = quantity.own
    return Own(arm=better(arm), no_sd=better(no_sd))


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


def variant_means(tested: Sequence[Tested]) -> list[Tested]:
    """Per target, variant and gate: the geometric mean over its cells, the primary figure, where there are several."""
    means = []
    keys = dict.fromkeys((t.series.target, t.series.variant, t.quantity.gate) for t in tested)
    for target, variant, gate in keys:
        members = [t for t in tested if (t.series.target, t.series.variant, t.quantity.gate) == (target, variant, gate)]
        if len(members) < 2:
            continue
        first = members[0]
        means_, noise, between = together(members)
        found = geometric_mean([t.found for t in members], between, *first.runs)
        assert found is not None
        owns = [t.own for t in members if t.own is not None]
        means.append(
            Tested(
                place=mean_place(target, variant),
                series=first.series,
                quantity=first.quantity,
                limit=max((t.limit for t in members), key=lambda row: row.limit),
                own_limit=max((t.own_limit for t in members), key=lambda row: row.limit),
                between=between,
                means=means_,
                noise=noise,
                machine=first.machine,
                runs=first.runs,
                found=found,
                base=math.exp(statistics.fmean(math.log(t.base) for t in members)),
                new=math.exp(statistics.fmean(math.log(t.new) for t in members)),
                own=Own(arm=statistics.fmean(o.arm for o in owns), no_sd=statistics.fmean(o.no_sd for o in owns))
                if owns
                else None,
            )
        )
    return means


def whole_variants(stages: Sequence[Tested]) -> list[Tested]:
    """Of the stages the geometric means alone, and the cell of a variant that has but one.

    The stage clock's blocks are few; a test of each in every cell would cost the other gates their power under Holm.
    """
    means = variant_means(stages)
    meant = {(t.series.target, t.series.variant, t.quantity.gate) for t in means}
    alone = [t for t in stages if (t.series.target, t.series.variant, t.quantity.gate) not in meant]
    return means + alone


def together(members: Sequence[Tested]) -> tuple[list[float], float, Between]:
    """Of a variant's cells: each run's mean over them, the noise in it, and the spread between runs that is left."""
    widest = max((t.between for t in members), key=lambda between: between.sd)
    if widest.sd == 0 or len({len(t.means) for t in members}) > 1:  # one run of two builds; cells that runs lack
        return members[0].means, members[0].noise, widest
    means = [statistics.fmean(cells) for cells in zip(*(t.means for t in members), strict=True)]
    noise = sum(t.noise for t in members) / len(members) ** 2
    return means, noise, between_runs(means, max(t.limit.between_run_sd for t in members), noise)


def judged(tested: Sequence[Tested]) -> list[Finding]:
    """Holm over all gates at once, for the worse; and once more for the better."""
    bounds = [log_limit(t.limit.limit, t.quantity) for t in tested]
    worse = holm([t.found.p_worse(bound) for t, bound in zip(tested, bounds, strict=True)])
    better = holm([t.found.p_better(bound) for t, bound in zip(tested, bounds, strict=True)])
    peers = Peers(tested)
    return [finding(*each, peers) for each in zip(tested, bounds, worse, better, strict=True)]


def finding(tested: Tested, bound: float, worse: float, better: float, peers: Peers) -> Finding:
    quantity, found, own, figures = tested.quantity, tested.found, tested.own, figures_of(tested)
    large = tested.limit.absolute is None or abs(tested.new - tested.base) > tested.limit.absolute
    arm, why = tested.series.variant, ""
    verdict: Verdict = "PASS"
    significant = large and min(worse, better) < SIGNIFICANCE
    moved = whose(tested, peers) if significant else "variant"
    if own is not None and moved != "variant":
        owns = f"its own figure is {describe(own.no_sd)}, {arm}'s {describe(own.arm)}"
        if moved == "either":
            verdict, why = "UNSTABLE", f"no-SD or {arm} may have moved, or the machine: of no-SD {owns}"
        elif better < worse:
            verdict = "REGRESSED" if quantity.gate == "system" else "PASS"  # end to end a slower no-SD is no loss
            arm, why = "no_sd", f"it is no-SD that became slower: {owns}"
        else:
            arm, why = "no_sd", f"it is no-SD that moved: {owns}"
    elif significant:
        verdict = "REGRESSED" if worse < better else "IMPROVED"
    elif found.reach > bound:
        verdict = "UNSTABLE"
        why = f"the limit of {tested.limit.limit:.0%} lies inside the noise of {math.expm1(found.reach):.1%}"
    change = "{change:+.1%} [{low:+.1%}, {high:+.1%}]".format(**figures)
    told = (
        f"{quantity.noun} {number(tested.base)} -> {number(tested.new)} {quantity.unit} "
        f"({change}, {found.sets} prompt sets, limit {tested.limit.limit:.0%}, p = {worse:.2g} after Holm)"
    )
    beside = [part for part in (why, tested.stages if verdict == "REGRESSED" else "") if part]
    return Finding(
        place=tested.place,
        gate=quantity.gate,
        arm=arm,
        verdict=verdict,
        p=worse,
        reason="; ".join([told, *beside]),
        mean=mean_place(tested.series.target, tested.series.variant),
        only_adds=quantity.only_adds,
        metric=quantity.metric,
        noun=quantity.noun,
        unit=quantity.unit,
        why="; ".join(beside),
        **figures,
    )


def figures_of(tested: Tested | None) -> dict[str, Any]:
    """The fields of a finding that say how much moved; None for a gate that has no figures."""
    if tested is None:
        return dict.fromkeys(("base", "new", "change", "low", "high"))
    worse, limit = tested.quantity.worse, tested.limit.limit
    low, high = sorted(math.expm1(worse * end) for end in tested.found.interval())
    change = math.expm1(worse * tested.found.worse)
    return {
        "base": tested.base,
        "new": tested.new,
        "change": change,
        "low": low,
        "high": high,
        "limit": worse * limit,
        "beyond": worse * change - limit,
        "sets": tested.found.sets,
    }


def describe(log_better: float) -> str:
    return f"{math.expm1(abs(log_better)):.1%} {'better' if log_better > 0 else 'worse'}"


def number(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def unjudged(
    series: Series,
    quantity: Quantity,
    verdict: Verdict,
    reason: str,
    *,
    sets: int | None = None,
    moved: Tested | None = None,
) -> Finding:
    """`moved`: what is shown all the same, though it is too little to judge by."""
    return Finding(
        place=series.id,
        gate=quantity.gate,
        arm=series.variant,
        verdict=verdict,
        p=None,
        reason=reason,
        metric=quantity.metric,
        noun=quantity.noun,
        unit=quantity.unit,
        why=reason,
        **(figures_of(moved) | {"sets": sets}),
    )
