"""What is wrong with a page, as a browser shows it: each function gives a list of lines, empty where a rule is kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tests.browser.chromium import PATIENCE_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ADDRESS = "http://report.invalid/"
"""Nothing answers there: the page's text is handed to the browser, all else that it asks for is refused and counted."""

PHONE_PX = 390
DESK_PX = 1280
PAPER_PX = 718
"""A4 less Chromium's margins, at 96 px an inch."""

SHRINK = 1.5
"""Chromium makes a page that is wider than the paper smaller, by no more than this (read off its PDF files); what is
wider still is cut off."""

AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
SCRIPT = Path(__file__).with_name("looking.js")
SHOWN = 8
"""Lines of one kind that a failed test prints."""


class Opened(msgspec.Struct, frozen=True):
    """A page in the browser, and what it did that a report must not do."""

    page: Page
    told: list[str]
    """Errors and warnings of the console, uncaught exceptions, dialogs."""
    asked: list[str]
    """Addresses that it asked the network for."""

    def run(self, script: str, value: Any = None) -> Any:
        return self.page.evaluate(script, value)


def opened(
    browser: Browser,
    text: str,
    *,
    width_px: int = DESK_PX,
    scheme: Literal["light", "dark"] = "light",
    media: Literal["screen", "print"] = "screen",
    details: bool = False,
) -> Opened:
    """`details`: whether all that is folded is opened."""
    context = browser.new_context(viewport={"width": width_px, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(path=SCRIPT)
    page = context.new_page()
    told: list[str] = []
    asked: list[str] = []

    def answer(route: Any) -> None:
        if route.request.url == ADDRESS and route.request.is_navigation_request() and not answered:
            answered.append(True)
            route.fulfill(body=text.encode(errors="replace"), content_type="text/html; charset=utf-8")
        else:
            asked.append(route.request.url)
            route.abort()

    def dismiss(dialog: Any) -> None:
        told.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def note(message: Any) -> None:
        if message.type in ("error", "warning"):
            told.append(f"console: {message.text}")

    answered: list[bool] = []
    context.route("**/*", answer)
    page.on("console", note)
    page.on("pageerror", lambda error: told.append(f"exception: {error}"))
    page.on("dialog", dismiss)
    page.emulate_media(media=media, color_scheme=scheme)
    page.goto(ADDRESS, wait_until="load")
    if details:
        page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    return Opened(page, told, asked)


def few(lines: Iterable[str]) -> list[str]:
    found = list(lines)
    return found if len(found) <= SHOWN else [*found[:SHOWN], f"and {len(found) - SHOWN} more"]


def misdeeds(look: Opened) -> list[str]:
    """Console errors, breaches of the page's policy, network requests, scripts that ran."""
    look.page.wait_for_timeout(50)  # what images, styles and handlers do comes after the load event
    found = [*look.told, *[f"request: {url}" for url in look.asked if not url.startswith("data:")]]
    found += [f"policy: {what}" for what in look.run("draftproofLook.violations")]
    if look.run("typeof window.__x !== 'undefined'"):
        found.append("a script of the page ran: window.__x is set")
    if look.page.url.partition("#")[0] != ADDRESS or len(look.page.context.pages) > 1 or len(look.page.frames) > 1:
        found.append(f"the page went elsewhere: {look.page.url}")
    return few(found)


def section_ids(look: Opened) -> list[str]:
    return [found["id"] for found in look.run("draftproofLook.sections()")]


def sections(look: Opened, wanted: Iterable[str]) -> list[str]:
    """Sections that are missing, empty or not to be seen, and links on top that do not match them."""
    shown = look.run("draftproofLook.sections()")
    found = [f"section missing: {name}" for name in sorted(set(wanted) - {one["id"] for one in shown})]
    found += [f"section empty or unseen: {one['id'] or one['title']}" for one in shown if not one["ok"]]
    links = look.run("draftproofLook.links()")
    if [link["href"] for link in links] != [f"#{one['id']}" for one in shown] or not all(
        link["title"] for link in links
    ):
        found.append(f"links on top are {links}, sections {[one['id'] for one in shown]}")
    return few(found)


def too_wide(look: Opened, shrink: float = 1.0) -> list[str]:
    """What makes the page scroll sideways, or lies beside it; parts that scroll by themselves may."""
    return few(look.run("shrink => draftproofLook.tooWide(shrink)", shrink))


def cut_labels(look: Opened) -> list[str]:
    """Labels of figures that their frame cuts off."""
    return few(look.run("draftproofLook.cutLabels()"))


def keyboard(look: Opened) -> list[str]:
    """What the tab key does not reach, where the focus is not seen, and where it gets stuck."""
    wanted: list[str] = look.run("draftproofLook.markStops()")
    reached: dict[int | None, None] = {}
    found = []
    while len(reached) <= len(wanted):
        look.page.keyboard.press("Tab")
        here = look.run("draftproofLook.focused()")
        if here is None or here["stop"] in reached:
            break
        reached[here["stop"]] = None
        if not here["ring"]:
            found.append(f"no ring around the focus: {here['name']}")
        if not here["seen"]:
            found.append(f"focus out of view: {here['name']}")
    found += [f"tab does not reach: {name}" for stop, name in enumerate(wanted) if stop not in reached]
    order = [stop for stop in reached if stop is not None]
    if order != sorted(order):
        found.append("tab does not follow the order of the page")
    return few(found)


def links(look: Opened, most: int = 60) -> list[str]:
    """Links within the page that the enter key does not follow; `most`: the first so many are tried."""
    found = []
    for number, href in enumerate(look.run("draftproofLook.markLinks()")[:most]):
        look.run("number => draftproofLook.focusLink(number)", number)
        look.page.keyboard.press("Enter")
        problem = look.run("href => draftproofLook.landed(href)", href)
        if problem:  # perhaps not yet
            look.page.wait_for_timeout(100)
            problem = look.run("href => draftproofLook.landed(href)", href)
        if problem:
            found.append(f"{href} {problem}")
    return few(found)


def axe(look: Opened) -> list[str]:
    """Violations that axe-core finds, contrast of colours included."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"runOnly": {"type": "tag", "values": AXE_TAGS}, "resultTypes": ["violations"]}
    response = Axe().run(look.page, options=options).response
    return few(
        f"{found['id']}: {node['html'][:160]} ({' '.join(node['failureSummary'].split())[:300]})"
        for found in response["violations"]
        for node in found["nodes"]
    )


def faint_labels(look: Opened) -> list[str]:
    """Labels of figures without contrast to the page: axe-core does not look at text in SVG."""
    return few(look.run("draftproofLook.faintLabels()"))


def folded(look: Opened) -> list[str]:
    """What stays folded: on paper nobody can open it."""
    return few(look.run("draftproofLook.folded()"))
