"""Rules of the drawings: the page's colours, ids of their own, foreign text stays text, one look for each variant."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Sheet

from draftproof.catalog import load_catalog
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


def test_no_two_variants_of_the_catalog_look_alike() -> None:
    names = sorted(load_catalog().variants)
    looks = {(drawing.look(name).colour, drawing.look(name).marker) for name in names}
    assert len(looks) == len(names)


def test_a_document_stands_alone() -> None:
    """Colours of its own, the page's light ones; a title; nothing of the machine or the day."""
    text = drawing.document("speedups & more", (4, 3), lines())
    assert ET.fromstring(text).find("{http://www.w3.org/2000/svg}title") is not None
    assert "speedups &amp; more" in text
    assert "var(" not in text
    assert not [placeholder for placeholder in drawing.INK.values() if placeholder in text]
    assert drawing.light_colours()["s3"] in text
    assert text == drawing.document("speedups & more", (4, 3), lines())


def test_every_colour_of_a_drawing_is_one_of_the_page() -> None:
    assert set(drawing.INK) <= set(drawing.light_colours())


def test_a_drawing_is_made_when_it_is_printed() -> None:
    made: list[Sheet] = []
    later = drawing.Later("a", (1, 1), made.append)
    assert made == []
    assert later.__html__().startswith("<svg")
    assert len(made) == 1


@given(st.sets(st.integers(1, 5000), min_size=1, max_size=30))
def test_numbers_of_a_logarithmic_axis_keep_apart(ticks: set[int]) -> None:
    axes = Sheet().subplots()
    drawing.doublings(axes, ticks)
    told = [tick for tick, text in zip(sorted(ticks), axes.get_xticklabels(), strict=True) if text.get_text()]
    assert told[0] == min(ticks)
    span = math.log2(max(ticks) / min(ticks))
    assert all(math.log2(b / a) >= span / 11 for a, b in itertools.pairwise(told))
