"""Is the drafter alive, and are its counts true? Each alarm has a name, its numbers and what to do."""

from __future__ import annotations

import pytest

from draftproof.analysis.health import MIN_DRAFTS, DraftHealth, acceptance_alarms
from draftproof.gate import failed, judge_health
from draftproof.plugin import Settle
from draftproof.results import CellResult
from draftproof.spec import Variant


def health_of(result: CellResult, settle: Settle) -> DraftHealth:
    """What the records say of the cell's drafts; a cell that failed is settled as such."""
    if (broken := failed(result.failures)) is not None:
        settle(broken)
    assert result.health is not None, "nothing was recorded for this cell"
    return result.health


@pytest.mark.sd_cells("speed", "stages", speculative=True)
def test_draft_counts_agree(sd_result: CellResult, sd_settle: Settle) -> None:
    """vLLM's counters, the requests' steps, the engine's steps and the token ids say the same; no draft exceeds k."""
    health = health_of(sd_result, sd_settle)
    assert sd_result.acceptance is not None, "nothing was recorded for this cell"
    sd_settle(judge_health(health.broken, sd_result.failures, healthy="all counts of drafts agree"))


@pytest.mark.sd_cells("speed", speculative=True)
def test_acceptance_is_as_expected(sd_result: CellResult, sd_variant: Variant, sd_settle: Settle) -> None:
    """Acceptance length of exactly 1 or k + 1, or outside of `expected_acceptance` in the catalog, is an alarm."""
    found = sd_result.acceptance
    if (broken := failed(sd_result.failures)) is not None:
        sd_settle(broken)
    assert found is not None, "nothing was recorded for this cell"
    assert sd_variant.k is not None
    alarms = acceptance_alarms(found, k=sd_variant.k, expected=sd_variant.expected_for(sd_result.cell.target))
    told = f"acceptance length {found.length:.3f}" if found.length is not None else "no draft, as the entry allows"
    judgement = judge_health(
        alarms,
        sd_result.failures,
        healthy=f"{told} over {found.num_drafts} drafts",
        enough=not 0 < found.num_drafts < MIN_DRAFTS,
    )
    sd_settle(judgement)


@pytest.mark.sd_cells("speed", "stages", speculative=True, meaningful=True)
def test_drafts_are_more_than_one_token(sd_result: CellResult, sd_settle: Settle) -> None:
    """A drafter that writes one token whatever it reads, and mostly not the right one, is stuck."""
    health = health_of(sd_result, sd_settle)
    if health.tally_gap:
        pytest.skip(health.tally_gap)
    told = f"{health.tallied_tokens} draft tokens, more than one or right"
    sd_settle(judge_health(health.one_token, sd_result.failures, healthy=told))
