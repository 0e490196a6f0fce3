"""One drawing per data set, like Figures 10 and 12 of arXiv 2601.11580: speedup by batch size, a panel per variant."""

from __future__ import annotations

from html import escape

from draftproof.simulator.output import label
from draftproof.simulator.simulate import Cell

PANEL_WIDTH, PANEL_HEIGHT, MARGIN, LEGEND = 300, 240, 48, 18
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000")
BOUND_COLOUR = "#000000"


def draw(dataset: str, cells: list[Cell], corrected_bound: list[Cell]) -> str:
    """An SVG document. The corrected bound is the dashed black line, beside the cells that were asked for."""
    variants = list(dict.fromkeys(cell.variant for cell in cells))
    sizes = sorted({cell.batch_size for cell in cells})
    top = max([cell.speedup for cell in [*cells, *corrected_bound]] + [1.0]) * 1.05
    step = next(step for step in (0.1, 0.25, 0.5, 1, 2, 5, 10, 50) if top / step <= 9 or step == 50)
    panels = [
        panel(variant, [c for c in cells if c.variant == variant], corrected_bound, sizes, top, step)
        for variant in variants
    ]
    most = max(len({label(c) for c in cells if c.variant == variant}) for variant in variants) + 1
    width = MARGIN + (PANEL_WIDTH + MARGIN) * len(panels)
    height = PANEL_HEIGHT + 2 * MARGIN + LEGEND * most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(dataset)}: simulated speedup by batch size</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{width / 2}" y="18" text-anchor="middle" font-size="14">{escape(dataset)}, rules '
        f"{escape(cells[0].rules)}</text>",
    ]
    for number, body in enumerate(panels):
        parts.append(f'<g transform="translate({MARGIN + number * (PANEL_WIDTH + MARGIN)},{MARGIN})">{body}</g>')
    return "\n".join([*parts, "</svg>", ""])


def panel(variant: str, cells: list[Cell], bound: list[Cell], sizes: list[int], top: float, step: float) -> str:
    """One variant: axes, a line per policy, and the legend below."""

    def x(size: int) -> float:
        return PANEL_WIDTH * (sizes.index(size) + 0.5) / len(sizes)

    def y(speedup: float) -> float:
        return PANEL_HEIGHT * (1 - speedup / top)

    parts = [f'<text x="{PANEL_WIDTH / 2}" y="-8" text-anchor="middle">{escape(variant)}</text>']
    for tick in range(int(top / step) + 1):
        at = y(tick * step)
        parts.append(f'<line x1="0" x2="{PANEL_WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="-6" y="{at + 4:.1f}" text-anchor="end">{tick * step:g}</text>')
    parts.append(f'<line x1="0" x2="{PANEL_WIDTH}" y1="{y(1):.1f}" y2="{y(1):.1f}" stroke="#888888"/>')
    for size in sizes:
        parts.append(f'<text x="{x(size):.1f}" y="{PANEL_HEIGHT + 16}" text-anchor="middle">{size}</text>')
    parts.append(f'<text x="{PANEL_WIDTH / 2}" y="{PANEL_HEIGHT + 32}" text-anchor="middle">batch size</text>')
    series: list[tuple[str, str, list[Cell]]] = [
        (name, COLOURS[number % len(COLOURS)], [c for c in cells if label(c) == name])
        for number, name in enumerate(dict.fromkeys(label(c) for c in cells))
    ]
    dashed = [cell for cell in bound if cell.variant == variant]
    if dashed:
        series.append(("corrected bound", BOUND_COLOUR, dashed))
    for number, (name, colour, line) in enumerate(series):
        dash = ' stroke-dasharray="6 3"' if line is dashed else ""
        points = " ".join(f"{x(c.batch_size):.1f},{y(c.speedup):.1f}" for c in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        for c in line:
            tip = f"{escape(name)}, batch size {c.batch_size}: {c.speedup:.3f}"
            parts.append(
                f'<circle cx="{x(c.batch_size):.1f}" cy="{y(c.speedup):.1f}" r="3" fill="{colour}">'
                f"<title>{tip}</title></circle>"
            )
        at = PANEL_HEIGHT + MARGIN + LEGEND * number
        parts.append(f'<line x1="0" x2="24" y1="{at}" y2="{at}" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="30" y="{at + 4}">{escape(name)}</text>')
    return "".join(parts)
