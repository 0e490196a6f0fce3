"""Without a browser its tests say what to install; where a job is meant to prove something, they fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import chromium

ROOT = Path(__file__).resolve().parents[2]
GAP = "needs Chromium; found none; enable with apt-get install chromium"


def test_no_browser_is_a_skip_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "MODULES", ("json",))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert chromium.gap() == (
        "needs Chromium; found none of chromium, chromium-browser, google-chrome, google-chrome-stable; "
        "enable with apt-get install chromium"
    )
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        chromium.demand(chromium.gap(), required=False)


def test_no_playwright_is_told_before_no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "MODULES", ("json", "no_such_module"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert chromium.gap() == (
        "needs json and no_such_module; found no no_such_module; enable with pip install -e .[browser]"
    )


def test_nothing_is_missing_where_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "MODULES", ("json",))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "google-chrome" else None)
    assert chromium.gap() == ""
    assert chromium.executable() == "/usr/bin/google-chrome"
    chromium.demand("", required=True)


def test_a_job_that_would_skip_everything_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"apt-get install chromium \(not skipped: CI is set"):
        chromium.demand(GAP, required=True)


@pytest.mark.parametrize(
    ("value", "job"), [(None, False), ("", False), ("0", False), ("false", False), ("true", True), ("1", True)]
)
def test_what_counts_as_a_job(value: str | None, job: bool) -> None:
    assert chromium.is_job({} if value is None else {"CI": value}) == job
    assert not chromium.is_job({"CI": "1", "DRAFTPROOF_BROWSER": "0"})


def test_the_package_is_imported_without_playwright() -> None:
    """By every run of pytest on a machine that has none: collecting must not fail."""
    absent = "import sys; sys.modules.update(dict.fromkeys(('playwright', 'axe_playwright_python')))"
    modules = ", ".join(f"tests.browser.{name}" for name in ("chromium", "conftest", "looking"))
    subprocess.run([sys.executable, "-c", f"{absent}; import {modules}"], cwd=ROOT, check=True)
