"""How far each cell lies from each limit that it is held against. Pure.

What a figure means is decided elsewhere (`draftproof.gate`, `draftproof.comparison`); here it is put beside its limit,
in the limit's own unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from draftproof.analysis.stats import Ratio
from draftproof.comparison import Compared, Finding
from draftproof.gate import BY_PAPER, RED, SIGNIFICANCE, Verdict, show
from draftproof.limits import OF_CHANGES
from draftproof.movers import mean_place
from draftproof.records import NoiseLine
from draftproof.results import CellResult
from draftproof.spec import Threshold

State = Literal["not met", "not judged", "met", "not measured"]
NOT_JUDGED: frozenset[Verdict] = frozenset({"UNSTABLE", "INSUFFICIENT", "INCOMPARABLE"})


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """One cell beside one limit."""

    state: State
    room: float = math.inf
    """What is left to the limit, in the limit's own unit; negative: beyond it. Only of one limit may it be compared."""
    text: str = ""
    """The figure and the distance; empty where nothing was measured."""

    @property
    def order(self) -> tuple[int, float]:
        """Sort key: the worst first."""
        return STATES.index(self.state), self.room


STATES: tuple[State, ...] = ("not met", "not judged", "met", "not measured")
UNKNOWN = Distance(state="not measured")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a run shows beside its cells."""

    noise_nats: dict[str, float]
    """Target -> the measured width of a tie."""
    findings: dict[str, list[Finding]]
    """Cell id -> its gates against the baseline."""


def seen(noise: Iterable[NoiseLine], compared: Compared | None) -> Seen:
    widths: dict[str, float] = {}
    for line in noise:
        widths[line.target] = max(widths.get(line.target, 0.0), line.width_nats)
    findings: dict[str, list[Finding]] = {}
    for finding in compared.findings if compared else []:
        findings.setdefault(finding.place, []).append(finding)
    return Seen(noise_nats=widths, findings=findings)


def distance(row: Threshold, cell: CellResult, beside: Seen) -> Distance:
    """A cell's distance to a limit that concerns it."""
    if row.metric in OF_CHANGES:
        return of_change(row, cell, beside)
    of = BY_METRIC.get(row.metric)
    return of(row, cell, beside) if of else UNKNOWN


def of_speedup(row: Threshold, cell: CellResult, _: Seen) -> Distance:
    """A floor fails where the whole interval lies below it: the upper end counts."""
    ratio: Ratio | None = cell.paper_ratio if row.metric == BY_PAPER else cell.speedup
    if ratio is None or not (math.isfinite(ratio.low) and math.isfinite(ratio.high)):
        return UNKNOWN
    room = ratio.high - row.floor
    state: State = "met" if room >= 0 else "not met"
    if row.gating and cell.throughput.verdict in NOT_JUDGED:
        state = "not judged"
    return Distance(state=state, room=room, text=f"{show(ratio)}; upper end {side(room, '{:.2f}', below=False)}")


def of_gap(row: Threshold, cell: CellResult, _: Seen) -> Distance:
    """The largest gap of a first difference; one without a score that is judged divergent has no number."""
    same = cell.sameness
    if same is None or cell.determinism.verdict == "INCOMPARABLE":
        return UNKNOWN
    differing = [one for one in same.differences if one.cause not in ("identical", "inconclusive")]
    gaps = [one.gap_nats for one in differing if one.gap_nats is not None]
    divergent = same.causes.get("divergent", 0)
    effective = same.limit_nats
    wider = f" (the noise that this run measured, wider than {row.limit:g})" if effective > row.limit else ""
    if not differing and not divergent:
        return Distance(state="met", room=effective, text="no scored difference")
    unscored = sum(one.cause == "divergent" and one.gap_nats is None for one in differing)
    room = effective - max(gaps, default=0.0)
    parts = []
    if gaps:
        parts.append(f"largest gap {max(gaps):.3f} nats, {side(room, '{:.3f}')} of {effective:.3f}{wider}")
    if unscored:
        parts.append(f"{unscored} divergent without a gap")
    return Distance(
        state="not met" if divergent else "met",
        room=min(room, -math.inf if unscored else math.inf),
        text="; ".join(parts) or "no gap was scored",
    )


def of_noise(row: Threshold, cell: CellResult, beside: Seen) -> Distance:
    width = beside.noise_nats.get(cell.cell.target)
    if width is None or cell.sameness is None:
        return UNKNOWN
    room = row.limit - width
    text = f"{width:.3f} nats, {side(room, '{:.3f}')}"
    return Distance(state="met" if room >= 0 else "not met", room=room, text=text)


def of_share(row: Threshold, cell: CellResult, _: Seen) -> Distance:
    """Divergent or inconclusive requests over all."""
    causes = cell.sameness.causes if cell.sameness else {}
    total = sum(causes.values())
    if not total or cell.determinism.verdict == "INCOMPARABLE":
        return UNKNOWN
    count = causes.get(row.metric.removesuffix("_share"), 0)
    room = row.limit - count / total
    text = f"{count} of {total} requests ({100 * count / total:.3g} %), {side(100 * room, '{:.3g} points')}"
    return Distance(state="met" if room >= 0 else "not met", room=room, text=text)


def of_ties(row: Threshold, cell: CellResult, _: Seen) -> Distance:
    """Judged by a test, so that the p-value says how far it is from red."""
    excess = cell.excess
    if excess is None:
        return UNKNOWN
    allowed = row.limit * excess.control_per_1000
    text = (
        f"{excess.per_1000:.2f} per 1,000 tokens, with {excess.control} {excess.control_per_1000:.2f}: "
        f"{side(allowed - excess.per_1000, '{:.2f}')}, p = {excess.p:.2g}"
    )
    room = excess.p - SIGNIFICANCE
    return Distance(state="met" if room >= 0 else "not met", room=room, text=text)


def of_waiting(row: Threshold, cell: CellResult, _: Seen) -> Distance:
    if cell.waiting is None:
        return UNKNOWN
    room = row.limit - cell.waiting
    text = f"{100 * cell.waiting:.0f} % of the time, {side(100 * room, '{:.0f} points')}"
    return Distance(state="met" if room >= 0 else "not met", room=room, text=text)


def of_sets(row: Threshold, cell: CellResult, beside: Seen) -> Distance:
    """Prompt sets in common with the baseline."""
    counts = [one.sets for one in findings_of(cell, beside) if one.sets is not None]
    if not counts:
        return UNKNOWN
    room = min(counts) - row.limit
    text = f"{min(counts)} in common, {side(room, '{:g}', below=False)}"
    return Distance(state="met" if room >= 0 else "not met", room=room, text=text)


def of_change(row: Threshold, cell: CellResult, beside: Seen) -> Distance:
    """The nearest gate of that limit: the cell's own, or its variant's mean where only that is judged."""
    own = [one for one in findings_of(cell, beside) if one.metric == row.metric]
    mean = beside.findings.get(mean_place(cell.cell.target, cell.cell.variant), []) if cell.build == "new" else []
    found = own or [one for one in mean if one.metric == row.metric]
    return min((of_finding(one, several=len(found) > 1) for one in found), key=lambda one: one.order, default=UNKNOWN)


def of_finding(found: Finding, *, several: bool) -> Distance:
    """`several`: one limit holds for several gates, so that the gate must be named."""
    gate = f"{found.gate}: " if several else ""
    if found.change is None or found.low is None or found.high is None or found.beyond is None:
        why = found.why or found.reason
        return Distance(state="not met" if found.verdict in RED else "not judged", text=gate + why)
    change, low, high = (round(100 * value, 1) + 0.0 for value in (found.change, found.low, found.high))
    changed = f"{change:+.1f} % [{low:+.1f}, {high:+.1f}]"
    state: State = "not met" if found.verdict in RED else "not judged" if found.verdict in NOT_JUDGED else "met"
    text = f"{gate}{changed}, {side(-100 * found.beyond, '{:.1f} points')}"
    return Distance(state=state, room=-found.beyond, text=text)


def findings_of(cell: CellResult, beside: Seen) -> list[Finding]:
    """Of the new build: the other one is what it is compared with."""
    return beside.findings.get(cell.cell.id, []) if cell.build == "new" else []


def side(room: float, form: str, *, below: bool = True) -> str:
    """``0.12 below the limit``; `below`: where it should be."""
    where = "below" if (room >= 0) == below else "above"
    return f"{form.format(abs(room))} {where} the limit"


BY_METRIC: Mapping[str, Callable[[Threshold, CellResult, Seen], Distance]] = {
    "speedup": of_speedup,
    BY_PAPER: of_speedup,
    "divergence_gap_nats": of_gap,
    "noise_width_nats": of_noise,
    "divergent_share": of_share,
    "inconclusive_share": of_share,
    "near_tie_ratio": of_ties,
    "waiting_share": of_waiting,
    "pairs": of_sets,
}
