"""Figures by matplotlib as SVG elements of the page: in its colours, light and dark, with ids of their own."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib as mpl
import msgspec
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import NullLocator

INK = {
    "fg": "#010203",
    "soft": "#010204",
    "line": "#010205",
    "bg": "#010206",
    "panel": "#010207",
    "faster": "#010208",
    "slower": "#010209",
    "unclear": "#01020a",
    **{f"s{number}": f"#0102{0x20 + number:02x}" for number in range(7)},
}
"""Name of a colour of the page's style -> the colour that stands for it while matplotlib draws."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "draftproof",
    "text.parse_math": False,
    "font.size": 9,
    "axes.edgecolor": INK["line"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK["soft"],
    "axes.labelsize": 9,
    "axes.titlecolor": INK["fg"],
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "grid.color": INK["line"],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.labelcolor": INK["fg"],
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "text.color": INK["fg"],
    "xtick.color": INK["line"],
    "xtick.labelcolor": INK["soft"],
    "ytick.color": INK["line"],
    "ytick.labelcolor": INK["soft"],
}

KNOWN = {"ngram": "s0", "draft_model": "s1", "eagle": "s2", "eagle3": "s3", "mtp": "s4", "oracle": "s5", "no_sd": "s6"}
"""Variant -> its colour, in every figure of every run; one named after it (``ngram_k5``) has the same."""
MARKERS = ("o", "s", "D", "^", "v", "X", "P", "*")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant is drawn, everywhere alike; colour and marker both tell it apart."""

    colour: str
    marker: str
    line: str
    """Dashed for a control."""


def look(variant: str, *, control: bool = False) -> Look:
    number = zlib.crc32(variant.encode())
    named = [name for name in KNOWN if variant == name or variant.startswith(name + "_")]
    colour = KNOWN[max(named, key=len)] if named else f"s{number % 7}"
    marker = list(KNOWN).index(variant) if variant in KNOWN else number // 7
    return Look(colour=INK[colour], marker=MARKERS[marker % len(MARKERS)], line="--" if control else "-")


def svg(name: str, size: tuple[float, float], draw: Callable[[Sheet], None]) -> Markup:
    """What `draw` puts on an empty sheet of `size` (width, height in inches; about 100 pixels of the page each).

    `name` keeps the ids of this drawing apart from those of the others on the page.
    """
    with mpl.rc_context(STYLE):
        sheet = Sheet(figsize=size, layout="constrained")
        draw(sheet)
        buffer = io.StringIO()
        sheet.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Markup(for_page(buffer.getvalue(), name))  # noqa: S704 - matplotlib has escaped every text in it


def for_page(text: str, name: str) -> str:
    """A document of matplotlib's as an element of the page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.S)
    # The page sets the width; unused ids go, the others are this drawing's own.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r'\1 aria-hidden="true"', text, count=1)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r"(url\(#|href=\"#)", lambda found: f"{found[1]}{name}-", text)
    text = re.sub(r"'DejaVu Sans'(, [^;\"]*)?", "inherit", text)
    for colour, placeholder in INK.items():
        text = text.replace(placeholder, f"var(--{colour})")
    # A hundredth of a point is finer than any screen, and half of the bytes.
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)
    return re.sub(r"\s*\n\s*", " ", text)


def batch_axis(axes: Axes, sizes: Iterable[int]) -> None:
    """A horizontal axis of batch sizes, doubling by doubling, with the sizes that were run as its ticks."""
    shown = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [str(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("batch size (log scale)")
