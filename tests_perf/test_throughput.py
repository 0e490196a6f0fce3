"""Is it faster? Paired throughput of each variant against no speculation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from draftproof.gate import Judgement
from draftproof.results import CellResult


@pytest.mark.sd_cells("speed", "trace", speculative=True)
def test_speedup(
    sd_result: CellResult, sd_settle: Callable[[Judgement], None], record_property: Callable[[str, object], None]
) -> None:
    """A cell that claims to be faster must not lie wholly below its limit; the others are shown, not judged."""
    if sd_result.speedup is not None:
        record_property("speedup", sd_result.speedup.value)
        record_property("speedup_low", sd_result.speedup.low)
        record_property("speedup_high", sd_result.speedup.high)
    sd_settle(sd_result.throughput)


@pytest.mark.sd_cells("speed")
def test_records_are_sound(sd_result: CellResult) -> None:
    """Counters, per-request steps and token ids of a cell agree; else its figures mean nothing."""
    broken = [failure for failure in sd_result.failures if failure.purpose == "speed"]
    assert not broken, f"{broken[0].arm} ({broken[0].kind}): {broken[0].message}\n{broken[0].log_tail}"
    assert sd_result.tokens_per_s is not None, "nothing was recorded for this cell"
    assert not sd_result.problems, "\n".join(sd_result.problems)
