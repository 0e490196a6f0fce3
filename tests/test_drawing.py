"""Rules of the drawings: the page's colours, ids of their own, foreign text stays text, one look for each variant."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from matplotlib.figure import Figure as Sheet

from draftproof.report import drawing
from tests.reporting import HOSTILE, Page


def lines(title: str = "speedups") -> Callable[[Sheet], None]:
    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        for name in ("ngram", "eagle3", "oracle"):
            look = drawing.look(name, control=name == "oracle")
            axes.plot([1, 4, 16], [1, 2, 1.5], color=look.colour, marker=look.marker, linestyle=look.line, label=name)
        drawing.batch_axis(axes, [1, 4, 16])
        axes.set_title(title)
        axes.legend()

    return draw


def test_a_drawing_has_the_pages_colours_and_no_other() -> None:
    text = drawing.svg("a", (4, 3), lines())
    assert {"--s0", "--s3", "--s5", "--fg", "--soft", "--line"} <= set(re.findall(r"var\((--\w+)\)", text))
    assert not re.findall(r"#[0-9a-f]{6}", text)


def test_two_drawings_share_no_id_and_every_reference_is_met() -> None:
    found = Page(drawing.svg("a", (4, 3), lines()) + drawing.svg("b", (4, 3), lines()))
    ids = found.values("id")
    assert ids
    assert len(ids) == len(set(ids))
    references = [link.removeprefix("#") for link in found.values("xlink:href")]
    references += re.findall(r"url\(#([^)]+)\)", " ".join(value for _, value in found.attributes))
    assert set(references) == set(ids)


def test_a_drawing_brings_no_style_and_no_machine_along() -> None:
    text = drawing.svg("a", (4, 3), lines())
    assert not re.search(r"<style|<metadata|<!--|matplotlib|DejaVu|http://(?!www.w3.org/)", text)
    assert text == drawing.svg("a", (4, 3), lines())


@pytest.mark.parametrize("title", [text for text in HOSTILE if text.isprintable() and len(text) < 200])
def test_foreign_text_stays_text(title: str) -> None:
    found = Page(drawing.svg("a", (4, 3), lines(title)))
    assert title.strip() in found.text
    assert not {"script", "img", "iframe"} & set(found.tags)


def test_known_variants_differ_and_those_named_after_them_share_their_colour() -> None:
    looks = [drawing.look(name) for name in drawing.KNOWN]
    assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == len(looks)
    assert drawing.look("ngram_k5").colour == drawing.look("ngram").colour
    assert drawing.look("eagle3_invariant").colour == drawing.look("eagle3").colour
    assert drawing.look("something").marker in drawing.MARKERS
    assert drawing.look("oracle", control=True).line == "--"
