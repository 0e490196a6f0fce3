"""A run's outputs as tables: causes, floors, repeats, survival, lengths, the earliest differences.

Texts are as the records hold them: whoever prints them escapes them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import msgspec

from draftproof.analysis.lengths import layout
from draftproof.analysis.survival import Rate, Survival, least_share
from draftproof.analysis.tokendiff import Cause, Comparison
from draftproof.determinism import FLOOR_CONTROLS, Sameness
from draftproof.metrics import floor_text
from draftproof.noisefloor import AxisName
from draftproof.records import ArmLine
from draftproof.report import commands, view
from draftproof.report.parts import Table
from draftproof.results import CellResult, RunResults

CAUSES: dict[Cause, str] = {
    "identical": "every token id is no-SD's",
    "exact_tie": "at the first difference the engine itself gives both tokens one score, and none a better one",
    "near_tie": "there a float32 pass of the target, the referee, puts both tokens within the limit of its best one",
    "divergent": "the referee puts one of the two further away, or one output ends early: rounding does not explain it",
    "inconclusive": "no-SD did not repeat itself on this request, nothing was scored, or the noise is too wide",
}
"""Class of a request -> what it means, in the order of the matrix's columns."""

AXES: dict[AxisName, str] = {
    "pass": "second pass",
    "process": "second process",
    "batch_size": "smallest batch size",
    "order": "other order",
    "copies": "copies of one prompt",
}

TITLE = "Outputs against no-SD"
EARLIEST_TITLE = "Earliest differences"
EARLIEST = 10
PROMPT_CHARS = 80
PER_1000 = "first differences per 1,000 tokens [95 %]"


class Earliest(msgspec.Struct, frozen=True, kw_only=True):
    """A first difference, with all that it takes to look into it."""

    number: int
    label: str
    variant: str
    prompt: str
    """The prompt's id; a long one is cut."""
    difference: Comparison
    margin: str
    command: str


# -- words -------------------------------------------------------------------------------------------------------------


def per_1000(value: float) -> str:
    """Two decimals, or one digit of what is too small for them."""
    return f"{value:.2f}" if value == 0 or value >= 0.05 else f"{value:.1g}"


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... (cut: {len(text) - limit} more characters)"


def rate_text(rate: Rate | None) -> str:
    """A rate is never printed without its interval."""
    return f"{per_1000(rate.per_1000)} [{per_1000(rate.low)}, {per_1000(rate.high)}]" if rate else "-"


def unit_name(results: RunResults, target: str, workload: str, batch_size: int, build: str = "new") -> list[str]:
    """Workload (with the target and the build, where the run has several) and batch size."""
    return [results.full_name(workload, target, build), str(batch_size)]


def compared(results: RunResults) -> list[tuple[CellResult, Sameness]]:
    """Cells whose outputs were compared, in the order of the closing table."""
    cells = sorted(results.cells, key=view.place(results))
    return [(cell, cell.sameness) for cell in cells if cell.sameness is not None]


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(results: RunResults) -> list[Table]:
    """All tables that the run has something for, in the order of a page."""
    found = [
        cause_table(results),
        floor_table(results),
        rows_table(results),
        repeat_table(results),
        survival_table(results),
        *length_tables(results),
    ]
    return [table for table in found if table is not None]


def cause_table(results: RunResults) -> Table | None:
    """Requests of each cell by cause, how often they differ, and beside it the control that drafts as many tokens."""
    cells = compared(results)
    if not cells:
        return None
    rates = {
        (c.cell.variant, c.cell.target, c.cell.workload, c.cell.batch_size, c.build): same.rate for c, same in cells
    }
    with_control = any(cell.excess for cell, _ in cells)
    body = []
    for cell, same in cells:
        line = [
            *view.name(results, cell),
            str(same.requests),
            *[str(same.causes.get(cause, 0)) for cause in CAUSES],
            rate_text(same.rate),
            floor_text(cell),
        ]
        if with_control:
            what, excess = cell.cell, cell.excess
            if excess is None:
                line += ["-"] * 3
            else:
                control = rates.get((excess.control, what.target, what.workload, what.batch_size, cell.build))
                line += [excess.control, rate_text(control), f"{excess.p:.2g}"]
        body.append(line)
    head = ["variant", "workload", "B", "requests", *[cause.replace("_", " ") for cause in CAUSES], PER_1000]
    head += ["no-SD itself"]
    note = "Requests by cause; copies of one prompt in a batch are one. Tokens are at risk up to the first difference."
    if with_control:
        head += ["control of the same k", "its differences [95 %]", "p"]
        note += (
            " A control's drafts change nothing but how many rows are computed together; p: of no more ties than it "
            "has, one-sided, after Holm over the run."
        )
    broken = [f"{view.label(results, cell)} ({same.garbage})" for cell, same in cells if same.garbage]
    if broken:
        note += " No-SD's own output is garbage, and the comparison worth nothing: " + "; ".join(broken) + "."
    return Table(name="causes", title="Causes", note=note, head=head, body=body, names=2)


def floor_table(results: RunResults) -> Table | None:
    """no-SD against itself, an axis a column."""
    axes = [axis for axis in AXES if any(found.axis == axis for floor in results.floors for found in floor.axes)]
    if not axes:
        return None
    units = list(dict.fromkeys((c.cell.target, c.cell.workload, c.cell.batch_size) for c in results.cells))
    order = {unit: place for place, unit in enumerate(units)}
    body = []
    for floor in sorted(
        results.floors, key=lambda floor: order.get((floor.target, floor.workload, floor.batch_size), len(order))
    ):
        told = {axis.axis: f"{axis.identical}/{axis.requests}; {rate_text(axis.rate)}" for axis in floor.axes}
        name = unit_name(results, floor.target, floor.workload, floor.batch_size)
        body.append([*name, *[told.get(axis, "-") for axis in axes]])
    return Table(
        name="floor",
        title="Noise floor: no-SD against itself",
        note=f"Identical requests, then {PER_1000}, where one thing is changed and nothing is drafted.",
        head=["workload", "B", *[AXES[axis] for axis in axes]],
        body=body,
        names=1,
    )


def rows_table(results: RunResults) -> Table | None:
    """What k + 1 rows a request change, with drafts that are all right and with drafts that are all wrong."""
    rows: dict[tuple[str, str, int, str, int], dict[str, Sameness]] = {}
    for cell, same in compared(results):
        arm = arm_of(results, cell)
        k = arm.speculative_config.get("num_speculative_tokens") if arm else None
        if arm is not None and arm.control in FLOOR_CONTROLS and isinstance(k, int):
            what = cell.cell
            place = (what.target, what.workload, what.batch_size, cell.build, k)
            rows.setdefault(place, {}).setdefault(arm.control, same)
    if not rows:
        return None
    units = list(dict.fromkeys(place[:4] for place in rows))
    body = []
    for place in sorted(rows, key=lambda place: (units.index(place[:4]), place[4])):
        target, workload, batch_size, build, k = place
        line = [*unit_name(results, target, workload, batch_size, build), str(k), str(k + 1)]
        for control in FLOOR_CONTROLS:
            found = rows[place].get(control)
            line.append(f"{found.requests - found.identical} of {found.requests}" if found else "-")
            line.append(rate_text(found.rate if found else None))
        body.append(line)
    head = ["workload", "B", "k", "rows a request"]
    for drafts in ("right drafts", "wrong drafts"):
        head += [f"{drafts}: changed", f"{drafts}: per 1,000 tokens [95 %]"]
    return Table(
        name="rows",
        title="What the number of rows alone changes",
        note="Outputs that differ from no-SD's, which computes one row a request, and first differences per 1,000 "
        "tokens. Right drafts are no-SD's own tokens (oracle), wrong ones another token at every place (adversarial): "
        "neither has anything else to bring into an output.",
        head=head,
        body=body,
        names=1,
    )


def arm_of(results: RunResults, cell: CellResult) -> ArmLine | None:
    return results.arm_of(cell)


def repeat_table(results: RunResults) -> Table | None:
    """Cells in which equal text was accepted otherwise in the second pass."""
    cells = [(cell, same.repeats) for cell, same in compared(results) if same.repeats.requests]
    if not cells:
        return None
    body = [
        [*view.name(results, cell), str(found.requests), str(found.differing), *map(str, found.steps)]
        for cell, found in cells
        if found.differing
    ]
    requests, differing = (sum(getattr(found, name) for _, found in cells) for name in ("requests", "differing"))
    return Table(
        name="repeats",
        title="Acceptance of equal text",
        note=f"Of {requests:,} requests that wrote the same text in both passes, {differing:,} were drafted or "
        "accepted otherwise in the second" + ("; engine steps of these, which throughput follows:" if body else "."),
        head=["variant", "workload", "B", "equal text", "accepted otherwise", "steps, pass 1", "steps, pass 2"],
        body=body,
        names=2,
    )


def grid(longest: int) -> list[int]:
    """Output lengths to tell the survival at: 16, 32, 64 and so on, and the longest."""
    found = []
    tokens = 16
    while 1.2 * tokens < longest:
        found.append(tokens)
        tokens *= 2
    return [*found, longest]


class Point(NamedTuple):
    share: float
    low: float
    high: float
    at_risk: int


def survival_at(survival: Survival, tokens: int) -> Point | None:
    """The curve after so many tokens; None where no output was looked at that long.

    The number at risk is that of the next step: more, where further outputs ended before it.
    """
    if tokens > survival.tokens[-1]:
        return None
    step = bisect_right(survival.tokens, tokens) - 1
    at_risk = survival.at_risk[bisect_left(survival.tokens, tokens)]
    share, low = survival.share[step], survival.low[step]
    if share == 1:  # the curve's own bound belongs to its beginning, where nothing had been looked at
        low = least_share(at_risk)
    return Point(share, low, survival.high[step], at_risk)


def longest_of(results: RunResults) -> int:
    """Output tokens of the longest survival curve; 0 without one."""
    return max((same.survival.tokens[-1] for _, same in compared(results) if same.survival), default=0)


def survival_table(results: RunResults) -> Table | None:
    """Share of each cell's requests that are still identical, at some lengths."""
    longest = longest_of(results)
    if not longest:
        return None
    lengths = grid(longest)
    body = [
        [*view.name(results, cell), *[survival_text(survival_at(same.survival, tokens)) for tokens in lengths]]
        for cell, same in compared(results)
        if same.survival
    ]
    return Table(
        name="survival",
        title="Share still identical",
        note="Share of requests that are still no-SD's after so many output tokens [95 %], and how many were at risk. "
        "An identical output leaves at its end.",
        head=["variant", "workload", "B", *[f"after {tokens:,}" for tokens in lengths]],
        body=body,
        names=2,
    )


def survival_text(point: Point | None) -> str:
    return "-" if point is None else "{:.2f} [{:.2f}, {:.2f}] ({})".format(*point)


def length_tables(results: RunResults) -> list[Table]:
    """The paper's Table 1, with what it leaves out: differences prompt by prompt, and how many outputs were cut."""
    found = []
    for number, table in enumerate(results.lengths, start=1):
        if not table.rows:
            continue
        head, body = layout(table.rows)
        prompts = max(row.prompts for row in table.rows)
        capped = sum(row.capped for row in table.rows)
        found.append(
            Table(
                name=f"lengths-{number}",
                title=f"Output lengths: {unit_name(results, table.target, table.workload, 0)[0]}",
                note=f"The paper's Table 1: mean ± standard deviation over {prompts} prompts, in tokens, where EOS "
                "ends an output. Below, prompt by prompt: Δ to the reference, no-SD at its smallest batch size "
                f"[95 %], and prompts with an output at the limit of {table.limit:,} tokens, whose length is not "
                f"known ({capped} in all cells)."
                + (f" Left out, since not all prompts ran: {', '.join(table.left_out)}." if table.left_out else ""),
                head=head,
                body=body,
                names=1,
            )
        )
    return found


# -- the earliest differences ------------------------------------------------------------------------------------------


def earliest(results: RunResults) -> list[Earliest]:
    """The earliest differences, divergent ones first; variants that differ alike, token for token, are one."""
    alike = differences_alike(results)
    return [
        Earliest(
            number=number,
            label=f"{named([view.name(results, cell)[0] for cell in cells])} on {cells[0].cell.workload} "
            f"b{cells[0].cell.batch_size}",
            variant=named([cell.cell.variant for cell in cells]),
            prompt=shorten(difference.prompt_id, PROMPT_CHARS),
            difference=difference,
            margin=margin_text(difference, cells[0].sameness.limit_nats if cells[0].sameness else None),
            command=command(results, cells[0]),
        )
        for number, (cells, difference) in enumerate(alike[:EARLIEST], start=1)
    ]


def named(variants: list[str]) -> str:
    """The variants of one row; of many, the first ones and how many there are besides."""
    more = len(variants) - view.NAMED
    return ", ".join(variants[: view.NAMED]) + (f" and {more} more" if more > 0 else "")


def differences_alike(results: RunResults) -> list[tuple[list[CellResult], Comparison]]:
    """First differences in the order of their worth, each with the cells that have it."""
    groups: dict[object, tuple[list[CellResult], Comparison]] = {}
    for cell, difference in view.first_differences(results):
        key = (
            *(cell.cell.target, cell.cell.workload, cell.cell.batch_size, cell.build, difference.cause),
            *(difference.rotation, difference.request, difference.position, difference.texts, difference.after),
        )
        groups.setdefault(key, ([], difference))[0].append(cell)
    return sorted(groups.values(), key=lambda group: group[1].cause != "divergent")


def earliest_note(results: RunResults) -> str:
    count = len(differences_alike(results))
    return (
        f"{min(EARLIEST, count)} of {count}, divergent ones first, then by position; variants that differ alike are "
        f"one ({len(view.first_differences(results))} in all, each in summary.json). Margin: from the best token of "
        "the float32 referee to the worse of the two. Each command runs the (first) cell again with no-SD beside it"
        + ("." if results.sessions else f"; give it the options that your run had ({', '.join(commands.GIVEN)}).")
    )


def margin_text(difference: Comparison, limit_nats: float | None) -> str:
    """How far the worse of the two tokens lies from the referee's best, beside the limit."""
    limit = "" if limit_nats is None else f" (limit {limit_nats:.3f})"
    if difference.gap_nats is not None:
        return f"{difference.gap_nats:.3f} nats{limit}"
    if difference.cause == "exact_tie":
        return "none in the engine"
    if difference.texts is None:  # a difference that is judged all the same has no second token
        return "none: one output ends there" if difference.cause == "divergent" else "not scored"
    return f"not among the scored tokens{limit}"


def command(results: RunResults, cell: CellResult) -> str:
    """A line for a shell that runs the cell again, with no-SD beside it."""
    return commands.again(results, f"{commands.OUTPUTS_TEST}[{cell.cell.id}]")
