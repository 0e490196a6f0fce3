"""The runner's rules: the order of blocks, what is recorded when, going on after an interruption, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from draftproof import referee, tables
from draftproof.analysis.pairs import speed_pairs
from draftproof.analysis.stats import paired_ratio
from draftproof.errors import DraftproofError, EngineError
from draftproof.records import UnitKey
from draftproof.results import analyse
from draftproof.spec import Purpose
from tests.toy import PROMPTS, STOLEN_S, WAITED_S, Bench, Call, Flip, ToyEngine, Where, rows, tokens_of

MakeBench = Callable[..., Bench]
ARMS = ["no_sd", "no_sd.aa", "perfect", "partly"]


def unit_of(call: Call) -> tuple[str, int]:
    return call.workload, call.batch_size


def figures(bench: Bench) -> dict[str, Any]:
    """What a run says of each cell, but for the sessions that recorded it."""
    found = analyse(bench.folder, bench.catalog.thresholds)
    return {
        cell.cell.id: (
            cell.pairs,
            cell.tokens_per_s,
            cell.speedup,
            cell.acceptance,
            cell.sameness,
            cell.stages,
            cell.throughput,
            cell.determinism,
        )
        for cell in found.cells
    }


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_rotation_runs_every_arm_and_then_all_in_reverse_order(bench: MakeBench) -> None:
    """One prompt set a rotation: all arms forwards, all arms backwards, nothing else."""
    run = bench(matrix=rows(ARMS[:1] + ARMS[2:]), rotations=2, max_rotations=2)
    engine = run.session(ToyEngine(), ["speed"])
    expected = [(rotation, 0, arm) for rotation in range(2) for arm in ARMS]
    expected += [(rotation, 1, arm) for rotation in range(2) for arm in reversed(ARMS)]
    calls = [(call.rotation, call.pass_index, call.arm) for call in engine.timed()]
    assert calls == sorted(expected, key=lambda place: place[:2])
    blocks = run.folder.read().blocks
    assert [(block.rotation, block.pass_index, block.arm) for block in blocks] == calls
    assert [block.order for block in blocks] == [*range(8)] * 2


def test_every_arm_of_a_rotation_gets_the_same_prompt_ids(bench: MakeBench) -> None:
    """Both passes of all arms; another rotation deals other prompts."""
    engine = bench().session(ToyEngine())
    sets: dict[tuple[object, ...], set[tuple[tuple[int, ...], ...]]] = {}
    for call in engine.timed() + engine.timed("stages"):
        sets.setdefault((unit_of(call), call.rotation), set()).add(call.prompts)
    assert len(sets) == 4 * 3
    assert all(len(prompts) == 1 for prompts in sets.values())
    assert sets[("short", 3), 0] != sets[("short", 3), 1]


def test_the_units_of_a_group_take_turns(bench: MakeBench) -> None:
    """A drift of the machine must meet all units: rotation 1 of none begins before rotation 0 of all has ended."""
    engine = bench().session(ToyEngine(), ["speed"])
    turns = list(dict.fromkeys((call.rotation, *unit_of(call)) for call in engine.timed()))
    assert [rotation for rotation, *_ in turns] == [0] * 4 + [1] * 4 + [2] * 4
    assert turns[:4] == [(0, "short", 1), (0, "short", 3), (0, "long", 1), (0, "long", 3)]


def test_every_shape_is_warmed_up_on_every_arm_before_anything_is_timed(bench: MakeBench) -> None:
    run = bench()
    engine = run.session(ToyEngine())
    count = len(engine.timed("trace"))
    assert {call.purpose for call in engine.calls[:count]} == {"trace"}
    assert Counter((call.arm, call.batch_size) for call in engine.timed("trace")) == Counter(
        (arm, size) for arm in ARMS for size in (1, 3)
    )
    assert {block.purpose for block in run.folder.read().blocks} == {"speed", "stages"}


def test_stage_blocks_are_short_one_way_and_without_the_second_no_sd(bench: MakeBench) -> None:
    """The stage clock disturbs, so its blocks are their own, and no figure of throughput comes from them."""
    engine = bench().session(ToyEngine())
    calls = engine.timed("stages")
    assert {call.arm for call in calls} == {"no_sd", "perfect", "partly"}
    assert {(call.pass_index, call.output_tokens) for call in calls} == {(0, 12)}
    assert {call.output_tokens for call in engine.timed()} == {24}
    assert len(calls) == 3 * 4 * 2


@pytest.mark.parametrize(("purposes", "expected"), [(["speed"], {"speed"}), (["speed", "trace"], {"speed"})])
def test_only_the_asked_purposes_are_run(bench: MakeBench, purposes: list[Purpose], expected: set[str]) -> None:
    run = bench()
    run.session(ToyEngine(), purposes)
    assert {line.purpose for line in run.folder.read().rotations} == expected


def test_blocks_hold_what_the_engine_said(bench: MakeBench) -> None:
    """Seconds, tokens and counters of a block are the engine's; token ids come back from Parquet unchanged."""
    run = bench(matrix=rows(["perfect", "partly"]))
    run.session(ToyEngine(speeds={"perfect": 2.0}), ["speed"])
    data = run.folder.read()
    by_arm = {block.arm: block for block in data.blocks if block.rotation == 1 and block.pass_index == 0}
    assert by_arm["no_sd"].seconds == pytest.approx(2 * 24 * 0.01)
    assert by_arm["perfect"].seconds == pytest.approx(24 * 0.01)
    assert by_arm["perfect"].output_tokens == by_arm["no_sd"].output_tokens == 48
    assert (by_arm["no_sd"].num_drafts, by_arm["no_sd"].num_accepted_tokens_per_pos) == (0, [])
    assert by_arm["perfect"].num_accepted_tokens == by_arm["perfect"].num_draft_tokens == 2 * 6 * 3
    assert by_arm["perfect"].num_accepted_tokens_per_pos == [12, 12, 12]
    assert {(block.waited_s, block.stolen_s) for block in data.blocks} == {(WAITED_S, STOLEN_S)}
    outputs = tables.read_outputs(run.folder.path, {line.part for line in data.rotations})
    assert len(outputs) == len(data.blocks)
    for (part, arm, _), requests in outputs.items():
        assert [o.token_ids for o in requests] == [o.token_ids for o in outputs[part, "no_sd", 0]]
        assert [o.ttft_s for o in requests] == [0.01] * 2
        assert [o.decode_s for o in requests] == pytest.approx([0.23] * 2)
        assert sum(map(sum, (o.accepted for o in requests))) == by_arm[arm].num_accepted_tokens or arm == "partly"


def test_identical_batches_hold_copies_of_one_prompt(bench: MakeBench) -> None:
    """The paper's protocol: B copies of one prompt; each rotation takes another one."""
    run = bench(batching="identical", matrix=rows(["perfect"], sizes=(3,)))
    engine = run.session(ToyEngine(), ["speed"])
    batches = {call.rotation: call.prompts for call in engine.timed()}
    assert all(len(batch) == 3 and len(set(batch)) == 1 for batch in batches.values())
    assert len(set(batches.values())) == len(batches)
    outputs = tables.read_outputs(run.folder.path, {line.part for line in run.folder.read().rotations})
    assert all(len({tuple(o.token_ids) for o in requests}) == 1 for requests in outputs.values())


def test_mixed_batches_hold_different_prompts(bench: MakeBench) -> None:
    engine = bench(matrix=rows(["perfect"], sizes=(3,))).session(ToyEngine(), ["speed"])
    assert all(len(set(call.prompts)) == 3 for call in engine.timed())


def test_a_batch_larger_than_the_workload_repeats_it(bench: MakeBench) -> None:
    engine = bench(matrix=rows(["perfect"], sizes=(8,))).session(ToyEngine(), ["speed"])
    assert all(len(call.prompts) == 8 and len(set(call.prompts)) == 6 for call in engine.timed())


def test_arms_beyond_the_memory_run_in_groups_with_their_own_no_sd(bench: MakeBench) -> None:
    """Never more arms alive than `max_live_arms`; every variant meets a no-SD of its own group."""
    run = bench()
    hardware = msgspec.structs.replace(run.catalog.hardware["toy"], max_live_arms=2)
    run = bench("small", hardware=hardware)
    engine = run.session(ToyEngine())
    assert engine.most_live == 2
    assert engine.started == ["no_sd", "no_sd.aa", "no_sd", "perfect", "no_sd", "partly"]
    results = analyse(run.folder, run.catalog.thresholds)
    assert all(cell.pairs == 3 for cell in results.cells if cell.cell.variant != "no_sd")
    assert all(cell.problems == [] and cell.failures == [] for cell in results.cells)
    assert [aa.ratio is not None for aa in results.aa] == [True] * 4


def test_a_group_without_units_starts_no_engine(bench: MakeBench) -> None:
    """Loading is what costs: arms that no chosen cell needs are not started (here the second no-SD, alone)."""
    run = bench()
    hardware = msgspec.structs.replace(run.catalog.hardware["toy"], max_live_arms=2)
    run = bench("small", hardware=hardware, matrix=rows(["perfect"]))
    engine = run.session(ToyEngine())
    needed = {(group.index, arm) for group in run.plan.groups for unit in group.units for arm in unit.arms}
    assert len(engine.started) == len(needed)


# --- what is recorded, and when ---------------------------------------------------------------------------------------


def test_a_rotation_is_on_disk_before_the_next_begins(bench: MakeBench) -> None:
    """At each block exactly the rotations before its own are recorded."""
    run = bench()
    order: list[tuple[object, ...]] = []
    seen: list[int] = []

    def watch(call: Call) -> None:
        if call.purpose == "trace":
            return
        place = (call.purpose, call.rotation, *unit_of(call))
        if place not in order:
            order.append(place)
        recorded = run.folder.read().rotations
        seen.append(len(recorded))
        assert [(r.purpose, r.rotation, r.workload, r.batch_size) for r in recorded] == order[:-1]

    run.session(ToyEngine(watch=watch))
    assert len(order) == 4 * 3 + 4 * 2
    assert seen == sorted(seen)
    assert run.folder.header().finished


INTERRUPTS = [
    Where(rotation=0, purpose="trace"),
    Where(rotation=0),
    Where(arm="perfect", workload="long", batch_size=1, rotation=1, pass_index=0),
    Where(arm="no_sd", workload="long", batch_size=3, rotation=1, pass_index=1),
    Where(arm="no_sd", workload="long", batch_size=3, rotation=2, pass_index=1),
    Where(purpose="stages", arm="partly", workload="short", batch_size=3, rotation=1),
]


@pytest.mark.parametrize("where", INTERRUPTS, ids=str)
def test_a_second_session_goes_on_where_the_first_was_interrupted(bench: MakeBench, where: Where) -> None:
    """No finished rotation is run again, the unfinished one is run whole, and the figures are those of one session."""
    run, whole = bench(), bench("whole")
    whole.session(ToyEngine(sigma=0.05))
    first = ToyEngine(sigma=0.05, interrupts=(where,))
    with pytest.raises(KeyboardInterrupt):
        run.session(first)
    assert first.live == set(), "an interruption must close every arm"
    assert not run.folder.header().finished
    done = {(r.purpose, r.rotation, r.workload, r.batch_size) for r in run.folder.read().rotations}
    second = run.session(ToyEngine(sigma=0.05))
    again = Counter((call.purpose, call.rotation, *unit_of(call)) for call in second.calls if call.purpose != "trace")
    assert not done & set(again)
    assert len(done) + len(again) == 4 * 3 + 4 * 2
    assert all(count == (8 if place[0] == "speed" else 3) for place, count in again.items())
    assert run.folder.header().finished
    assert figures(run) == figures(whole)
    assert [session.session for session in run.folder.read().sessions] == [0, 1]


def test_a_session_on_a_finished_run_starts_no_engine(bench: MakeBench) -> None:
    run = bench()
    run.session(ToyEngine())
    assert run.session(ToyEngine()).started == []


def test_what_has_failed_does_not_start_engines_again(bench: MakeBench) -> None:
    """A finished run whose stages cannot be clocked has nothing left to do."""
    run = bench()
    reasons = dict.fromkeys(ARMS, "no named scopes")
    run.session(ToyEngine(no_stages=reasons))
    assert run.folder.header().finished
    assert run.session(ToyEngine(no_stages=reasons)).started == []


def test_records_of_a_killed_session_do_not_count(bench: MakeBench) -> None:
    """Blocks without their rotation's closing line, and a torn last line, are left out; the rotation is run again."""
    run = bench(matrix=rows(["perfect"]))
    with pytest.raises(KeyboardInterrupt):
        run.session(ToyEngine(interrupts=(Where(rotation=2),)), ["speed"])
    path = run.folder.path / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    closing = max(index for index, line in enumerate(lines) if b'"rotation"' in line[:30])
    path.write_bytes(b"".join(lines[:closing]) + lines[closing][:25])
    assert run.folder.read().torn
    assert {block.rotation for block in run.folder.read().blocks} == {0}
    engine = run.session(ToyEngine(), ["speed"])
    assert {call.rotation for call in engine.timed()} == {1, 2}
    assert len(run.folder.read().blocks) == 3 * 2 * 3
    assert not run.folder.read().torn


# --- when to stop -----------------------------------------------------------------------------------------------------


def rotations_of(run: Bench) -> int:
    return len([line for line in run.folder.read().rotations if line.purpose == "speed"])


@pytest.mark.parametrize(
    ("sigma", "half_width", "expected"),
    [(0.0, 0.05, 2), (0.2, 0.001, 9), (0.2, 10.0, 2)],
    ids=["no noise", "never narrow", "wide enough"],
)
def test_repeats_go_on_until_the_interval_is_narrow(
    bench: MakeBench, sigma: float, half_width: float, expected: int
) -> None:
    run = bench(matrix=rows(["perfect"]), rotations=2, max_rotations=9, half_width=half_width)
    run.session(ToyEngine(sigma=sigma), ["speed"])
    assert rotations_of(run) == expected


def test_repeats_stop_as_soon_as_every_arm_is_narrow(bench: MakeBench) -> None:
    """One rotation earlier some arm's interval was still too wide; now none is."""
    run = bench(matrix=rows(["perfect", "partly"]), rotations=2, max_rotations=30, half_width=0.04)
    run.session(ToyEngine(sigma=0.05, seed=3), ["speed"])
    count = rotations_of(run)
    assert 2 < count < 30
    blocks, unit = run.folder.read().blocks, UnitKey(0, "toy", "short", 2)

    def widest(rotations: int) -> float:
        known = [block for block in blocks if block.rotation < rotations]
        ratios = [paired_ratio(speed_pairs(known, unit, arm, "no_sd")) for arm in ("perfect", "partly")]
        return max(ratio.half_width for ratio in ratios if ratio is not None)

    assert widest(count) <= 0.04 < widest(count - 1)


@pytest.mark.parametrize(("rotations_paid", "expected"), [(0.1, 2), (2.9, 2), (5.5, 5), (100, 9)])
def test_repeats_stop_when_the_next_rotation_would_pass_the_budget(
    bench: MakeBench, rotations_paid: float, expected: int
) -> None:
    """And never before `rotations`, whatever the budget is."""
    cost_s = 3 * 2 * 48 * 0.01
    run = bench(
        matrix=rows(["perfect"]), rotations=2, max_rotations=9, half_width=-1.0, budget_s=rotations_paid * cost_s
    )
    run.session(ToyEngine(), ["speed"])
    assert rotations_of(run) == expected


def test_what_claims_to_be_faster_is_repeated_first(bench: MakeBench) -> None:
    """The budget that the plain row would share is the claiming row's alone, until it is narrow or there is no more."""
    plain, claiming = rows(["perfect"], sizes=[2]), rows(["perfect"], sizes=[3])
    claiming = [msgspec.structs.replace(row, claims_speedup=True) for row in claiming]
    run = bench(matrix=plain + claiming, rotations=2, max_rotations=9, half_width=-1.0, budget_s=25.0)
    run.session(ToyEngine(), ["speed"])
    rotations = run.folder.read().rotations
    counts = {size: sum(line.unit.batch_size == size for line in rotations) for size in (2, 3)}
    assert counts[2] == 2
    assert counts[3] > 3


def test_a_failed_arm_does_not_keep_the_repeats_going(bench: MakeBench) -> None:
    """Its interval will never be narrow: the others decide."""
    run = bench(matrix=rows(["perfect", "partly"]), rotations=2, max_rotations=9)
    run.session(ToyEngine(crashes=(Where(arm="partly"),)), ["speed"])
    assert rotations_of(run) == 2


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_crash_costs_its_own_cell_only(bench: MakeBench) -> None:
    """Every other cell has all of its rotations; the arm is started again for its other units."""
    run = bench()
    crash = Where(arm="perfect", workload="short", batch_size=3, rotation=1, pass_index=1)
    engine = run.session(ToyEngine(crashes=(crash,)))
    assert engine.started.count("perfect") == 2
    assert engine.live == set()
    data = run.folder.read()
    assert [(f.arm, f.workload, f.batch_size, f.purpose, f.kind) for f in data.failures] == [
        ("perfect", "short", 3, "speed", "crash")
    ]
    assert "SIGKILL" in data.failures[0].message
    assert data.failures[0].log_tail == "the toy's last words"
    blocks = Counter((b.arm, b.workload, b.batch_size) for b in data.blocks if b.purpose == "speed")
    assert blocks.pop(("perfect", "short", 3)) == 2, "rotation 0 stays, rotation 1 was not finished"
    assert set(blocks.values()) == {6}
    assert len(blocks) == 4 * 4 - 1
    assert data.header.finished


def test_a_failed_cell_is_not_run_again_in_the_same_run(bench: MakeBench) -> None:
    """Not by the same session, not by the next one: never again until it happens to be green."""
    run = bench()
    crash = Where(arm="perfect", workload="short", batch_size=3, rotation=0)
    with pytest.raises(KeyboardInterrupt):
        run.session(ToyEngine(crashes=(crash,), interrupts=(Where(rotation=2),)))
    second = run.session(ToyEngine())
    assert ("perfect", "short", 3) not in {
        (call.arm, *unit_of(call)) for call in second.calls if call.purpose != "trace"
    }
    cells = {cell.cell.id: cell for cell in analyse(run.folder, run.catalog.thresholds).cells}
    assert cells["toy-perfect-short-b3"].throughput.verdict == "FAILED"
    assert cells["toy-perfect-short-b1"].pairs == 3


def test_the_warm_up_leaves_failed_cells_out(bench: MakeBench) -> None:
    """A batch that kills its engine would kill it again at each session's start."""
    run = bench(matrix=rows(["perfect", "partly"], sizes=(1, 3)))
    crash = Where(arm="perfect", batch_size=3, purpose=None)
    with pytest.raises(KeyboardInterrupt):
        run.session(ToyEngine(crashes=(crash,), interrupts=(Where(rotation=1),)), ["speed"])
    second = run.session(ToyEngine(crashes=(crash,)), ["speed"])
    assert [call for call in second.calls if call.arm == "perfect" and call.batch_size == 3] == []
    assert len(run.folder.read().failures) == 1


@pytest.mark.parametrize("kind", ["method", "vllm_missing", "timeout"])
def test_an_arm_that_cannot_start_fails_its_own_cells_only(bench: MakeBench, kind: str) -> None:
    run = bench()
    engine = run.session(ToyEngine(refuses={"partly": EngineError(kind, f"no start: {kind}", "its log")}))
    assert engine.live == set()
    data = run.folder.read()
    assert [(f.arm, f.workload, f.kind, f.log_tail) for f in data.failures] == [("partly", None, kind, "its log")]
    assert engine.started.count("partly") == 1
    for cell in analyse(run.folder, run.catalog.thresholds).cells:
        broken = cell.cell.variant == "partly"
        assert (cell.throughput.verdict == "FAILED") == broken
        assert (cell.determinism.verdict == "FAILED") == broken
        assert broken == ("no start" in cell.throughput.reason)


def test_without_no_sd_all_cells_fail(bench: MakeBench) -> None:
    """There is nothing to compare with: every cell names the arm that is missing."""
    run = bench()
    run.session(ToyEngine(refuses={"no_sd": EngineError("timeout", "no_sd did not answer")}))
    cells = analyse(run.folder, run.catalog.thresholds).cells
    assert len(cells) == 12
    assert {cell.throughput.verdict for cell in cells} == {"FAILED"}
    assert all("'no_sd' (timeout): no_sd did not answer" in cell.throughput.reason for cell in cells)


def test_without_a_no_sd_of_its_own_setting_a_cell_fails(bench: MakeBench) -> None:
    """The no-SD arm with the settings that a variant forces is its no-SD too, under another name."""
    run = bench()
    forced = msgspec.structs.replace(
        run.catalog.variants["perfect"],
        forces=msgspec.convert({"async_scheduling": False}, type(run.catalog.variants["perfect"].forces)),
    )
    catalog = msgspec.structs.replace(run.catalog, variants={**run.catalog.variants, "perfect": forced})
    run = Bench(run.folder.path.with_name("forced"), catalog)
    baseline = "no_sd[async=off]"
    assert baseline in {arm.key for group in run.plan.groups for arm in group.arms}
    run.session(ToyEngine(refuses={baseline: EngineError("timeout", "gone")}))
    cells = [c for c in analyse(run.folder, catalog.thresholds).cells if c.cell.variant == "perfect"]
    assert {(c.throughput.verdict, c.determinism.verdict) for c in cells} == {("FAILED", "FAILED")}


def test_nothing_is_run_where_no_arm_can_start(bench: MakeBench) -> None:
    run = bench()
    engine = run.session(ToyEngine(refuses={arm: EngineError("vllm_missing", "no vLLM") for arm in ARMS}))
    assert engine.calls == []
    assert sorted(f.arm for f in run.folder.read().failures) == sorted(ARMS)


@pytest.mark.parametrize("arm", ARMS)
def test_an_interruption_during_the_start_closes_what_was_started(bench: MakeBench, arm: str) -> None:
    engine = ToyEngine(refuses={arm: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        bench().session(engine)
    assert engine.live == set()


def test_stages_that_cannot_be_clocked_cost_nothing_else(bench: MakeBench) -> None:
    """The arm lives on, its speed is measured, the reason is recorded once a cell."""
    run = bench()
    engine = run.session(ToyEngine(no_stages={"partly": "the V2 runner has no named scopes"}))
    assert engine.started.count("partly") == 1
    data = run.folder.read()
    assert [(f.arm, f.kind, f.purpose) for f in data.failures] == [("partly", "unavailable", "stages")] * 4
    assert "the V2 runner has no named scopes" in data.failures[0].message
    for cell in analyse(run.folder, run.catalog.thresholds).cells:
        assert (cell.stages is None) == (cell.cell.variant == "partly")
        assert cell.throughput.verdict != "FAILED"


def test_a_tokenizer_that_fails_leaves_a_partial_run(bench: MakeBench) -> None:
    run = bench()
    engine = run.session(ToyEngine(tokenize_error=EngineError("timeout", "no answer to 'tokenize'")))
    assert engine.live == set()
    header = run.folder.header()
    assert not header.finished
    assert "no answer to 'tokenize'" in header.partial


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_prompts_over_the_limit_are_left_out_and_counted(bench: MakeBench) -> None:
    run = bench()
    engine = run.session(ToyEngine(), ["speed"])
    lines = {line.workload: line for line in run.folder.read().workloads}
    assert (lines["short"].num_prompts, lines["short"].left_out) == (6, 0)
    assert (lines["long"].num_prompts, lines["long"].left_out) == (4, 1)
    used = {prompt for call in engine.calls if call.workload == "long" for prompt in call.prompts}
    assert used == {tuple(tokens_of(text)) for text in PROMPTS["long"][:4]}
    notes = analyse(run.folder, run.catalog.thresholds).notes
    assert notes == ["long: 1 prompts are longer than the study's limit and were left out"]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        (
            {"max_prompt_tokens": 2},
            {},
            r"workload 'short' has no prompt left: all 6 .* max_prompt_tokens = 2; raise it",
        ),
        ({"output_tokens": 250}, {}, r"workload 'short', prompt 'short-0': prompt \+ output tokens must be at most"),
        ({}, {"second_bos": True}, r"workload 'short', prompt 'short-0' begins with two BOS tokens \(1\)"),
    ],
    ids=["none left", "over the context", "two BOS"],
)
def test_prompts_that_cannot_be_run_are_one_clear_error(
    bench: MakeBench, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    """Before anything is timed, and with every arm closed."""
    engine = ToyEngine(**options)
    with pytest.raises(DraftproofError, match=message):
        bench(**changes).session(engine)
    assert engine.calls == []
    assert engine.live == set()


def test_the_context_error_says_what_to_do(bench: MakeBench) -> None:
    with pytest.raises(DraftproofError, match=r"got 259.*the prompt has 9; set max_prompt_tokens .* max_model_len"):
        bench(output_tokens=250).session(ToyEngine())


# --- scores -----------------------------------------------------------------------------------------------------------


def test_each_first_difference_is_scored_once(bench: MakeBench) -> None:
    """By no-SD and by the referee, with the prompt and what both arms agree on as prefix."""
    run = bench(matrix=rows(["perfect", "partly"]))
    flip = Flip(arm="perfect", rotation=1, request=1, position=9)
    engine = run.session(ToyEngine(flips=(flip,)))
    score, second = run.folder.read().scores
    assert (score.by, second.by) == ("engine", "referee")
    for line in (score, second):
        assert (line.arm, line.rotation, line.request, line.position) == ("perfect", 1, 1, 9)
    (request,) = engine.scored
    assert engine.refereed == [request]
    (prompts,) = {call.prompts for call in engine.timed() if call.rotation == 1}
    assert request.prefix[: len(prompts[1])] == list(prompts[1])
    assert len(request.prefix) == len(prompts[1]) + 9
    assert score.tokens == request.pair
    assert score.texts == tuple(f"<{token}>" for token in score.tokens)


def test_going_on_does_not_score_again(bench: MakeBench) -> None:
    """The first group is scored, the second interrupted: the next session scores the second only."""
    run = bench()
    hardware = msgspec.structs.replace(run.catalog.hardware["toy"], max_live_arms=2)
    run = bench("small", hardware=hardware, matrix=rows(["perfect", "partly"]), aa=False)
    flips = (Flip(arm="perfect", rotation=1), Flip(arm="partly", rotation=0))
    with pytest.raises(KeyboardInterrupt):
        run.session(ToyEngine(flips=flips, interrupts=(Where(arm="partly", rotation=2),)))
    assert [score.arm for score in run.folder.read().scores] == ["perfect"] * 2
    second = run.session(ToyEngine(flips=flips))
    assert [request.arm for request in second.scored] == ["partly"]
    assert [score.arm for score in run.folder.read().scores] == ["perfect"] * 2 + ["partly"] * 2


def test_scores_that_are_asked_for_later_are_made(bench: MakeBench) -> None:
    """A run finished for `speed` alone is not finished for `trace`."""
    run = bench(matrix=rows(["perfect"]))
    flips = (Flip(arm="perfect", rotation=1),)
    run.session(ToyEngine(flips=flips), ["speed"])
    run.session(ToyEngine(flips=flips), ["speed", "trace"])
    assert [score.arm for score in run.folder.read().scores] == ["perfect"] * 2


def test_equal_outputs_are_not_scored(bench: MakeBench) -> None:
    """No width of a tie is measured and no referee is loaded, since nothing needs them."""
    engine = bench().session(ToyEngine())
    assert engine.scored == engine.refereed == []
    assert engine.measured == []
    assert "referee" not in engine.started


def test_the_width_of_a_tie_is_measured_over_the_positions_at_risk(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By no-SD alone, in its largest batch, on at least as many positions as the largest cell had at risk; once."""
    monkeypatch.setattr(referee, "MIN_NOISE_POSITIONS", 1)
    run = bench(matrix=rows(["perfect"], sizes=(1, 3)))
    flips = (Flip(arm="perfect", rotation=1, batch_size=3),)
    engine = run.session(ToyEngine(flips=flips, noise_nats=0.125))
    lines = run.folder.read().noise
    assert {(line.arm, line.batch_size, line.width_nats) for line in lines} == {("no_sd", 3, 0.125)}
    assert sum(line.positions for line in lines) >= 3 * 3 * 24 > sum(line.positions for line in lines[:-1])
    sets = {call.rotation: call.prompts for call in engine.timed() if call.batch_size == 3}
    assert [tuple(map(tuple, request.prompts)) for request in engine.measured] == [sets[0], sets[1], sets[2]]
    assert run.session(ToyEngine(flips=flips)).measured == []


def test_a_short_study_measures_the_width_of_a_tie_on_enough_positions(bench: MakeBench) -> None:
    """The largest of few is too small a limit, and would call a tie a divergence."""
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(flips=(Flip(arm="perfect", rotation=1),), noise_nats=0.125))
    assert sum(line.positions for line in run.folder.read().noise) >= referee.MIN_NOISE_POSITIONS


def test_a_crash_while_scoring_keeps_the_speed(bench: MakeBench) -> None:
    run = bench(matrix=rows(["perfect"]))
    error = EngineError("crash", "arm 'no_sd' ended during 'score'")
    run.session(ToyEngine(flips=(Flip(arm="perfect"),), score_error=error))
    (cell,) = analyse(run.folder, run.catalog.thresholds).cells
    assert cell.throughput.verdict != "FAILED"
    assert [(f.arm, f.purpose) for f in cell.failures] == [("no_sd", "trace")]


def test_a_run_does_not_go_on_with_another_engine(bench: MakeBench) -> None:
    """Half of a figure from one vLLM and half from another means nothing: what changed is named, nothing is mixed."""
    run = bench(matrix=rows(["perfect"]))
    with pytest.raises(KeyboardInterrupt):
        run.session(ToyEngine(interrupts=(Where(rotation=1),)), ["speed"])
    before = run.folder.read()
    with pytest.raises(DraftproofError, match=r"arm 'perfect' is not what it was.*async_scheduling.*--sd-fresh"):
        run.session(ToyEngine(resolved={"perfect": {"async_scheduling": True}}), ["speed"])
    assert run.folder.read().blocks == before.blocks
    run.session(ToyEngine(), ["speed"])
    assert run.folder.header().finished


def test_a_run_does_not_go_on_with_other_prompts(bench: MakeBench) -> None:
    """The prompts' file has changed since: the run keeps what it has and says so."""
    run = bench(matrix=rows(["perfect"]))
    with pytest.raises(KeyboardInterrupt):
        run.session(ToyEngine(interrupts=(Where(rotation=1),)), ["speed"])
    workload = run.catalog.workloads[run.plan.cells[0].workload]
    path = run.catalog.workload_path(workload)
    text = path.read_text()
    path.write_text(text + '{"text": "one more prompt"}\n')
    before = run.folder.read()
    try:
        with pytest.raises(DraftproofError, match=r"is not what it was when this run began \(revision sha256:"):
            run.session(ToyEngine(), ["speed"])
    finally:
        path.write_text(text)  # the catalog is shared with other tests
    assert run.folder.read().blocks == before.blocks
