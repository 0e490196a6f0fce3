"""The system's own Chromium, and what to install where it is missing. Nothing here needs Playwright to be imported."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MODULES = ("playwright", "axe_playwright_python")
OPTIONAL = "DRAFTPROOF_BROWSER"
PATIENCE_MS = 180_000
"""Playwright's own 30 s are too few on a machine with other work."""


def executable() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def gap() -> str:
    """What is missing: ``needs ...; found ...; enable with ...``; empty where nothing is."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        return (
            f"needs {' and '.join(MODULES)}; found no {' and no '.join(missing)}; enable with pip install -e .[browser]"
        )
    if executable() is None:
        return f"needs Chromium; found none of {', '.join(NAMES)}; enable with apt-get install chromium"
    return ""


def is_job(variables: Mapping[str, str]) -> bool:
    """A CI job: one that skips everything would prove nothing, unless ``DRAFTPROOF_BROWSER=0`` says that it may."""
    return variables.get("CI", "").lower() not in ("", "0", "false") and variables.get(OPTIONAL) != "0"


def demand(gap: str, *, required: bool) -> None:
    """Nothing without a gap; else a failure where the browser is required, and a skip elsewhere."""
    if gap and required:
        pytest.fail(f"{gap} (not skipped: CI is set, or --sd-require-hardware is given)", pytrace=False)
    if gap:
        pytest.skip(gap)


@contextlib.contextmanager
def running() -> Iterator[Browser]:
    """A headless browser; its sandbox is off for root alone, who cannot have one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(), chromium_sandbox=os.geteuid() != 0, timeout=PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()
