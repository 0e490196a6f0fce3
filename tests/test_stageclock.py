"""Rules of the stage clock, on fake engines: nothing is counted twice or lost, and vLLM is left as it was.

Time moves only when a fake says so. CUDA events are fakes too: a device with a timeline of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.engines import stageclock, stepjoin

PID = 7


class FakeTime:
    """A clock that moves only when told; the device's may lag behind the host's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.device_s = 0.0
        self.synchronised = 0
        self.events_s: list[float] = []
        """When each recorded event happened."""

    def perf_counter(self) -> float:
        return self.now_s

    def host(self, seconds: float) -> None:
        self.now_s += seconds

    def launch(self, host_s: float, device_s: float) -> None:
        """Work for the device: it begins when it is launched and the device is free."""
        self.now_s += host_s
        self.device_s = max(self.device_s, self.now_s) + device_s


class FakeEvent:
    """A CUDA event: it happens when the device comes to it, and may be read after a synchronise only."""

    time: FakeTime

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_s: float = max(self.time.device_s, self.time.now_s)
        self.time.events_s.append(self.at_s)

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.time.synchronised, "an event was read before the device was waited for"
        elapsed_ms: float = 1000 * (end.at_s - self.at_s)
        return elapsed_ms


def scheduled(rows: int = 4, done: int = 5, prompt: int | None = None) -> Any:
    """One request "r" with `rows` tokens after `done`; with `prompt`, it is new and has that many prompt tokens."""
    new = [types.SimpleNamespace(req_id="r", num_computed_tokens=done, prompt_token_ids=[1] * prompt)] if prompt else []
    cached = types.SimpleNamespace(req_ids=[] if prompt else ["r"], num_computed_tokens=[] if prompt else [done])
    return types.SimpleNamespace(
        scheduled_new_reqs=new,
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={"r": rows} if rows else {},
        total_num_scheduled_tokens=rows,
        scheduled_spec_decode_tokens={"r": list(range(rows - 1))} if rows > 1 and not prompt else {},
    )


class Scheduler:
    def __init__(self, time: FakeTime) -> None:
        self._time = time
        self.plan: list[Any] = []

    def schedule(self) -> Any:
        self._time.host(1)
        return self.plan.pop(0) if self.plan else scheduled()

    def update_from_output(self) -> None:
        self._time.host(2)


class Engine:
    """An engine core in this process over any runner."""

    def __init__(self, time: FakeTime, runner: Any) -> None:
        self._time = time
        self.scheduler = Scheduler(time)
        executor = types.SimpleNamespace(
            driver_worker=types.SimpleNamespace(worker=types.SimpleNamespace(model_runner=runner))
        )
        core = types.SimpleNamespace(scheduler=self.scheduler, model_executor=executor)
        self.engine_core = types.SimpleNamespace(engine_core=core, get_output=self._get_output)
        self._runner = runner

    def _get_output(self) -> None:
        self._runner.execute_model(self.scheduler.schedule())
        if hasattr(self._runner, "sample_tokens"):
            self._runner.sample_tokens(None)
        self.scheduler.update_from_output()

    def step(self) -> None:
        self.engine_core.get_output()
        self._time.host(4)


class ScopedRunner:
    """As vLLM's V1 runner: what it does lies in named scopes."""

    def __init__(self, utils: Any) -> None:
        self._utils = utils
        self.work: Callable[[], None] = lambda: None

    def execute_model(self, _: Any) -> None:
        self.work()


class MethodRunner:
    """As vLLM's V2 runner: methods and no scopes. Every method takes seconds that no other one does."""

    class Model:
        def __init__(self, time: FakeTime, device: FakeTime | None) -> None:
            self._time, self._device = time, device

        def __call__(self) -> None:
            self.forward()

        def forward(self) -> None:
            self._time.launch(0.25, 8) if self._device else self._time.host(8)

        def compute_logits(self) -> None:
            self._time.launch(0.25, 1) if self._device else self._time.host(1)

    class Speculator:
        def __init__(self, time: FakeTime, model: Any) -> None:
            self._time, self._model = time, model

        def propose(self) -> None:
            self._time.host(3)
            self._model.compute_logits()  # a drafter that shares the target's head: this is drafting

    def __init__(self, time: FakeTime, device: str = "cpu") -> None:
        self.device = types.SimpleNamespace(type=device)
        self._time = time
        self.late_s = 0.0
        self.model = self.Model(time, time if device == "cuda" else None)
        self.speculator = self.Speculator(time, self.model)

    def execute_model(self, _: Any, dummy_run: bool = False) -> None:
        self._time.host(0.5 + self.late_s)
        self.model()

    def sample(self) -> None:
        self.model.compute_logits()
        self._time.host(2)

    def sample_tokens(self, _: Any) -> None:
        self.sample()
        self._time.host(0.125)
        self.speculator.propose()


@contextlib.contextmanager
def fakes() -> Iterator[tuple[FakeTime, Any]]:
    """(time, the module of vLLM's scopes)."""
    time, utils = FakeTime(), types.ModuleType("vllm.v1.utils")
    utils._PROFILER_FUNC = contextlib.nullcontext  # type: ignore[attr-defined]
    torch = types.ModuleType("torch")

    def synchronize() -> None:
        time.synchronised += 1

    event = type("Event", (FakeEvent,), {"time": time})
    torch.cuda = types.SimpleNamespace(Event=event, synchronize=synchronize)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm.v1.utils", utils)
        patch.setitem(sys.modules, "torch", torch)
        patch.setattr(stageclock, "time", time)
        yield time, utils


@contextlib.contextmanager
def scoped() -> Iterator[tuple[stageclock.StageClock, FakeTime, Engine, ScopedRunner, Any]]:
    """A stage clock on an engine with scopes."""
    with fakes() as (time, utils), pytest.MonkeyPatch.context() as patch:
        # The runner's module is this one: it imports the scopes' factory, and so it has scopes.
        patch.setattr(sys.modules[__name__], stageclock.SCOPE_FACTORY, None, raising=False)
        runner = ScopedRunner(utils)
        engine = Engine(time, runner)
        yield stageclock.StageClock(types.SimpleNamespace(llm_engine=engine)), time, engine, runner, utils


def joined(clock: stageclock.StageClock) -> list[dict[str, Any]]:
    return stepjoin.combine(clock.core_steps, clock.workers, clock.workers[0]["pid"])


PARTS = (*stageclock.WORKER_PARTS, *stageclock.CORE_PARTS)


def claimed_s(step: dict[str, Any]) -> float:
    return float(sum(step[part] for part in (*PARTS, "outside_s")))


# --- scopes -----------------------------------------------------------------------------------------------------------

SCOPES = [*stageclock.SCOPE_PARTS, "somebody else's scope"]
Tree = list[tuple[str, float, float, Any]]
"""(scope, seconds before its children, seconds after them, children)."""
durations = st.integers(0, 8).map(float)
trees: st.SearchStrategy[Tree] = st.recursive(
    st.just([]),
    lambda children: st.lists(st.tuples(st.sampled_from(SCOPES), durations, durations, children), max_size=3),
)


@given(trees)
def test_seconds_of_a_scope_exclude_the_scopes_inside_it(tree: Tree) -> None:
    """A slow sum over the planted tree gives the same seconds. A scope of no part belongs to the one around it, and
    whatever happens inside drafting is drafting."""
    expected = dict.fromkeys(PARTS, 0.0) | {"schedule_s": 1.0, "update_s": 2.0, "output_s": 4.0}
    unclaimed = 0.0

    with scoped() as (clock, time, engine, runner, utils):

        def walk(nodes: Tree, around: str | None) -> None:
            nonlocal unclaimed
            for name, before, after, children in nodes:
                part = around if around == "draft_s" else stageclock.SCOPE_PARTS.get(name, around)
                with utils._PROFILER_FUNC(name):
                    time.host(before)
                    walk(children, part)
                    time.host(after)
                if part is None:
                    unclaimed += before + after
                else:
                    expected[part] += before + after

        runner.work = lambda: walk(tree, None)
        with clock.running():
            engine.step()
        (step,) = joined(clock)
    assert {part: step[part] for part in PARTS} == expected
    assert math.isclose(step["step_s"], sum(expected.values()) + unclaimed)
    assert step["clock"] == "named scopes, host seconds"


def test_each_step_is_described_and_the_engine_left_as_it_was() -> None:
    with scoped() as (clock, _, engine, runner, utils):
        before = {id(owner): dict(vars(owner)) for owner in (engine, engine.scheduler, engine.engine_core, runner)}
        engine.scheduler.plan = [scheduled(5, 0, prompt=5), scheduled(4, 5), scheduled(1, 7)]
        with clock.running():
            for _ in range(3):
                engine.step()
        described = [
            tuple(step[name] for name in ("kind", "requests", "rows", "draft_tokens", "kv_tokens"))
            for step in joined(clock)
        ]
        assert described == [("prefill", 1, 5, 0, 5), ("decode", 1, 4, 3, 9), ("decode", 1, 1, 0, 8)]
        assert utils._PROFILER_FUNC is contextlib.nullcontext
        for owner in (engine, engine.scheduler, engine.engine_core, runner):
            assert {k: v for k, v in vars(owner).items() if k != "plan"} == {
                k: v for k, v in before[id(owner)].items() if k != "plan"
            }
        engine.step()
        assert len(joined(clock)) == 3
        with clock.running():
            pass
        assert joined(clock) == [], "each block begins with no samples"


def test_a_prompt_in_two_parts_beside_a_decoding_request_is_mixed() -> None:
    with scoped() as (clock, _, engine, _, _):
        both = scheduled(3, 5)
        both.scheduled_new_reqs = [types.SimpleNamespace(req_id="n", num_computed_tokens=0, prompt_token_ids=[1] * 9)]
        both.num_scheduled_tokens = {"r": 3, "n": 6}
        both.total_num_scheduled_tokens = 9
        rest = scheduled(3, 8)
        rest.scheduled_cached_reqs = types.SimpleNamespace(req_ids=["n"], num_computed_tokens=[6])
        rest.num_scheduled_tokens, rest.total_num_scheduled_tokens = {"n": 3}, 3
        engine.scheduler.plan = [both, rest]
        with clock.running():
            engine.step()
            engine.step()
        assert [step["kind"] for step in joined(clock)] == ["mixed", "prefill"]


def test_a_step_that_only_waits_is_counted_to_the_one_before_it() -> None:
    """As with async scheduling: the last step of a block schedules nothing. Before the first there is nothing to it."""
    with scoped() as (clock, time, engine, _, _):
        engine.scheduler.plan = [scheduled(0), scheduled(4), scheduled(0)]
        with clock.running():
            for _ in range(3):
                engine.step()
        (step,) = joined(clock)
    assert (step["step_s"], step["schedule_s"], step["update_s"], step["output_s"]) == (14.0, 2.0, 4.0, 8.0)
    assert time.now_s == 21.0


def test_the_engine_is_put_back_after_an_error_too() -> None:
    with scoped() as (clock, _, engine, runner, utils):

        def fail() -> None:
            with utils._PROFILER_FUNC("gpu_model_runner: forward"):
                raise RuntimeError("out of memory")

        runner.work = fail
        with pytest.raises(RuntimeError, match="out of memory"), clock.running():
            engine.step()
        assert utils._PROFILER_FUNC is contextlib.nullcontext
        assert "step" not in vars(engine)
        assert "execute_model" not in vars(runner)
        runner.work = lambda: None
        with clock.running():
            engine.step()
        assert joined(clock)[0]["forward_s"] == 0


def test_another_wrap_of_the_same_method_may_come_off_first() -> None:
    """The tally of drafts wraps a method that the clock may have wrapped, and takes its own off before the clock."""
    owner = types.SimpleNamespace(call=lambda: 1)
    before = owner.call
    wraps = stageclock.Wraps()
    wraps.wrap(owner, "call", lambda method: lambda: method() + 1)
    assert owner.call() == 2
    del owner.call
    wraps.undo()
    assert owner.call is before


# --- wrapped methods --------------------------------------------------------------------------------------------------


def test_a_runner_without_scopes_is_clocked_through_its_methods() -> None:
    """Every second of the fake has one part. The drafter's use of the target's head is drafting."""
    with fakes() as (time, _):
        runner = MethodRunner(time)
        before = {**vars(runner)}, {**vars(runner.model)}
        engine = Engine(time, runner)
        clock = stageclock.StageClock(types.SimpleNamespace(llm_engine=engine))
        assert clock.reason == ""
        with clock.running():
            engine.step()
        (step,) = joined(clock)
        assert ({**vars(runner)}, {**vars(runner.model)}) == before
    assert {part: step[part] for part in PARTS} == {
        "prepare_s": 0.5,
        "forward_s": 8.0,
        "lm_head_s": 1.0,
        "sample_s": 2.0,
        "draft_s": 4.0,
        "bookkeep_s": 0.125,
        "schedule_s": 1.0,
        "update_s": 2.0,
        "output_s": 4.0,
    }
    assert step["step_s"] == claimed_s(step)
    assert step["clock"] == "wrapped methods, host seconds"


def test_dummy_runs_and_empty_batches_are_no_steps() -> None:
    with fakes() as (time, _):
        runner = MethodRunner(time)
        clock = stageclock.WorkerClock(runner)
        clock.start()
        runner.execute_model(scheduled(), dummy_run=True)
        runner.execute_model(scheduled(0))
        assert clock.stop() == []


def test_a_runner_that_cannot_be_clocked_says_why() -> None:
    with fakes():
        reason = stageclock.WorkerClock(types.SimpleNamespace(execute_model=lambda: 0, sample=lambda: 0)).reason
        assert "named scopes" in reason
        assert "forward_s, lm_head_s" in reason
        assert "execute_model" in stageclock.WorkerClock(types.SimpleNamespace()).reason


def test_without_a_scope_factory_scopes_do_not_count() -> None:
    """A runner's scopes are of no use where vLLM looks nothing up at each use."""
    with scoped() as (_, _, engine, runner, utils):
        del utils._PROFILER_FUNC
        found = stageclock.StageClock(types.SimpleNamespace(llm_engine=engine))
        assert "named scopes" in found.reason
        assert stageclock.WorkerClock(runner).has_scopes is False


# --- CUDA events ------------------------------------------------------------------------------------------------------


def test_on_a_gpu_stages_are_device_seconds_read_after_the_block() -> None:
    """Forward 8 s and LM head 1 s on the device, a quarter of a second each to launch; the rest is host work, which
    overlaps the device's. The device waits for nobody inside the block."""
    with fakes() as (time, _):
        runner = MethodRunner(time, "cuda")
        engine = Engine(time, runner)
        clock = stageclock.StageClock(types.SimpleNamespace(llm_engine=engine))
        with clock.running():
            engine.step()
            engine.step()
            assert time.synchronised == 0
        assert time.synchronised == 1
        first, second = joined(clock)
    for step in (first, second):
        assert step["forward_s"] >= 8.0
        assert step["lm_head_s"] == pytest.approx(1.0)
        assert step["device_busy_s"] == pytest.approx(sum(step[part] for part in stageclock.DEVICE_PARTS))
        assert step["clock"] == "wrapped methods, CUDA events"
    assert first["prepare_s"] == 0.5, "host work keeps host seconds"
    assert first["device_idle_s"] > 0, "the device had nothing to do before the first launch"
    # Of the device's time from the first event to the last one no second is lost.
    whole = sum(step["device_busy_s"] + step["device_idle_s"] for step in (first, second))
    assert whole == pytest.approx(time.events_s[-1] - time.events_s[0])


# --- workers that are processes of their own --------------------------------------------------------------------------


class Workers:
    """Workers behind `collective_rpc`, as many as there are runners."""

    def __init__(self, runners: list[Any]) -> None:
        self.workers = []
        for number, runner in enumerate(runners):
            worker = stageclock.WorkerClockExtension()
            worker.model_runner = runner
            self.workers.append((PID + number, worker))
        self.llm_engine = types.SimpleNamespace(engine_core=types.SimpleNamespace())

    def collective_rpc(self, method: str) -> list[Any]:
        answers = []
        for pid, worker in self.workers:
            answer = getattr(worker, method)()
            answers.append({**answer, "pid": pid} if isinstance(answer, dict) else answer)
        return answers


def test_of_several_workers_the_slowest_counts_step_by_step() -> None:
    """Without a core a step lasts until the worker's next one begins; what it was not at work is outside of it."""
    with fakes() as (time, _):
        runners = [MethodRunner(time), MethodRunner(time)]
        workers = Workers(runners)
        clock = stageclock.StageClock(workers)
        assert clock.reason == ""
        with clock.running():
            for slow in (0, 1):
                for number, runner in enumerate(runners):
                    runner.late_s = 3.0 if number == slow else 1.0
                    runner.execute_model(scheduled())
                    runner.sample_tokens(None)
                time.host(32)
        one, two = (worker["steps"] for worker in clock.workers)
        steps = stepjoin.combine(clock.core_steps, clock.workers, pid=1)
    assert clock.core_steps is None
    assert [(step["workers"], step["spread_s"], step["prepare_s"]) for step in steps] == [(2, 2.0, 3.5)] * 2
    assert steps[0]["step_s"] == one[1]["began_s"] - one[0]["began_s"]
    assert steps[0]["outside_s"] == steps[0]["step_s"] - one[0]["own_s"] > 32
    assert steps[1]["step_s"] == two[1]["ended_s"] - two[1]["began_s"]
    assert all(step["step_s"] == claimed_s(step) for step in steps)


def test_workers_that_do_not_answer_are_a_reason() -> None:
    class Silent:
        llm_engine = types.SimpleNamespace(engine_core=types.SimpleNamespace())

        def collective_rpc(self, method: str) -> list[Any]:
            raise AttributeError(method)

    with fakes():
        assert "found AttributeError" in stageclock.StageClock(Silent()).reason


def test_one_worker_that_cannot_be_clocked_is_a_reason() -> None:
    with fakes() as (time, _):
        workers = Workers([MethodRunner(time), types.SimpleNamespace()])
        assert "execute_model" in stageclock.StageClock(workers).reason


def test_pipeline_parallelism_is_a_reason() -> None:
    with fakes() as (time, _):
        workers = Workers([MethodRunner(time)])
        workers.llm_engine.vllm_config = types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(pipeline_parallel_size=2)
        )
        assert "pipeline" in stageclock.StageClock(workers).reason


def test_clocks_that_saw_different_steps_are_not_joined() -> None:
    step = {"own_s": 1.0, "began_s": 0.0, "ended_s": 1.0}
    worker = {"steps": [step], "how": "", "pid": 1}
    core = {"rows": 1, "step_s": 1.0, **dict.fromkeys(stepjoin.CORE_PARTS, 0.0)}
    for core_steps, workers in (([core] * 2, [worker]), (None, [worker, {**worker, "steps": []}])):
        with pytest.raises(ValueError, match=r"saw \[1, [02]\] steps"):
            stepjoin.combine(core_steps, workers, pid=1)
    with pytest.raises(ValueError, match="no worker"):
        stepjoin.combine(None, [], pid=1)


def test_the_extension_is_what_vllm_finds_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process imports the module by name from the folder that the arm puts on its path; none of the class's
    names may be one that vLLM's worker has."""
    monkeypatch.syspath_prepend(str(Path(stageclock.__file__).with_name("importable")))
    monkeypatch.delitem(sys.modules, "draftproof_stageclock", raising=False)
    module_name, _, class_name = stageclock.EXTENSION.partition(".")
    extension = getattr(importlib.import_module(module_name), class_name)
    names = [name for name in dir(extension) if not name.startswith("__")]
    assert names
    assert all(name.startswith("draftproof_") for name in names)
    monkeypatch.delitem(sys.modules, "draftproof_stageclock")
