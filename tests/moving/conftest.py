"""Fixtures for the tests of the moving parts: the toy catalog and run folders on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.catalog import Catalog, load_catalog
from tests.toy import Bench, with_study, write_catalog


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
