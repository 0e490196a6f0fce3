"""The gate finds what was planted, under its name, and nothing where nothing was: whole sessions, the limits' rows.

Shares are counted over few sessions here, with fixed seeds. Where nothing is ever to be seen, the whole 95 % interval
of a share lies below the claim; elsewhere the interval must not refute it. ``tools/gate_power.py`` counts over many.
"""

from __future__ import annotations

import msgspec
import pytest

from draftproof.catalog import load_catalog
from draftproof.spec import Threshold
from tests.power.claims import (
    CELL,
    NAMED,
    VICTIM,
    Setting,
    at_the_limit,
    compared,
    drifted,
    false_alarms,
    names,
    power,
    says,
    tally,
)
from tests.power.residuals import recorded_noise
from tests.power.sessions import CALM, UNITS, VARIANTS, Fault

SESSIONS = 75
"""None in so many is less than 5 % with its interval."""
MOST_WRONG = 0.05
LEAST_FOUND = 0.95


@pytest.fixture(scope="module")
def rows() -> list[Threshold]:
    return load_catalog().thresholds["cpu"]


@pytest.mark.parametrize("base_runs", [0, 1, 3, 10])
def test_an_unchanged_build_is_not_accused(rows: list[Threshold], base_runs: int) -> None:
    seen = false_alarms(rows, SESSIONS, Setting(base_runs=base_runs))
    assert seen["regressed"].high < MOST_WRONG
    assert seen["improved"].high < MOST_WRONG


def test_a_slowdown_of_just_what_is_allowed_is_not_accused(rows: list[Threshold]) -> None:
    assert at_the_limit(rows, SESSIONS, Setting())["regressed"].high < MOST_WRONG


@pytest.mark.parametrize("base_runs", [0, 1, 3])
def test_a_slowdown_of_15_percent_is_found_and_is_its_own(rows: list[Threshold], base_runs: int) -> None:
    seen = power(rows, 40, Setting(base_runs=base_runs), 0.15)
    assert seen["found"].high >= LEAST_FOUND
    assert seen["others"].count == 0
    assert seen["drafter"].count == 0


def test_more_runs_of_a_baseline_do_not_cost_power(rows: list[Threshold]) -> None:
    """The noise of a run's mean is no spread between runs: it was added twice once, and most in the geometric mean."""
    one, three = (power(rows, 30, Setting(base_runs=base_runs), 0.12)["mean"].count for base_runs in (1, 3))
    assert three > one


def test_a_no_sd_that_became_slower_is_told_in_red(rows: list[Threshold]) -> None:
    assert names(rows, 40, Setting(base_runs=0), "no-SD's seconds +15 %")["right"].low > 0.9


def test_power_grows_with_pairs_and_with_the_slowdown(rows: list[Threshold]) -> None:
    few, many, larger = (
        power(rows, 15, Setting(base_runs=0, pairs=pairs), slowdown)["cell"].count
        for pairs, slowdown in ((12, 0.1), (48, 0.1), (12, 0.2))
    )
    assert few < many
    assert few < larger


@pytest.mark.parametrize("fault", NAMED)
def test_a_fault_goes_by_its_name(rows: list[Threshold], fault: str) -> None:
    assert names(rows, 60, Setting(), fault)["wrong"].low <= MOST_WRONG


def test_a_limit_that_nothing_reaches_finds_nothing(rows: list[Threshold]) -> None:
    """So that the tests above can fail."""
    deaf = [
        msgspec.structs.replace(row, limit=0.99) if row.metric.endswith(("_drop", "_rise")) else row for row in rows
    ]
    fault = Fault(seconds={VICTIM: 1.2}, acceptance={VICTIM: 0.8})
    assert tally(compared(rows, 3, 6, Setting(), fault), red=says("REGRESSED"))["red"].count == 3
    assert tally(compared(deaf, 3, 6, Setting(), fault), red=says("REGRESSED"))["red"].count == 0


@pytest.mark.parametrize(
    ("fault", "gates"),
    [
        (Fault(acceptance={VICTIM: 0.94}), {"drafter"}),
        (Fault(seconds={VICTIM: 1.2}), {"system", "end to end"}),
        (Fault(acceptance={VICTIM: 0.7}, units=UNITS[1:2]), {"drafter", "end to end"}),
    ],
    ids=["twice the limit of acceptance", "seconds", "acceptance of one cell"],
)
def test_without_noise_a_fault_is_found_at_its_gates_alone(
    rows: list[Threshold], fault: Fault, gates: set[str]
) -> None:
    [said] = compared(rows, 1, 7, Setting(noise=CALM), fault)
    red = [finding for finding in said.findings if finding.verdict == "REGRESSED"]
    assert {finding.gate for finding in red} == gates
    assert {finding.arm for finding in red} == {VICTIM}
    assert CELL in {finding.place for finding in red}


def test_a_drift_does_not_pass_for_a_change_where_arms_take_turns(rows: list[Threshold]) -> None:
    turns = drifted(rows, 30, Setting(), 0.05)
    apart = drifted(rows, 30, Setting(order="arm after arm"), 0.05)
    assert abs(turns.bias) < 0.01
    assert apart.bias == pytest.approx(0.0375, abs=0.01)
    assert turns.verdicts.count == 0


def test_a_large_drift_passes_for_a_change_where_each_arm_runs_to_its_end(rows: list[Threshold]) -> None:
    turns = drifted(rows, 20, Setting(), 0.25)
    apart = drifted(rows, 20, Setting(order="arm after arm"), 0.25)
    assert turns.verdicts.count == 0
    assert apart.verdicts.low > 0.5


def test_fewer_prompt_sets_than_a_gate_needs_are_not_judged(rows: list[Threshold]) -> None:
    least = next(row.limit for row in rows if row.metric == "pairs")
    fault = Fault(seconds=dict.fromkeys(VARIANTS, 2.0))
    [said] = compared(rows, 1, 8, Setting(pairs=int(least) - 1), fault)
    assert {finding.verdict for finding in said.findings} == {"INSUFFICIENT"}


def test_noise_of_a_recorded_run_accuses_nobody_either(rows: list[Threshold]) -> None:
    """Blocks of a real engine on a machine that had other work: their noise is wider than the model's."""
    assert false_alarms(rows, SESSIONS, Setting(noise=recorded_noise()))["regressed"].high < MOST_WRONG
