"""From records to what is said of outputs: floors, planted faults with their names, repeats, ties against a control."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draftproof import referee
from draftproof.catalog import Catalog
from draftproof.engines import BlockRequest
from draftproof.noisefloor import FloorAxis
from draftproof.records import Output
from draftproof.report.view import headline
from draftproof.results import CellResult, RunResults, analyse
from tests.toy import FIRST, VOCABULARY, Bench, Flip, Spoil, ToyEngine, Where, rows, with_study

MakeBench = Callable[..., Bench]


def judged(run: Bench) -> RunResults:
    return analyse(run.folder, run.catalog.thresholds)


def one(run: Bench, variant: str = "perfect") -> CellResult:
    (cell,) = [cell for cell in judged(run).cells if cell.cell.variant == variant]
    return cell


def with_ids(output: Output, ids: list[int]) -> Output:
    return msgspec.structs.replace(output, token_ids=ids)


def first(change: Callable[[list[int]], list[int]]) -> Callable[[list[Output]], list[Output]]:
    """A fault in the first request of a batch."""

    def spoil(outputs: list[Output]) -> list[Output]:
        return [with_ids(outputs[0], change(outputs[0].token_ids)), *outputs[1:]]

    return spoil


# -- planted faults ----------------------------------------------------------------------------------------------------


def other(token: int) -> int:
    return FIRST + (token - FIRST + 1) % (VOCABULARY - FIRST)


FAULTS: dict[str, Callable[[list[Output]], list[Output]]] = {
    "one token flipped after position 5": first(lambda ids: [*ids[:6], other(ids[6]), *ids[7:]]),
    "a stop token swallowed": first(lambda ids: [*ids[:-1], *ids[2:5]]),
    "an off-by-one in positions": first(lambda ids: [*ids[1:], ids[0]]),
    "outputs swapped between two requests": lambda outputs: outputs[::-1],
    "a truncated output": first(lambda ids: ids[:-2]),
    "an extra BOS": first(lambda ids: [1, *ids[:-1]]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_divergent(bench: MakeBench, fault: str) -> None:
    """The referee puts the wrong token 3 nats below its best: no rounding explains it; clean rotations stay clean."""
    run = bench(matrix=rows(["perfect", "partly"]))
    run.session(ToyEngine(spoils=(Spoil(arm="perfect", rotation=1, change=FAULTS[fault]),)))
    cell, clean = one(run), one(run, "partly")
    assert cell.determinism.verdict == "FAILED"
    assert cell.determinism.reason.startswith("divergent outputs: ")
    assert cell.sameness is not None
    assert set(cell.sameness.causes) == {"identical", "divergent"}
    assert {difference.rotation for difference in cell.sameness.differences} == {1}
    assert clean.determinism.verdict == "PASS"


def with_option(catalog: Catalog, variant: str, **options: Any) -> Catalog:
    """The catalog with further keys of ``speculative_config`` in one variant."""
    entry = msgspec.structs.replace(catalog.variants[variant], options=options)
    return msgspec.structs.replace(catalog, variants={**catalog.variants, variant: entry})


def test_drafts_accepted_at_a_set_rate_are_not_divergent(tmp_path: Path, catalog: Catalog) -> None:
    """They put wrong tokens out by design; a lossless variant beside them is held to the same limits as ever."""
    both = with_study(
        with_option(catalog, "perfect", rejection_sample_method="synthetic"), matrix=rows(["no_sd", "perfect"])
    )
    run = Bench(tmp_path / "synthetic", both)
    engine = run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1),)))
    cell = one(run)
    assert cell.determinism.verdict == "INSUFFICIENT"
    assert "accepts drafts right or wrong" in cell.determinism.reason
    assert cell.sameness is None
    assert cell.speedup is not None
    assert (engine.scored, engine.refereed) == ([], [])
    assert "referee" not in engine.started
    assert "divergent" not in headline(judged(run))  # nothing was looked at: "none" would be a claim
    beside = Bench(tmp_path / "beside", with_study(both, matrix=rows(["perfect", "partly"])))
    faults = (Flip(arm="perfect", rotation=1), Flip(arm="partly", rotation=2))
    engine = beside.session(ToyEngine(flips=faults, gap_nats=3.0))
    assert {request.arm for request in engine.refereed} == {"partly"}
    assert one(beside, "partly").determinism.verdict == "FAILED"
    assert one(beside).determinism.verdict == "INSUFFICIENT"
    assert "divergent outputs in 1 of 1 cell compared (partly on " in headline(judged(beside))


def test_a_referee_is_not_loaded_for_random_weights(tmp_path: Path, catalog: Catalog) -> None:
    """Neither for variants nor for the A/A twin: in float32 an 8B target takes 32 GB to score nobody's answer."""
    toy = msgspec.structs.replace(catalog.targets["toy"], engine={"max_model_len": 256, "load_format": "dummy"})
    hollow = msgspec.structs.replace(catalog, targets={**catalog.targets, "toy": toy})
    run = Bench(tmp_path / "hollow", with_study(hollow, matrix=rows(["perfect"])))
    faults = (Flip(arm="perfect", rotation=1), Flip(arm="no_sd.aa", rotation=0))
    engine = run.session(ToyEngine(flips=faults, gap_nats=3.0))
    assert (engine.scored, engine.refereed) == ([], [])
    assert "referee" not in engine.started
    assert {arm.meaningless for arm in run.folder.read().arms} == {
        "the weights of target 'toy' are random numbers (load_format = 'dummy')"
    }
    assert one(run).determinism.verdict == "INSUFFICIENT"
    told = headline(judged(run))
    assert "outputs of 1 cell not compared: the weights of target 'toy' are random numbers" in told
    assert "divergent" not in told


def test_an_exact_tie_is_no_fault(bench: MakeBench) -> None:
    """Equal scores in the engine's own precision: either token may come, whatever float32 says."""
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1),), engine_gap_nats=0.0, gap_nats=3.0))
    cell = one(run)
    assert cell.sameness is not None
    assert cell.sameness.causes == {"identical": 5, "exact_tie": 1}
    assert cell.determinism.verdict == "PASS"


def test_the_referee_decides_not_the_engine(bench: MakeBench) -> None:
    """The engine saw the two tokens 0.06 nats apart; in float32 they are 3 nats apart."""
    run = bench(matrix=rows(["perfect"]))
    engine = run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1),), gap_nats=3.0, engine_gap_nats=0.0625))
    assert len(engine.scored) == len(engine.refereed) == 1
    cell = one(run)
    assert cell.sameness is not None
    (difference,) = cell.sameness.differences
    assert difference.cause == "divergent"
    assert difference.gap_nats == pytest.approx(3.0)
    assert (difference.before, difference.after) == ("so far", ("so", "otherwise"))


def test_without_its_referee_a_difference_is_inconclusive(bench: MakeBench) -> None:
    """Too little memory for float32, say: nothing is called a divergence or a tie, and the failure is on record."""
    from draftproof.errors import EngineError

    run = bench(matrix=rows(["perfect"]))
    refuses: dict[str, BaseException] = {"referee": EngineError("memory", "no room for float32")}
    run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1),), refuses=refuses))
    cell = one(run)
    assert cell.sameness is not None
    assert cell.sameness.causes == {"identical": 5, "inconclusive": 1}
    assert cell.determinism.verdict == "UNSTABLE"
    assert [(f.arm, f.message) for f in run.folder.read().failures] == [("referee", "no room for float32")]
    assert cell.throughput.verdict != "FAILED"


def test_a_model_without_numbers_is_not_praised(bench: MakeBench) -> None:
    """NaN everywhere makes every arm write the same: deterministic, and worth nothing."""
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1),), nan_gaps=True))
    cell = one(run)
    assert cell.determinism.verdict == "FAILED"
    assert "not finite" in cell.determinism.reason


def test_one_token_over_and_over_is_garbage(bench: MakeBench) -> None:
    """All arms agree on it."""
    run = bench(matrix=rows(["perfect"]))
    change = [Spoil(change=lambda outputs: [with_ids(output, [7] * len(output.token_ids)) for output in outputs])]
    run.session(ToyEngine(spoils=tuple(change)))
    cell = one(run)
    assert cell.sameness is not None
    assert cell.sameness.causes == {"identical": 6}
    assert cell.determinism.verdict == "FAILED"
    assert "garbage" in cell.determinism.reason


# -- observations ------------------------------------------------------------------------------------------------------


def test_copies_of_a_prompt_are_one_observation(bench: MakeBench) -> None:
    """Of three copies one differs: one request of each rotation, and the prompt counts as differing."""
    run = bench(matrix=rows(["perfect"], sizes=(3,)), batching="identical")
    run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1, request=2),), gap_nats=0.1))
    same = one(run).sameness
    assert same is not None
    assert (same.requests, same.identical, same.prompts, same.prompts_identical) == (3, 2, 3, 2)
    assert same.causes == {"identical": 2, "near_tie": 1}
    assert same.rate is not None
    assert (same.rate.events, same.rate.tokens) == (1, 24 + 24 + 7)


def test_the_share_is_of_prompts_not_of_requests(bench: MakeBench) -> None:
    """Six prompts, twelve requests: a prompt that differs once is a prompt that differs."""
    run = bench(matrix=rows(["perfect"], sizes=(3,)), rotations=4, max_rotations=4)
    run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1, request=2),), gap_nats=0.1))
    same = one(run).sameness
    assert same is not None
    assert (same.requests, same.identical) == (12, 11)
    assert (same.prompts, same.prompts_identical) == (6, 5)
    assert same.share == pytest.approx(5 / 6)
    assert same.share_low < 5 / 6 < same.share_high


# -- the noise floor ---------------------------------------------------------------------------------------------------


def axes(run: Bench, batch_size: int) -> dict[str, FloorAxis]:
    (floor,) = [floor for floor in judged(run).floors if floor.batch_size == batch_size]
    return {axis.axis: axis for axis in floor.axes}


def floor_bench(bench: MakeBench) -> Bench:
    return bench(matrix=rows(["perfect"], sizes=(1, 3)), requests=6, floor_rotations=1)


def test_every_axis_of_the_floor_is_measured(bench: MakeBench) -> None:
    """Second pass and process everywhere; smallest batch, order and copies where there is more than one request."""
    run = floor_bench(bench)
    engine = run.session(ToyEngine())
    assert {name: (axis.requests, axis.identical) for name, axis in axes(run, 1).items()} == {
        "pass": (6, 6),
        "process": (6, 6),
    }
    assert {name: (axis.requests, axis.identical) for name, axis in axes(run, 3).items()} == {
        "pass": (6, 6),
        "process": (6, 6),
        "batch_size": (6, 6),
        "order": (3, 3),
        "copies": (1, 1),
    }
    reordered, copies = [call for call in engine.timed("trace") if call.output_tokens == 24]
    (chosen,) = {call.prompts for call in engine.timed() if call.batch_size == 3 and call.rotation == 0}
    assert (reordered.arm, reordered.prompts) == ("no_sd", chosen[::-1])
    assert (copies.arm, copies.prompts) == ("no_sd", (chosen[0],) * 3)


@pytest.mark.parametrize(
    ("axis", "where"),
    [
        ("pass", {"arm": "no_sd", "batch_size": 3, "pass_index": 1}),
        ("process", {"arm": "no_sd.aa", "batch_size": 3, "pass_index": 0}),
        ("batch_size", {"arm": "no_sd", "batch_size": 1, "rotation": 0}),
    ],
)
def test_what_changes_along_one_axis_shows_there(bench: MakeBench, axis: str, where: dict[str, Any]) -> None:
    run = floor_bench(bench)
    run.session(ToyEngine(flips=(Flip(request=0, position=5, **where),)))
    found = axes(run, 3)
    assert found[axis].identical < found[axis].requests
    assert {name for name, value in found.items() if value.identical < value.requests} == {axis}
    rate = found[axis].rate
    assert rate is not None
    assert 0 < rate.low < rate.per_1000 < rate.high


@pytest.mark.parametrize("axis", ["order", "copies"])
def test_order_and_company_show_there(bench: MakeBench, axis: str) -> None:
    """A fault in a floor block alone."""
    run = floor_bench(bench)

    class Fault(Flip):
        def fits(self, arm: str, request: BlockRequest) -> bool:
            return request.axis == axis

    run.session(ToyEngine(flips=(Fault(request=1, position=5),)))
    found = axes(run, 3)
    assert {name for name, value in found.items() if value.identical < value.requests} == {axis}


def test_floor_blocks_are_run_once(bench: MakeBench) -> None:
    run = floor_bench(bench)
    with pytest.raises(KeyboardInterrupt):
        run.session(ToyEngine(interrupts=(Where(purpose="trace", rotation=0, batch_size=3, pass_index=0),)), ["speed"])
    run.session(ToyEngine())
    second = run.session(ToyEngine())
    assert second.calls == []


# -- acceptance --------------------------------------------------------------------------------------------------------


def test_equal_text_accepted_otherwise_is_a_finding(bench: MakeBench) -> None:
    """One request takes a step more in the second pass: its text is the same, its throughput is not."""

    def slower(outputs: list[Output]) -> list[Output]:
        one, *rest = outputs
        return [msgspec.structs.replace(one, accepted=[one.accepted[0] - 1, *one.accepted[1:], 0]), *rest]

    run = bench(matrix=rows(["perfect", "partly"]))
    run.session(ToyEngine(spoils=(Spoil(arm="perfect", rotation=1, pass_index=1, change=slower),)), ["speed"])
    same, clean = one(run).sameness, one(run, "partly").sameness
    assert same is not None
    assert clean is not None
    assert same.causes == {"identical": 6}
    assert (same.repeats.requests, same.repeats.differing) == (6, 1)
    assert same.repeats.steps[1] == same.repeats.steps[0] + 1
    assert (clean.repeats.requests, clean.repeats.differing) == (6, 0)


# -- output lengths ----------------------------------------------------------------------------------------------------


def test_lengths_are_told_where_eos_ends_a_request(bench: MakeBench) -> None:
    """Two outputs of the variant end two tokens early: the paired difference to no-SD holds that."""
    run = bench(matrix=rows(["no_sd", "perfect"], sizes=(1, 3)), requests=6, ignore_eos=False)
    shorter = first(lambda ids: ids[:-2])
    run.session(ToyEngine(eos_at=10, spoils=(Spoil(arm="perfect", batch_size=3, change=shorter),)), ["speed"])
    (table,) = judged(run).lengths
    found = {(row.variant, row.batch_size): row for row in table.rows}
    assert found["no_sd", 1].mean == pytest.approx(11)
    assert found["no_sd", 1].difference is None
    assert found["perfect", 3].prompts == 6
    assert found["perfect", 3].difference == pytest.approx(-2 * 2 / 6)
    assert found["perfect", 1].difference == pytest.approx(0)
    assert judged(bench("other")).lengths == []


# -- ties against a control --------------------------------------------------------------------------------------------


def flips(arm: str, *rotations: int) -> tuple[Flip, ...]:
    """Both requests of these rotations."""
    return tuple(Flip(arm=arm, rotation=rotation, request=request) for rotation in rotations for request in (0, 1))


@pytest.mark.parametrize(
    ("variant", "control", "verdict"),
    [((), (), "PASS"), ((0, 1, 2), (), "REGRESSED"), ((0, 1, 2), (0, 1, 2), "PASS"), ((), (0, 1, 2), "PASS")],
)
def test_near_ties_are_held_against_those_of_a_control(
    bench: MakeBench, variant: tuple[int, ...], control: tuple[int, ...], verdict: str
) -> None:
    """As many as drafts of no effect make are what rounding does; many more are not."""
    run = bench(matrix=rows(["perfect", "wise"]))
    run.session(ToyEngine(flips=flips("perfect", *variant) + flips("wise", *control), gap_nats=0.1))
    cell = one(run)
    assert cell.determinism.verdict == verdict
    assert "with wise" in cell.determinism.reason
    assert one(run, "wise").determinism.verdict == "PASS", "the floor is not held against itself"


def test_a_control_of_another_k_is_no_floor(bench: MakeBench) -> None:
    """Three rows are not four: ties are told, not judged."""
    run = bench(matrix=rows(["partly", "wise"]))
    run.session(ToyEngine(flips=flips("partly", 0, 1, 2), gap_nats=0.1))
    cell = one(run, "partly")
    assert cell.determinism.verdict == "PASS"
    assert "wise" not in cell.determinism.reason


def test_the_width_is_that_of_both_ways(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger of decoding and reading as a prompt, each against float32; what the rows alone moved is told apart."""
    monkeypatch.setattr(referee, "MIN_NOISE_POSITIONS", 1)
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1),), noise_nats=0.5))
    lines = run.folder.read().noise
    assert {(line.width_nats, line.rows_nats, line.not_finite, line.unscored) for line in lines} == {(0.5, 0.0, 0, 0)}
