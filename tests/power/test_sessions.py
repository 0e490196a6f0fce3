"""The simulated sessions do what they say: noise of the width asked for, in the order of time that the runner has."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from draftproof.records import BlockLine
from tests.factories import make_block
from tests.power.residuals import residuals
from tests.power.sessions import (
    ARMS,
    CALM,
    CELLS,
    OUTPUT_TOKENS,
    PLAIN,
    UNITS,
    VARIANTS,
    Fault,
    Noise,
    builds,
    deal,
    in_time,
    run,
    series_of_noise,
)

DRIFT = Noise(block_sd=0, outlier_share=0, drift=0.05)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_session_has_36_cells() -> None:
    snapshot = run(rng(), deal(rng(), 3), Noise())
    assert len(snapshot.series) == CELLS == 36
    assert len({series.id for series in snapshot.series}) == 36
    assert {len(series.sets) for series in snapshot.series} == {3}


def test_block_noise_has_the_width_and_the_memory_asked_for() -> None:
    line = series_of_noise(rng(), Noise(outlier_share=0), 100_000)
    assert np.std(line) == pytest.approx(0.03, rel=0.02)
    assert np.corrcoef(line[1:], line[:-1])[0, 1] == pytest.approx(0.5, abs=0.02)
    late = series_of_noise(rng(), Noise(block_sd=0), 100_000)
    assert np.mean(late > 0) == pytest.approx(0.02, rel=0.1)
    assert np.expm1(late[late > 0]).min() >= 0.2
    assert np.expm1(late).max() <= 0.6


def test_blocks_lie_in_time_as_the_runner_takes_them() -> None:
    """Rotation, unit, every arm, every arm in reverse: written out as loops."""
    shape = (3, 2, 2, 4)
    times = np.log1p(0.05) * np.linspace(-0.5, 0.5, 3 * 2 * 2 * 4)
    clock = itertools.count()
    found = in_time(rng(), DRIFT, shape, "rotations")
    for rotation in range(3):
        for unit in range(2):
            for pass_index in range(2):
                for arm in range(4) if pass_index == 0 else reversed(range(4)):
                    assert found[rotation, unit, pass_index, arm] == pytest.approx(times[next(clock)])


def test_arm_after_arm_is_one_arm_to_its_end_and_then_the_next() -> None:
    found = in_time(rng(), DRIFT, (3, 2, 2, 4), "arm after arm")
    ends = [(found[..., arm].min(), found[..., arm].max()) for arm in range(4)]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))


def test_a_rotation_gives_every_arm_the_same_mean_time() -> None:
    means = in_time(rng(), DRIFT, (3, 2, 2, 4), "rotations").mean(axis=2)
    assert np.ptp(means, axis=-1) == pytest.approx(0, abs=1e-12)


def test_nothing_moves_without_noise() -> None:
    prompts = deal(rng(), 4)
    first, second = (run(np.random.default_rng(seed), prompts, CALM) for seed in (1, 2))
    assert msgspec.json.encode(first) == msgspec.json.encode(second)


def test_a_fault_touches_what_it_is_planted_in_and_nothing_else() -> None:
    prompts, where = deal(rng(), 4), UNITS[1:2]
    fault = Fault(seconds={VARIANTS[0]: 1.2}, units=where)
    clean, new = builds(rng(), prompts, CALM, {"clean": Fault(), "new": fault})
    for before, after in zip(clean.series, new.series, strict=True):
        hit = after.variant == VARIANTS[0] and (after.workload, after.batch_size) in where
        factors = [b.seconds / a.seconds for a, b in zip(before.sets, after.sets, strict=True)]
        assert factors == pytest.approx([1.2 if hit else 1.0] * 4)
        assert [one.num_accepted_tokens for one in before.sets] == [one.num_accepted_tokens for one in after.sets]


def test_counts_add_up_as_a_runs_do() -> None:
    """All tokens but the prefill's are a draft's accepted ones or the one that each step adds."""
    for series in run(rng(), deal(rng(), 4), Noise()).series:
        for one in series.sets:
            assert one.tokens == 2 * series.batch_size * OUTPUT_TOKENS
            if series.variant == PLAIN:
                assert (one.num_drafts, one.steps) == (0, 2 * OUTPUT_TOKENS)
            else:
                assert one.num_drafts + one.num_accepted_tokens == one.tokens - 2 * series.batch_size
                assert one.num_drafts / series.batch_size <= one.steps - 2 <= one.num_drafts


def blocks_of(line: np.ndarray, rotations: int) -> list[BlockLine]:
    """A rotation's blocks in time: arms with speeds of their own, sets with speeds of their own, and noise."""
    values = iter(line)
    return [
        make_block(
            rotation=rotation,
            pass_index=pass_index,
            order=pass_index * len(ARMS) + place,
            arm=arm,
            seconds=float(np.exp(next(values) + ARMS.index(arm) + 0.1 * rotation)),
        )
        for rotation in range(rotations)
        for pass_index in (0, 1)
        for place, arm in enumerate(ARMS if pass_index == 0 else ARMS[::-1])
    ]


def test_residuals_have_the_variance_of_the_noise_and_nothing_of_arms_and_sets() -> None:
    noise = rng().normal(0, 0.03, 1000 * 2 * len(ARMS))
    found = residuals(blocks_of(noise, 1000))
    assert [len(stretch) for stretch in found] == [len(ARMS)] * 2000
    assert np.std(found) == pytest.approx(0.03, rel=0.05)
    assert residuals(blocks_of(np.zeros(2 * len(ARMS)), 1)) == [pytest.approx([0] * len(ARMS))] * 2


def test_residuals_keep_the_order_of_time() -> None:
    """A rise over the first pass is a rise in its stretch."""
    [first, _] = residuals(blocks_of(np.array([0.0, 0.1, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0]), 1))
    assert first == sorted(first)


def test_residuals_leave_out_what_has_no_second_pass() -> None:
    assert residuals([make_block(), make_block(purpose="stages", pass_index=1)]) == []


def test_noise_is_drawn_from_stretches_where_they_are_given() -> None:
    line = series_of_noise(rng(), Noise(residuals=((1.0, 2.0), (3.0, 4.0))), 9)
    assert len(line) == 9
    assert {tuple(line[start : start + 2]) for start in range(0, 8, 2)} == {(1.0, 2.0), (3.0, 4.0)}
