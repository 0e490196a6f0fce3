"""For every suite: pytest's own plugin for testing plugins, which only a root conftest may name."""

from __future__ import annotations

pytest_plugins = ["pytester"]
