"""Is it faster? Paired throughput of each variant against no speculation."""

from __future__ import annotations

import pytest

from draftproof.gate import failed
from draftproof.plugin import Settle
from draftproof.results import CellResult


@pytest.mark.sd_cells("speed", "trace", speculative=True)
def test_speedup(sd_result: CellResult, sd_settle: Settle) -> None:
    """A cell that claims to be faster must not lie wholly below its limit; the others are shown, not judged."""
    sd_settle(sd_result.throughput)


@pytest.mark.sd_cells("speed")
def test_records_are_sound(sd_result: CellResult, sd_settle: Settle) -> None:
    """Counters, per-request steps and token ids of a cell agree; else its figures mean nothing."""
    broken = failed(sd_result.failures)
    if broken:
        sd_settle(broken)
    assert sd_result.tokens_per_s is not None, "nothing was recorded for this cell"
    assert not sd_result.problems, "\n".join(sd_result.problems)
