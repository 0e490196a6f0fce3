"""What target and drafter take: weights and KV cache, expected and as the engines reported it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from draftproof.analysis.memory import GIB, KIB
from draftproof.memorycosts import MemoryCost
from draftproof.report import untrusted
from draftproof.report.drawing import GROUND, INK, Later, look
from draftproof.report.marks import note, rectangles, span
from draftproof.report.panels import legend, named
from draftproof.report.parts import Figure, Page, Section, Table
from draftproof.report.room import drawn
from draftproof.results import RunResults

ID, TITLE = "memory", "Memory"
NO_SD = "no_sd"
MOST_TARGETS = 4
MOST_ARMS = 24
"""Rows of a figure."""
REASONS = 4
REASON_CHARS = 200
ROW_IN = 0.24
TARGET: dict[str, Any] = {"facecolor": INK["unclear"]}
MEASURED: dict[str, Any] = {
    "color": INK["fg"],
    "markerfacecolor": GROUND,
    "marker": "D",
    "markersize": 4.5,
    "linestyle": "none",
}


def section(page: Page) -> Section | None:
    table = memory_table(page.results)
    return Section(id=ID, title=TITLE, tables=[table]) if table.body else None


def reference(results: RunResults) -> tuple[str, str] | None:
    """Id and title of the section; None where the page has none."""
    return (ID, TITLE) if arms(results) else None


def arms(results: RunResults) -> list[MemoryCost]:
    """Those of which something is known, no speculation before the variants beside it."""
    found: dict[tuple[str, str], list[MemoryCost]] = {}
    for cost in results.memory:
        if cost.target_static_bytes is not None or cost.kv_cache_tokens is not None:
            found.setdefault((cost.target, cost.build), []).append(cost)
    return [cost for costs in found.values() for cost in (without(costs), *costs)]


def without(costs: Sequence[MemoryCost]) -> MemoryCost:
    """The no-SD arm of a target and build, as the variants' records tell it."""
    known = next((cost for cost in costs if cost.target_static_bytes is not None), costs[0])
    tokens = next((cost.base_kv_cache_tokens for cost in costs if cost.base_kv_cache_tokens), None)
    nothing = 0 if known.target_static_bytes is not None else None
    changes = {"static_bytes": nothing, "kv_bytes_per_token": nothing, "kv_cache_tokens": tokens}
    pool = next((cost.kv_pool_bytes for cost in costs if cost.kv_pool_bytes), None)
    resident = next((cost.base_resident_bytes for cost in costs if cost.base_resident_bytes), None)
    measured = {"drafter_parameter_bytes": None, "resident_bytes": resident}
    return msgspec.structs.replace(
        known, variant=NO_SD, unknown="", base_kv_cache_tokens=None, kv_pool_bytes=pool, **changes, **measured
    )


def memory_table(results: RunResults) -> Table:
    shown = arms(results)
    body = [
        [
            results.full_name(cost.variant, cost.target, cost.build),
            number(cost.target_static_bytes, GIB, 3),
            number(cost.static_bytes, GIB, 3),
            number(cost.target_parameter_bytes, GIB, 3),
            number(cost.drafter_parameter_bytes, GIB, 3),
            number(cost.resident_bytes, GIB),
            number(cost.target_kv_bytes_per_token, KIB),
            number(cost.kv_bytes_per_token, KIB),
            number(cost.measured_kv_bytes, KIB),
            f"{cost.kv_cache_tokens:,}" if cost.kv_cache_tokens else "-",
            percent(cost.expected_lost_share),
            percent(cost.measured_lost_share),
        ]
        for cost in shown
    ]
    figures, meaning = memory_figures(shown)
    return Table(
        name="memory-arms",
        title="Weights and KV cache",
        note=note_of(shown),
        head=[
            "variant",
            "weights of the target, GiB",
            "weights of the drafter, GiB",
            "parameters of the target, measured, GiB",
            "parameters of the drafter, measured, GiB",
            "resident set, measured, GiB",
            "KV cache of the target, KiB/token",
            "KV cache of the drafter, KiB/token",
            "KV cache of both, measured, KiB/token",
            "KV capacity, tokens",
            "capacity lost, expected",
            "capacity lost, measured",
        ],
        body=body,
        names=1,
        figures=figures,
        legend=meaning,
    )


def number(value: float | None, unit: int, digits: int = 2) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def note_of(shown: Sequence[MemoryCost]) -> str:
    text = (
        "Expected from configurations and headers of weight files, over all GPUs or workers, as the command draftproof "
        "memory counts them: weights alone, what a drafter shares with its target counted once. Capacity: tokens that "
        "the engine made room for. Lost, expected: in the same memory for KV cache, target / (target + drafter) per "
        "token; measured: against no speculation beside it, on a GPU with the drafter's weights taken off as well."
    )
    if any(cost.measured_kv_bytes is not None for cost in shown):
        text += " KiB/token, measured: memory set aside for KV cache / capacity, too high by less than a block's part."
    if any(cost.target_parameter_bytes for cost in shown):
        text += (
            " Parameters and resident set: of the loaded engine's process; vLLM on a CPU packs most weights into "
            "copies of its own: no parameters any more, but in the resident set, with libraries and KV cache."
        )
    reasons = list(dict.fromkeys(f"{cost.variant} on {cost.target}: {cost.unknown}" for cost in shown if cost.unknown))
    if reasons:
        told = "; ".join(untrusted.cut(reason, REASON_CHARS) for reason in reasons[:REASONS])
        more = f"; and {len(reasons) - REASONS} more" if len(reasons) > REASONS else ""
        text += f" Nothing is expected of {told}{more}."
    return text


# --- figures ----------------------------------------------------------------------------------------------------------


def memory_figures(shown: Sequence[MemoryCost]) -> tuple[list[Figure], Markup]:
    """Two for each target and build: weights, and KV cache."""
    groups: dict[tuple[str, str], list[MemoryCost]] = {}
    for cost in shown:
        groups.setdefault((cost.target, cost.build), []).append(cost)
    some, left_out = drawn([*groups.items()], "targets", MOST_TARGETS)
    builds = len({build for _, build in groups}) > 1
    figures: list[Figure] = []
    for place, ((target, build), members) in enumerate(some):
        rows, cut = drawn(members, "arms", MOST_ARMS)
        where = target + (f" ({build} build)" if builds else "")
        for kind, title, words, draw in KINDS:
            told = words(rows)
            if told:
                figures.append(
                    Figure(
                        title=f"{title} of {where}",
                        description=note(told, cut),
                        svg=Later(f"memory-{kind}-{place}", (4.6, 1.0 + ROW_IN * len(rows)), partial(draw, rows)),
                    )
                )
    meaning = "Bars: expected, the drafter's part in its variant's colour. Diamonds: what the engines reported."
    return figures, legend("memory-arms", {}, note(meaning, left_out)) if figures else Markup("")


def weights_words(rows: Sequence[MemoryCost]) -> str:
    known = [cost for cost in rows if cost.target_static_bytes is not None]
    if not known:
        return ""
    told = "; ".join(f"{cost.variant} adds {(cost.static_bytes or 0) / GIB:.3f} GiB" for cost in known)
    target = span(((cost.target_static_bytes or 0) / GIB for cost in known), ".3f", " GiB")
    return f"Expected weights in GiB, target and drafter stacked: the target {target}; {told}."


def kv_words(rows: Sequence[MemoryCost]) -> str:
    expected = [cost for cost in rows if cost.target_kv_bytes_per_token is not None]
    measured = [value for cost in rows if (value := cost.measured_kv_bytes) is not None]
    lost = [f"{cost.variant} {100 * share:.1f} %" for cost in rows if (share := cost.measured_lost_share) is not None]
    told = []
    if expected:
        sums = [((cost.target_kv_bytes_per_token or 0) + (cost.kv_bytes_per_token or 0)) / KIB for cost in expected]
        told.append(f"Expected KV cache per token, target and drafter stacked: {span(sums, '.2f', ' KiB')}.")
    if measured:
        told.append(f"Measured: {span((value / KIB for value in measured), '.2f', ' KiB')}.")
    if lost:
        told.append(f"KV capacity lost to speculation, measured: {'; '.join(lost)}.")
    return " ".join(told)


def rows_axis(axes: Axes, rows: Sequence[MemoryCost], title: str, top: float) -> None:
    axes.set_xlim(0, 1.08 * top if top > 0 else 1)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [named(cost.variant, 16) for cost in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.set_xlabel(title)


def bar(left: float, row: int, width: float) -> tuple[float, float, float, float]:
    return left, row - 0.32, width, 0.64


def stacked(
    axes: Axes, rows: Sequence[MemoryCost], unit: int, parts: Callable[[MemoryCost], tuple[int | None, int | None]]
) -> float:
    """The target's part, and the drafter's in its variant's colour; gives the end of the longest bar."""
    top = 0.0
    targets = []
    for row, cost in enumerate(rows):
        target, drafter = ((part or 0) / unit for part in parts(cost))
        targets.append(bar(0.0, row, target))
        rectangles(axes, [bar(target, row, drafter)], facecolor=look(cost.variant).colour, edgecolor="none")
        top = max(top, target + drafter)
    rectangles(axes, targets, edgecolor="none", **TARGET)
    return top


def points(axes: Axes, places: Sequence[tuple[int, float]]) -> None:
    if places:
        axes.plot([value for _, value in places], [row for row, _ in places], clip_on=False, zorder=3, **MEASURED)


def draw_weights(rows: Sequence[MemoryCost], sheet: Sheet) -> None:
    axes = sheet.subplots()
    top = stacked(axes, rows, GIB, lambda cost: (cost.target_static_bytes, cost.static_bytes))
    rows_axis(axes, rows, "weights (GiB)", top)
    keys(sheet, measured=False)


def draw_kv(rows: Sequence[MemoryCost], sheet: Sheet) -> None:
    left, right = sheet.subplots(1, 2, sharey=True)
    top = stacked(left, rows, KIB, lambda cost: (cost.target_kv_bytes_per_token, cost.kv_bytes_per_token))
    measured = [(row, value / KIB) for row, cost in enumerate(rows) if (value := cost.measured_kv_bytes) is not None]
    points(left, measured)
    rows_axis(left, rows, "KV cache (KiB/token)", max([top, *[value for _, value in measured]]))
    expected = [(row, 100 * share) for row, cost in enumerate(rows) if (share := cost.expected_lost_share) is not None]
    lost = [(row, 100 * share) for row, cost in enumerate(rows) if (share := cost.measured_lost_share) is not None]
    for row, value in expected:
        rectangles(right, [bar(0, row, value)], facecolor=look(rows[row].variant).colour, edgecolor="none")
    points(right, lost)
    ends = [value for _, value in [*expected, *lost]]
    rows_axis(right, rows, "KV capacity lost (%)", max(ends, default=0))
    right.set_xlim(left=min([0, *ends]))
    keys(sheet, measured=bool(measured or lost))


def keys(sheet: Sheet, *, measured: bool) -> None:
    handles: list[Any] = [
        Patch(label="target", **TARGET),
        Patch(label="drafter, in its colour", fill=False, ec=INK["fg"]),
    ]
    if measured:
        handles.append(Line2D([], [], label="measured", **MEASURED))
    sheet.legend(handles=handles, loc="outside upper left", ncols=3, handlelength=1.4, columnspacing=1.2)


KINDS: tuple[tuple[str, str, Callable[[Sequence[MemoryCost]], str], Callable[[Sequence[MemoryCost], Sheet], None]], ...]
KINDS = (
    ("weights", "Weights", weights_words, draw_weights),
    ("kv", "KV cache", kv_words, draw_kv),
)
