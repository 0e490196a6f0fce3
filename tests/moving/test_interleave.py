"""How arms take turns: all alive, one at a time rotation by rotation, or one at a time for the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftproof import tables
from draftproof.analysis.pairs import speed_pairs
from draftproof.analysis.stats import paired_ratio
from draftproof.catalog import Catalog
from draftproof.engines import BlockRequest, open_engine
from draftproof.errors import EngineError
from draftproof.records import BlockLine, UnitKey
from draftproof.results import analyse
from draftproof.rotations import Step, turns
from draftproof.spec import Interleave, Sampling
from tests.toy import Bench, Call, Flip, ToyEngine, Where, generate, rows, with_study

MakeBench = Callable[..., Bench]
MODES: tuple[Interleave, ...] = get_args(Interleave)
ALONE: tuple[Interleave, ...] = ("restart", "block")
ARMS = ["no_sd", "no_sd.aa", "perfect", "partly"]
TWO_WORKLOADS = {"matrix": rows(["perfect", "partly"], ("short", "long")), "rotations": 2, "max_rotations": 2}


def place_of(call: Call) -> tuple[int, str, int, str]:
    return call.pass_index, call.arm, call.rotation, call.workload


def told(run: Bench) -> dict[str, Any]:
    """What a run says of each cell, but for the sessions that recorded it."""
    cells = analyse(run.folder, run.catalog.thresholds).cells
    return {cell.cell.id: (cell.pairs, cell.speedup, cell.acceptance, cell.sameness, cell.stages) for cell in cells}


def plain(blocks: Iterable[BlockLine]) -> list[BlockLine]:
    """Blocks in an order that no mode decides."""
    return sorted(blocks, key=lambda block: (block.purpose, block.unit, block.rotation, block.pass_index, block.order))


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_turn_is_one_step_a_rotation_or_everything(bench: MakeBench) -> None:
    units = bench(**TWO_WORKLOADS).plan.groups[0].units
    steps = [Step(rotation, unit) for rotation in range(3) for unit in units]
    assert turns(steps, "live") == [[step] for step in steps]
    assert turns(steps, "restart") == [steps[:2], steps[2:4], steps[4:]]
    assert turns(steps, "block") == [steps]
    assert [turns([], mode) for mode in MODES] == [[], [], []]


@pytest.mark.parametrize("mode", MODES)
def test_every_arm_runs_the_turn_and_then_all_of_it_backwards(bench: MakeBench, mode: Interleave) -> None:
    """Backwards in arms and in steps: what a steady drift adds to an arm's two passes is then the same for all."""
    engine = bench(interleave=mode, **TWO_WORKLOADS).session(ToyEngine(), ["speed"])
    steps = [(rotation, workload) for rotation in range(2) for workload in ("short", "long")]
    each = {"live": [[step] for step in steps], "restart": [steps[:2], steps[2:]], "block": [steps]}[mode]
    expected = []
    for turn in each:
        forwards = [(0, arm, *step) for arm in ARMS for step in turn]
        expected += forwards + [(1, *place[1:]) for place in reversed(forwards)]
    assert [place_of(call) for call in engine.timed()] == expected


def test_restart_loads_an_arm_twice_a_rotation_but_for_the_ones_at_the_turns(bench: MakeBench) -> None:
    """The last arm forwards is the first backwards, and the last backwards is the first of the next rotation."""
    engine = bench(interleave="restart", **TWO_WORKLOADS).session(ToyEngine(), ["speed"])
    there_and_back = ["no_sd.aa", "perfect", "partly", "perfect", "no_sd.aa", "no_sd"]
    assert engine.started == ["no_sd", *there_and_back, *there_and_back]


@pytest.mark.parametrize("rotations", [2, 5])
def test_block_loads_an_arm_twice_a_run(bench: MakeBench, rotations: int) -> None:
    run = bench(interleave="block", **TWO_WORKLOADS | {"rotations": rotations, "max_rotations": rotations})
    engine = run.session(ToyEngine(), ["speed"])
    assert engine.started == [*ARMS, *reversed(ARMS[:-1])]


@pytest.mark.parametrize("mode", ALONE)
def test_stages_load_each_arm_once_more(bench: MakeBench, mode: Interleave) -> None:
    """They are in no pairs; the twin has none, and no-SD is there already."""
    run = bench(interleave=mode, **TWO_WORKLOADS)
    run.session(ToyEngine(), ["speed"])
    engine = run.session(ToyEngine(), ["speed", "stages"])
    assert engine.started == ["no_sd", "perfect", "partly"]
    assert len(engine.timed("stages")) == 3 * 2 * run.study.stage_blocks


@pytest.mark.parametrize("mode", ALONE)
@pytest.mark.parametrize("two_builds", [False, True])
def test_never_are_two_engines_alive(bench: MakeBench, mode: Interleave, two_builds: bool) -> None:
    """Prompts, warm-up, speed, stages, noise floor, scores and referee; room for two would be no reason either."""
    hardware = msgspec.structs.replace(bench().catalog.hardware["toy"], max_live_arms=2)
    run = bench("alone", two_builds=two_builds, interleave=mode, hardware=hardware, floor_rotations=1)
    assert len(run.plan.groups) == 1, "the memory does not bound a group"
    engine = run.session(ToyEngine(flips=(Flip(arm="perfect", workload="long", batch_size=3, rotation=1),)))
    assert engine.most_live == 1
    assert engine.live == set()
    assert engine.started[-1] == "referee"
    lines = run.folder.read().rotations
    assert {line.purpose for line in lines} == {"speed", "stages", "trace"}
    assert {line.interleave for line in lines} == {mode}
    assert run.folder.header().finished


def test_live_arms_are_loaded_once(bench: MakeBench) -> None:
    run = bench(interleave="live", **TWO_WORKLOADS)
    engine = run.session(ToyEngine())
    assert sorted(engine.started) == sorted(ARMS)
    assert {line.interleave for line in run.folder.read().rotations} == {"live"}


@pytest.mark.parametrize("mode", MODES)
def test_every_shape_is_run_after_each_load_before_anything_is_timed(bench: MakeBench, mode: Interleave) -> None:
    """A loaded engine is cold, the tenth time as the first."""
    engine = ToyEngine()
    since: dict[tuple[str, int], list[Call]] = {}

    def watch(call: Call) -> None:
        since.setdefault((call.arm, engine.started.count(call.arm)), []).append(call)

    engine.watch = watch
    bench(interleave=mode).session(engine, ["speed", "stages"])
    assert sorted(since) == sorted((arm, n + 1) for arm in ARMS for n in range(engine.started.count(arm)))
    for calls in since.values():
        assert [(call.purpose, call.batch_size) for call in calls[:2]] == [("trace", 1), ("trace", 3)]
        assert all(call.purpose != "trace" for call in calls[2:])


# --- the same records -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALONE)
def test_the_records_are_those_of_live_arms(bench: MakeBench, mode: Interleave) -> None:
    """Whoever reads a run need not know how its arms took turns."""
    found = {}
    for name in ("live", mode):
        run = bench(name, interleave=name, floor_rotations=1)
        run.session(ToyEngine(sigma=0.05, speeds={"perfect": 1.5}, flips=(Flip(arm="partly", rotation=1),)))
        data = run.folder.read()
        found[name] = (
            plain(data.blocks),
            tables.read_outputs(run.folder.path, {line.part for line in data.rotations}),
            {line.part: msgspec.structs.replace(line, interleave="live") for line in data.rotations},
            data.scores,
            told(run),
        )
    assert found[mode] == found["live"]


@pytest.mark.parametrize("mode", ALONE)
def test_a_run_of_arms_one_at_a_time_is_replayed(bench: MakeBench, mode: Interleave) -> None:
    run = bench(interleave=mode, **TWO_WORKLOADS)
    run.session(ToyEngine(sigma=0.05))
    again = bench("again", interleave=mode, **TWO_WORKLOADS)
    replay: Any = open_engine("replay", path=run.folder.path)
    again.session(replay)
    assert plain(again.folder.read().blocks) == plain(run.folder.read().blocks)
    assert told(again) == told(run)


@pytest.mark.parametrize("mode", MODES)
def test_a_control_is_fed_with_no_sds_outputs_of_the_same_prompts(bench: MakeBench, mode: Interleave) -> None:
    """Of its own rotation and workload, in both passes, though no-SD has ended long before."""
    run = bench(interleave=mode, matrix=rows(["wise"], ("short", "long")), rotations=2, max_rotations=2)
    engine = run.session(ToyEngine(), ["speed", "stages"])
    calls = [call for call in engine.calls if call.arm == "wise"]
    assert {call.purpose for call in calls} == {"speed", "stages", "trace"}
    for call in calls:
        assert call.references == tuple(tuple(generate(ids, call.output_tokens)) for ids in call.prompts)
    assert all(call.references == () for call in engine.calls if call.arm != "wise")


# --- when to stop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "expected"), [("live", 9), ("restart", 9), ("block", 2)])
def test_repeats_are_not_for_block(bench: MakeBench, mode: Interleave, expected: int) -> None:
    """When its one turn is over nothing is loaded any more: it runs the least number of rotations."""
    run = bench(
        interleave=mode, matrix=rows(["perfect"]), rotations=2, max_rotations=9, half_width=-1.0, budget_s=1000.0
    )
    run.session(ToyEngine(), ["speed"])
    assert len(run.folder.read().rotations) == expected


def test_restart_repeats_only_what_is_too_wide(bench: MakeBench) -> None:
    """The blocks of batch size 3 are wide by plan; those of 1 are all equal, and are left alone."""
    slow = tuple(Where(batch_size=3, rotation=rotation, arm="perfect") for rotation in (0, 2, 4))
    changes = {"matrix": rows(["perfect"], sizes=(1, 3)), "rotations": 2, "max_rotations": 5, "half_width": 0.01}
    run = bench(interleave="restart", **changes)
    engine = run.session(ToyEngine(slow=slow), ["speed"])
    counts = Counter(line.batch_size for line in run.folder.read().rotations)
    assert counts == {1: 2, 3: 5}
    assert engine.most_live == 1


@pytest.mark.parametrize("budget_s", [0.0, 12.0, 13.0, 15.0, 20.0])
def test_a_turn_of_repeats_stays_within_the_budget(bench: MakeBench, budget_s: float) -> None:
    """The steps of one turn are paid together; the planned rotations are run whatever they cost."""
    changes = {"matrix": rows(["perfect"], sizes=(1, 3)), "rotations": 2, "max_rotations": 9, "half_width": -1.0}
    run = bench(interleave="restart", budget_s=budget_s, **changes)
    run.session(ToyEngine(), ["speed"])
    blocks = run.folder.read().blocks
    planned_s = sum(block.seconds for block in blocks if block.rotation < 2)
    spent_s = sum(block.seconds for block in blocks)
    assert spent_s <= max(planned_s, budget_s) + 1e-9
    cheapest_s = sum(block.seconds for block in blocks if block.rotation == 0 and block.batch_size == 1)
    assert spent_s + cheapest_s > budget_s, "it goes on as long as there is budget"


# --- failures and kills -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_costs_its_own_cell_only(bench: MakeBench, mode: Interleave) -> None:
    """The arm is loaded again for its other cells; the rotation of this one that both passes had finished stays."""
    run = bench(interleave=mode)
    crash = Where(arm="perfect", workload="short", batch_size=3, rotation=1, pass_index=1)
    engine = run.session(ToyEngine(crashes=(crash,)))
    data = run.folder.read()
    assert [(f.arm, f.workload, f.batch_size, f.purpose, f.kind) for f in data.failures] == [
        ("perfect", "short", 3, "speed", "crash")
    ]
    assert engine.live == set()
    blocks = Counter((b.arm, b.workload, b.batch_size) for b in data.blocks if b.purpose == "speed")
    assert blocks.pop(("perfect", "short", 3)) == 2
    assert set(blocks.values()) == {6}
    assert len(blocks) == 4 * 4 - 1
    assert data.header.finished


@pytest.mark.parametrize("mode", ALONE)
def test_an_arm_that_cannot_start_fails_its_own_cells_only(bench: MakeBench, mode: Interleave) -> None:
    """It is tried once, and told once, as with live arms."""
    run = bench(interleave=mode)
    engine = run.session(ToyEngine(refuses={"partly": EngineError("timeout", "no start")}))
    data = run.folder.read()
    assert [(f.arm, f.workload, f.kind) for f in data.failures] == [("partly", None, "timeout")]
    assert engine.started.count("partly") == 1
    for cell in analyse(run.folder, run.catalog.thresholds).cells:
        assert (cell.throughput.verdict == "FAILED") == (cell.cell.variant == "partly")


@pytest.mark.parametrize("mode", ALONE)
def test_the_first_arm_that_starts_reads_the_prompts(bench: MakeBench, mode: Interleave) -> None:
    run = bench(interleave=mode)
    engine = run.session(ToyEngine(refuses={"no_sd": EngineError("timeout", "gone"), "no_sd.aa": EngineError("x", "")}))
    assert engine.started[:3] == ["no_sd", "no_sd.aa", "perfect"]
    assert Counter(failure.arm for failure in run.folder.read().failures) == {"no_sd": 1, "no_sd.aa": 1}
    assert {block.arm for block in run.folder.read().blocks} == {"perfect", "partly"}


@pytest.mark.parametrize("mode", ALONE)
def test_nothing_is_run_where_no_arm_can_start(bench: MakeBench, mode: Interleave) -> None:
    run = bench(interleave=mode)
    engine = run.session(ToyEngine(refuses={arm: EngineError("vllm_missing", "no vLLM") for arm in ARMS}))
    assert engine.calls == []
    assert sorted(f.arm for f in run.folder.read().failures) == sorted(ARMS)
    assert run.folder.header().finished


INTERRUPTS = [
    Where(rotation=0, purpose="trace"),
    Where(arm="perfect", workload="long", batch_size=1, rotation=1, pass_index=0),
    Where(arm="no_sd", workload="short", batch_size=1, rotation=1, pass_index=1),
    Where(purpose="stages", arm="partly", workload="short", batch_size=3, rotation=1),
]


@pytest.mark.parametrize("mode", ALONE)
@pytest.mark.parametrize("where", INTERRUPTS, ids=str)
def test_a_kill_loses_the_unfinished_turn_only(bench: MakeBench, mode: Interleave, where: Where) -> None:
    """What is recorded is whole turns and is not run again, and the figures are those of one session."""
    run, whole = bench(interleave=mode), bench("whole", interleave=mode)
    whole.session(ToyEngine(sigma=0.05))
    first = ToyEngine(sigma=0.05, interrupts=(where,))
    with pytest.raises(KeyboardInterrupt):
        run.session(first)
    assert first.live == set()
    done = {(r.purpose, r.rotation, r.workload, r.batch_size) for r in run.folder.read().rotations}
    rotations = 3 if where.purpose == "stages" else where.rotation if mode == "restart" else 0
    assert rotations is not None
    assert done == {("speed", r, w, b) for r in range(rotations) for w in ("short", "long") for b in (1, 3)}
    second = run.session(ToyEngine(sigma=0.05))
    again = {(c.purpose, c.rotation, c.workload, c.batch_size) for c in second.calls if c.purpose != "trace"}
    assert not done & again
    assert len(done) + len(again) == 4 * 3 + 4 * 2
    assert told(run) == told(whole)
    assert run.folder.header().finished


# --- drift ------------------------------------------------------------------------------------------------------------


def speedup(blocks: Iterable[BlockLine], workload: str) -> float:
    ratio = paired_ratio(speed_pairs(blocks, UnitKey(0, "toy", workload, 2), "perfect", "no_sd"))
    assert ratio is not None
    return ratio.value


def one_after_the_other(blocks: list[BlockLine], run: ToyEngine) -> list[BlockLine]:
    """The same blocks on a new clock with the same drift: all of no-SD's, then all of the variant's."""
    clock = ToyEngine(speeds=run.speeds, drift=run.drift)
    timed = []
    for block in sorted(blocks, key=lambda block: block.arm):  # no_sd < perfect
        request = BlockRequest(
            unit=block.unit,
            rotation=block.rotation,
            pass_index=block.pass_index,
            purpose=block.purpose,
            prompts=[],
            sampling=Sampling(),
            output_tokens=0,
            ignore_eos=True,
        )
        timed.append(msgspec.structs.replace(block, seconds=clock.seconds(block.arm, request, block.output_tokens)))
    return timed


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drift=st.floats(0.008, 0.02), slows_down=st.booleans(), faster=st.sampled_from([0.7, 1.0, 1.8]))
def test_a_steady_drift_cancels_in_the_pairs(
    catalog: Catalog,
    tmp_path_factory: pytest.TempPathFactory,
    mode: Interleave,
    drift: float,
    slows_down: bool,
    faster: float,
) -> None:
    """A machine that gets slower (or faster) all the time is no speedup; with one arm after the other it is one."""
    changes = {"matrix": rows(["perfect"], ("short", "long")), "rotations": 3, "aa": False, "interleave": mode}
    run = Bench(Path(tmp_path_factory.mktemp("drift")) / "run", with_study(catalog, **changes))
    engine = run.session(ToyEngine(speeds={"perfect": faster}, drift=drift if slows_down else -drift), ["speed"])
    blocks = run.folder.read().blocks
    for workload in ("short", "long"):
        paired = speedup(blocks, workload) / faster
        fooled = speedup(one_after_the_other(blocks, engine), workload) / faster
        message = (
            f"{mode}, drift {engine.drift:.3f}/s: paired {paired:.4f}, one after the other {fooled:.4f} of {faster}"
        )
        assert paired == pytest.approx(1.0, abs=0.01), message
        assert abs(fooled - 1.0) > 5 * abs(paired - 1.0), message
        assert abs(fooled - 1.0) > 0.03, message
        assert (fooled < 1.0) == slows_down, message
