"""Fixtures for the tests of the moving parts: the toy catalog and run folders on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.catalog import Catalog, load_catalog
from tests.moving.running import ROOT, SUITES
from tests.toy import Bench, Flip, ToyEngine, Where, with_study, write_catalog


@pytest.fixture(scope="session")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of toy entries, as a user would give it to ``--sd-catalog``."""
    return write_catalog(tmp_path_factory.mktemp("catalog"))


@pytest.fixture(scope="session")
def catalog(overlay: Path) -> Catalog:
    return load_catalog(overlay)


@pytest.fixture
def bench(tmp_path: Path, catalog: Catalog) -> Callable[..., Bench]:
    """Makes run folders of the toy study with some of its fields changed."""

    def make(name: str = "run", *, two_builds: bool = False, **changes: Any) -> Bench:
        return Bench(tmp_path / name, with_study(catalog, **changes), two_builds=two_builds)

    return make


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory: pytest.TempPathFactory, catalog: Catalog) -> Bench:
    """A recorded run of the toy study: one variant faster, one slower, all outputs equal. Not to be written to."""
    run = Bench(tmp_path_factory.mktemp("recorded") / "clean", catalog)
    run.session(ToyEngine(speeds={"perfect": 1.5, "partly": 0.8}, sigma=0.02))
    return run


@pytest.fixture(scope="session")
def faulty_run(tmp_path_factory: pytest.TempPathFactory, catalog: Catalog) -> Bench:
    """A recorded run with one fault of each kind. Not to be written to.

    toy-perfect-short-b1 claims a speedup and is slower; toy-perfect-long-b3 diverges; no-SD does not repeat itself
    where toy-partly-long-b3 differs; toy-partly-short-b3 crashes; and `partly` has no stage clock.
    """
    run = Bench(tmp_path_factory.mktemp("recorded") / "faulty", catalog)
    flips = (
        Flip(arm="perfect", workload="long", batch_size=3, rotation=1, request=2),
        Flip(arm="partly", workload="long", batch_size=3, rotation=0, request=0),
        Flip(arm="no_sd", workload="long", batch_size=3, rotation=0, request=0, pass_index=1),
    )
    crash = Where(arm="partly", workload="short", batch_size=3, rotation=1)
    reasons = {"partly": "its runner has no named scopes"}
    run.session(ToyEngine(speeds={"perfect": 0.5}, sigma=0.02, flips=flips, crashes=(crash,), no_stages=reasons))
    return run


@pytest.fixture
def suites(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project that holds the two suites and this one's pytest settings; not a job of GitHub's, wherever we are."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    for name in SUITES:
        shutil.copytree(ROOT / name, pytester.path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", pytester.path / "pyproject.toml")
    return pytester


@pytest.fixture
def any_python(tmp_path: Path) -> str:
    """An interpreter that says yes to everything, so that no test asks for a vLLM here."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)
