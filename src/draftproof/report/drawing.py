"""Figures by matplotlib as SVG: elements of the page in its colours, light and dark, or documents of their own."""

from __future__ import annotations

import functools
import importlib.resources
import io
import math
import re
import warnings
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
    **{f"t{number}": f"#0102{0x30 + number:02x}" for number in range(4)},
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
    "lines.solid_capstyle": "butt",
    "lines.markersize": 5,
    "text.color": INK["fg"],
    "xtick.bottom": False,
    "xtick.color": INK["line"],
    "xtick.labelcolor": INK["soft"],
    "ytick.left": False,
    "ytick.color": INK["line"],
    "ytick.labelcolor": INK["soft"],
}

KNOWN = {"ngram": "s0", "draft_model": "s1", "eagle": "s2", "eagle3": "s3", "mtp": "s4", "oracle": "s5", "no_sd": "s6"}
"""Variant -> its colour, in every figure of every run; one named after it (``ngram_k5``) has the same."""
CONTROLS = {"adversarial": ("s4", 6), "random_half": ("s2", 5), "self_draft": ("s1", 0)}
"""Other variants of the catalog whose looks must not meet: colour, and the marker's place below."""
MARKERS = ("o", "s", "D", "^", "v", "X", "P", "*")

GROUND = INK["bg"]
"""Inside of a hollow marker."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant is drawn, everywhere alike; colour and marker both tell it apart."""

    colour: str
    marker: str
    line: str
    """Dashed for a control."""


def look(variant: str, *, control: bool = False) -> Look:
    """By its name alone, so that it is the same in every run; those of the catalog all differ."""
    families = {name: (colour, place) for place, (name, colour) in enumerate(KNOWN.items())} | CONTROLS
    number = zlib.crc32(variant.encode("utf-8", "replace"))
    named = [name for name in families if variant == name or variant.startswith(name + "_")]
    colour, marker = families[max(named, key=len)] if named else (f"s{number % 7}", number // 7)
    if named and variant not in families:
        k = re.search(r"_k([0-9]{1,4})$", variant)
        marker += 1 + (int(k[1]).bit_length() if k else number) % 7
    return Look(colour=INK[colour], marker=MARKERS[marker % len(MARKERS)], line="--" if control else "-")


class Later(msgspec.Struct, frozen=True):
    """A drawing that is made when a page prints it: the other reports need none."""

    name: str
    size: tuple[float, float]
    draw: Callable[[Sheet], None]

    def __html__(self) -> str:
        return svg(self.name, self.size, self.draw)


def svg(name: str, size: tuple[float, float], draw: Callable[[Sheet], None]) -> Markup:
    """What `draw` puts on an empty sheet of `size` (width, height in inches; about 100 pixels of the page each).

    `name` keeps the ids of this drawing apart from those of the others on the page.
    """
    return Markup(for_page(drawn(size, draw, STYLE), name))  # noqa: S704 - matplotlib has escaped every text


def document(title: str, size: tuple[float, float], draw: Callable[[Sheet], None]) -> str:
    """The same as an SVG document: colours of its own, a white ground, ids and `title` kept."""
    text = drawn(size, draw, STYLE | {"figure.facecolor": INK["bg"]}, title)
    for colour, placeholder in INK.items():
        text = text.replace(placeholder, light_colours()[colour])
    return text


@functools.cache
def light_colours() -> dict[str, str]:
    """Name -> the page's light colour, as its style has it."""
    style = importlib.resources.files("draftproof.report").joinpath("style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--(\w+): (#[0-9a-f]+);", style[: style.index("@media")]))


def drawn(size: tuple[float, float], draw: Callable[[Sheet], None], style: dict[Any, Any], title: str = "") -> str:
    """matplotlib's own document, with placeholders for colours."""
    told = {"Date": None, "Creator": None, "Format": None, "Type": None} | ({"Title": title} if title else {})
    with mpl.rc_context(style), warnings.catch_warnings():
        # The reader's fonts draw the text: what matplotlib's own font lacks is no loss.
        warnings.filterwarnings("ignore", message="Glyph ")
        sheet = Sheet(figsize=size, layout="constrained")
        draw(sheet)
        buffer = io.StringIO()
        sheet.savefig(buffer, format="svg", metadata=told)
    return buffer.getvalue()


def for_page(text: str, name: str) -> str:
    """A document of matplotlib's as an element of the page, in about half of the bytes; texts stay as they are."""
    text = text[text.index("<svg") :]
    for gone in (r"\s*<metadata>.*?</metadata>", r"<style[^>]*>.*?</style>", r"<!--.*?-->\n?", r"<defs>\s*</defs>"):
        text = re.sub(gone, "", text, flags=re.S)
    used = sorted(set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text)))
    ids = {long: f"{name}-{number}" for number, long in enumerate(used)}
    groups: list[bool] = []

    def shown(found: re.Match[str]) -> str:
        made = tag(found[0], ids)
        if made == "</g>":
            return made if groups.pop() else ""
        if made.startswith("<g") and not made.endswith("/>"):
            groups.append(made != "<g>")
            return made if groups[-1] else ""  # a group without a meaning ends where it began
        return "" if made == "<g/>" else made

    # Text of the records stands between tags, with its own angle brackets escaped.
    return re.sub(r"(?<=>)\s+(?=<)", "", re.sub(r"<[^>]*>", shown, text)).replace("\n", " ")


def tag(text: str, ids: dict[str, str]) -> str:
    """One tag: the drawing's own ids, the page's colours and font; what the page sets or nobody sees is gone."""
    text = re.sub(r"\s+", " ", text).replace(" />", "/>").replace(" >", ">").replace(";base64, ", ";base64,")
    if text.startswith("<svg"):
        text = re.sub(r' (?:width|height)="[^"]*"', "", text).replace("<svg", '<svg aria-hidden="true"', 1)
    if text.startswith("<path") and 'style="fill: none"' in text:
        return ""  # the ground of the sheet and of its axes
    text = re.sub(r' id="([^"]+)"', lambda found: f' id="{ids[found[1]]}"' if found[1] in ids else "", text)
    text = re.sub(r"(url\(#|href=\"#)([^)\"]+)", lambda found: f"{found[1]}{ids[found[2]]}", text)
    text = re.sub(r"'DejaVu Sans'(, [^;\"]*)?", "inherit", text).replace("font-family: inherit; ", "")
    for colour, placeholder in INK.items():
        text = text.replace(placeholder, f"var(--{colour})")
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)  # a hundredth of a point is finer than any screen
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)
    return re.sub(r' (d|style)="([^"]*)"', without_spaces, text)


def without_spaces(found: re.Match[str]) -> str:
    """Of a path beside its letters, of a style behind its signs."""
    value = re.sub(r" ?([A-Za-z]) ?" if found[1] == "d" else r"([:;]) ", r"\1", found[2])
    return f' {found[1]}="{value.strip()}"'


def batch_axis(axes: Axes, sizes: Iterable[int]) -> None:
    """A horizontal axis of batch sizes, doubling by doubling, with the sizes that were run as its ticks."""
    doublings(axes, sizes)
    axes.set_xlabel("batch size (log scale)")


def doublings(axes: Axes, ticks: Iterable[int], least_gap: float = 1 / 11) -> None:
    """A horizontal logarithmic axis; a tick nearer than `least_gap` of the axis to the one before has no number."""
    shown = sorted(set(ticks))
    span = math.log2(shown[-1] / shown[0]) or 1.0
    texts, last = [], -math.inf
    for tick in shown:
        clear = math.log2(tick) - last >= least_gap * span
        texts.append(f"{tick:,}" if clear else "")
        last = math.log2(tick) if clear else last
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, texts)
    axes.xaxis.set_minor_locator(NullLocator())
