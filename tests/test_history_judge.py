"""What is said of a history: the arm, the commits, what does not count, what is past and what is never joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import DraftproofError
from draftproof.history.judge import Judged, judge
from draftproof.history.rows import Row
from draftproof.history.series import ENDED_AFTER, machine_changes
from draftproof.history.show import exit_status, lines
from tests.histories import LIMITS, SETS, cell_rows, limit_row, make_row, make_rows


def noisy(seed: int, nights: int, level: float = 1.5, spread: float = 0.01) -> list[float]:
    return [float(value) for value in level * np.exp(np.random.default_rng(seed).normal(0.0, spread, nights))]


def fallen(values: Sequence[float], night: int, factor: float = 0.9) -> list[float]:
    return [value * (factor if number >= night else 1.0) for number, value in enumerate(values)]


def one(rows: Sequence[Row], metric: str = "speedup") -> Judged:
    (found,) = [judged for judged in judge(rows, LIMITS) if judged.series.metric == metric]
    return found


def both_arms(seed: int, nights: int) -> tuple[list[float], list[float]]:
    """Tokens per second of SD and no-SD: what the machine does that night (2 %) is common, the rest (0.5 %) is not."""
    rng = np.random.default_rng(seed)
    machine = rng.normal(0.0, 0.02, nights)
    sd, no_sd = (np.exp(machine + rng.normal(0.0, 0.005, nights)) for _ in range(2))
    return [150 * float(value) for value in sd], [100 * float(value) for value in no_sd]


# --- verdict and commits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_verdict_names_the_last_good_and_the_first_bad_commit(seed: int) -> None:
    """The first bad night alone is suspicious and does not gate; with the second it is a regression, of one range."""
    values = fallen(noisy(seed, 20), 12)
    first, second = one(make_rows(values[:13])), one(make_rows(values[:14]))
    assert (first.verdict, exit_status([first])) == ("suspicious", 0)
    assert (second.verdict, exit_status([second])) == ("regression", 1)
    for judged in (first, second, one(make_rows(values))):
        assert judged.current is not None
        assert judged.current.commits == "commit-11 .. commit-12"
        assert judged.current.change == pytest.approx(-0.1, abs=0.03)


def test_what_is_said_of_a_regression() -> None:
    """Change, day, limit, commits with their ref, and how to run it again."""
    text = "\n".join(lines([one(make_rows(fallen([1.5] * 20, 12), ref="main"))]))
    assert (
        "regression: t-ngram-w-b2 speedup: -10.0 % since 2026-01-13 (limit 5 %); commits commit-11 (main) .. "
        "commit-12 (main)" in text
    )
    assert "reproduce run-012 on commit-12 (main): pytest --sd-study s" in text
    assert text.endswith("1 regression, 0 suspicious, 0 insufficient_data, 0 no_regression")


def test_a_change_between_two_nights_of_one_commit_is_told_as_such() -> None:
    """What was under test is the same: the machine is looked at first."""
    judged = one(make_rows(fallen([1.5] * 20, 12), commit_under_test="c"))
    assert judged.current is not None
    assert judged.current.commits == "c on both nights: look at the machine first"


def test_a_recovered_regression_is_past_and_does_not_gate() -> None:
    values = [*noisy(1, 12), *noisy(2, 4, 1.2), *noisy(3, 12)]
    judged = one(make_rows(values))
    assert (judged.verdict, exit_status([judged])) == ("no_regression", 0)
    (past,) = judged.past
    assert (past.kind, past.commits) == ("recovered", "commit-11 .. commit-12")
    assert past.until is not None
    assert (past.first.date, past.until.date) == ("2026-01-13", "2026-01-17")
    assert "past: t-ngram-w-b2 speedup: 2026-01-13 to 2026-01-17: regression, recovered, -20" in "\n".join(
        lines([judged])
    )


def test_an_improvement_is_told() -> None:
    judged = one(make_rows([*noisy(1, 12), *noisy(2, 10, 1.8)]))
    assert judged.verdict == "no_regression"
    assert [(past.kind, past.commits) for past in judged.past] == [("improvement", "commit-11 .. commit-12")]


def test_a_metric_that_is_better_when_lower() -> None:
    """Its row's absolute limit is of a ratio to no-SD's seconds, and not of seconds."""
    assert one(make_rows(fallen([0.02] * 20, 12, 1.1), "seconds_per_step"), "seconds_per_step").verdict == "regression"
    assert one(make_rows(fallen([0.02] * 20, 12), "seconds_per_step"), "seconds_per_step").verdict == "no_regression"


# --- the arm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_faster_no_sd_is_no_regression(seed: int) -> None:
    """The speedup falls by a tenth since no-SD got faster: said on the first night and after, and never gating."""
    sd, no_sd = both_arms(seed, 30)
    no_sd = fallen(no_sd, 20, 1 / 0.9)
    for nights in range(21, 31):
        judged = judge(cell_rows(sd[:nights], no_sd[:nights]), LIMITS)
        assert judged[0].verdict == "no_regression"
        told = [past for past in judged[0].past if past.kind == "no_sd_faster"]
        assert [(past.arm, past.commits) for past in told] == [("no-SD", "commit-19 .. commit-20")]
        assert exit_status(judged) == 0
    assert "no regression: no-SD got faster" in "\n".join(lines(judged))


@pytest.mark.parametrize("seed", range(5))
def test_after_no_sd_got_faster_the_speedup_is_judged_anew(seed: int) -> None:
    """SD's own fall ten nights later is found, with its own commits."""
    sd, no_sd = both_arms(seed, 40)
    no_sd, sd = fallen(no_sd, 20, 1 / 0.9), fallen(sd, 30)
    judged = one(cell_rows(sd, no_sd))
    assert judged.verdict == "regression"
    assert judged.current is not None
    assert (judged.current.arm, judged.current.commits) == ("SD", "commit-29 .. commit-30")
    assert [past.kind for past in judged.past] == ["no_sd_faster"]


@pytest.mark.parametrize("seed", range(5))
def test_a_slower_sd_is_a_regression_of_sd(seed: int) -> None:
    sd, no_sd = both_arms(seed, 30)
    rows = cell_rows(fallen(sd, 20), no_sd)
    assert one(rows).verdict == one(rows, "tokens_per_s").verdict == "regression"
    assert [found.current and found.current.arm for found in judge(rows, LIMITS)] == ["SD", "SD"]


@pytest.mark.parametrize("seed", range(5))
def test_a_slower_engine_is_told_of_both_arms(seed: int) -> None:
    """Throughput falls on both arms: the speedup stays, the throughput's verdict says that both moved."""
    sd, no_sd = both_arms(seed, 30)
    rows = cell_rows(fallen(sd, 20, 0.85), fallen(no_sd, 20, 0.85))
    assert one(rows).verdict == "no_regression"
    throughput = one(rows, "tokens_per_s")
    assert throughput.verdict == "regression"
    assert throughput.current is not None
    assert throughput.current.arm == "both"


def test_no_sd_itself_is_gated() -> None:
    rows = make_rows(fallen([100.0] * 20, 12), "tokens_per_s", variant="no_sd")
    judged = one(rows, "tokens_per_s")
    assert judged.verdict == "regression"
    assert judged.current is not None
    assert judged.current.arm == "no-SD"


def test_without_the_arms_throughput_a_fallen_speedup_gates() -> None:
    """Nothing shows that it was no-SD."""
    judged = one(make_rows(fallen([1.5] * 20, 12)))
    assert judged.verdict == "regression"
    assert judged.current is not None
    assert judged.current.arm is None


# --- nights that do not count -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"throughput": "FAILED", "reason": "it fell"}, "FAILED: it fell"),
        ({"throughput": "INCOMPARABLE"}, "INCOMPARABLE"),
        ({"waiting": 0.4}, "busy machine: 40 % of its threads' time without a CPU"),
    ],
)
def test_a_failed_or_busy_night_is_shown_and_does_not_count(fields: dict[str, object], why: str) -> None:
    """Two such nights that look bad are no regression, and one between two bad nights does not part them."""
    rows = make_rows([1.5] * 12)
    skipped = [make_row(night, 1.0, **fields) for night in (12, 13)]
    judged = one([*rows, *skipped])
    assert judged.verdict == "no_regression"
    assert [night.skipped for night in judged.series.nights[-2:]] == [why, why]
    assert f"not counted: 2026-01-13 run-012, t-ngram-w-b2: {why}" in "\n".join(lines([judged]))
    parted = [make_row(12, 1.3), make_row(13, 1.0, **fields), make_row(14, 1.3)]
    judged = one([*rows, *parted])
    assert judged.verdict == "regression"
    assert judged.current is not None
    assert judged.current.commits == "commit-11 .. commit-12"


def test_a_night_without_a_figure_stays_in_its_series() -> None:
    """An arm that never started knows nothing of its machine: no change of the machine is told for it."""
    rows = [*make_rows([1.5] * 8), make_row(8, None, held="{}", fingerprint="none", throughput="FAILED")]
    judged = one([*rows, make_row(9, 1.5)])
    assert len(judged.series.nights) == 10
    assert machine_changes([judged.series]) == []


def test_a_cell_that_always_failed_is_not_judged() -> None:
    judged = judge(make_rows([None] * 10, throughput="FAILED"), LIMITS)
    assert [found.verdict for found in judged] == ["insufficient_data"]
    assert exit_status(judged) == 3


def test_nights_are_compared_on_the_prompt_sets_that_all_of_them_have() -> None:
    """A night with time for further, harder prompt sets has another mean, and is no worse."""
    rows = make_rows([2.0] * 10)
    longer = [
        make_row(night, 1.5, sets=[*SETS, "hard-1", "hard-2"], by_set=[2.0, 2.0, 2.0, 1.0, 1.0]) for night in (10, 11)
    ]
    judged = one([*rows, *longer])
    assert judged.verdict == "no_regression"
    assert judged.series.sets == len(SETS)
    assert judged.series.nights[-1].compared == pytest.approx(2.0)


def test_a_prompt_set_that_was_dealt_twice_counts_once() -> None:
    row = make_row(0, 1.5, sets=["set-a", "set-b", "set-a"], by_set=[1.0, 4.0, 1.0])
    assert one([row]).series.nights[0].compared == pytest.approx(2.0)


# --- machines ---------------------------------------------------------------------------------------------------------


def test_unlike_machines_are_never_joined() -> None:
    """A slower machine is no regression; the change is told with what changed, and the old series ends."""
    old = make_rows([1.5] * 10)
    new = [make_row(night, 1.0, fingerprint="g", held='{"cpu":"b"}') for night in range(10, 20)]
    judged = judge([*old, *new], LIMITS)
    assert [(found.series.fingerprint, found.verdict) for found in judged] == [
        ("f", "no_regression"),
        ("g", "no_regression"),
    ]
    assert [found.series.ended for found in judged] == [True, False]
    assert machine_changes([found.series for found in judged]) == [
        "s on cpu: g from 2026-01-11 on is a series of its own beside f: cpu: 'a' -> 'b'"
    ]


def test_other_prompts_are_another_series() -> None:
    rows = [*make_rows([1.5] * 10), *(make_row(n, 1.0, sets=["other"], by_set=[1.0]) for n in range(10, 20))]
    judged = judge(rows, LIMITS)
    assert [found.verdict for found in judged] == ["no_regression", "no_regression"]
    (told,) = machine_changes([found.series for found in judged])
    assert told.endswith("other prompts")


def test_two_machines_in_turns_are_both_judged() -> None:
    """A regression on one gates though the other ran last."""
    turns = [
        make_row(n, 1.5 * (0.9 if n >= 24 and n % 2 == 0 else 1.0), fingerprint="fg"[n % 2], held=f'{{"cpu":{n % 2}}}')
        for n in range(32)
    ]
    judged = judge(turns, LIMITS)
    assert sorted((found.series.fingerprint, found.verdict) for found in judged) == [
        ("f", "regression"),
        ("g", "no_regression"),
    ]
    assert exit_status(judged) == 1


def test_a_series_that_has_ended_no_longer_gates() -> None:
    """A cell left out of the study for a week cannot recover: it is told, and is no part of the exit status."""
    gone = make_rows(fallen([1.5] * 20, 12))
    goes_on = [make_row(night, 1.5, variant="eagle") for night in range(20 + ENDED_AFTER)]
    assert exit_status(judge([*gone, *goes_on[:-1]], LIMITS)) == 1
    judged = judge([*gone, *goes_on], LIMITS)
    assert exit_status(judged) == 0
    assert "the series has ended: does not gate" in "\n".join(lines(judged))


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["speedup_drop", "waiting_share"])
def test_a_missing_limit_is_named(metric: str) -> None:
    limits = {"cpu": [row for row in LIMITS["cpu"] if row.metric != metric]}
    with pytest.raises(DraftproofError, match=f"no row for metric '{metric}' that covers t-ngram-w-b2"):
        judge(make_rows([1.5], waiting=0.01), limits)


def test_a_limit_that_does_not_gate_informs() -> None:
    limits = {"cpu": [*LIMITS["cpu"], limit_row("speedup_drop", 0.05, gating=False, variants=["ngram"])]}
    judged = judge(make_rows(fallen([1.5] * 20, 12)), limits)
    assert [found.verdict for found in judged] == ["regression"]
    assert exit_status(judged) == 0


def test_the_limit_of_the_cell_is_the_one_that_holds() -> None:
    limits = {"cpu": [*LIMITS["cpu"], limit_row("speedup_drop", 0.2, variants=["ngram"])]}
    assert [found.verdict for found in judge(make_rows(fallen([1.5] * 20, 12)), limits)] == ["no_regression"]


# --- rules ------------------------------------------------------------------------------------------------------------

ROWS = [
    *cell_rows(fallen(noisy(1, 15, 150), 10), noisy(2, 15, 100)),
    *make_rows(noisy(3, 15), "acceptance_length"),
    make_row(15, 1.0, throughput="FAILED"),
    make_row(16, 1.0, held='{"cpu":"b"}', fingerprint="g"),
]


@settings(max_examples=30, deadline=None)
@given(rows=st.permutations(ROWS))
def test_the_order_of_rows_does_not_matter(rows: list[Row]) -> None:
    """Nights are ordered by when they were taken."""
    assert judge(rows, LIMITS) == judge(ROWS, LIMITS)


@settings(max_examples=30, deadline=None)
@given(nights=st.integers(1, 40), value=st.floats(0.01, 100))
def test_nights_added_to_a_clean_history_never_gate(nights: int, value: float) -> None:
    judged = judge([*make_rows([value] * nights), *cell_rows([value] * nights, [1.0] * nights, batch_size=4)], LIMITS)
    assert {found.verdict for found in judged} == {"no_regression" if nights >= 7 else "insufficient_data"}
    assert exit_status(judged) == (0 if nights >= 7 else 3)
