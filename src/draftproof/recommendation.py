"""Which variant to deploy at each place, a place being a (target, workload, batch size, build), and when none. Pure.

The advice is the fastest variant whose interval lies above 1 after it was widened for having been chosen among several;
where there is none, the fastest whose own interval does, and the advice is weak. Of those within one standard error of
the fastest the one that takes least memory goes first: the one-standard-error rule of Breiman, Friedman, Olshen and
Stone (Classification and Regression Trees, 1984, section 3.4.3). Controls are never advised, nor is what
`CellResult.unfit` names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from draftproof.analysis.decay import Decay
from draftproof.analysis.stats import CONFIDENCE, Ratio, t_quantile
from draftproof.bounds import Reached
from draftproof.memorycosts import MemoryCost
from draftproof.outcomes import speedup_of, standing
from draftproof.results import CellResult, RunResults

Advice = Literal["deploy", "weak", "undecided", "off", "none"]
"""Above 1 however it was chosen; above 1 by its own interval alone; no variant told apart from 1; all of them slower;
nothing that could be advised was measured."""

MOST_LOG = 700.0
"""exp of more is no float."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that might be advised."""

    cell: str
    variant: str
    k: int | None
    """Draft tokens a step; None: not recorded."""
    speedup: Ratio
    """Over the no-SD arm beside it, which has the settings that the variant forces."""
    net: Ratio
    """The same over the fastest no-SD arm of the place: where another one is faster, times the ratio of both no-SDs'
    tokens/s, which has no interval."""
    adjusted: Ratio
    """`net`, with the interval widened for the choice among all candidates."""
    base_arm: str
    base_tokens_per_s: float | None
    memory: MemoryCost | None


class Close(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that is not told apart from the fastest."""

    variant: str
    ratio: Ratio
    """Throughput of the fastest over this one's; 95 %."""
    within_one_error: bool


class Excluded(msgspec.Struct, frozen=True, kw_only=True):
    variant: str
    why: str


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The advice for one place."""

    target: str
    workload: str
    batch_size: int
    build: str
    advice: Advice
    chosen: Candidate | None
    """None where nothing is told to be faster."""
    fastest: Candidate | None
    """The one that `close` is told against; where nothing is advised, the one with the highest speedup."""
    candidates: int
    close: list[Close]
    slowed: list[str]
    """Candidates whose no-SD another one outruns: their `net` is less than their speedup."""
    excluded: list[Excluded]
    break_even: Decay | None
    """Of the chosen variant, else of the fastest."""
    reached: Reached | None
    """The chosen variant beside the measured oracle of the same k."""


class Place(NamedTuple):
    target: str
    workload: str
    batch_size: int
    build: str


class Known(NamedTuple):
    """Look-ups over a run, made once."""

    results: RunResults
    memory: dict[tuple[str, str, str], MemoryCost]
    decays: dict[tuple[str, str, str, str], Decay]
    rivals: dict[tuple[str, str, str], Ratio]
    reached: dict[tuple[str, str, int, str, str, int], Reached]
    """By place, variant and k."""


def recommend(results: RunResults) -> list[Choice]:
    """One for each place with a variant that is no control, in the order of the cells."""
    known = Known(
        results,
        {(one.target, one.variant, one.build): one for one in results.memory},
        {(one.target, one.variant, one.workload, one.build): one for one in results.decays},
        {(one.first, one.second, one.build): one.ratio for one in results.rivals},
        {
            (one.target, one.workload, one.batch_size, one.build, one.variant, one.k): one
            for one in results.bounds.reached
            if one.oracle_k == one.k
        },
    )
    places: dict[Place, list[CellResult]] = {}
    for cell in results.cells:
        what = cell.cell
        places.setdefault(Place(what.target, what.workload, what.batch_size, cell.build), []).append(cell)
    chosen = [choose(place, cells, known) for place, cells in places.items()]
    return [choice for choice in chosen if choice is not None]


def choose(place: Place, cells: list[CellResult], known: Known) -> Choice | None:
    """None where no variant but controls was asked for."""
    controls = known.results.controls
    asked = [cell for cell in cells if cell.speculative and cell.cell.variant not in controls]
    if not asked:
        return None
    found = candidates([cell for cell in asked if not cell.unfit], cells, known)
    sure = [one for one in found if one.adjusted.low > 1]
    pool = sure or [one for one in found if one.net.low > 1]
    fastest = max(pool or found, key=lambda one: one.net.value, default=None)
    others = [close(fastest, one, place.build, known) for one in found if one is not fastest] if fastest else []
    near = [one for one in others if one.ratio.low <= 1]
    chosen = lightest(fastest, pool, near) if pool and fastest else None
    shown = chosen or fastest
    return Choice(
        target=place.target,
        workload=place.workload,
        batch_size=place.batch_size,
        build=place.build,
        advice=advice(found, sure, pool, [ratio for cell in asked if (ratio := speedup_of(cell))]),
        chosen=chosen,
        fastest=fastest,
        candidates=len(found),
        close=near,
        slowed=[one.variant for one in found if one.net.value < one.speedup.value],
        excluded=[Excluded(variant=cell.cell.variant, why=cell.unfit) for cell in asked if cell.unfit],
        break_even=known.decays.get((place.target, shown.variant, place.workload, place.build)) if shown else None,
        reached=reached(place, chosen, cells, known) if chosen else None,
    )


def advice(
    found: Sequence[Candidate], sure: Sequence[Candidate], pool: Sequence[Candidate], measured: Sequence[Ratio]
) -> Advice:
    """`measured`: all speedups of the place, those of unfit variants too, which count where there are no others."""
    if pool:
        return "deploy" if sure else "weak"
    told = [one.net for one in found] or measured
    if told and all(standing(ratio) == "slower" for ratio in told):
        return "off"
    return "undecided" if found else "none"


def candidates(fit: list[CellResult], cells: list[CellResult], known: Known) -> list[Candidate]:
    """`cells`: all of the place, whose no-SD arms the gains are told against."""
    found = []
    for cell in fit:
        assert cell.speedup is not None, "a cell without a figure is unfit"
        net = scaled(cell.speedup, handicap(cell, cells))
        arm = known.results.arm_of(cell)
        k = arm.speculative_config.get("num_speculative_tokens") if arm else None
        found.append(
            Candidate(
                cell=cell.cell.id,
                variant=cell.cell.variant,
                k=k if isinstance(k, int) else None,
                speedup=cell.speedup,
                net=net,
                adjusted=adjusted(net, len(fit)),
                base_arm=cell.base_arm,
                base_tokens_per_s=cell.base_tokens_per_s,
                memory=known.memory.get((cell.cell.target, cell.cell.variant, cell.build)),
            )
        )
    return found


def handicap(cell: CellResult, cells: Iterable[CellResult]) -> float:
    """Tokens/s of the cell's no-SD over those of the fastest no-SD with other settings, 1 at most.

    Whoever turns speculation on gives up the faster settings too. No-SD arms of one key differ by noise alone.
    """
    own = cell.base_tokens_per_s
    others = [c.base_tokens_per_s for c in cells if c.base_arm != cell.base_arm and c.base_tokens_per_s]
    return min(1.0, own / max(others)) if own and others else 1.0


def scaled(ratio: Ratio, factor: float) -> Ratio:
    if factor == 1:
        return ratio
    ends = {name: factor * getattr(ratio, name) for name in ("value", "low", "high")}
    return msgspec.structs.replace(ratio, **ends)


def adjusted(ratio: Ratio, among: int) -> Ratio:
    """The interval of a ratio that was chosen among so many: Bonferroni, each end at 1 - 0.05 / `among`.

    Both ends are moved on the log scale by the ratio of the two quantiles of Student's t with the ratio's degrees of
    freedom (clusters - 1): for a jackknife interval that is the Bonferroni interval itself; a BCa interval keeps its
    skew.
    """
    if among < 2:
        return ratio
    freedom = max(1, ratio.clusters - 1)
    wider = t_quantile(freedom, 1 - (1 - CONFIDENCE) / among) / t_quantile(freedom)
    middle = math.log(ratio.value)
    low, high = (exponential(middle + wider * (math.log(end) - middle)) for end in (ratio.low, ratio.high))
    method = f"{ratio.method}; widened for a choice among {among} (Bonferroni)"
    return msgspec.structs.replace(ratio, low=low, high=high, method=method)


def exponential(value: float) -> float:
    """exp, with infinity for what is too large: two prompt sets widen without measure."""
    return math.exp(value) if value < MOST_LOG else math.inf


def log_error(ratio: Ratio) -> float:
    """Standard error of the log ratio, from its interval where it was not recorded."""
    return ratio.log_error if ratio.log_error is not None else ratio.half_width / t_quantile(max(1, ratio.clusters - 1))


def against(first: Candidate, second: Candidate, build: str, known: Known) -> Ratio:
    """Throughput of the first over the second's: paired where both ran in the same rotations.

    Else from both gains, taken as independent, with the fewer degrees of freedom of the two.
    """
    same_base = first.base_arm == second.base_arm
    told = known.rivals.get((first.cell, second.cell, build)) if same_base else None
    if told is not None:
        return told
    told = known.rivals.get((second.cell, first.cell, build)) if same_base else None
    if told is not None:
        return msgspec.structs.replace(told, value=1 / told.value, low=1 / told.high, high=1 / told.low)
    clusters = min(first.net.clusters, second.net.clusters)
    error = math.hypot(log_error(first.net), log_error(second.net))
    value, reach = first.net.value / second.net.value, t_quantile(max(1, clusters - 1)) * error
    return Ratio(
        value=value,
        low=value * math.exp(-reach),
        high=value * math.exp(reach),
        clusters=clusters,
        method="of two speedups taken as independent, t quantile",
        log_error=error,
    )


def close(fastest: Candidate, other: Candidate, build: str, known: Known) -> Close:
    ratio = against(fastest, other, build, known)
    return Close(variant=other.variant, ratio=ratio, within_one_error=math.log(ratio.value) <= log_error(ratio))


def lightest(fastest: Candidate, pool: list[Candidate], near: list[Close]) -> Candidate:
    """Of `pool`, within one standard error of the fastest: least memory, then speed; unknown memory comes last."""
    names = {one.variant for one in near if one.within_one_error} | {fastest.variant}
    ends = float("inf"), float("inf")
    return min(
        (one for one in pool if one.variant in names),
        key=lambda one: (one.memory.order if one.memory else ends, -one.net.value, one.k or 0),
    )


def reached(place: Place, chosen: Candidate, cells: list[CellResult], known: Known) -> Reached | None:
    """Beside the oracle of the same k, if that is fit to be told against."""
    row = known.reached.get((*place, chosen.variant, chosen.k or 0))
    fit = {cell.cell.variant for cell in cells if not cell.unfit}
    return row if row is not None and row.oracle in fit and row.share is not None else None
