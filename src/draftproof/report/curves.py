"""Survival curves: a panel for each workload and batch size, one step line per variant."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from markupsafe import Markup
from matplotlib.axes import Axes

from draftproof.analysis.survival import Survival
from draftproof.report import drawing, marks, panels, room
from draftproof.report.determinism import compared, grid, longest_of, survival_at, survival_text, unit_name
from draftproof.report.drawing import Later, Look
from draftproof.report.parts import Figure
from draftproof.results import RunResults

NAME = "survival"
PLACES = 400
"""Steps nearer to each other than this part of the axis are drawn as one."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    variant: str
    look: Look
    survival: Survival


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    curves: list[Curve]

    @property
    def drawn(self) -> list[Curve]:
        return self.curves[: room.LINES]

    @property
    def description(self) -> str:
        told = [described(curve.variant, curve.survival) for curve in self.drawn]
        told = [*told, *room.more(len(self.curves), len(self.drawn))]
        return f"Share of requests still identical to no-SD by output tokens, from 1: {'; '.join(told)}."


def panels_of(results: RunResults) -> list[Panel]:
    """In the order of the closing table; controls come last, and dashed."""
    units: dict[tuple[str, str, int, str], list[Curve]] = {}
    for cell, same in compared(results):
        if same.survival is not None:
            what = cell.cell
            look = drawing.look(what.variant, control=what.variant in results.controls)
            unit = (what.target, what.workload, what.batch_size, cell.build)
            units.setdefault(unit, []).append(Curve(variant=what.variant, look=look, survival=same.survival))
    found = []
    for unit, curves in units.items():
        name, size = unit_name(results, *unit)
        found.append(Panel(title=f"{name}, batch size {size}", curves=sorted(curves, key=lambda c: c.look.line != "-")))
    return found


def described(variant: str, survival: Survival) -> str:
    end = survival.tokens[-1]
    return f"{variant} after {end:,} tokens: {survival_text(survival_at(survival, end))}"


def steps(survival: Survival, longest: int) -> tuple[list[int], list[float]]:
    """(Tokens, share) where the curve falls, from the first token to its end; of steps too near the last one."""
    places: dict[int, tuple[int, float]] = {}
    for tokens, share in zip(survival.tokens, survival.share, strict=True):
        place = round(PLACES * math.log2(max(tokens, 1)) / math.log2(max(longest, 2)))
        places[place] = (max(tokens, 1), share)
    at, shares = [1], [1.0]
    for tokens, share in places.values():
        if share != shares[-1]:
            at.append(tokens)
            shares.append(share)
    return [*at, max(survival.tokens[-1], 1)], [*shares, shares[-1]]


def figures(results: RunResults) -> list[Figure]:
    longest = longest_of(results)
    return [
        Figure(title=panel.title, description=panel.description, svg=later(f"{NAME}-{number}", panel.drawn, longest))
        for number, panel in enumerate(room.drawn(panels_of(results))[0])
    ]


def later(name: str, curves: Sequence[Curve], longest: int) -> Later:
    return Later(name, panels.SIZE, lambda sheet: curves_on(sheet.subplots(), curves, longest))


def curves_on(axes: Axes, curves: Sequence[Curve], longest: int) -> None:
    """Step lines, with intervals at every second length of the table, beside each other where lines meet."""
    end = max(longest, 2)
    drawing.doublings(axes, [2**power for power in range(end.bit_length())], least_gap=1 / 8)
    axes.set_xlim(1, end * 1.06)
    axes.set_xlabel("output tokens (log scale)")
    panels.share_axis(axes, "share still identical")
    for number, curve in enumerate(curves):
        at, shares = steps(curve.survival, longest)
        look = curve.look
        axes.step(at, shares, where="post", color=look.colour, linestyle=look.line, zorder=2)
        points = [(tokens, survival_at(curve.survival, tokens)) for tokens in grid(longest)[::-2]]
        found = [(tokens, point) for tokens, point in points if point is not None]
        aside = 2.0 ** (min(0.08, 0.6 / len(curves)) * (number - (len(curves) - 1) / 2))
        places = [min(tokens * aside, end * 1.04) for tokens, _ in found]
        axes.vlines(places, [p.low for _, p in found], [p.high for _, p in found], color=look.colour, linewidth=1.0)
        at_marks = [point.share for _, point in found]
        axes.plot(places, at_marks, color=look.colour, marker=look.marker, linestyle="", markersize=4, zorder=3)


def legend(results: RunResults) -> Markup:
    shown, left_out = room.drawn(panels_of(results))
    looks = {curve.variant: curve.look for panel in shown for curve in panel.drawn}
    if not looks:
        return Markup("")
    controls = any(look.line != "-" for look in looks.values())
    note = "Bars: 95 % intervals at some lengths of the table, set beside each other where lines meet."
    note += " Dashed: controls." if controls else ""
    ordered = dict(sorted(looks.items(), key=lambda item: item[1].line != "-"))
    return panels.legend(NAME, ordered, marks.note(note, left_out))
