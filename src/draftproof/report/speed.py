"""Beside the closing table: latency and other estimators, and how speedups fall with the batch size, as tables."""

from __future__ import annotations

import math
from collections import Counter

from draftproof.analysis.decay import DRAWS, BreakEven, Decay, Edge
from draftproof.metrics import OTHER_METRICS, ratio_text
from draftproof.report import drawing, marks, panels, view
from draftproof.report.drawing import look
from draftproof.report.panels import Axis, Mark, Row
from draftproof.report.parts import Figure, Page, Section, Table
from draftproof.report.room import LINES, drawn, more
from draftproof.results import RunResults

TITLE = "Latency, other estimators, batch sizes"
DECAY_NOTE = (
    "Per doubling: exp(slope) of a weighted least squares fit of log speedup on log2 of the batch size, cells taken as "
    "independent. Break-even: where the speedup first falls below 1 as the batch grows, linear in log2 B between "
    f"neighbours, no order of the speedups assumed: median [2.5 %, 97.5 %] of {DRAWS:,} curves drawn from the cells' "
    "own errors."
)

BREAK_EVEN_MARKS = (
    "A mark: where a variant stops being faster than no-SD as the batch grows. Bars: 95 % intervals. An arrow: it "
    "lies, or its interval goes on, outside of the batch sizes that were run."
)


def section(page: Page) -> Section | None:
    found = tables(page.results)
    return Section(id="speed", title=TITLE, tables=found) if found else None


def tables(results: RunResults) -> list[Table]:
    """All tables that the run has something for, in the order of a page."""
    found = [estimator_table(results), decay_table(results)]
    return [table for table in found if table is not None]


def estimator_table(results: RunResults) -> Table | None:
    """A row for each speculative cell; None without one."""
    body = [
        [*row.name, *[metric.text(row.cell) for metric in OTHER_METRICS]]
        for row in view.rows(results)
        if row.cell.arm != row.cell.base_arm
    ]
    if not body:
        return None
    return Table(
        name="estimators",
        title="Latency and other estimators",
        note="TTFT: time to first token, TPOT: time per output token after it, in milliseconds over requests, median / "
        "95th percentile; AL: acceptance length, bonus token included. No intervals. -: not recorded.",
        head=["variant", "workload", "B", *[metric.title for metric in OTHER_METRICS]],
        body=body,
        names=2,
    )


def decay_table(results: RunResults) -> Table | None:
    """A row for each curve, a column for each batch size."""
    if not results.decays:
        return None
    sizes = sorted({point.batch_size for decay in results.decays for point in decay.points})
    body = []
    for decay in results.decays:
        usual = usual_tokens(decay)
        shown = {
            point.batch_size: ratio_text(point.speedup)
            + (f" ({point.output_tokens} tokens)" if point.output_tokens != usual else "")
            for point in decay.points
        }
        body.append(
            [
                curve_name(results, decay),
                decay.workload,
                *[shown.get(size, "-") for size in sizes],
                ratio_text(decay.per_doubling),
                break_even_text(decay),
                outside_text(decay),
            ]
        )
    head = ["variant", "workload", *[f"B = {size}" for size in sizes]]
    head += ["per doubling of B [95 %]", "break-even B [95 %]", "draws outside of the grid"]
    figures, left_out = break_even_figures(results)
    return Table(
        name="decay",
        title="Speedup over batch sizes",
        note=DECAY_NOTE,
        head=head,
        body=body,
        names=2,
        figures=figures,
        legend=panels.legend("decay", {}, marks.note(BREAK_EVEN_MARKS, left_out)),
    )


def break_even_figures(results: RunResults) -> tuple[list[Figure], str]:
    """A panel for each target and workload, a row for each variant; and what is not drawn, as a sentence."""
    groups: dict[tuple[str, str], list[Decay]] = {}
    for decay in results.decays:
        groups.setdefault((decay.target, decay.workload), []).append(decay)
    shown, left_out = drawn([*groups.items()])
    figures = [
        break_even_figure(f"decay-{number}", f"{workload} ({target})" if results.several_targets else workload, decays)
        for number, ((target, workload), decays) in enumerate(shown)
    ]
    return figures, left_out


def break_even_figure(name: str, title: str, decays: list[Decay]) -> Figure:
    sizes = sorted({point.batch_size for decay in decays for point in decay.points})
    shown = decays[:LINES]
    told = [f"{row_name(decay)} {break_even_text(decay)}" for decay in shown]
    told += more(len(decays), len(shown))
    return Figure(
        title=f"Break-even, {title}",
        description=f"Batch size at which the speedup falls below 1, on an axis from {sizes[0]} to {sizes[-1]}: "
        + "; ".join(told)
        + ".",
        svg=panels.in_rows(
            name,
            [
                Row(name=row_name(decay), look=look(decay.variant), mark=mark_of(decay), hollow=decay.build == "base")
                for decay in shown
            ],
            Axis(title="break-even batch size (log scale)", low=sizes[0] / 1.15, high=sizes[-1] * 1.15),
            lambda axes: drawing.doublings(axes, sizes),
        ),
    )


def row_name(decay: Decay) -> str:
    return decay.variant + (" (base build)" if decay.build == "base" else "")


def mark_of(decay: Decay) -> Mark:
    """Edges outside of the grid have no end."""
    found = decay.break_even
    value, low, high = (
        {"below": -math.inf, "above": math.inf}[edge] if isinstance(edge, str) else edge
        for edge in (found.median, found.low, found.high)
    )
    return Mark(batch_size=0, value=value, low=low, high=high)


def decay_lines(results: RunResults) -> list[str]:
    """The same in one line each, for the terminal."""
    return [
        f"{curve_name(results, decay)} on {decay.workload}: {ratio_text(decay.per_doubling)} per doubling of B; "
        f"break-even B {break_even_text(decay)}"
        for decay in results.decays
    ]


def usual_tokens(decay: Decay) -> int:
    """The output length of most points: another one is told beside its figure."""
    return Counter(point.output_tokens for point in decay.points).most_common(1)[0][0]


def curve_name(results: RunResults, decay: Decay) -> str:
    """The variant, as `view.name` tells it."""
    return results.full_name(decay.variant, decay.target, decay.build)


def break_even_text(decay: Decay) -> str:
    found: BreakEven = decay.break_even
    first, last = decay.points[0].batch_size, decay.points[-1].batch_size

    def text(edge: Edge) -> str:
        if isinstance(edge, str):
            return f"below {first}" if edge == "below" else f"above {last}"
        return f"{edge:.1f}" if edge < 10 else f"{edge:.0f}"

    if found.low == found.high and isinstance(found.low, str):
        return f"not reached in the grid: {text(found.low)}"
    return f"{text(found.median)} [{text(found.low)}, {text(found.high)}]"


def outside_text(decay: Decay) -> str:
    first, last = decay.points[0].batch_size, decay.points[-1].batch_size
    below, above = 100 * decay.break_even.share_below, 100 * decay.break_even.share_above
    return f"{below:.1f} % below {first}, {above:.1f} % above {last}"
