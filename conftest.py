"""Shared by the suites and by draftproof's own tests."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["pytester"]

# Property tests must not depend on the day's luck or on a busy machine.
settings.register_profile("draftproof", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("draftproof")
