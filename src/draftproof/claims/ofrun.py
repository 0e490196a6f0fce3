"""From a run's results to what claims are judged by.

Controls are no variants, and a figure without an interval is none.

A cell counts where its arm and no-SD ran to their end with the same held settings and whole records. Its seconds count
where the machine was not busy beside it. Where token ids are nobody's answer (random weights, drafts accepted at a set
rate) the speedup's level and all that is said of outputs are left out; how the speedup falls and where the time goes
are not.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from draftproof import gate
from draftproof.analysis.anatomy import Anatomy
from draftproof.analysis.decay import Point
from draftproof.analysis.lengths import NO_SD
from draftproof.analysis.rowsprice import Interval
from draftproof.analysis.stats import CONFIDENCE, Ratio, Share
from draftproof.anatomy import PairOverlap
from draftproof.catalog import Catalog
from draftproof.claims.facts import Evidence, Fact, difference, fall, span
from draftproof.determinism import LengthTable
from draftproof.records import ArmLine
from draftproof.results import CellResult, RunResults

BUILD = "new"
"""Of a run with two builds the one under test is judged."""


LEAST_PROMPTS = 6
"""Of a variance between prompts: with fewer its interval hangs on how they are distributed."""


class Counted(msgspec.Struct, frozen=True):
    """A cell whose figures count."""

    cell: CellResult
    arm: ArmLine
    own: dict[str, Any]
    """What all of its facts are of."""
    timed: bool
    """The machine was not busy."""

    def fact(self, quantity: str, value: Interval, **more: Any) -> Fact:
        return Fact(quantity=quantity, value=value, **{**self.own, **more})


def of_run(results: RunResults, catalog: Catalog) -> Evidence:
    """`catalog`: what a workload's kind and a target's size are looked up in."""
    arms = variant_arms(results, catalog)
    counted, left_out = [], Counter[str]()
    for cell in results.cells:
        arm = arms.get((cell.cell.target, cell.cell.variant))
        if arm is None or cell.build != BUILD or cell.arm == cell.base_arm:
            continue
        why = unusable(cell)
        busy = not why and is_busy(cell, catalog)
        if why or busy:
            left_out[why or "the machine was busy (their seconds alone)"] += 1
        if not why:
            counted.append(Counted(cell, arm, about(cell, arm, catalog), not busy))
    facts = [fact for one in counted for fact in facts_of(one)]
    facts += anatomy_facts(results, counted)
    facts += decay_facts(counted)
    for table in results.lengths:
        facts += length_facts(table, arms, catalog)
    return Evidence(
        facts=facts, left_out=[f"{count} {'cell' if count == 1 else 'cells'}: {why}" for why, count in left_out.items()]
    )


def variant_arms(results: RunResults, catalog: Catalog) -> dict[tuple[str, str], ArmLine]:
    """(Target, variant) -> its arm; no-SD, controls and a target that drafts for itself are not in it."""
    found: dict[tuple[str, str], ArmLine] = {}
    for arm in results.arms:
        known = catalog.variants.get(arm.variant)
        drafter = known.drafters.get(arm.target) if known else None
        control = arm.control or (known and known.control) or (drafter and drafter.source == "self")
        if arm.build == BUILD and arm.role == "run" and arm.speculative_config and not control:
            found.setdefault((arm.target, arm.variant), arm)
    return found


def unusable(cell: CellResult) -> str:
    """Why a cell's figures say nothing; empty where they do."""
    if cell.throughput.verdict == "FAILED":
        return "they did not run to their end"
    if cell.throughput.verdict == "INCOMPARABLE":
        return "settings that must be held differ from no-SD's"
    return "their records are broken" if cell.broken else ""


def is_busy(cell: CellResult, catalog: Catalog) -> bool:
    limits = gate.waiting_limits(catalog.thresholds.get(cell.cell.hardware, []), cell.cell)
    return cell.waiting is not None and any(cell.waiting > row.limit for row in limits)


def about(cell: CellResult, arm: ArmLine, catalog: Catalog) -> dict[str, Any]:
    what = cell.cell
    known = catalog.targets.get(what.target), catalog.workloads.get(what.workload)
    return {
        "target": what.target,
        "parameters": known[0].parameters if known[0] else None,
        "variant": what.variant,
        "kind": str(arm.speculative_config.get("method", "")),
        "workload": what.workload,
        "workload_kind": known[1].kind if known[1] else "",
        "batch_size": what.batch_size,
    }


def value_of(found: Ratio | Share) -> Interval | None:
    """None where an end is not finite."""
    ends = (found.value, found.low, found.high)
    return Interval(*ends) if all(map(math.isfinite, ends)) else None


def facts_of(one: Counted) -> Iterator[Fact]:
    """Of the cell alone."""
    cell = one.cell
    if one.timed:
        for stage, share in cell.stage_shares.items():
            yield one.fact("stage_share", Interval(share.value, share.low, share.high), part=stage)
    if one.arm.meaningless:
        return
    speedup = value_of(cell.speedup) if cell.speedup and one.timed else None
    if speedup:
        yield one.fact("speedup", speedup)
    same = cell.sameness
    if same is not None and not same.garbage:
        yield one.fact("identical_share", Interval(same.share, same.share_low, same.share_high))


def anatomy_facts(results: RunResults, counted: list[Counted]) -> Iterator[Fact]:
    known = {one.cell.cell.id: one for one in counted if not one.arm.meaningless}
    for found in results.anatomies.cells:
        if found.build == BUILD and found.cell in known:
            yield from acceptance_facts(known[found.cell], found.anatomy)
    for pair in results.anatomies.overlaps:
        if pair.build == BUILD and pair.basis == "seconds" and pair.first in known and pair.second in known:
            first, second = known[pair.first], known[pair.second]
            if first.timed and second.timed:
                yield from overlap_facts(first, second, pair)


def acceptance_facts(one: Counted, anatomy: Anatomy) -> Iterator[Fact]:
    length = value_of(anatomy.acceptance_length) if anatomy.acceptance_length else None
    if length:
        yield one.fact("acceptance_length", length)
    for number, share in enumerate(anatomy.conditional, start=1):
        if share is not None:
            yield one.fact("place_acceptance", Interval(share.value, share.low, share.high), part=str(number))
    for group in anatomy.lengths:
        for number, tenth in enumerate(group.deciles, start=1):
            value = value_of(tenth) if tenth else None
            if value:
                longer = f" to {group.most_tokens}" if group.most_tokens > group.least_tokens else ""
                detail = f"outputs of {group.least_tokens}{longer} tokens"
                yield one.fact("step_tokens", value, part=str(number), detail=detail)
    variation = request_variation(anatomy)
    if variation:
        yield one.fact("request_variation", variation)


def request_variation(anatomy: Anatomy) -> Interval | None:
    """Variance of the acceptance length between prompts over that of drafts which all have the same chances.

    The first from the jackknife over prompts, with an interval as if its figures were normal (chi-squared, a degree of
    freedom less than prompts); the second from how often a draft has each number of accepted tokens. Runs of one prompt
    repeat each other, so that the drafts of a prompt count once. None below six prompts or without any spread.
    """
    from scipy import stats

    length = anatomy.acceptance_length
    if length is None or length.log_error is None or not anatomy.survival or length.clusters < LEAST_PROMPTS:
        return None
    rates = [share.value for share in anatomy.survival]
    spread = sum((2 * place - 1) * rate for place, rate in enumerate(rates, start=1)) - sum(rates) ** 2
    drafts = anatomy.survival[0].trials * anatomy.prompts / anatomy.requests
    if spread <= 0 or not math.isfinite(length.log_error):
        return None
    found = (length.value * length.log_error) ** 2 / (spread / drafts)
    freedom = length.clusters - 1
    tail = (1 - CONFIDENCE) / 2
    low, high = (found * freedom / float(stats.chi2.ppf(end, freedom)) for end in (1 - tail, tail))
    return Interval(found, low, high)


def overlap_facts(first: Counted, second: Counted, pair: PairOverlap) -> Iterator[Fact]:
    for one in pair.bins:
        value = value_of(one.advantage) if one.advantage else None
        if value:
            detail = f"against {second.cell.cell.variant}"
            yield first.fact("overlap_advantage", value, part=f"{one.low:.1f}-{one.high:.1f}", detail=detail)


def decay_facts(counted: list[Counted]) -> Iterator[Fact]:
    """One for each variant on each workload, over the cells that have its usual output length."""
    curves: dict[tuple[str, str, str], list[Counted]] = defaultdict(list)
    for one in counted:
        if one.timed and one.cell.speedup is not None:
            curves[one.cell.cell.target, one.cell.cell.variant, one.cell.cell.workload].append(one)
    for curve in curves.values():
        usual = Counter(one.cell.cell.output_tokens for one in curve).most_common(1)[0][0]
        points = [
            Point(batch_size=cell.batch_size, output_tokens=cell.output_tokens, speedup=speedup)
            for one in curve
            for cell, speedup in [(one.cell.cell, one.cell.speedup)]
            if speedup is not None and cell.output_tokens == usual
        ]
        found = fall(points)
        if found:
            yield curve[0].fact("per_doubling", found, batch_size=None, detail=span(points))


def length_facts(table: LengthTable, arms: Mapping[tuple[str, str], ArmLine], catalog: Catalog) -> Iterator[Fact]:
    """Each variant's mean length less no-SD's at the same batch size, from both ones' differences to one reference."""
    shifts = {
        (row.variant, row.batch_size): Interval(row.difference, row.low, row.high)
        if row.difference is not None and row.low is not None and row.high is not None
        else Interval(0.0, 0.0, 0.0)
        for row in table.rows
        if row.prompts > 1
    }
    target, workload = catalog.targets.get(table.target), catalog.workloads.get(table.workload)
    for (variant, batch_size), shift in shifts.items():
        arm, base = arms.get((table.target, variant)), shifts.get((NO_SD, batch_size))
        if arm is None or base is None or arm.meaningless:
            continue
        yield Fact(
            quantity="length_difference",
            value=difference(shift, base),
            target=table.target,
            parameters=target.parameters if target else None,
            variant=variant,
            kind=str(arm.speculative_config.get("method", "")),
            workload=table.workload,
            workload_kind=workload.kind if workload else "",
            batch_size=batch_size,
        )
