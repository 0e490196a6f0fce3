"""Every threshold that the run's cells are held against, and how far they lie from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from draftproof.distances import STATES, Distance, Seen, State, distance, seen
from draftproof.limits import Applied, Judged, concerned
from draftproof.report import view
from draftproof.report.parts import Page, Section, Table
from draftproof.report.words import some
from draftproof.results import CellResult, RunResults
from draftproof.spec import Threshold

NAMED = 3
"""Names that a selector of a row is told with; the rest are counted."""
LIMITED: dict[str, tuple[str, str]] = {
    "speedup": ("speedup, at least", "x"),
    "paper_speedup": ("speedup by the paper's estimator, at least", "x"),
    "divergence_gap_nats": ("gap of a tie, at most", "nats"),
    "noise_width_nats": ("measured width of a tie, at most", "nats"),
    "divergent_share": ("share of divergent requests, at most", "%"),
    "inconclusive_share": ("share of inconclusive requests, at most", "%"),
    "near_tie_ratio": ("ties over the control's, at most", "x"),
    "waiting_share": ("share of time without a CPU, at most", "%"),
    "pairs": ("prompt sets in common with the baseline, at least", ""),
    "acceptance_drop": ("drop of the acceptance length, at most", "%"),
    "system_cost_rise": ("rise of a step's seconds over no-SD's, at most", "%"),
    "stage_rise": ("rise of a stage's seconds over a step of no-SD, at most", "%"),
    "speedup_drop": ("drop of the speedup, at most", "%"),
    "throughput_drop": ("drop of no-SD's throughput, at most", "%"),
}
"""Metric of a row -> what it limits, and the unit of its limit."""
HEAD = ["state", "what is limited", "limit", "worst cell", "its distance", "cells", "estimator", "source"]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A row and its cells, the worst one first in mind."""

    applied: Applied
    worst: CellResult | None
    """None where nothing was measured."""
    nearest: Distance
    counts: dict[State, int]


def section(page: Page) -> Section | None:
    """None for results from before the limits were kept with them."""
    limits = page.results.limits
    if not limits.rows and not limits.others:
        return None
    held = held_rows(page.results, seen(page.results.noise, page.compared))
    made = [
        table_of(page, [one for one in held if one.applied.row.gating == gating], gating=gating)
        for gating in (True, False)
    ]
    tables = [table for table in made if table is not None]
    if limits.others:
        tables.append(others_table(limits.others))
    return Section(id="limits", title="Limits", tables=tables)


def held_rows(results: RunResults, beside: Seen) -> list[Held]:
    """Rows in the order of what matters: those that some cell does not meet, then not judged, met, not measured."""
    cells = results.cells
    rows = results.limits.rows
    judged = [Judged(cell.cell, cell.speculative) for cell in cells]
    made = [
        held_of(rows[index], [cells[number] for number in numbers], beside)
        for index, numbers in sorted(concerned(rows, judged).items())
    ]
    return sorted(made, key=lambda one: STATES.index(one.nearest.state))


def held_of(applied: Applied, cells: Sequence[CellResult], beside: Seen) -> Held:
    counts: dict[State, int] = dict.fromkeys(STATES, 0)
    worst: CellResult | None = None
    nearest = Distance(state="not measured")
    for cell in cells:
        found = distance(applied.row, cell, beside)
        counts[found.state] += 1
        if found.order < nearest.order:
            worst, nearest = cell, found
    return Held(applied=applied, worst=worst, nearest=nearest, counts=counts)


def table_of(page: Page, held: list[Held], *, gating: bool) -> Table | None:
    """The limits that decide, or those that only inform."""
    if not held:
        return None
    rows = f"{len(held)} limit{'s' if len(held) > 1 else ''}: {counted(Counter(one.nearest.state for one in held))}"
    if gating:
        note = "A cell that does not meet one is red, or not judged where the limit says so. "
    else:
        note = "Shown beside the figures; no verdict follows from them. "
    note += "State: that of the worst cell; limits that some cell does not meet come first. Distances: in its unit."
    if any(one.nearest.state == "not measured" for one in held):
        note += " Not measured: what this run has no figure for"
        note += "." if page.compared else "; limits on a change need a baseline (--compare BASE)."
    here = present(page.results.cells)
    several = len({one.hardware for one in page.results.limits.rows}) > 1
    return Table(
        name="limits-gating" if gating else "limits-informing",
        title=f"■ Gating, {rows}" if gating else f"□ Informing only, {rows}",
        note=note,
        head=HEAD,
        body=[row_of(page.results, one, here, several=several) for one in held],
        names=len(HEAD),
        tone="gating" if gating else "informing",
    )


def row_of(results: RunResults, held: Held, here: Present, *, several: bool) -> list[str]:
    row = held.applied.row
    what = limited_text(row, here) + (f" ({held.applied.hardware})" if several else "")
    return [
        held.nearest.state,
        what,
        limit_text(row),
        view.label(results, held.worst) if held.worst else "-",
        held.nearest.text or "-",
        counted(held.counts),
        row.estimator,
        row.source + (f"; {row.reason}" if row.reason else ""),
    ]


def counted(states: Mapping[State, int]) -> str:
    """How many of each, the worst first."""
    return ", ".join(f"{states[state]:,} {state}" for state in STATES if states.get(state))


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """What the run's cells have: a selector that lets all of it pass is not told."""

    batch_sizes: list[int]
    variants: list[str]
    workloads: list[str]
    targets: list[str]


def present(cells: Sequence[CellResult]) -> Present:
    """Of the cells that speculate; of all where none does."""
    of = [one.cell for one in cells if one.speculative] or [one.cell for one in cells]
    return Present(
        batch_sizes=sorted({cell.batch_size for cell in of}),
        variants=list(dict.fromkeys(cell.variant for cell in of)),
        workloads=list(dict.fromkeys(cell.workload for cell in of)),
        targets=list(dict.fromkeys(cell.target for cell in of)),
    )


def limited_text(row: Threshold, of: Present) -> str:
    """What a row limits, and which of the run's cells it selects."""
    what, _ = LIMITED.get(row.metric, (row.metric, ""))
    selected = []
    for kind, names, here in (
        ("B", row.batch_sizes, of.batch_sizes),
        ("variants", row.variants, of.variants),
        ("workloads", row.workloads, of.workloads),
        ("targets", row.targets, of.targets),
    ):
        chosen = [name for name in here if name in names]
        if names and len(chosen) < len(here):
            selected.append(f"{kind} {some(chosen, NAMED)}")
    if row.claims_speedup is not None:
        selected.append("cells that claim a speedup" if row.claims_speedup else "cells that claim no speedup")
    return what + (f" ({'; '.join(selected)})" if selected else "")


def limit_text(row: Threshold) -> str:
    """With unit, tolerance and the absolute part."""
    _, unit = LIMITED.get(row.metric, ("", ""))
    told = f"{100 * row.limit:g} %" if unit == "%" else f"{row.limit:g} {unit}".strip()
    if row.tolerance:
        told += f" less {100 * row.tolerance:g} %"
    if row.absolute is not None:
        told += f", and more than {row.absolute:g} in all"
    return told


def others_table(count: int) -> Table:
    """What is counted, not listed."""
    if count == 1:
        note = "1 further limit of this hardware concerns no cell of the run."
    else:
        note = f"{count} further limits of this hardware concern no cell of the run."
    return Table(name="limits-others", title="Others", note=note, head=HEAD, body=[], names=len(HEAD))
