"""For draftproof's own tests; the suite of invented examples sets up hypothesis by itself."""

from __future__ import annotations

from hypothesis import settings

# Property tests must not depend on the day's luck or on a busy machine.
settings.register_profile("draftproof", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("draftproof")
