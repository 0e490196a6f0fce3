"""Rules of the verdicts, and what pytest is told."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest

from draftproof.analysis.acceptance import AcceptanceRepeat
from draftproof.analysis.stats import Ratio
from draftproof.errors import DraftproofError
from draftproof.gate import (
    BY_PAPER,
    NEEDED,
    Excess,
    Judgement,
    Verdict,
    check_limits,
    informing,
    judge_determinism,
    judge_invariance,
    judge_repeats,
    judge_throughput,
    limit_of,
    noise_cap,
    outcome,
    tie_limit,
)
from draftproof.records import FailureLine
from draftproof.spec import Cell, Threshold
from tests.factories import make_cell, make_failure


def make_limit(limit: float = 1.0, **fields: Any) -> Threshold:
    given_: dict[str, Any] = {"metric": "speedup", "estimator": "a ratio", "gating": True, "source": "a test"}
    return Threshold(limit=limit, **(given_ | fields))


def make_ratio(low: float, high: float) -> Ratio:
    return Ratio(value=(low + high) / 2, low=low, high=high, clusters=3, method="")


def throughput(
    speedup: Ratio | None,
    *limits: Threshold,
    by_paper: Ratio | None = None,
    failures: list[FailureLine] | None = None,
    unlike: list[str] | None = None,
    cell: Cell | None = None,
    needs_speedup: bool = True,
    waiting: float | None = None,
) -> tuple[Verdict, str]:
    found = judge_throughput(
        cell or make_cell(),
        speedup,
        list(limits),
        failures or [],
        unlike or [],
        needs_speedup=needs_speedup,
        by_paper=by_paper,
        waiting=waiting,
    )
    return found.verdict, found.reason


RULES = [make_limit(0.0, metric="divergent_share"), make_limit(0.0, metric="inconclusive_share")]
RULES += [make_limit(1.0, metric="near_tie_ratio")]


def determinism(
    causes: dict[str, int],
    failures: list[FailureLine] | None = None,
    unlike: list[str] | None = None,
    *,
    limits: list[Threshold] | None = None,
    garbage: str = "",
    excess: Excess | None = None,
    meaningless: str = "",
) -> Judgement:
    rows = RULES if limits is None else limits
    return judge_determinism(
        make_cell(),
        causes,
        rows,
        failures or [],
        unlike or [],
        garbage=garbage,
        excess=excess,
        meaningless=meaningless,
    )


# -- throughput ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.80, 0.99, "REGRESSED"),
        (0.80, 1.00, "PASS"),
        (0.80, 1.20, "PASS"),
        (1.00, 1.20, "PASS"),
        (1.10, 1.20, "PASS"),
    ],
    ids=["wholly below", "touching", "straddling", "from the limit on", "above"],
)
def test_a_speedup_regresses_only_wholly_below_its_limit(low: float, high: float, verdict: Verdict) -> None:
    """Never cry wolf: an interval that holds the limit is no regression."""
    assert throughput(make_ratio(low, high), make_limit(1.0))[0] == verdict


def test_the_reason_has_the_figures_and_the_source() -> None:
    verdict, reason = throughput(make_ratio(0.8, 0.9), make_limit(1.0, source="the paper"))
    assert verdict == "REGRESSED"
    assert "0.85 [0.80, 0.90]" in reason
    assert "below 1 (the paper)" in reason


@pytest.mark.parametrize(
    "limit",
    [
        None,
        make_limit(gating=False),
        make_limit(metric="acceptance_length"),
        make_limit(studies=["other"]),
        make_limit(targets=["other"]),
        make_limit(variants=["other"]),
        make_limit(workloads=["other"]),
        make_limit(batch_sizes=[1, 4]),
        make_limit(claims_speedup=True),
    ],
    ids=["none", "informs", "metric", "study", "target", "variant", "workload", "batch size", "claims"],
)
def test_without_a_gating_limit_nothing_is_judged(limit: Threshold | None) -> None:
    """However slow: shown, and never counted as passed."""
    verdict, reason = throughput(make_ratio(0.1, 0.2), *([limit] if limit else []))
    assert verdict == "NO_BASELINE"
    assert "not judged" in reason


@pytest.mark.parametrize(
    "limit",
    [
        make_limit(studies=["s"]),
        make_limit(targets=["x", "t"]),
        make_limit(variants=["ngram"]),
        make_limit(workloads=["w"]),
        make_limit(batch_sizes=[2]),
        make_limit(claims_speedup=False),
    ],
)
def test_selectors_that_name_the_cell_cover_it(limit: Threshold) -> None:
    assert throughput(make_ratio(0.1, 0.2), limit)[0] == "REGRESSED"


def test_a_limit_for_claims_covers_the_cells_that_claim() -> None:
    limit = make_limit(claims_speedup=True)
    assert throughput(make_ratio(0.1, 0.2), limit, cell=make_cell(claims_speedup=True))[0] == "REGRESSED"


def test_every_limit_that_covers_the_cell_must_hold() -> None:
    """A loose one does not excuse a strict one."""
    loose, strict = make_limit(0.5), make_limit(1.0)
    for rows in ((loose, strict), (strict, loose)):
        assert throughput(make_ratio(0.8, 0.9), *rows)[0] == "REGRESSED"


def test_without_pairs_nothing_is_judged() -> None:
    """Also where no limit covers the cell: it is the figure that is missing."""
    assert throughput(None, make_limit())[0] == "INSUFFICIENT"
    assert throughput(None)[0] == "INSUFFICIENT"


@pytest.mark.parametrize(
    ("waiting", "verdict"), [(None, "REGRESSED"), (0.1, "REGRESSED"), (0.11, "UNSTABLE"), (0.5, "UNSTABLE")]
)
def test_on_a_busy_machine_no_speedup_is_judged(waiting: float | None, verdict: Verdict) -> None:
    """Neither red nor green; without a limit on waiting, and without a gate, nothing changes."""
    limit = make_limit(0.1, metric="waiting_share")
    for ratio in (make_ratio(0.5, 0.8), make_ratio(1.2, 1.4)):
        expected = verdict if ratio.high < 1 or verdict == "UNSTABLE" else "PASS"
        assert throughput(ratio, make_limit(), limit, waiting=waiting)[0] == expected
    assert throughput(make_ratio(0.5, 0.8), make_limit(), waiting=waiting)[0] == "REGRESSED"
    assert throughput(make_ratio(0.5, 0.8), limit, waiting=waiting)[0] == "NO_BASELINE"


def test_the_reference_itself_needs_no_speedup() -> None:
    assert throughput(None, make_limit(), needs_speedup=False)[0] == "PASS"


@pytest.mark.parametrize("needs_speedup", [True, False])
def test_a_failure_goes_before_all(needs_speedup: bool) -> None:
    """An arm that fell is no regression and no missing figure; the reason says which and why."""
    verdict, reason = throughput(make_ratio(2, 3), make_limit(), failures=[make_failure()], needs_speedup=needs_speedup)
    assert (verdict, reason) == ("FAILED", "arm 'ngram' (crash): it fell")


@pytest.mark.parametrize("purpose", ["stages", "trace"])
def test_a_failure_of_another_purpose_is_not_the_throughputs(purpose: str) -> None:
    """A stage clock that cannot be had takes nothing from the speedup, nor from the outputs."""
    failures = [make_failure(purpose=purpose)]
    assert throughput(make_ratio(1.1, 1.2), make_limit(), failures=failures)[0] == "PASS"
    assert determinism({"identical": 1}, failures, []).verdict == "PASS"


def test_arms_that_differ_in_a_held_field_are_not_compared() -> None:
    """Whatever the figures say, good or bad: the reason names the fields."""
    for ratio in (make_ratio(0.1, 0.2), make_ratio(2, 3), None):
        verdict, reason = throughput(ratio, make_limit(), unlike=["dtype: a, b", "threads: 1, 2"])
        assert verdict == "INCOMPARABLE"
        assert reason.endswith("dtype: a, b; threads: 1, 2")
    assert determinism({"identical": 8}, [], ["dtype: a, b"]).verdict == "INCOMPARABLE"
    assert determinism({"divergent": 8}, [], ["dtype: a, b"]).verdict == "INCOMPARABLE"


def test_a_failure_goes_before_a_difference_of_settings() -> None:
    """An arm that did not run has no settings to compare."""
    assert throughput(None, failures=[make_failure()], unlike=["dtype"])[0] == "FAILED"


@pytest.mark.parametrize(
    ("high", "tolerance", "verdict"),
    [
        (1.34, 0.0, "REGRESSED"),
        (1.35, 0.0, "PASS"),
        (1.34, 0.1, "PASS"),
        (1.22, 0.1, "PASS"),
        (1.21, 0.1, "REGRESSED"),
    ],
)
def test_the_papers_figure_is_a_floor_of_the_papers_estimator(high: float, tolerance: float, verdict: Verdict) -> None:
    """Its upper end against the limit less the tolerance; our own estimator's figure neither saves nor sinks it."""
    row = make_limit(1.35, metric=BY_PAPER, tolerance=tolerance, source="Figure 1")
    for ours in (make_ratio(0.1, 0.2), make_ratio(3, 4)):
        assert throughput(ours, row, by_paper=make_ratio(1.1, high))[0] == verdict
    said = throughput(make_ratio(3, 4), row, by_paper=make_ratio(1.1, high))[1]
    assert "speedup by the paper's estimator" in said
    assert ("1.35 less 10 %" in said) == (tolerance > 0)


def test_tolerance_holds_for_our_estimator_as_well() -> None:
    row = make_limit(1.0, tolerance=0.1)
    assert throughput(make_ratio(0.8, 0.91), row)[0] == "PASS"
    assert throughput(make_ratio(0.8, 0.89), row)[0] == "REGRESSED"


@pytest.mark.parametrize("by_paper", [None, make_ratio(0.0, math.inf)])
def test_without_survivors_the_papers_figure_is_not_judged(by_paper: Ratio | None) -> None:
    """Never passed; what our own estimator shows to be too slow is a regression all the same."""
    paper, own = make_limit(1.35, metric=BY_PAPER), make_limit(1.0)
    assert throughput(make_ratio(2, 3), paper, own, by_paper=by_paper)[0] == "INSUFFICIENT"
    assert throughput(make_ratio(0.1, 0.2), paper, own, by_paper=by_paper)[0] == "REGRESSED"


def test_the_papers_figure_informs_where_it_does_not_gate() -> None:
    row = make_limit(1.5, gating=False, metric=BY_PAPER, source="Figure 1", estimator="means")
    assert throughput(make_ratio(0.1, 0.2), row, by_paper=make_ratio(0.1, 0.2))[0] == "NO_BASELINE"
    told = informing(make_cell(), {BY_PAPER: make_ratio(1.2, 1.26)}, [row])
    assert told == ["speedup by the paper's estimator 1.23 [1.20, 1.26] beside 1.5 (Figure 1; means)"]


# -- determinism -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("causes", "verdict", "said"),
    [
        ({"identical": 8}, "PASS", "8 identical of 8"),
        ({"identical": 6, "near_tie": 2}, "PASS", "6 identical, 2 near tie of 8"),
        ({"near_tie": 8}, "PASS", "8 near tie of 8"),
        ({"identical": 7, "divergent": 1}, "FAILED", "1 divergent, 7 identical of 8"),
        ({"divergent": 1, "inconclusive": 7}, "FAILED", "of 8"),
        ({"identical": 7, "inconclusive": 1}, "UNSTABLE", "does not repeat itself"),
        ({}, "INSUFFICIENT", "no outputs"),
        ({"identical": 0, "divergent": 0}, "INSUFFICIENT", "no outputs"),
        ({"identical": 3, "divergent": 0, "inconclusive": 0}, "PASS", "of 3"),
    ],
)
def test_the_table_of_determinism(causes: dict[str, int], verdict: Verdict, said: str) -> None:
    """One divergent output is enough; nothing to compare is no pass."""
    found = determinism(causes, [], [])
    assert found.verdict == verdict
    assert said in found.reason


def test_a_failed_arm_has_no_outputs_to_judge() -> None:
    assert determinism({"identical": 8}, [make_failure()], []).verdict == "FAILED"


# -- pytest's outcomes -----------------------------------------------------------------------------------------------

OUTCOMES = {
    "PASS": ("passed", "passed"),
    "IMPROVED": ("passed", "passed"),
    "REGRESSED": ("failed", "failed"),
    "FAILED": ("failed", "failed"),
    "UNSTABLE": ("skipped", "failed"),
    "INSUFFICIENT": ("skipped", "failed"),
    "INCOMPARABLE": ("skipped", "failed"),
    "NO_BASELINE": ("skipped", "failed"),
}


def test_every_verdict_has_an_outcome() -> None:
    assert set(OUTCOMES) == set(get_args(Verdict))


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_each_verdict_has_one_outcome(verdict: Verdict) -> None:
    """What was not judged is skipped in a plain run, failed under `--sd-gate`, and never passed."""
    assert (outcome(verdict, gating=False), outcome(verdict, gating=True)) == OUTCOMES[verdict]


def test_outputs_without_a_meaning_are_not_judged() -> None:
    """Neither passed nor failed, whatever differs; an arm that did not run has failed all the same."""
    found = determinism({"divergent": 8}, meaningless="random weights")
    assert (found.verdict, found.reason) == ("INSUFFICIENT", "outputs are not compared: random weights")
    assert determinism({}, failures=[make_failure()], meaningless="random weights").verdict == "FAILED"
    assert determinism({"divergent": 8}).verdict == "FAILED"


def test_garbage_is_not_praised_for_being_the_same() -> None:
    found = determinism({"identical": 8}, garbage="one token in all prompts")
    assert found.verdict == "FAILED"
    assert "one token in all prompts" in found.reason


def make_excess(p: float) -> Excess:
    return Excess(control="oracle", p=p, per_1000=9.5, control_per_1000=1.25)


@pytest.mark.parametrize(("p", "verdict"), [(0.0499, "REGRESSED"), (0.0501, "PASS"), (1.0, "PASS")])
def test_more_ties_than_rows_alone_make_is_a_regression(p: float, verdict: Verdict) -> None:
    """A drafter has nothing to do with the target's rounding; both rates are told either way."""
    found = determinism({"identical": 6, "near_tie": 2}, excess=make_excess(p))
    assert found.verdict == verdict
    assert "9.50, with oracle 1.25" in found.reason


def test_the_order_of_what_is_wrong_with_outputs() -> None:
    """Divergent before inconclusive before too many ties."""
    causes = {"divergent": 1, "inconclusive": 1, "near_tie": 6}
    assert determinism(causes, excess=make_excess(0.0)).verdict == "FAILED"
    assert determinism({**causes, "divergent": 0}, excess=make_excess(0.0)).verdict == "UNSTABLE"


def test_inconclusive_requests_may_be_allowed_by_a_limit() -> None:
    """Where two equal engines are known to differ, a share of them says nothing."""
    allowed = [*RULES, make_limit(0.25, metric="inconclusive_share")]
    assert determinism({"identical": 3, "inconclusive": 1}, limits=allowed).verdict == "PASS"
    assert determinism({"identical": 2, "inconclusive": 1}, limits=allowed).verdict == "UNSTABLE"


@pytest.mark.parametrize("metric", ["divergent_share", "inconclusive_share"])
def test_without_its_limit_nothing_is_judged(metric: str) -> None:
    rows = [row for row in RULES if row.metric != metric]
    with pytest.raises(DraftproofError, match=f"'{metric}' that covers .*; add one with its source to fixtures/thresh"):
        determinism({"identical": 3}, limits=rows)


@pytest.mark.parametrize(
    ("plain", "invariant", "verdict"),
    [
        ({"identical": 6, "near_tie": 2}, {"identical": 8}, "PASS"),
        ({"identical": 6, "near_tie": 2}, {"identical": 7, "near_tie": 1}, "REGRESSED"),
        ({"identical": 8}, {"identical": 8}, "INSUFFICIENT"),
        ({"identical": 8}, {"identical": 7, "divergent": 1}, "REGRESSED"),
        (None, {"identical": 8}, "INSUFFICIENT"),
        ({"identical": 8}, None, "INSUFFICIENT"),
    ],
)
def test_batch_invariance_counts_only_where_its_absence_shows(
    plain: dict[str, int] | None, invariant: dict[str, int] | None, verdict: Verdict
) -> None:
    assert judge_invariance(plain, invariant).verdict == verdict


@pytest.mark.parametrize(
    ("repeats", "verdict"), [((8, 0, (0, 0)), "PASS"), ((8, 2, (9, 11)), "UNSTABLE"), ((0, 0, (0, 0)), "INSUFFICIENT")]
)
def test_equal_text_accepted_otherwise_is_told(repeats: tuple[int, int, tuple[int, int]], verdict: Verdict) -> None:
    requests, differing, steps = repeats
    found = judge_repeats(AcceptanceRepeat(requests=requests, differing=differing, steps=steps), [])
    assert found.verdict == verdict
    assert judge_repeats(None, []).verdict == "INSUFFICIENT"
    assert judge_repeats(None, [make_failure()]).verdict == "FAILED"
    if differing:
        assert "9 steps of these requests, then 11" in found.reason


# -- limits that are looked up ---------------------------------------------------------------------------------------


def test_the_gap_of_a_tie_is_a_row_of_the_limits() -> None:
    assert (
        limit_of(
            [make_limit(), make_limit(0.25, metric="divergence_gap_nats")], "divergence_gap_nats", make_cell()
        ).limit
        == 0.25
    )


def test_the_last_row_for_ties_counts() -> None:
    """The user's overlay comes after ours."""
    rows = [make_limit(gap, metric="divergence_gap_nats") for gap in (0.25, 0.1)]
    assert limit_of(rows, "divergence_gap_nats", make_cell()).limit == 0.1


@pytest.mark.parametrize(("measured", "limit"), [(None, 0.25), (0.0, 0.25), (0.2, 0.25), (0.25, 0.25), (0.75, 0.75)])
def test_measured_noise_widens_a_tie_and_never_narrows_it(measured: float | None, limit: float) -> None:
    assert tie_limit([make_limit(0.25, metric="divergence_gap_nats")], measured, make_cell()) == limit


def test_measured_noise_has_a_cap_of_its_own_or_none() -> None:
    """The last row counts, as for ties; no row, no cap."""
    assert noise_cap([make_limit()]) is None
    assert noise_cap([make_limit(cap, metric="noise_width_nats") for cap in (1.0, 0.5)]) == 0.5


@pytest.mark.parametrize("rows", [[], [make_limit()]])
def test_without_a_row_for_ties_nothing_can_be_judged(rows: list[Threshold]) -> None:
    with pytest.raises(
        DraftproofError, match=r"'divergence_gap_nats' that covers .*; add one with its source to fixtures/thresholds"
    ):
        limit_of(rows, "divergence_gap_nats", make_cell())


def test_limits_that_inform_are_told_beside_the_figure() -> None:
    rows = [
        make_limit(1.5, gating=False, source="the paper", estimator="mean of ratios"),
        make_limit(1.0),
        make_limit(1.7, gating=False, workloads=["other"]),
        make_limit(2.5, gating=False, metric="acceptance_length"),
    ]
    told = ["speedup 1.23 [1.20, 1.26] beside 1.5 (the paper; mean of ratios)"]
    assert informing(make_cell(), {"speedup": make_ratio(1.2, 1.26)}, rows) == told
    assert informing(make_cell(), {"speedup": None}, rows) == []
    assert informing(make_cell(), {}, rows) == []


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_limit_is_told_before_anything_runs(missing: str) -> None:
    rows = [make_limit(0.25, metric=metric) for metric in NEEDED if metric != missing]
    with pytest.raises(DraftproofError, match=f"no row for metric '{missing}' that covers"):
        check_limits(rows, make_cell())
    check_limits([*rows, make_limit(0.25, metric=missing)], make_cell())
