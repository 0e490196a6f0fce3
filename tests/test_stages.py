"""Rules of the stage sums: every second of a decode step has one stage, and prefill is kept apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.stages import GROUPS, OVERHEAD_PARTS, STAGES, stage_shares, sum_stages
from draftproof.tables import PARTS_S


def make_step(kind: str = "decode", **seconds: float) -> dict[str, Any]:
    """A step of 20 s: draft 2, forward 8, LM head 1, sample 3, scopes of overhead 1 each, and 1 unclaimed."""
    given_: dict[str, float] = {
        "step_s": 20.0,
        "draft_s": 2.0,
        "forward_s": 8.0,
        "lm_head_s": 1.0,
        "sample_s": 3.0,
        **dict.fromkeys(OVERHEAD_PARTS, 1.0),
    }
    return {"kind": kind, "requests": 1, "rows": 4, "draft_tokens": 3, "kv_tokens": 10, **given_, **seconds}


def test_steps_are_those_that_are_stored() -> None:
    """The factory has the columns of the Parquet table: a renamed one would break the sums."""
    assert set(PARTS_S) == {name for name in make_step() if name.endswith("_s")}


def test_one_step_by_hand() -> None:
    """Verify holds the LM head; overhead is what the other stages leave of the step."""
    found = sum_stages([make_step()])
    assert found.seconds == {"draft": 2.0, "verify": 9.0, "sample": 3.0, "overhead": 6.0, "prefill": 0.0}
    assert (found.lm_head_s, found.unattributed_s) == (1.0, 1.0)
    assert (found.decode_steps, found.prefill_steps) == (1, 0)


def test_steps_add_up() -> None:
    found = sum_stages([make_step(), make_step(draft_s=0.0), make_step(step_s=30.0)])
    assert found.seconds == {"draft": 4.0, "verify": 27.0, "sample": 9.0, "overhead": 30.0, "prefill": 0.0}
    assert found.unattributed_s == pytest.approx(1.0 + 3.0 + 11.0)
    assert found.decode_steps == 3


@pytest.mark.parametrize("kind", ["prefill", "mixed"])
def test_a_step_with_prompt_tokens_is_prefill_whole(kind: str) -> None:
    """Its parts are in no other stage, nor in the shares."""
    alone, both = sum_stages([make_step()]), sum_stages([make_step(), make_step(kind, step_s=50.0)])
    assert both.seconds == alone.seconds | {"prefill": 50.0}
    assert (both.lm_head_s, both.unattributed_s) == (alone.lm_head_s, alone.unattributed_s)
    assert (both.decode_steps, both.prefill_steps) == (1, 1)
    assert both.shares() == alone.shares()


def test_shares_by_hand() -> None:
    assert sum_stages([make_step()]).shares() == pytest.approx(
        {"draft": 0.1, "verify": 0.45, "sample": 0.15, "overhead": 0.3}
    )


def test_nothing_unattributed_where_scopes_claim_all() -> None:
    assert sum_stages([make_step(step_s=19.0)]).unattributed_s == 0.0


def test_overhead_has_its_parts_and_what_nobody_claims() -> None:
    """Of 6 s: 1 schedule, 1 prepare, 1 bookkeeping, 2 output processing, and 1 that no part claims."""
    found = sum_stages([make_step()])
    assert found.overhead_s == {
        "schedule": 1.0,
        "prepare": 1.0,
        "bookkeeping": 1.0,
        "output processing": 2.0,
        "outside the worker": 0.0,
    }
    assert found.unattributed_share == pytest.approx(0.05)
    assert sum_stages([make_step(outside_s=1.0)]).unattributed_s == 0.0
    assert found.entries() == found.seconds | {"lm_head": 1.0}


def test_on_a_gpu_busy_and_idle_stand_in_for_what_nobody_claims() -> None:
    """Host work overlaps the device's: what is left over would say nothing."""
    device = {"device_busy_s": 14.0, "device_idle_s": 6.0, "workers": 2, "spread_s": 0.5, "clock": "CUDA events"}
    found = sum_stages([{**make_step(), **device}, {**make_step(), **device}, {**make_step("prefill"), **device}])
    assert (found.device_busy_s, found.device_idle_s) == (28.0, 12.0)
    assert (found.unattributed_s, found.unattributed_share) == (None, None)
    assert (found.workers, found.spread_s, found.clock) == (2, 1.0, "CUDA events")


def test_runs_from_before_these_columns_are_read() -> None:
    old = dict.fromkeys(("outside_s", "workers", "spread_s", "device_busy_s", "device_idle_s", "clock"))
    assert sum_stages([{**make_step(), **old}]) == sum_stages([make_step()])


@pytest.mark.parametrize("steps", [[], [make_step("prefill")]], ids=["none", "prefill only"])
def test_without_decode_steps_there_are_no_shares(steps: list[dict[str, Any]]) -> None:
    found = sum_stages(steps)
    assert found.shares() == {}
    assert set(found.seconds) == set(STAGES)
    assert found.decode_steps == 0


SECONDS = st.floats(1e-6, 1.0)


@st.composite
def stored_steps(draw: st.DrawFn) -> dict[str, Any]:
    parts = {name: draw(SECONDS) for name in PARTS_S if name != "step_s"}
    return make_step(draw(st.sampled_from(["decode", "prefill"])), step_s=sum(parts.values()) + draw(SECONDS), **parts)


@given(st.lists(stored_steps(), max_size=6))
def test_no_second_is_lost_or_counted_twice(steps: list[dict[str, Any]]) -> None:
    """The stages add up to the steps' time, the shares to 1, and no order matters."""
    found = sum_stages(steps)
    assert sum(found.seconds.values()) == pytest.approx(sum(step["step_s"] for step in steps))
    claimed = sum(found.overhead_s.values()) + (found.unattributed_s or 0.0)
    assert claimed == pytest.approx(found.seconds["overhead"])
    assert found.decode_steps + found.prefill_steps == len(steps)
    assert all(value >= 0 for value in found.seconds.values())
    if found.decode_steps:
        assert sum(found.shares().values()) == pytest.approx(1.0)
    assert sum_stages(steps[::-1]).seconds == pytest.approx(found.seconds)


# --- shares with intervals --------------------------------------------------------------------------------------------


def test_shares_of_steps_that_are_alike_have_no_width() -> None:
    """Of 20 s: draft 2, verify 9, sample 3, overhead 6. Prefill is no part of it."""
    found = stage_shares([[make_step()] * 20 + [make_step("prefill", step_s=500.0)]])
    assert {stage: share.value for stage, share in found.items()} == pytest.approx(
        {"draft": 0.1, "verify": 0.45, "sample": 0.15, "overhead": 0.3}
    )
    assert all(share.high - share.low < 1e-9 for share in found.values())


@pytest.mark.parametrize("blocks", [[], [[]], [[make_step("prefill")] * 30], [[make_step()] * (GROUPS // 2 - 1)]])
def test_too_few_steps_have_no_shares(blocks: list[list[dict[str, Any]]]) -> None:
    assert stage_shares(blocks) == {}


@given(st.lists(st.lists(st.floats(0.1, 8.0), max_size=40), min_size=1, max_size=4))
def test_shares_with_intervals_are_the_shares(drafts: list[list[float]]) -> None:
    """They add up to 1 and lie in their intervals, however the steps lie in blocks."""
    blocks = [[make_step(draft_s=draft) for draft in block] for block in drafts]
    found = stage_shares(blocks)
    if found:
        assert {stage: share.value for stage, share in found.items()} == pytest.approx(
            sum_stages([step for block in blocks for step in block]).shares()
        )
        assert sum(share.value for share in found.values()) == pytest.approx(1.0)
        assert all(0 <= share.low <= share.value + 1e-12 for share in found.values())
        assert all(share.value - 1e-12 <= share.high <= 1 for share in found.values())


def test_a_slow_stretch_makes_shares_uncertain() -> None:
    """Neighbours resemble each other: cut into stretches, they show it; over single steps it would hardly be seen."""
    even = [make_step(draft_s=2.0 + (at % 2)) for at in range(100)]
    stretch = [make_step(draft_s=2.0 + (at < 50)) for at in range(100)]
    narrow, wide = stage_shares([even])["draft"], stage_shares([stretch])["draft"]
    assert wide.value == pytest.approx(narrow.value)
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)
