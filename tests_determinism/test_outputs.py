"""Is it still the same? Greedy outputs by token id, each variant against no speculation, beside the noise floor."""

from __future__ import annotations

import pytest

from draftproof.gate import failed, judge_invariance, judge_repeats
from draftproof.plugin import Settle
from draftproof.results import CellResult, RunResults
from draftproof.spec import Variant


@pytest.mark.sd_cells("speed", "trace", speculative=True, meaningful=True)
def test_same_outputs_as_no_sd(sd_result: CellResult, sd_settle: Settle) -> None:
    """No difference but ties that rounding decided, and no more of those than drafts of no effect make."""
    same = sd_result.sameness
    sd_settle(sd_result.determinism, **({"identical_share": same.share} if same else {}))


@pytest.mark.sd_cells("speed", speculative=True, meaningful=True)
def test_noise_floor_is_measured(sd_result: CellResult, sd_settle: Settle) -> None:
    """Beside every comparison stands what no-SD does against itself, in a second pass and a second process."""
    broken = failed(sd_result.failures)
    if broken:
        sd_settle(broken)
    assert sd_result.sameness is not None, "no outputs to compare"
    floor = sd_result.sameness.floor
    assert floor.requests == sd_result.sameness.requests
    assert 0 <= floor.repeat_identical <= floor.requests


@pytest.mark.sd_cells("speed", speculative=True, meaningful=True)
def test_acceptance_repeats(sd_result: CellResult, sd_settle: Settle) -> None:
    """The same text must come with the same accepted drafts: what changes in them changes throughput unseen."""
    same = sd_result.sameness
    sd_settle(judge_repeats(same.repeats if same else None, sd_result.failures))


@pytest.mark.sd_cells("speed", "trace", invariant=True, meaningful=True)
def test_batch_invariance_keeps_its_promise(
    sd_result: CellResult, sd_variant: Variant, sd_run: RunResults, sd_settle: Settle
) -> None:
    """VLLM_BATCH_INVARIANT counts only where outputs differ without it."""
    cell = sd_result.cell
    plain = [
        other.sameness.causes
        for other in sd_run.cells
        if other.sameness
        and (other.cell.variant, other.cell.target, other.cell.workload, other.cell.batch_size)
        == (sd_variant.plain, cell.target, cell.workload, cell.batch_size)
    ]
    sd_settle(judge_invariance(plain[0] if plain else None, sd_result.sameness.causes if sd_result.sameness else None))
