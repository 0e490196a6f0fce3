"""Rules of the runner's pure parts: what is left to do, what is compared with what, and how a prompt may begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.errors import DraftproofError
from draftproof.live import Counter
from draftproof.plan import ArmSpec, Group, Unit, is_no_sd, references
from draftproof.prompts import check_bos, fits
from draftproof.records import UnitKey
from draftproof.runner import log_name
from draftproof.spec import Hardware, Purpose, Target
from tests.factories import make_cell, make_study


class Told:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int, float | None, str]] = []

    def say(self, text: str) -> None: ...

    def block(self, done: int, total: int, left_s: float | None, what: str) -> None:
        self.blocks.append((done, total, left_s, what))


def make_arm(key: str) -> ArmSpec:
    return ArmSpec(
        key=key,
        target="t",
        variant="no_sd" if key.startswith("no_sd") else key,
        role="aa" if key.endswith(".aa") else "run",
        engine={},
        variables={},
        variant_sha256="",
    )


def make_unit(batch_size: int, *arms: str) -> Unit:
    return Unit(key=UnitKey(0, "t", "w", batch_size), arms=arms, cells=(make_cell("no_sd", batch_size),))


def make_counter(
    *units: Unit, purposes: set[Purpose], rotations: int = 2, done: dict[str, int] | None = None
) -> tuple[Counter, Told]:
    """A counter over these units, one stage block a unit, `done` rotations of each purpose recorded already."""
    keys = dict.fromkeys(key for unit in units for key in unit.arms)
    group = Group(
        index=0,
        target=Target(name="t", title="", source="path", model="m"),
        hardware=Hardware(name="cpu", title="", markers=["cpu"], device="cpu", max_live_arms=6),
        arms=tuple(make_arm(key) for key in keys),
        units=units,
        referee=make_arm("referee"),
    )
    ledger: Any = SimpleNamespace(done=lambda unit, purpose: set(range((done or {}).get(purpose, 0))))
    told = Told()
    study = make_study(rotations=rotations, max_rotations=rotations, stage_blocks=1)
    return Counter(group, ledger, purposes, study, told), told


# -- what is left to do ----------------------------------------------------------------------------------------------


def test_blocks_are_counted_to_the_end() -> None:
    """2 rotations x 2 passes x 2 arms; the time left, this block's with it, is known once each arm was timed."""
    unit = make_unit(1, "no_sd", "ngram")
    counter, told = make_counter(unit, purposes={"speed"})
    for _ in range(2):
        for key in ("no_sd", "ngram", "ngram", "no_sd"):
            counter.next(unit, key)
            counter.took(unit, key, 2.0 if key == "no_sd" else 1.0)
    assert [(done, total) for done, total, _, _ in told.blocks] == [(n, 8) for n in range(1, 9)]
    assert [left for _, _, left, _ in told.blocks] == [None, None, 9.0, 8.0, 6.0, 4.0, 3.0, 2.0]
    assert told.blocks[0][3] == "w b1 no_sd"


def test_the_time_left_is_the_mean_of_its_own_shape() -> None:
    """A block of another batch size or arm says nothing about this one."""
    small, large = make_unit(1, "no_sd"), make_unit(16, "no_sd")
    counter, told = make_counter(small, large, purposes={"speed"})
    counter.next(small, "no_sd")
    counter.took(small, "no_sd", 1.0)
    counter.next(large, "no_sd")
    assert told.blocks[-1][2] is None
    counter.took(large, "no_sd", 10.0)
    counter.next(small, "no_sd")
    assert told.blocks[-1][2] == pytest.approx(3 * 1.0 + 3 * 10.0)


def test_finished_rotations_are_not_counted_again() -> None:
    unit = make_unit(1, "no_sd", "ngram")
    counter, told = make_counter(unit, purposes={"speed"}, rotations=3, done={"speed": 2})
    counter.next(unit, "no_sd")
    assert told.blocks[-1][:2] == (1, 4)


def test_stage_blocks_leave_the_twin_out() -> None:
    """Stages: one pass, one block an arm, no A/A; their number is the study's."""
    unit = make_unit(1, "no_sd", "no_sd.aa", "ngram")
    counter, told = make_counter(unit, purposes={"stages"})
    counter.next(unit, "no_sd")
    assert told.blocks[-1][:2] == (1, 2)


def test_blocks_beyond_the_planned_ones_raise_the_total() -> None:
    """Repeats that go on for a narrower interval: never `9 of 8`."""
    unit = make_unit(1, "no_sd")
    counter, told = make_counter(unit, purposes={"speed"})
    for _ in range(5):
        counter.next(unit, "no_sd")
    assert told.blocks[-1][:2] == (5, 5)


# -- what is compared with what --------------------------------------------------------------------------------------


def test_each_arm_is_compared_with_the_no_sd_of_its_build() -> None:
    keys = ("no_sd", "base:no_sd", "no_sd.aa", "ngram", "base:ngram")
    assert references(keys) == [("no_sd", "no_sd.aa"), ("no_sd", "ngram"), ("base:no_sd", "base:ngram")]


def test_a_no_sd_with_forced_settings_is_a_reference_too() -> None:
    assert references(("no_sd[async=off,v1]", "ngram")) == [("no_sd[async=off,v1]", "ngram")]


@pytest.mark.parametrize("key", ["no_sd", "base:no_sd", "no_sd[async=off,v1]", "base:no_sd[v1]"])
def test_references_are_known_by_their_key(key: str) -> None:
    assert is_no_sd(key)


@pytest.mark.parametrize("key", ["no_sd.aa", "no_sd[v1].aa", "no_sd_fast", "ngram", "base:ngram", "my_no_sd"])
def test_twins_and_variants_are_no_references(key: str) -> None:
    assert not is_no_sd(key)


# -- prompts ---------------------------------------------------------------------------------------------------------


def test_one_bos_or_none_is_right() -> None:
    check_bos("w", {"a": [1, 5], "b": [1], "c": [5, 1, 1]}, 1)
    check_bos("w", {"a": [5, 5]}, None)


def test_two_bos_are_an_error() -> None:
    """arXiv 2601.11580: the authors' Llama prompts began with two."""
    with pytest.raises(DraftproofError, match=r"workload 'w', prompt 'b' begins with two BOS tokens \(128000\)"):
        check_bos("w", {"a": [128000, 5], "b": [128000, 128000, 5]}, 128000)


@pytest.mark.parametrize("bos", [1, None])
def test_a_prompt_without_tokens_is_an_error(bos: int | None) -> None:
    with pytest.raises(DraftproofError, match=r"workload 'w', prompt 'a': no tokens"):
        check_bos("w", {"a": []}, bos)


def test_a_prompt_fits_up_to_the_limit() -> None:
    assert fits([1, 2, 3], 3)
    assert not fits([1, 2, 3], 2)
    assert fits([1, 2, 3], None)


# -- logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "name"),
    [("no_sd.aa", "no_sd.aa"), ("base:ngram", "base_ngram"), ("no_sd[async=off,v1]", "no_sd_async_off_v1_")],
)
def test_log_names_are_file_names(key: str, name: str) -> None:
    assert log_name(key) == name


@given(st.text(min_size=1))
def test_log_names_never_leave_their_folder(key: str) -> None:
    """No separator and no control character, whatever a key holds."""
    assert all(char.isalnum() or char in "._-" for char in log_name(key))
