"""All speedups in the layout of Figure 1 of arXiv 2601.11580: a panel for each target and workload."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from draftproof.metrics import ratio_text
from draftproof.report import marks, panels, room, view
from draftproof.report.drawing import look
from draftproof.report.panels import Axis, Line, Mark
from draftproof.report.parts import Figure, Page, Section, Table
from draftproof.report.words import counted
from draftproof.results import CellResult, RunResults

NAME = "end-to-end"
AXIS = "speedup over no-SD (x)"
LARGEST = 1000.0
"""A larger speedup is none, and would flatten all others."""


def section(page: Page) -> Section | None:
    found = table(page.results)
    return Section(id="speedups", title="End to end", nav="Speedups", tables=[found]) if found else None


def table(results: RunResults) -> Table | None:
    """A row for each speculative cell with a speedup; None without one."""
    rows = [row for row in view.rows(results) if row.cell.speculative]
    shown = [row for row in rows if row.cell.speedup is not None]
    if not shown:
        return None
    sources = list(dict.fromkeys(row.cell.published.source for row in shown if row.cell.published))
    units: dict[tuple[str, str], list[CellResult]] = {}
    for row in shown:
        if drawable(row.cell):
            units.setdefault((row.cell.cell.target, row.cell.cell.workload), []).append(row.cell)
    some, left_out = room.drawn([*units.items()])
    figures = drawn(results, dict(some))
    note = (
        "Output tokens per second over those of no-SD on the same prompts: ratio of totals, 95 % interval over prompt "
        "sets."
    )
    if sources:
        note += (
            " Published: for the same hardware, target, variant, workload and batch size, by a ratio of unweighted "
            f"means; vLLM and settings are not the same ({'; '.join(sources)})."
        )
    if len(rows) > len(shown):
        note += f" Without an interval, and so left out: {counted(len(rows) - len(shown), 'cell')}."
    undrawn = len(shown) - sum(map(len, units.values()))
    if undrawn:
        note += f" Not drawn, since no axis holds them: {undrawn:,}."
    published = ["by the paper's estimator [95 %]", "published"] if sources else []
    return Table(
        name=NAME,
        title="Speedups",
        note=note,
        head=["variant", "workload", "B", "speedup [95 %]", *published],
        body=[
            [*row.name, ratio_text(row.cell.speedup), *(published_texts(row.cell) if sources else [])] for row in shown
        ],
        names=2,
        figures=figures,
        legend=legend(results, [cells for _, cells in some], left_out, compared=bool(sources)),
    )


def published_texts(cell: CellResult) -> list[str]:
    """Our figure by the published one's estimator, and that one."""
    return [ratio_text(cell.paper_ratio), f"{cell.published.speedup:.2f}x" if cell.published else "-"]


def drawn(results: RunResults, units: dict[tuple[str, str], list[CellResult]]) -> list[Figure]:
    """A panel for each (target, workload); those of one target have the same axis."""
    of_target: dict[str, list[CellResult]] = {}
    for (target, _), cells in units.items():
        of_target.setdefault(target, []).extend(cells)
    tops = {target: panels.axis_end(figures_of(cells)) for target, cells in of_target.items()}
    return [
        figure(f"{NAME}-{number}", title(results, target, workload), cells, tops[target], results.controls)
        for number, ((target, workload), cells) in enumerate(units.items())
    ]


def drawable(cell: CellResult) -> bool:
    found = cell.speedup
    return (
        found is not None
        and panels.finite(found.value, found.low, found.high)
        and 0 < found.value <= LARGEST
        and cell.cell.batch_size >= 1
    )


def figures_of(cells: Iterable[CellResult]) -> list[tuple[float, float]]:
    """What an axis must hold: our figures and the published ones."""
    found = []
    for cell in cells:
        if cell.speedup:
            found.append((cell.speedup.value, cell.speedup.high))
        if cell.published:
            found.append((cell.published.speedup, cell.published.speedup))
    return found


def title(results: RunResults, target: str, workload: str) -> str:
    """The workload, with the target where the run has several."""
    return f"{workload} ({target})" if results.several_targets else workload


def line_name(cell: CellResult) -> str:
    return cell.cell.variant + (" (base build)" if cell.build == "base" else "")


def legend(results: RunResults, groups: list[list[CellResult]], left_out: str, *, compared: bool) -> Markup:
    """Looks of the variants in panels with lines (rows have names of their own), and what else the marks mean;
    `left_out`: a sentence on what is not drawn."""
    cells = [cell for group in groups for cell in group]
    if not cells:
        return Markup("")
    lined = [group for group in groups if len({cell.cell.batch_size for cell in group}) > 1]
    variants = dict.fromkeys(cell.cell.variant for group in lined for cell in group)
    ordered = sorted(variants, key=results.controls.__contains__)
    told = ["Bars: 95 % intervals; one that is much wider than its figure ends at the frame. The line across: no-SD."]
    if any(variant in results.controls for variant in variants):
        told.append("Dashed: controls, whose drafts are known to be right or wrong.")
    if any(cell.build == "base" for cell in cells):
        told.append("Hollow: the base build.")
    if compared:
        told.append("Dotted (or an upright stroke): published.")
    return panels.legend(
        NAME,
        {variant: look(variant, control=variant in results.controls) for variant in ordered},
        marks.note(*told, left_out),
    )


def figure(name: str, title: str, cells: list[CellResult], top: float, controls: frozenset[str]) -> Figure:
    """Lines over batch sizes, or rows where there is one batch size alone."""
    groups: dict[str, list[CellResult]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.cell.variant in controls, cell.cell.batch_size)):
        groups.setdefault(line_name(cell), []).append(cell)
    shown = dict(list(groups.items())[: room.LINES])
    sizes = sorted({cell.cell.batch_size for cell in cells})
    axis = Axis(title=AXIS, low=0.0, high=top, rule=1.0)
    if len(sizes) == 1:
        rows = [
            panels.Row(
                name=called,
                look=look(found[0].cell.variant),
                mark=mark_of(found[0]),
                other=found[0].published.speedup if found[0].published else None,
                hollow=found[0].build == "base",
            )
            for called, found in shown.items()
        ]
        svg = panels.in_rows(name, rows, axis)
    else:
        all_lines = [line for found in shown.values() for line in lines(found, controls)]
        svg = panels.over_sizes(name, all_lines, sizes, axis)
    return Figure(title=title, description=described(cells, shown, sizes, len(groups)), svg=svg)


def mark_of(cell: CellResult) -> Mark:
    assert cell.speedup is not None
    ratio = cell.speedup
    return Mark(batch_size=cell.cell.batch_size, value=ratio.value, low=ratio.low, high=ratio.high)


def lines(cells: list[CellResult], controls: frozenset[str]) -> list[Line]:
    """A variant's own line, and behind it the published one."""
    variant = cells[0].cell.variant
    how = look(variant, control=variant in controls)
    found = [Line(name=variant, look=how, marks=[mark_of(cell) for cell in cells], hollow=cells[0].build == "base")]
    theirs = [(cell.cell.batch_size, cell.published.speedup) for cell in cells if cell.published]
    if theirs:
        marks = [Mark(batch_size=size, value=value, low=value, high=value) for size, value in theirs]
        found.append(Line(name=f"{variant}, published", look=how, marks=marks, behind=True))
    return found


def described(cells: list[CellResult], shown: dict[str, list[CellResult]], sizes: list[int], groups: int) -> str:
    """The range, then each variant at its smallest and its largest batch size."""
    values = [cell.speedup.value for cell in cells if cell.speedup]
    at = f"at batch size {sizes[0]}" if len(sizes) == 1 else f"over batch sizes {sizes[0]} to {sizes[-1]}"
    told = [f"Speedup over no-SD {at}, {min(values):.2f}x to {max(values):.2f}x"]
    for called, found in shown.items():
        told.append(
            f"{called} "
            + " and ".join(
                f"{ratio_text(cell.speedup)} at {cell.cell.batch_size}"
                + (f" (published {cell.published.speedup:.2f}x)" if cell.published else "")
                for cell in panels.ends(found)
            )
        )
    return "; ".join([*told, *room.more(groups, len(shown))]) + "."
