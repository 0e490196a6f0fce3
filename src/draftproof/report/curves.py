"""Survival curves as lines of an SVG: a panel for each workload and batch size, one line per variant."""

from __future__ import annotations

import math

import msgspec
from markupsafe import Markup

from draftproof.analysis.survival import Survival
from draftproof.report.determinism import arm_of, compared, grid, longest_of, survival_at, survival_text, unit_name
from draftproof.report.parts import Figure
from draftproof.report.templates import render
from draftproof.results import RunResults

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 400, 10, 206
"""The frame of a panel, in units of its view box."""

DIGIT = 8
"""Width that a digit of a label takes."""

COLOURS = 7
"""Classes ``s0`` to ``s6`` of the page's style: colours that colour-blind readers can tell apart."""

MARKERS = (
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
    "m-2.7-2.7h5.4v5.4h-5.4z",
    "m0-4l4 4-4 4-4-4z",
    "m0-3.6l3.6 6.4h-7.2z",
    "m0 3.6l3.6-6.4h-7.2z",
    "m-3.2-3.2l6.4 6.4m0-6.4l-6.4 6.4",
    "m-3.8 0h7.6m-3.8-3.8v7.6",
    "m-1.4-4h2.8v8h-2.8z",
)
"""Shapes around a place. Their number and that of the colours share no divisor: 56 looks before one comes again."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant is drawn, in all panels alike."""

    variant: str
    colour: int
    marker: str
    dashed: bool
    """Of a control."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    look: Look
    steps: str
    """Path of the step function."""
    bars: str
    """Path of the intervals at some lengths of the table."""
    marks: str


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    description: str
    curves: list[Curve]


class Survivals(msgspec.Struct, frozen=True, kw_only=True):
    """All panels, on the same axes."""

    looks: list[Look]
    panels: list[Panel]
    x_ticks: list[tuple[int, str]]
    y_ticks: list[tuple[int, str]]


def looks_of(results: RunResults) -> dict[str, Look]:
    """Variant -> look, for those that have a curve; controls come last, and dashed."""
    controls: dict[str, bool] = {}
    for cell, same in compared(results):
        if same.survival is not None and cell.cell.variant not in controls:
            arm = arm_of(results, cell)
            controls[cell.cell.variant] = bool(arm and arm.control)
    return {
        variant: Look(
            variant=variant,
            colour=number % COLOURS,
            marker=MARKERS[number % len(MARKERS)],
            dashed=controls[variant],
        )
        for number, variant in enumerate(sorted(controls, key=controls.__getitem__))
    }


def survivals(results: RunResults) -> Survivals | None:
    """None without a curve."""
    longest = longest_of(results)
    if not longest:
        return None
    looks = looks_of(results)
    units: dict[tuple[str, str, int, str], list[tuple[str, Survival]]] = {}
    for cell, same in compared(results):
        if same.survival is not None:
            what = cell.cell
            unit = (what.target, what.workload, what.batch_size, cell.build)
            units.setdefault(unit, []).append((what.variant, same.survival))
    panels = []
    for (target, workload, batch_size, build), lines in units.items():
        name, size = unit_name(results, target, workload, batch_size, build)
        panels.append(
            Panel(
                title=f"{name}, batch size {size}",
                description="; ".join(described(variant, survival) for variant, survival in lines),
                curves=[
                    curve(looks[variant], survival, longest, place - (len(lines) - 1) / 2, len(lines))
                    for place, (variant, survival) in enumerate(lines)
                ],
            )
        )
    return Survivals(
        looks=list(looks.values()),
        panels=panels,
        x_ticks=x_ticks(longest),
        y_ticks=[(at_share(share), f"{share:g}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)],
    )


def described(variant: str, survival: Survival) -> str:
    end = survival.tokens[-1]
    return f"{variant} after {end:,} tokens: {survival_text(survival_at(survival, end))}"


def at_tokens(tokens: int, longest: int) -> int:
    """Place on the logarithmic axis, which begins at the first token."""
    return round(LEFT + (RIGHT - LEFT) * math.log(max(tokens, 1)) / math.log(max(longest, 2)))


def at_share(share: float) -> int:
    return round(BOTTOM - (BOTTOM - TOP) * min(max(share, 0.0), 1.0))


def x_ticks(longest: int) -> list[tuple[int, str]]:
    """Powers of two, and the end of the axis where nothing else is printed."""
    doublings = max(1, math.ceil(math.log2(max(longest, 2)) / 8))
    found = [(at_tokens(longest, longest), f"{longest:,}")]
    tokens = 1
    while tokens < longest:
        if found[0][0] - at_tokens(tokens, longest) >= DIGIT * (len(found[0][1]) + 1):
            found.append((at_tokens(tokens, longest), f"{tokens:,}"))
        tokens *= 2**doublings
    return sorted(found)


def curve(look: Look, survival: Survival, longest: int, place: float, lines: int) -> Curve:
    """One line. `place`: its own among the `lines`, 0 in the middle, so that bars of two stand beside each other."""
    points: dict[int, int] = {}
    for tokens, share in zip(survival.tokens, survival.share, strict=True):
        points[at_tokens(tokens, longest)] = at_share(share)  # of steps within one unit the last one is drawn
    steps = f"M{LEFT} {TOP}"
    height = TOP
    for x, y in points.items():
        if y != height:
            steps += f"H{x}V{y}"
            height = y
    steps += f"H{at_tokens(survival.tokens[-1], longest)}"
    bars = marks = ""
    aside = place * min(5.0, 34 / lines)
    for tokens in grid(longest)[::-2]:  # every second length: bars of twelve lines keep apart
        point = survival_at(survival, tokens)
        if point is not None:
            at = f"{at_tokens(tokens, longest) + aside:.1f}".removesuffix(".0")
            bars += f"M{at} {at_share(point.low)}V{at_share(point.high)}"
            marks += f"M{at} {at_share(point.share)}{look.marker}"
    return Curve(look=look, steps=steps, bars=bars, marks=marks)


def figures(results: RunResults) -> list[Figure]:
    found = survivals(results)
    if found is None:
        return []
    frame = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
    return [
        Figure(
            title=panel.title,
            description=f"Share of requests still identical to no-SD by output tokens: {panel.description}",
            svg=render("curve.svg.j2", panel=panel, survival=found, frame=frame),
        )
        for panel in found.panels
    ]


def legend(results: RunResults) -> Markup:
    found = survivals(results)
    return render("looks.html.j2", looks=found.looks) if found else Markup("")
