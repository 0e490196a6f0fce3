"""One browser for the package. It ends there: while Playwright's synchronous API lives, no other event loop can run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import chromium
from tests.browser.looking import Opened, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Open = Callable[..., Opened]


@pytest.fixture(scope="package")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    wanted = chromium.is_job(os.environ) or request.config.getoption("--sd-require-hardware", default=False)
    chromium.demand(chromium.gap(), required=wanted)
    with chromium.running() as found:
        yield found


@pytest.fixture
def look(browser: Browser) -> Iterator[Open]:
    """Opens pages, each in a profile of its own; `looking.opened` says how."""
    made: list[Opened] = []

    def open_page(text: str, **how: Any) -> Opened:
        made.append(opened(browser, text, **how))
        return made[-1]

    yield open_page
    for one in made:
        one.page.context.close()
