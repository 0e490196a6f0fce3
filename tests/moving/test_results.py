"""From a run's records to figures and verdicts: planted truths are found, planted faults are named."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from draftproof.errors import EngineError
from draftproof.records import Output
from draftproof.results import CellResult, RunResults, analyse
from draftproof.tables import STEPS
from tests.toy import STOLEN_S, WAITED_S, Bench, Flip, Spoil, ToyEngine, Where, rows

MakeBench = Callable[..., Bench]


def judged(run: Bench) -> RunResults:
    return analyse(run.folder, run.catalog.thresholds)


def one(run: Bench, variant: str = "perfect") -> CellResult:
    (cell,) = [cell for cell in judged(run).cells if cell.cell.variant == variant and cell.build == "new"]
    return cell


# --- throughput -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_speedup_lies_in_its_interval(bench: MakeBench, seed: int) -> None:
    """1.5 and 0.7 times no-SD's throughput, with 3 % noise a block; the A/A ratio holds 1."""
    run = bench(matrix=rows(["perfect", "partly"]), rotations=8, max_rotations=8)
    run.session(ToyEngine(speeds={"perfect": 1.5, "partly": 0.7}, sigma=0.03, seed=seed), ["speed"])
    for variant, planted in (("perfect", 1.5), ("partly", 0.7)):
        speedup = one(run, variant).speedup
        assert speedup is not None
        assert speedup.clusters == 8
        assert speedup.low * 0.99 < planted < speedup.high * 1.01
        assert speedup.half_width < 0.08
    (aa,) = judged(run).aa
    assert aa.ratio is not None
    assert aa.ratio.low * 0.99 < 1 < aa.ratio.high * 1.01


def test_without_noise_the_speedup_is_the_planted_one(bench: MakeBench) -> None:
    run = bench()
    run.session(ToyEngine(speeds={"perfect": 1.5}), ["speed"])
    for cell in judged(run).cells:
        planted = 1.5 if cell.cell.variant == "perfect" else 1.0
        assert cell.tokens_per_s == pytest.approx(100 * planted)
        assert cell.base_tokens_per_s == pytest.approx(100)
        if cell.cell.variant != "no_sd":
            assert cell.speedup is not None
            assert cell.speedup.value == pytest.approx(planted)
            assert cell.speedup.low == pytest.approx(planted)
            assert cell.speedup.high == pytest.approx(planted)


@pytest.mark.parametrize(("speed", "verdict"), [(1.5, "PASS"), (0.8, "REGRESSED")])
def test_only_a_cell_that_claims_to_be_faster_is_gated(bench: MakeBench, speed: float, verdict: str) -> None:
    """The first row of the toy study claims a speedup for one cell; the others are shown, not judged."""
    run = bench()
    run.session(ToyEngine(speeds={"perfect": speed, "partly": 0.5}, sigma=0.01), ["speed"])
    for cell in judged(run).cells:
        if cell.cell.claims_speedup:
            assert cell.cell.id == "toy-perfect-short-b1"
            assert cell.throughput.verdict == verdict
        elif cell.cell.variant != "no_sd":
            assert cell.throughput.verdict == "NO_BASELINE"


def test_a_build_is_compared_with_the_base_build(bench: MakeBench) -> None:
    """Both builds in the same rotations: `build_ratio` is new over base, each speedup is against its own no-SD."""
    run = bench(matrix=rows(["no_sd", "perfect"]), two_builds=True)
    speeds = {"no_sd": 1.0, "base:no_sd": 1.25, "perfect": 2.0, "base:perfect": 1.6}
    engine = run.session(ToyEngine(speeds=speeds), ["speed"])
    assert {call.arm for call in engine.timed()} == {*speeds, "no_sd.aa"}
    cells = {(cell.cell.variant, cell.build): cell for cell in judged(run).cells}
    assert set(cells) == {(variant, build) for variant in ("no_sd", "perfect") for build in ("new", "base")}

    def value(variant: str, build: str, name: str) -> float | None:
        ratio = getattr(cells[variant, build], name)
        return None if ratio is None else ratio.value

    assert value("perfect", "new", "build_ratio") == pytest.approx(2.0 / 1.6)
    assert value("no_sd", "new", "build_ratio") == pytest.approx(1.0 / 1.25)
    assert value("perfect", "base", "build_ratio") is None
    assert value("perfect", "new", "speedup") == pytest.approx(2.0)
    assert value("perfect", "base", "speedup") == pytest.approx(1.6 / 1.25)
    assert cells["perfect", "base"].base_arm == "base:no_sd"
    assert all(c.sameness is None or c.sameness.causes == {"identical": 6} for c in cells.values())


def test_the_base_build_of_no_sd_is_its_own_reference(bench: MakeBench) -> None:
    run = bench(matrix=rows(["no_sd", "perfect"]), two_builds=True)
    run.session(ToyEngine(), ["speed"])
    cells = {(cell.cell.variant, cell.build): cell for cell in judged(run).cells}
    assert cells["no_sd", "base"].arm == cells["no_sd", "base"].base_arm == "base:no_sd"
    assert cells["no_sd", "base"].speedup is None


def test_a_base_build_that_cannot_start_is_named(bench: MakeBench) -> None:
    """The new build's cells stand; the base build's fail with the message of its no-SD."""
    run = bench(matrix=rows(["perfect"]), two_builds=True)
    run.session(ToyEngine(refuses={"base:no_sd": EngineError("method", "an old vLLM")}), ["speed"])
    cells = {cell.build: cell for cell in judged(run).cells}
    assert cells["new"].throughput.verdict == "NO_BASELINE"
    assert cells["base"].throughput.verdict == "FAILED"
    assert "an old vLLM" in cells["base"].throughput.reason


def test_arms_that_differ_in_a_held_field_are_not_compared(bench: MakeBench) -> None:
    """Neither throughput nor outputs; the field is named, and the other variant is judged as ever."""
    run = bench(matrix=rows(["perfect", "partly"]))
    run.session(ToyEngine(resolved={"perfect": {"async_scheduling": True}}))
    cell = one(run)
    assert (cell.throughput.verdict, cell.determinism.verdict) == ("INCOMPARABLE", "INCOMPARABLE")
    assert "async_scheduling" in cell.throughput.reason
    assert one(run, "partly").determinism.verdict == "PASS"


# --- other estimators -------------------------------------------------------------------------------------------------


def timed(outputs: list[Output]) -> list[Output]:
    return [
        msgspec.structs.replace(output, ttft_s=0.5, decode_s=0.1 * (len(output.token_ids) - 1)) for output in outputs
    ]


def test_the_papers_estimator_stands_beside_ours(bench: MakeBench) -> None:
    """EOS on: of three rotations no-SD has one that ran into the limit, which its mean leaves out and ours does not."""
    run = bench(matrix=rows(["perfect"]), ignore_eos=False)

    def cut_off(outputs: list[Output]) -> list[Output]:
        return [msgspec.structs.replace(output, finish_reason="length") for output in outputs]

    late = Spoil(arm="no_sd", rotation=2, change=cut_off)
    run.session(ToyEngine(speeds={"perfect": 1.5}, eos_at=9, spoils=(late,)), ["speed"])
    found = one(run).paper_ratio
    assert found is not None
    assert found.value == pytest.approx(1.5)
    assert found.clusters == 3
    assert "unweighted means of 6 and 4 blocks whose first request ended with EOS" in found.method


def test_where_eos_is_ignored_the_papers_estimator_takes_all_blocks(bench: MakeBench) -> None:
    run = bench(matrix=rows(["no_sd", "perfect"]))
    run.session(ToyEngine(speeds={"perfect": 1.5}), ["speed"])
    found = one(run).paper_ratio
    assert found is not None
    assert found.value == pytest.approx(1.5)
    assert "6 and 6 blocks, EOS ignored" in found.method
    assert all(cell.paper_ratio is None for cell in judged(run).cells if cell.arm == cell.base_arm)


def test_latency_is_told_of_both_arms(bench: MakeBench) -> None:
    """Planted: half a second to the first token and a tenth a token on the variant, nothing recorded of no-SD."""
    run = bench(matrix=rows(["perfect"]))
    none = Spoil(arm="no_sd", change=lambda outputs: [msgspec.structs.replace(o, ttft_s=None) for o in outputs])
    run.session(ToyEngine(spoils=(Spoil(arm="perfect", change=timed), none)), ["speed"])
    cell = one(run)
    assert cell.latency is not None
    assert cell.latency.ttft is not None
    assert cell.latency.per_token is not None
    assert (cell.latency.ttft.requests, cell.latency.ttft.median_s) == (12, 0.5)
    assert cell.latency.per_token.p95_s == pytest.approx(0.1)
    assert cell.base_latency is None or cell.base_latency.ttft is None


def test_a_run_over_batch_sizes_has_curves(bench: MakeBench) -> None:
    """One a variant, in the order of the cells; without a second batch size there is none."""
    run = bench(matrix=rows(["perfect", "partly"], sizes=(1, 3)))
    run.session(ToyEngine(speeds={"perfect": 1.5, "partly": 0.8}, sigma=0.01), ["speed"])
    found = judged(run).decays
    assert [(d.variant, d.workload, [p.batch_size for p in d.points]) for d in found] == [
        ("perfect", "short", [1, 3]),
        ("partly", "short", [1, 3]),
    ]
    assert [d.break_even.median for d in found] == ["above", "below"]
    assert judged(bench("other", matrix=rows(["perfect"]))).decays == []


def test_the_busier_arm_of_a_cell_is_told(bench: MakeBench) -> None:
    """Share of the threads' time without a CPU: the toy waits as long in every block, so the faster arm's is larger."""
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(speeds={"perfect": 2.0}), ["speed"])
    data = run.folder.read()
    shares = {
        arm: (WAITED_S + STOLEN_S) / (2 * fmean([block.seconds for block in data.blocks if block.arm == arm]))
        for arm in ("perfect", "no_sd")
    }
    assert one(run).waiting == pytest.approx(shares["perfect"])
    assert shares["perfect"] > shares["no_sd"]


# --- acceptance and stages --------------------------------------------------------------------------------------------


def test_acceptance_is_the_planted_one(bench: MakeBench) -> None:
    """A perfect drafter accepts k tokens a step; a partly wrong one agrees with its own steps, counted slowly."""
    run = bench(matrix=rows(["perfect", "partly"]))
    run.session(ToyEngine(), ["speed"])
    perfect, partly = one(run, "perfect"), one(run, "partly")
    assert perfect.acceptance is not None
    assert partly.acceptance is not None
    assert (perfect.acceptance.length, perfect.acceptance.rate) == (4.0, 1.0)
    assert perfect.acceptance.per_position == [1.0, 1.0, 1.0]
    assert perfect.acceptance.tokens_per_step == pytest.approx(24 / 7)
    assert partly.acceptance.rate is not None
    assert 0 < partly.acceptance.rate < 1
    assert partly.acceptance.length == pytest.approx(1 + 2 * partly.acceptance.rate)
    assert perfect.problems == partly.problems == []


def test_a_sound_run_has_sound_drafts(bench: MakeBench) -> None:
    """Counters, requests, engine steps and ids of speed and stages blocks; every draft token's id is counted."""
    run = bench(matrix=rows(["no_sd", "perfect", "partly"], sizes=(3,)))
    run.session(ToyEngine())
    for variant in ("perfect", "partly"):
        health = one(run, variant).health
        assert health is not None
        assert health.broken == health.one_token == []
        assert health.tally_gap == ""
        assert health.tallied_tokens == 2 * 3 * 12, "two stages blocks"
    assert one(run, "no_sd").health is None


def test_a_stages_block_whose_steps_miss_tokens_is_named(bench: MakeBench) -> None:
    """A planted fault that only the engine's own steps can show."""
    run = bench(matrix=rows(["perfect"], sizes=(3,)))
    run.session(ToyEngine())
    path = run.folder.path / "steps.parquet"
    table = pq.read_table(path).to_pylist()
    next(row for row in table if row["arm"] == "perfect" and row["draft_tokens"])["draft_tokens"] -= 1
    pq.write_table(pa.Table.from_pylist(table, schema=STEPS), path)
    (problem,) = one(run).broken
    assert problem.startswith("steps_drafted_agree: perfect, short b3, rotation 0, pass 0: steps scheduled ")


def test_stages_are_those_of_the_stage_blocks(bench: MakeBench) -> None:
    """One round a stage block. The toy's forward pass takes 5 ms in block 0 and 10 ms in block 1; the LM head 1 ms."""
    run = bench(matrix=rows(["no_sd", "perfect"]))
    run.session(ToyEngine())
    no_sd, perfect = one(run, "no_sd"), one(run, "perfect")
    assert no_sd.stages is not None
    assert perfect.stages is not None
    assert (no_sd.stages.decode_steps, no_sd.stages.prefill_steps) == (2 * 11, 2)
    assert (perfect.stages.decode_steps, perfect.stages.prefill_steps) == (2 * 3, 2)
    assert no_sd.stages.seconds["draft"] == 0
    assert [block["draft"] for block in perfect.stage_rounds] == [pytest.approx(3 * 7e-4)] * 2
    assert [block["verify"] for block in perfect.stage_rounds] == [pytest.approx(3 * 6e-3), pytest.approx(3 * 11e-3)]
    assert perfect.stages.lm_head_s == pytest.approx(6e-3)
    assert perfect.stages.unattributed_s == pytest.approx(6e-4)
    assert sum(perfect.stages.shares().values()) == pytest.approx(1)


def test_a_speedup_stands_beside_what_explains_it(bench: MakeBench) -> None:
    """Drafting 0.7 ms for 3 tokens, verifying as long as no-SD's forward (8.5 ms in the mean of both blocks): with all
    drafts right, Eq. 1 says 4 / (1 + 0.7 / 8.5). Six decode steps emit 23 tokens: the last one is cut by the length."""
    run = bench(matrix=rows(["no_sd", "perfect"]))
    run.session(ToyEngine(speeds={"perfect": 1.5}))
    (found,) = judged(run).stage_findings.explained
    told = found.expected
    assert (found.variant, found.batch_size, told.k, told.alpha) == ("perfect", 2, 3, 1.0)
    assert told.c == pytest.approx(0.7 / 3 / 8.5)
    assert told.v == pytest.approx(1.0)
    assert told.tokens_per_step == pytest.approx(23 / 6)
    assert told.iid == pytest.approx(4 / (1 + 0.7 / 8.5))
    assert told.measured_positions == pytest.approx(23 / 6 / (1 + 0.7 / 8.5))
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1.5)


def test_rows_have_a_price_beside_one_row(bench: MakeBench) -> None:
    """Toy steps verify for 6, 11, 16 and 21 ms in the four blocks, however many rows there are."""
    run = bench(matrix=rows(["no_sd", "perfect"]), stage_blocks=4)
    run.session(ToyEngine())
    (found,) = judged(run).stage_findings.prices
    assert [(price.batch_size, price.rows, price.steps) for price in found.prices] == [(2, 1, 44), (2, 4, 12)]
    four = found.prices[1]
    assert four.verify_s.value == pytest.approx(13.5e-3)
    assert four.relative is not None
    assert four.relative.value == pytest.approx(1.0)


def test_without_a_stage_clock_the_rest_of_the_run_goes_on(bench: MakeBench) -> None:
    run = bench(matrix=rows(["no_sd", "perfect"]))
    run.session(ToyEngine(no_stages={"perfect": "its runner has no named scopes"}))
    findings = judged(run).stage_findings
    assert (findings.explained, findings.prices) == ([], []), "no-SD alone has one row a request"
    cell = one(run)
    assert cell.stages is None
    assert cell.speedup is not None
    assert any("its runner has no named scopes" in failure.message for failure in cell.failures)


# --- outputs ----------------------------------------------------------------------------------------------------------


def test_equal_outputs_pass(bench: MakeBench) -> None:
    run = bench()
    run.session(ToyEngine())
    for cell in judged(run).cells:
        if cell.cell.variant == "no_sd":
            assert cell.sameness is None
            continue
        assert cell.sameness is not None
        assert cell.sameness.causes == {"identical": 3 * cell.cell.batch_size}
        assert cell.sameness.share == 1
        assert cell.sameness.floor.repeat_identical == cell.sameness.floor.aa_identical == cell.sameness.requests
        assert cell.determinism.verdict == "PASS"


@pytest.mark.parametrize(
    ("gap_nats", "cause", "verdict"),
    [
        (3.0, "divergent", "FAILED"),
        (0.2501, "divergent", "FAILED"),
        (None, "divergent", "FAILED"),
        (0.25, "near_tie", "PASS"),
        (0.0, "near_tie", "PASS"),
    ],
)
def test_one_wrong_token_is_judged_by_its_gap(
    bench: MakeBench, gap_nats: float | None, cause: str, verdict: str
) -> None:
    """Within the limit of 0.25 nats it is a tie that rounding decided; beyond, or not among the 20 best: divergent."""
    run = bench(matrix=rows(["perfect", "partly"]))
    flip = Flip(arm="perfect", rotation=2, request=1, position=7)
    run.session(ToyEngine(flips=(flip,), gap_nats=gap_nats))
    cell, other = one(run), one(run, "partly")
    assert cell.sameness is not None
    assert cell.sameness.causes == {"identical": 5, cause: 1}
    (difference,) = cell.sameness.differences
    assert (difference.rotation, difference.request, difference.position) == (2, 1, 7)
    assert difference.tokens_at_risk == 8
    assert difference.prompt_id.startswith("short-")
    assert difference.gap_nats == (None if gap_nats is None else pytest.approx(gap_nats))
    assert cell.determinism.verdict == verdict
    assert f"1 {cause.replace('_', ' ')}" in cell.determinism.reason
    assert other.determinism.verdict == "PASS"
    assert other.sameness is not None
    assert other.sameness.causes == {"identical": 6}


@pytest.mark.parametrize(
    ("noise_nats", "gap_nats", "verdict"),
    [(0.125, 0.3, "FAILED"), (0.5, 0.3, "PASS"), (0.5, 0.6, "FAILED"), (1.5, 0.3, "UNSTABLE"), (1.5, 3.0, "UNSTABLE")],
)
def test_the_noise_of_the_run_widens_a_tie_up_to_a_cap(
    bench: MakeBench, noise_nats: float, gap_nats: float, verdict: str
) -> None:
    """The larger of the limit (0.25) and the measured noise; above the cap (1.0) nothing can be told."""
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(flips=(Flip(arm="perfect"),), gap_nats=gap_nats, noise_nats=noise_nats))
    assert one(run).determinism.verdict == verdict


@pytest.mark.parametrize("unstable", [Flip(arm="no_sd", pass_index=1, rotation=1), Flip(arm="no_sd.aa", rotation=1)])
def test_a_no_sd_that_does_not_repeat_itself_says_nothing(bench: MakeBench, unstable: Flip) -> None:
    """In its second pass or in its second process: that request's difference is inconclusive, however wide."""
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(flips=(unstable, Flip(arm="perfect", rotation=1, position=8)), gap_nats=5.0))
    cell = one(run)
    assert cell.sameness is not None
    assert cell.sameness.causes == {"identical": 5, "inconclusive": 1}
    assert cell.determinism.verdict == "UNSTABLE"
    floor = cell.sameness.floor
    assert (floor.repeat_identical, floor.aa_identical) in {(5, 6), (6, 5)}


def test_an_unstable_request_does_not_hide_another_ones_divergence(bench: MakeBench) -> None:
    run = bench(matrix=rows(["perfect"]))
    flips = (
        Flip(arm="no_sd", pass_index=1, rotation=1, request=0),
        Flip(arm="perfect", rotation=1, request=0),
        Flip(arm="perfect", rotation=1, request=1),
    )
    run.session(ToyEngine(flips=flips))
    cell = one(run)
    assert cell.sameness is not None
    assert cell.sameness.causes == {"identical": 4, "inconclusive": 1, "divergent": 1}
    assert cell.determinism.verdict == "FAILED"


def test_outputs_of_unequal_length_differ(bench: MakeBench) -> None:
    """EOS on: one arm's output is wrong from the start, both end at the same place; lengths are never cut to equal."""
    run = bench(matrix=rows(["perfect"]), ignore_eos=False)
    run.session(ToyEngine(eos_at=10))
    cell = one(run)
    assert cell.sameness is not None
    assert cell.sameness.causes == {"identical": 6}
    assert cell.problems == []
    assert cell.tokens_per_s == pytest.approx(100)


def test_a_difference_that_was_not_scored_is_not_called_divergent(bench: MakeBench) -> None:
    """Killed before the scoring pass, a near tie and a divergence look alike: nothing red may be said of either."""
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1),), gap_nats=0.01), ["speed"])
    assert one(run).determinism.verdict not in ("PASS", "FAILED")


# --- failures and partial runs ----------------------------------------------------------------------------------------


def test_a_failed_arm_fails_its_cells_with_its_message(bench: MakeBench) -> None:
    run = bench()
    run.session(ToyEngine(crashes=(Where(arm="partly", workload="long", batch_size=3, rotation=1),)))
    for cell in judged(run).cells:
        failed = cell.cell.id == "toy-partly-long-b3"
        assert (cell.throughput.verdict == "FAILED") == failed
        if failed:
            message = "arm 'partly' (crash): arm 'partly' ended during 'run' (signal SIGKILL)"
            assert cell.throughput.reason == f"{message}; end of its log: the toy's last words"
            assert cell.determinism.reason == cell.throughput.reason
            assert cell.failures[0].log_tail == "the toy's last words"


def test_a_no_sd_that_crashes_fails_the_cells_of_that_unit(bench: MakeBench) -> None:
    run = bench()
    run.session(ToyEngine(crashes=(Where(arm="no_sd", workload="long", batch_size=3, rotation=0),)))
    failed = {cell.cell.id for cell in judged(run).cells if cell.throughput.verdict == "FAILED"}
    assert failed == {f"toy-{variant}-long-b3" for variant in ("no_sd", "perfect", "partly")}


@pytest.mark.parametrize(("rotation", "pairs"), [(0, 0), (1, 1), (2, 2)])
def test_a_partial_run_is_judged_by_what_it_holds(bench: MakeBench, rotation: int, pairs: int) -> None:
    """Below two pairs there is no interval and so no figure: INSUFFICIENT, never passed."""
    run = bench(matrix=rows(["perfect"]))
    with pytest.raises(KeyboardInterrupt):
        run.session(ToyEngine(speeds={"perfect": 1.5}, interrupts=(Where(rotation=rotation),)))
    results, cell = judged(run), one(run)
    assert not results.finished
    assert cell.pairs == pairs
    assert (cell.speedup is None) == (pairs < 2)
    if pairs < 2:
        assert cell.throughput.verdict == "INSUFFICIENT"
    if pairs == 0:
        assert cell.determinism.verdict == "INSUFFICIENT"


def test_cells_that_were_skipped_are_not_judged(bench: MakeBench) -> None:
    run = bench()
    run.session(ToyEngine(), ["speed"])
    skipped = {"toy-partly-short-b1": "needs a data set; found none; enable with a network"}
    results = analyse(run.folder, run.catalog.thresholds, skipped)
    assert len(results.cells) == 11
    assert results.skipped == skipped


def test_records_that_contradict_each_other_are_named(bench: MakeBench) -> None:
    """A planted fault for the soundness check: a counter that says more than the requests accepted."""
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(), ["speed"])
    path = run.folder.path / "records.jsonl"
    text = path.read_text()
    assert '"num_accepted_tokens":36' in text
    path.write_text(text.replace('"num_accepted_tokens":36', '"num_accepted_tokens":35', 1))
    (problem, *_) = one(run).broken
    assert "perfect, short b2, rotation 0, pass 0" in problem
