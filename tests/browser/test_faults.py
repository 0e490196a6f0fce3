"""Each rule of ``test_page.py`` meets a page that breaks it: what finds nothing there would prove nothing elsewhere.

That the pages are whole without the fault is what ``test_page.py`` holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser import looking
from tests.browser.conftest import Open
from tests.browser.looking import DESK_PX, PAPER_PX, PHONE_PX, SHRINK, Opened
from tests.browser.runs import page_of, without_policy

SMALL = "one request"
RAN = "a script of the page ran: window.__x is set"
DOT = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


def soon(page: Opened, caught: str) -> list[str]:
    """What the page has done, once `caught` is in it, or after some seconds: a busy machine is slow to ask."""
    found: list[str] = []
    for _ in range(60):
        found = looking.misdeeds(page)
        if any(line.startswith(caught) for line in found):
            break
    return found


def planted(what: str, *, before: str = "</main>", name: str = SMALL) -> str:
    """A page with `what` in it, before the only `before`."""
    text = page_of(name)
    assert text.count(before) == 1
    return text.replace(before, what + before)


def styled(rules: str, name: str = SMALL) -> str:
    return planted(rules, before="</style>", name=name)


def changed(old: str, new: str, name: str = SMALL) -> str:
    text = page_of(name)
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        ("<script>window.__x = 1</script>", RAN),
        ('<svg onload="window.__x = 1"></svg>', RAN),
        ("<script>alert(1)</script>", "dialog: 1"),
        ("<script>console.error('lost')</script>", "console: lost"),
        ("<script>console.warn('odd')</script>", "console: odd"),
        ("<script>throw new Error('gone')</script>", "exception: gone"),
        ('<img alt="" src="https://evil.example/i.png">', "request: https://evil.example/i.png"),
        ('<img alt="" src="i.png">', f"request: {looking.ADDRESS}i.png"),
        ('<link rel="stylesheet" href="//evil.example/x.css">', "request: http://evil.example/x.css"),
        ("<style>@import 'https://evil.example/y.css';</style>", "request: https://evil.example/y.css"),
        ("<style>body { background: url(https://evil.example/b) }</style>", "request: https://evil.example/b"),
        ("<script>fetch('https://evil.example/f').catch(() => 0)</script>", "request: https://evil.example/f"),
        ('<iframe title="x" srcdoc="x"></iframe>', f"the page went elsewhere: {looking.ADDRESS}"),
        ("<script>window.open('about:blank')</script>", f"the page went elsewhere: {looking.ADDRESS}"),
        ("<script>location.reload()</script>", f"request: {looking.ADDRESS}"),
    ],
)
def test_what_a_page_without_a_policy_does_is_seen(look: Open, fault: str, caught: str) -> None:
    page = look(without_policy(planted(fault)))
    assert caught in soon(page, caught)


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        ("<script>window.__x = 1</script>", "policy: script-src-elem inline"),
        ('<svg onload="window.__x = 1"></svg>', "policy: script-src-attr inline"),
        ('<img alt="" src="https://evil.example/i.png">', "policy: img-src https://evil.example/i.png"),
        ('<form action="x"><button id="go">go</button></form>', "policy: form-action"),
    ],
)
def test_what_the_policy_stops_is_seen_as_well(look: Open, fault: str, caught: str) -> None:
    page = look(planted(fault))
    if 'id="go"' in fault:
        page.run("document.getElementById('go').click()")
    found = soon(page, caught)
    assert any(line.startswith(caught) for line in found), found
    assert RAN not in found


def test_an_image_within_the_page_is_no_request(look: Open) -> None:
    page = look(planted(f'<img alt="" src="{DOT}">'))
    assert looking.misdeeds(page) == []


@pytest.mark.parametrize(
    ("old", "new", "caught"),
    [
        ('<h2 id="outputs">', '<h2 id="other">', "section missing: outputs"),
        (
            '<section aria-labelledby="stages">',
            '<section hidden aria-labelledby="stages">',
            "section empty or unseen: stages",
        ),
        ('<a href="#failures">Failures</a>\n', "", "links on top are"),
        ("</main>", '<section><h2 id="more">More</h2></section></main>', "section empty or unseen: more"),
    ],
)
def test_a_missing_section_is_seen(look: Open, old: str, new: str, caught: str) -> None:
    page = look(changed(old, new, "full"))
    found = looking.sections(page, {"cells", "outputs", "stages"})
    assert any(line.startswith(caught) for line in found), found


WIDE_TABLE = f"<table><tr>{'<td>a cell of a table</td>' * 40}</tr></table>"


@pytest.mark.parametrize("width_px", [PHONE_PX, DESK_PX])
@pytest.mark.parametrize(
    "fault",
    [
        WIDE_TABLE,
        '<p style="overflow-wrap: normal">' + "unbroken" * 100,
        '<div style="width: 100vw; padding: 0 1rem; box-sizing: content-box">x</div>',
        '<p style="position: relative; left: -4rem">x</p>',
        f"<style>body {{ overflow-x: hidden }}</style>{WIDE_TABLE}",
        '<p style="direction: rtl; white-space: nowrap">' + "many words " * 100,
    ],
    ids=["table", "word", "box", "to the left", "hidden", "right to left"],
)
def test_what_is_too_wide_is_seen(look: Open, fault: str, width_px: int) -> None:
    page = look(planted(fault), width_px=width_px)
    assert looking.too_wide(page)


def test_a_part_that_scrolls_by_itself_is_not_too_wide(look: Open) -> None:
    page = look(planted(f'<div class="scroll" tabindex="0">{WIDE_TABLE}</div>'), width_px=PHONE_PX)
    assert looking.too_wide(page) == []


def test_a_label_that_its_frame_cuts_off_is_seen(look: Open) -> None:
    svg = '<svg width="100" height="20"><text x="{}" y="15">speedup</text></svg>'
    assert looking.cut_labels(look(planted(svg.format(70)), details=True))
    assert looking.cut_labels(look(planted(svg.format(5)), details=True)) == []


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        (lambda: changed('<a href="#outputs">', '<a tabindex="-1" href="#outputs">'), "tab does not reach: <a>"),
        (
            lambda: changed('tabindex="0" role="region" aria-label="table:', 'tabindex="-1" aria-label="'),
            "tab does not reach: <div.scroll>",
        ),
        (lambda: styled(":focus-visible { outline: none !important }"), "no ring around the focus: <a>"),
        (lambda: styled("a:focus-visible { outline: 2px solid transparent }"), "no ring around the focus: <a>"),
        (lambda: styled("nav a:focus { position: fixed; left: -9999px }"), "focus out of view: <a>"),
        (lambda: changed('<a href="#outputs">', '<a tabindex="3" href="#outputs">'), "tab does not follow the order"),
        (
            lambda: planted("<script>addEventListener('keydown', e => e.preventDefault())</script>").replace(
                "default-src 'none';", "script-src 'unsafe-inline';"
            ),
            "tab does not reach: <a>",
        ),
    ],
    ids=["link left out", "scrolling part left out", "no ring", "unseen ring", "out of view", "out of order", "stuck"],
)
def test_what_the_keyboard_does_not_reach_is_seen(look: Open, fault: Callable[[], str], caught: str) -> None:
    page = look(fault(), width_px=PHONE_PX)
    found = looking.keyboard(page)
    assert any(line.startswith(caught) for line in found), found


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        (lambda: changed('<h2 id="outputs">', "<h2>"), "#outputs leads nowhere"),
        (lambda: styled("#outputs { display: none }"), "#outputs leads to what cannot be seen"),
        (lambda: styled("#outputs { position: fixed; top: -100px }"), "#outputs does not move there"),
        (
            lambda: planted("<script>addEventListener('click', e => e.preventDefault())</script>").replace(
                "default-src 'none';", "script-src 'unsafe-inline';"
            ),
            " was not followed",
        ),
    ],
    ids=["no target", "unseen target", "target out of view", "stopped"],
)
def test_a_link_that_leads_nowhere_is_seen(look: Open, fault: Callable[[], str], caught: str) -> None:
    page = look(fault())
    found = looking.links(page, most=200)
    assert any(line.endswith(caught) for line in found), found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        (lambda: styled(".note { color: #7a7a7a }"), "color-contrast"),
        (lambda: changed('<html lang="en">', "<html>"), "html-has-lang"),
        (lambda: planted('<img src="data:,">'), "image-alt"),
        (
            lambda: changed('tabindex="0" role="region" aria-label="table:', 'aria-label="'),
            "scrollable-region-focusable",
        ),
        (lambda: planted('<svg role="img" width="9" height="9"></svg>'), "svg-img-alt"),
        (lambda: planted("<button></button>"), "button-name"),
    ],
    ids=["contrast", "language", "picture", "scrolling part", "figure", "button"],
)
def test_a_page_that_is_not_for_everybody_is_seen(
    look: Open, fault: Callable[[], str], caught: str, scheme: Any
) -> None:
    page = look(fault(), scheme=scheme, width_px=PHONE_PX if caught.startswith("scroll") else DESK_PX, details=True)
    found = looking.axe(page)
    assert any(line.startswith(caught) for line in found), found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_faint_labels_of_figures_are_seen(look: Open, scheme: Any) -> None:
    page = look(
        styled("svg text { fill: #8a8a8a !important; opacity: 1 } body { background: #999 !important }", "full"),
        scheme=scheme,
    )
    assert any(line.startswith("contrast 1.") for line in looking.faint_labels(page))


def test_what_stays_folded_on_paper_is_seen(look: Open) -> None:
    page = look(
        styled("@media print { details::details-content { content-visibility: hidden !important } }"), media="print"
    )
    assert looking.folded(page)


def test_what_paper_cuts_off_is_seen(look: Open) -> None:
    page = look(
        planted("<table><tr>" + "<td>a cell of a table</td>" * 100 + "</tr></table>"), width_px=PAPER_PX, media="print"
    )
    assert looking.too_wide(page, SHRINK)
