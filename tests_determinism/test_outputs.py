"""Is it still the same? Greedy outputs by token id, each variant against no speculation, beside the noise floor."""

from __future__ import annotations

import pytest

from draftproof.gate import failed
from draftproof.plugin import Settle
from draftproof.results import CellResult


@pytest.mark.sd_cells("speed", "trace", speculative=True)
def test_same_outputs_as_no_sd(sd_result: CellResult, sd_settle: Settle) -> None:
    """No request may differ by more than a tie that rounding decided; an unstable reference judges nothing."""
    sd_settle(sd_result.determinism, **({"identical_share": sd_result.sameness.share} if sd_result.sameness else {}))


@pytest.mark.sd_cells("speed", speculative=True)
def test_noise_floor_is_measured(sd_result: CellResult, sd_settle: Settle) -> None:
    """Beside every comparison stands what no-SD does against itself, in a second pass and a second process."""
    broken = failed(sd_result.failures)
    if broken:
        sd_settle(broken)
    assert sd_result.sameness is not None, "no outputs to compare"
    floor = sd_result.sameness.floor
    assert floor.requests == sd_result.sameness.requests
    assert 0 <= floor.repeat_identical <= floor.requests
