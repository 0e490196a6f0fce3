"""What would have been possible: the measured oracle beside every variant, and simulated policies and their bound."""

from __future__ import annotations

import msgspec

from draftproof.analysis.stats import Ratio
from draftproof.bounds import SIMULATED, Reached, Simulated
from draftproof.metrics import ratio_text
from draftproof.report import endtoend, marks, panels, policies
from draftproof.report.drawing import Look, look
from draftproof.report.panels import Axis, Line, Mark, Row
from draftproof.report.parts import Figure, Page, Section, Table
from draftproof.report.room import LINES, drawn, more
from draftproof.report.words import interval_text
from draftproof.results import CellResult, RunResults
from draftproof.simulator.output import label
from draftproof.simulator.simulate import Cell
from draftproof.simulator.validation import median_error

TITLE = "Bound"
LEAST_SHARE = -1.0
"""The axis of shares goes no further down: what is much slower than no speculation reaches nothing."""


def section(page: Page) -> Section | None:
    results = page.results
    found = [reached_table(results), simulated_table(results), predicted_table(results)]
    tables = [table for table in found if table is not None]
    return Section(id="bound", title=TITLE, tables=tables) if tables else None


def predicted_table(results: RunResults) -> Table | None:
    """A row for each cell that `calibrate --validate` predicted; None where it never ran."""
    rows = [(one.target, row) for one in results.bounds.predicted for row in one.cells]
    if not rows:
        return None
    errors = [row.error for _, row in rows]
    unseen = [row.held_out_error for _, row in rows if row.held_out_error is not None]
    note = (
        "By draftproof calibrate --validate: recorded steps replayed through stage times that were fitted to the run's "
        "stages blocks, with the run's own acceptance. Held out: by a fit to the steps of the other workloads. Median "
        f"absolute error {100 * median_error(errors):.1f} % over {len(errors)} cells"
        + (f", held out {100 * median_error(unseen):.1f} % over {len(unseen)}." if unseen else ".")
    )
    body = [
        [
            results.full_name(row.variant, target, "new"),
            row.workload,
            str(row.batch_size),
            f"{row.measured:.2f}x" + (f" [{row.low:.2f}, {row.high:.2f}]" if row.low and row.high else ""),
            f"{row.predicted:.2f}x",
            f"{100 * row.error:+.1f} %",
            "-" if row.held_out is None else f"{row.held_out:.2f}x",
            "-" if row.held_out_error is None else f"{100 * row.held_out_error:+.1f} %",
        ]
        for target, row in rows
    ]
    head = ["variant", "workload", "B", "measured [95 %]", "predicted", "error", "held out", "error, held out"]
    return Table(name="predicted", title="Predicted from step times", note=note, head=head, body=body, names=2)


# -- the measured oracle -----------------------------------------------------------------------------------------------


def reached_table(results: RunResults) -> Table | None:
    """A row for each variant beside each oracle; None without an oracle."""
    rows = results.bounds.reached
    if not rows:
        return None
    note = (
        "The measured oracle drafts no-SD's own tokens: every draft is right and costs next to nothing, so that no "
        "drafter of as many tokens a step can be faster. Share of its gain: (speedup - 1) / (the oracle's - 1), "
        "95 % by delete-one jackknife over the prompt sets that both have; 1 is the oracle, 0 no gain, below 0 slower "
        "than no-SD; each over the no-SD arm of its own settings. -: the oracle's own interval holds 1."
    )
    if results.bounds.without:
        note += f" No oracle ran on {', '.join(results.bounds.without)}."
    body = [
        [
            results.full_name(row.variant or "-", row.target, row.build),
            row.workload,
            str(row.batch_size),
            str(row.k) if row.k else "-",
            ratio_text(row.speedup),
            f"{row.oracle} (k = {row.oracle_k})",
            ratio_text(row.oracle_speedup),
            interval_text(row.share),
        ]
        for row in rows
    ]
    groups: dict[tuple[str, str, int], list[Reached]] = {}
    for row in rows:
        if row.share is not None:
            groups.setdefault((row.target, row.workload, row.oracle_k), []).append(row)
    some, undrawn = drawn([*groups.items()])
    figures = [
        reached_figure(f"reached-{number}", f"{endtoend.title(results, target, workload)}, oracle's k = {k}", found)
        for number, ((target, workload, k), found) in enumerate(some)
    ]
    told = "Bars: 95 % intervals. At 1 a variant is as fast as the oracle, at 0 (the line) as no-SD."
    if any(row.share.value < LEAST_SHARE for row in rows if row.share):
        told += f" What lies below {LEAST_SHARE:g} is not drawn."
    if any(row.build == "base" for row in rows):
        told += " Hollow: the base build."
    return Table(
        name="reached",
        title="Share of the measured oracle's gain",
        note=note,
        head=["variant", "workload", "B", "k", "speedup [95 %]", "oracle", "its speedup [95 %]", "share [95 %]"],
        body=body,
        names=2,
        figures=figures,
        legend=panels.legend(
            "reached", reached_looks([found for _, found in some]), marks.note(told, undrawn) if figures else ""
        ),
    )


def reached_looks(groups: list[list[Reached]]) -> dict[str, Look]:
    """Variant -> look, of panels with lines."""
    return {
        row.variant: look(row.variant)
        for found in groups
        if len({row.batch_size for row in found}) > 1
        for row in found
    }


def reached_figure(name: str, title: str, rows: list[Reached]) -> Figure:
    """Lines over batch sizes, or rows where there is one alone."""
    lines: dict[str, list[Reached]] = {}
    for row in sorted(rows, key=lambda row: row.batch_size):
        lines.setdefault(row.variant + (" (base build)" if row.build == "base" else ""), []).append(row)
    shown = dict(list(lines.items())[:LINES])
    sizes = sorted({row.batch_size for row in rows})
    shares = [row.share for row in rows if row.share]
    low = max(LEAST_SHARE, min(0.0, *[1.05 * share.low for share in shares]))
    axis = Axis(title="share of the oracle's gain", low=low, high=max(1.0, *[1.05 * s.value for s in shares]), rule=0.0)
    if len(sizes) == 1:
        marked = [
            Row(name=called, look=look(found[0].variant), mark=mark_of(found[0]), hollow=found[0].build == "base")
            for called, found in shown.items()
        ]
        svg = panels.in_rows(name, marked, axis)
    else:
        curves = [
            Line(
                name=called,
                look=look(found[0].variant),
                marks=[mark_of(row) for row in found],
                hollow=found[0].build == "base",
            )
            for called, found in shown.items()
        ]
        svg = panels.over_sizes(name, curves, sizes, axis)
    told = [f"{called} " + " and ".join(at_size(row) for row in panels.ends(found)) for called, found in shown.items()]
    told += more(len(lines), len(shown))
    span = f"{min(s.value for s in shares):.2f} to {max(s.value for s in shares):.2f}"
    return Figure(
        title=title,
        description=f"Share of the measured oracle's gain over batch sizes {sizes[0]} to {sizes[-1]}, {span}: "
        + "; ".join(told)
        + ".",
        svg=svg,
    )


def at_size(row: Reached) -> str:
    return f"{interval_text(row.share)} at {row.batch_size}"


def mark_of(row: Reached) -> Mark:
    assert row.share is not None
    return Mark(batch_size=row.batch_size, value=row.share.value, low=row.share.low, high=row.share.high)


# -- simulations -------------------------------------------------------------------------------------------------------


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of one variant (or of several together) on one data set, and what was measured there."""

    target: str
    workload: str
    variant: str
    cells: list[Cell]
    measured: list[tuple[str, list[CellResult]]]
    """The same variant and the oracles, by batch size."""


def simulated_table(results: RunResults) -> Table | None:
    """A row for each policy; where there is nothing simulated, what to run. None without oracle and simulation."""
    found = results.bounds.simulated
    if not found:
        return commands_table(results) if results.bounds.reached else None
    shown = panels_of(results)
    sizes = sorted({cell.batch_size for panel in shown for cell in panel.cells})
    rules = dict.fromkeys(cell.rules for panel in shown for cell in panel.cells)
    note = (
        f"By draftproof simulate from acceptance traces and a cost model, rules {', '.join(rules)}: no intervals. "
        "fixed: k drafts at every step; oracle: as many as will be accepted, of the variant's own drafts (the measured "
        "one has drafts that are all right, and no cost); bound: the least time of all policies; combine: the longest "
        "accepted draft of several variants. In brackets: share of the bound's gain."
    )
    missing = [target for target in targets_of(results) if target not in {one.target for one in found}]
    if missing:
        note += f" Not simulated: {', '.join(missing)}."
    some, undrawn = drawn(shown)
    top = panels.axis_end(
        [(cell.speedup, cell.speedup) for panel in some for cell in panel.cells]
        + [(mark.value, mark.high) for panel in some for _, cells in panel.measured for mark in marks_of(cells)]
    )
    figures = [simulated_figure(f"simulated-{number}", results, panel, top) for number, panel in enumerate(some)]
    return Table(
        name="simulated",
        title="Simulated policies",
        note=left_out(results) + note,
        head=["variant", "workload", "policy", *[f"B = {size}" for size in sizes]],
        body=[line for panel in shown for line in simulated_rows(results, panel, sizes)],
        names=3,
        figures=figures,
        legend=panels.legend("simulated", {}, marks.note(SIMULATED_MARKS, undrawn)),
    )


NAMED = 5
"""Targets, and workloads of each, that the commands name."""
SIMULATED_MARKS = "Thin and hollow: simulated. Filled, with 95 % intervals: measured."


def left_out(results: RunResults) -> str:
    return "".join(f"{note}. " for note in results.bounds.notes)


def targets_of(results: RunResults) -> list[str]:
    return list(dict.fromkeys(cell.cell.target for cell in results.cells))


def commands_table(results: RunResults) -> Table | None:
    """How simulated speedups come into the folder of a run; None where nothing ran that could be simulated."""
    controls = results.controls
    body = []
    for target in targets_of(results)[:NAMED]:
        cells = [cell.cell for cell in results.cells if cell.cell.target == target and cell.speculative]
        variants = [name for name in dict.fromkeys(cell.variant for cell in cells) if name not in controls]
        if variants:
            workloads = list(dict.fromkeys(cell.workload for cell in cells))[:NAMED]
            sizes = sorted({cell.batch_size for cell in cells})
            body += trace_rows(target, variants, workloads, cells[0].hardware)
            body.append([f"simulated speedups of {target}", simulate_command(target, variants, workloads, sizes)])
    if not body:
        return None
    return Table(
        name="simulated",
        title="Simulated policies",
        note="Nothing simulated is in the run's folder (RUN). These commands bring fixed k, oracle, combination and "
        "bound into it. " + left_out(results),
        head=["makes", "command"],
        body=[["cost models", "draftproof calibrate RUN"], *body, ["the report", "draftproof report RUN"]],
        names=2,
    )


def trace_rows(target: str, variants: list[str], workloads: list[str], hardware: str) -> list[list[str]]:
    """n-gram lookup is replayed on the run's outputs; other drafters have to be asked."""
    if variants == ["ngram"]:
        return [[f"traces of {target}, without an engine", "draftproof traces ngram RUN"]]
    return [
        [
            f"traces of {target} on {workload}, by an engine",
            f"draftproof trace {','.join(variants)} {workload} --target {target} --hardware {hardware} --out "
            f"RUN/traces-{target}-{workload}.jsonl",
        ]
        for workload in workloads
    ]


def simulate_command(target: str, variants: list[str], workloads: list[str], sizes: list[int]) -> str:
    traces = " ".join(f"RUN/traces-{target}-{workload}.jsonl" for workload in workloads)
    return (
        f"draftproof simulate --traces {traces} --hardware RUN/costs-{target}.toml --variants {' '.join(variants)} "
        f"--batch-sizes {' '.join(map(str, sizes))} --json RUN/{SIMULATED}{target}.json"
    )


def panels_of(results: RunResults) -> list[Panel]:
    """By target, data set and variant, as the files have them; of a file with several rules the first one's."""
    controls = results.controls
    oracles = dict.fromkeys(row.oracle for row in results.bounds.reached)
    found = []
    for simulated in results.bounds.simulated:
        for dataset, variant, cells in groups_of(simulated):
            measured = []
            for name in dict.fromkeys([variant, *oracles]):
                same = [
                    cell
                    for cell in results.cells
                    if (cell.cell.target, cell.cell.workload, cell.cell.variant, cell.build)
                    == (simulated.target, dataset, name, "new")
                    and endtoend.drawable(cell)
                ]
                if same and (name == variant or name in controls):
                    measured.append((name, sorted(same, key=lambda cell: cell.cell.batch_size)))
            found.append(
                Panel(target=simulated.target, workload=dataset, variant=variant, cells=cells, measured=measured)
            )
    return found


def groups_of(simulated: Simulated) -> list[tuple[str, str, list[Cell]]]:
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in simulated.cells:
        if cell.rules == simulated.cells[0].rules:
            groups.setdefault((cell.dataset, cell.variant), []).append(cell)
    return [(dataset, variant, cells) for (dataset, variant), cells in groups.items()]


def marks_of(cells: list[CellResult]) -> list[Mark]:
    return [endtoend.mark_of(cell) for cell in cells]


def simulated_rows(results: RunResults, panel: Panel, sizes: list[int]) -> list[list[str]]:
    """The policies, then what was measured."""
    workload = endtoend.title(results, panel.target, panel.workload)
    by_policy: dict[str, dict[int, Cell]] = {}
    for cell in panel.cells:
        by_policy.setdefault(label(cell), {})[cell.batch_size] = cell
    body = [
        [panel.variant, workload, policy, *[simulated_text(cells.get(size)) for size in sizes]]
        for policy, cells in by_policy.items()
    ]
    for name, cells in panel.measured:
        ratios: dict[int, Ratio | None] = {cell.cell.batch_size: cell.speedup for cell in cells}
        told = "measured" if name == panel.variant else f"measured {name}"
        body.append([panel.variant, workload, told, *[ratio_text(ratios.get(size)) for size in sizes]])
    return body


def simulated_text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    share = "" if cell.share_of_bound is None or cell.policy == "bound" else f" ({100 * cell.share_of_bound:.0f} %)"
    return f"{cell.speedup:.2f}x{share}"


def measured_lines(panel: Panel) -> list[Line]:
    return [
        Line(
            name="measured" if name == panel.variant else f"measured {name}",
            look=look(name, control=name != panel.variant),
            marks=marks_of(cells),
        )
        for name, cells in panel.measured
    ]


def lines_of(panel: Panel) -> list[Line]:
    return [*policies.lines(panel.cells), *measured_lines(panel)]


def simulated_figure(name: str, results: RunResults, panel: Panel, top: float) -> Figure:
    lines, cut = drawn(lines_of(panel), "lines", LINES)
    sizes = sorted({mark.batch_size for line in lines for mark in line.marks})
    told = [
        f"{line.name} " + " and ".join(f"{mark.value:.2f}x at {mark.batch_size}" for mark in panels.ends(line.marks))
        for line in lines
    ]
    values = [mark.value for line in lines for mark in line.marks]
    axis = Axis(title=endtoend.AXIS, low=0.0, high=top, rule=1.0)
    return Figure(
        title=f"{panel.variant}, {endtoend.title(results, panel.target, panel.workload)}",
        description=f"Simulated and measured speedups of {panel.variant} over batch sizes {sizes[0]} to {sizes[-1]}, "
        f"{min(values):.2f}x to {max(values):.2f}x: {'; '.join(told)}." + (f" {cut}" if cut else ""),
        svg=panels.over_sizes(name, lines, sizes, axis, key=True),
    )
