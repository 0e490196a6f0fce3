"""The page in a real browser: nothing is asked for, nothing runs, everybody can get at all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.browser import looking
from tests.browser.conftest import Open
from tests.browser.looking import DESK_PX, PAPER_PX, PHONE_PX, SHRINK
from tests.browser.runs import (
    ALWAYS,
    HOSTILE_PAGES,
    RUNS,
    SECTIONS,
    full,
    html,
    page_of,
    spoilt,
    without_policy,
)
from tests.reporting import hostile_run

SAMPLE = Path(__file__).resolve().parents[2] / "reports" / "sample" / "index.html"
"""A real run's page, once there is one."""

PAGES = [*RUNS, *(["sample"] if SAMPLE.exists() else [])]
SMALL = [name for name in PAGES if name != "many"]
Scheme = Literal["light", "dark"]


def text_of(name: str) -> str:
    return SAMPLE.read_text(encoding="utf-8") if name == "sample" else page_of(name)


@pytest.mark.parametrize("name", PAGES)
def test_it_asks_for_nothing_and_runs_nothing(look: Open, name: str) -> None:
    page = look(text_of(name), details=True)
    assert looking.misdeeds(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_section_that_the_data_call_for_is_there(look: Open, name: str) -> None:
    page = look(text_of(name))
    assert looking.sections(page, ALWAYS | SECTIONS.get(name, {"cells", "outputs"})) == []


def test_no_section_without_its_data(look: Open) -> None:
    page = look(text_of("empty"))
    assert not set(looking.section_ids(page)) & (SECTIONS["full"] - SECTIONS["empty"])


@pytest.mark.parametrize("width_px", [PHONE_PX, DESK_PX])
@pytest.mark.parametrize("details", [False, True], ids=["folded", "unfolded"])
@pytest.mark.parametrize("name", PAGES)
def test_it_never_scrolls_sideways(look: Open, name: str, details: bool, width_px: int) -> None:
    page = look(text_of(name), width_px=width_px, details=details)
    assert looking.too_wide(page) == []


@pytest.mark.parametrize("width_px", [PHONE_PX, DESK_PX])
@pytest.mark.parametrize("name", PAGES)
def test_figures_show_their_labels_whole(look: Open, name: str, width_px: int) -> None:
    page = look(text_of(name), width_px=width_px, details=True)
    assert looking.cut_labels(page) == []


@pytest.mark.parametrize("width_px", [PHONE_PX, DESK_PX])
@pytest.mark.parametrize("name", SMALL)
def test_the_keyboard_reaches_everything(look: Open, name: str, width_px: int) -> None:
    page = look(text_of(name), width_px=width_px)
    assert looking.keyboard(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_the_enter_key_follows_links(look: Open, name: str) -> None:
    page = look(text_of(name))
    assert looking.links(page) == []


def test_the_enter_key_unfolds_a_detail(look: Open) -> None:
    page = look(text_of("full"))
    count = page.run("document.querySelectorAll('details').length")
    assert count > 5
    for number in range(count):
        page.run("number => document.querySelectorAll('summary')[number].focus()", number)
        page.page.keyboard.press("Enter")
    assert page.run("document.querySelectorAll('details[open]').length") == count


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SMALL)
def test_axe_finds_no_violation(look: Open, name: str, scheme: Scheme) -> None:
    page = look(text_of(name), scheme=scheme, details=True)
    assert looking.axe(page) + looking.faint_labels(page) == []


@pytest.mark.parametrize("name", ["full", *PAGES[len(RUNS) :]])
def test_axe_finds_no_violation_on_a_phone(look: Open, name: str) -> None:
    page = look(text_of(name), width_px=PHONE_PX)
    assert looking.axe(page) == []


def test_axe_finds_no_violation_among_300_cells(look: Open) -> None:
    page = look(text_of("many"))
    assert looking.axe(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_paper_shows_what_is_folded_and_cuts_nothing_off(look: Open, name: str) -> None:
    page = look(text_of(name), width_px=PAPER_PX, media="print")
    assert looking.folded(page) == []
    assert looking.too_wide(page, SHRINK) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white(look: Open, scheme: Scheme) -> None:
    page = look(text_of("full"), width_px=PAPER_PX, media="print", scheme=scheme)
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert looking.axe(page) + looking.faint_labels(page) == []


# -- texts of others ---------------------------------------------------------------------------------------------------


def test_every_text_of_the_records_can_be_somebody_elses() -> None:
    """What the pages below rest on; words of a fixed list stay, and names that were one stay one."""
    before, after = full(), spoilt(full(), "X")
    (old,), (new,) = ([cell for cell in run.cells if cell.excess] for run in (before, after))
    assert old.excess is not None
    assert new.excess is not None
    assert new.excess.control == f"X{old.excess.control}"
    assert (new.cell.variant, new.throughput.verdict) == (f"X{old.cell.variant}", old.throughput.verdict)
    assert new.arm == f"X{old.arm}"
    assert [cell.arm == cell.base_arm for cell in after.cells] == [cell.arm == cell.base_arm for cell in before.cells]
    assert old.sameness is not None
    assert new.sameness is not None
    assert new.sameness.differences[0].texts == ("X the", "X a")
    assert [found.cause for found in new.sameness.differences] == [found.cause for found in old.sameness.differences]
    assert after.notes == ["Xchat: 2 prompts were left out"]
    assert after.skipped == {"tiny-mtp-chat-b1": "Xneeds a target with an MTP head"}
    assert after.arms[0].environment["preloads"] == ["Xlibtcmalloc_minimal.so.4"]
    assert after.arms[0].environment["variables"] == {"VLLM_CPU_KVCACHE_SPACE": "X2"}
    assert spoilt(full(), "") == before


@pytest.fixture(scope="module", params=list(HOSTILE_PAGES))
def hostile(request: pytest.FixtureRequest) -> str:
    return HOSTILE_PAGES[request.param]()


@pytest.mark.parametrize("policy", [True, False], ids=["with its policy", "without a policy"])
def test_texts_of_others_run_nothing(look: Open, hostile: str, policy: bool) -> None:
    """Not for the policy's sake alone: they are no HTML even where nothing else would stop them."""
    page = look(hostile if policy else without_policy(hostile), details=True)
    page.run("document.querySelectorAll('main *').forEach(e => e.dispatchEvent(new MouseEvent('mouseover')))")
    assert looking.misdeeds(page) == []


@pytest.mark.parametrize("width_px", [PHONE_PX, DESK_PX])
def test_texts_of_others_move_nothing(look: Open, hostile: str, width_px: int) -> None:
    page = look(hostile, width_px=width_px, details=True)
    assert looking.too_wide(page) == []
    assert looking.sections(page, ALWAYS | {"cells", "failures", "outputs", "notes", "not-run"}) == []
    lefts = page.run("[...document.querySelectorAll('h1, h2, h3, nav')].map(e => e.getBoundingClientRect().left)")
    assert set(lefts) == {lefts[0]}
    assert page.run("[...document.querySelectorAll('*')].every(e => getComputedStyle(e).direction === 'ltr')")


def test_texts_of_others_stay_on_the_paper(look: Open, hostile: str) -> None:
    page = look(hostile, width_px=PAPER_PX, media="print")
    assert looking.too_wide(page, SHRINK) == []


def test_texts_of_others_are_within_the_rules_of_axe(look: Open) -> None:
    page = look(HOSTILE_PAGES["scripts in model output"](), details=True)
    assert looking.axe(page) == []


def test_a_long_text_is_cut(look: Open) -> None:
    """100,000 characters do not push the rest of the page out of reach."""
    harmless = html(hostile_run("harmless"))
    heights = [
        look(text).run("document.body.scrollHeight") for text in (harmless, HOSTILE_PAGES["100,000 characters"]())
    ]
    assert heights[1] < heights[0] + 20_000
