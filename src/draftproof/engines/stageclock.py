"""Seconds of each stage part, step by step, measured inside vLLM. Part of the worker: no other package.

Two clocks make a step's record. `CoreClock` runs where the engine core is in the arm's process: whole steps, scheduling
and what comes after the model. `WorkerClock` runs beside each model runner: the parts of a step on the model's side. It
is reached directly where the runner is in this process, and through vLLM's ``worker_extension_cls`` and
``collective_rpc`` where workers are processes of their own (`WorkerClockExtension`). ``stepjoin.py`` joins both.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

# Scope names of vLLM's V1 runner -> the stage part that their seconds belong to.
SCOPE_PARTS = {
    "gpu_model_runner: preprocess": "prepare_s",
    "gpu_model_runner: forward": "forward_s",
    "gpu_model_runner: postprocess": "lm_head_s",
    "gpu_model_runner: sample": "sample_s",
    "gpu_model_runner: draft": "draft_s",
    "gpu_model_runner: bookkeep": "bookkeep_s",
}
SCOPE_FACTORY = "record_function_or_nullcontext"
"""What a module that opens scopes imports from ``vllm.v1.utils``."""

# Methods of a runner without scopes -> the part; those that it has are wrapped.
METHOD_PARTS = {
    "_model_forward": "forward_s",
    "model.forward": "forward_s",
    "cudagraph_manager.run_fullgraph": "forward_s",
    "cudagraph_manager.run_pw_graph": "forward_s",
    "ubatch_runner.run": "forward_s",
    "model.compute_logits": "lm_head_s",
    "model.compute_logits_local": "lm_head_s",
    "sample": "sample_s",
    "_sample": "sample_s",
    "speculator.propose": "draft_s",
    "propose_draft_token_ids": "draft_s",
    "_bookkeeping_sync": "bookkeep_s",
}
# A runner's calls of one step -> the part that the rest of each belongs to.
CALL_PARTS = {"execute_model": "prepare_s", "sample_tokens": "bookkeep_s", "take_draft_token_ids": "bookkeep_s"}

WORKER_PARTS = ("prepare_s", "forward_s", "lm_head_s", "sample_s", "draft_s", "bookkeep_s")
CORE_PARTS = ("schedule_s", "update_s", "output_s")
DEVICE_PARTS = ("forward_s", "lm_head_s", "sample_s", "draft_s")
"""Parts that a GPU computes: there their seconds are the device's own, between two events."""

EXTENSION = "draftproof_stageclock.WorkerClockExtension"
"""What the engine argument ``worker_extension_cls`` names."""

Step = dict[str, Any]


class Wraps:
    """Attributes replaced on objects, and put back as they were."""

    def __init__(self) -> None:
        self._put_back: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Hide ``owner.name`` behind ``around(owner.name)``."""
        own = vars(owner)
        before = own.get(name)

        def put_back() -> None:
            # Not `delattr`: whoever wrapped the same attribute later may have taken it off already.
            own.pop(name, None)
            if before is not None:
                own[name] = before

        own[name] = around(getattr(owner, name))
        self._put_back.append(put_back)

    def undo(self) -> None:
        while self._put_back:
            self._put_back.pop()()


class Span:
    """A stretch of the open step that belongs to one part; ``None`` belongs to no part."""

    __slots__ = ("_began_s", "_clock", "_event", "_part")

    def __init__(self, clock: WorkerClock, part: str | None) -> None:
        self._clock = clock
        self._part = part

    def __enter__(self) -> None:
        clock = self._clock
        self._event = clock.event() if self._part in clock.on_device else None
        clock.open.append(self._part)
        self._began_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        elapsed = time.perf_counter() - self._began_s
        clock = self._clock
        clock.open.pop()
        outer = clock.open[-1] if clock.open else None
        step = clock.steps[-1]
        if self._event is not None:
            clock.pending.append((step, self._part, outer, self._event, clock.event()))
        elif self._part is not None:
            step[self._part] += elapsed
        if outer is not None and outer not in clock.on_device:
            step[outer] -= elapsed
        if not clock.open:
            step["own_s"] += elapsed
            step["ended_s"] = self._began_s + elapsed


NOTHING = contextlib.nullcontext()


class WorkerClock:
    """The parts of each step that are on the model's side, for one model runner.

    vLLM's V1 runner opens named scopes, through a factory that ``vllm.v1.utils`` looks up at each use: while the clock
    runs the factory is this object's `scope`. On a runner without scopes the methods of `METHOD_PARTS` are wrapped, and
    what is left of its calls is preparation (before the forward) and bookkeeping (after it).

    Seconds are exclusive: a part inside another one is taken off the outer one; all that happens inside drafting is
    drafting. On a CPU they are host seconds. On a GPU the parts of `DEVICE_PARTS` lie between two CUDA events, and
    nothing waits for the device before `stop`; the other parts stay host seconds.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._wraps = Wraps()
        self._utils: Any = sys.modules.get("vllm.v1.utils")
        self._prompt_tokens: dict[str, int] = {}
        self._device = str(getattr(getattr(runner, "device", None), "type", "cpu"))
        self.on_device: tuple[str | None, ...] = DEVICE_PARTS if self._device == "cuda" else ()
        self.steps: list[Step] = []
        self.open: list[str | None] = []
        self.pending: list[tuple[Step, str | None, str | None, Any, Any]] = []
        self._first_events: list[Any] = []
        name = f"{type(runner).__module__}.{type(runner).__name__}"
        self.has_scopes = hasattr(self._utils, "_PROFILER_FUNC") and any(
            hasattr(sys.modules.get(kind.__module__), SCOPE_FACTORY) for kind in type(runner).__mro__
        )
        found = {part for path, part in METHOD_PARTS.items() if callable(resolve(runner, path))}
        self.reason = ""
        if not callable(getattr(runner, "execute_model", None)):
            self.reason = f"needs execute_model of the model runner; found none in {name}"
        elif not self.has_scopes and not {"forward_s", "lm_head_s", "sample_s"} <= found:
            missing = ", ".join(sorted({"forward_s", "lm_head_s", "sample_s"} - found))
            self.reason = (
                "needs vLLM's named scopes or methods that can be wrapped; found neither in "
                f"{name} (no method for: {missing})"
            )

    @property
    def how(self) -> str:
        parts = "named scopes" if self.has_scopes else "wrapped methods"
        return f"{parts}, {'CUDA events' if self.on_device else 'host seconds'}"

    def event(self) -> Any:
        event = importlib.import_module("torch").cuda.Event(enable_timing=True)
        event.record()
        return event

    def scope(self, name: str) -> Any:
        """vLLM's scope factory; a scope of no part belongs to whatever is around it."""
        part = SCOPE_PARTS.get(name)
        return self.span(part) if part is not None else NOTHING

    def span(self, part: str | None) -> Any:
        return Span(self, part) if self.steps and "draft_s" not in self.open else NOTHING

    def start(self) -> None:
        """Begin with no samples."""
        self._restore()
        self.steps, self.open, self.pending, self._first_events = [], [], [], []
        self._prompt_tokens = {}
        runner = self._runner
        for name, part in CALL_PARTS.items():
            if callable(getattr(runner, name, None)):
                rest = None if self.has_scopes else part
                self._wraps.wrap(runner, name, self._model_call if name == "execute_model" else self._timed(rest))
        if self.has_scopes:
            self._utils._PROFILER_FUNC = self.scope
            return
        for path, part in METHOD_PARTS.items():
            owner, _, name = path.rpartition(".")
            if callable(resolve(runner, path)):
                self._wraps.wrap(resolve(runner, owner) if owner else runner, name, self._timed(part))

    def stop(self) -> list[Step]:
        """Leave the runner as it was; the samples, device times read."""
        self._restore()
        if self.on_device and self.steps:
            importlib.import_module("torch").cuda.synchronize()
            self._read_events()
        return self.steps

    def _restore(self) -> None:
        if self.has_scopes and self.scope == self._utils._PROFILER_FUNC:
            self._utils._PROFILER_FUNC = contextlib.nullcontext
        self._wraps.undo()

    def _timed(self, part: str | None) -> Callable[[Any], Any]:
        def around(method: Any) -> Any:
            def timed(*args: Any, **kwargs: Any) -> Any:
                with self.span(part):
                    return method(*args, **kwargs)

            return timed

        return around

    def _model_call(self, execute_model: Any) -> Any:
        timed = self._timed(None if self.has_scopes else CALL_PARTS["execute_model"])(execute_model)

        def begin_step(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dummy_run") or not scheduled.total_num_scheduled_tokens:
                return execute_model(scheduled, *args, **kwargs)
            began_s = time.perf_counter()
            parts = dict.fromkeys(WORKER_PARTS, 0.0)
            self.steps.append({**self._describe(scheduled), **parts, "own_s": 0.0, "began_s": began_s})
            if self.on_device:
                self._first_events.append(self.event())
            return timed(scheduled, *args, **kwargs)

        return begin_step

    def _describe(self, scheduled: Any) -> Step:
        """Kind (prefill, decode, mixed), requests, rows, draft tokens and KV tokens of one scheduled step."""
        prompts = self._prompt_tokens
        computed = {}
        for request in scheduled.scheduled_new_reqs:
            computed[request.req_id] = request.num_computed_tokens
            prompts[request.req_id] = len(request.prompt_token_ids or ())
        cached = scheduled.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        kinds = set()
        kv_tokens = 0
        for request_id, rows in scheduled.num_scheduled_tokens.items():
            done = computed.get(request_id, 0)
            kv_tokens += done + rows
            kinds.add("prefill" if done < prompts.get(request_id, 0) else "decode")
        return {
            "kind": "mixed" if len(kinds) > 1 else next(iter(kinds)),
            "requests": len(scheduled.num_scheduled_tokens),
            "rows": scheduled.total_num_scheduled_tokens,
            "draft_tokens": sum(len(draft) for draft in scheduled.scheduled_spec_decode_tokens.values()),
            "kv_tokens": kv_tokens,
        }

    def _read_events(self) -> None:
        """Device seconds of the parts; busy: all of them; idle: the rest up to the next step's first event."""
        last: dict[int, Any] = {}
        for step, part, outer, begin, end in self.pending:
            elapsed = begin.elapsed_time(end) / 1000
            if part is not None:
                step[part] += elapsed
            if outer is not None and outer in self.on_device:
                step[outer] -= elapsed
            last[id(step)] = end
        ends = [*self._first_events[1:], last.get(id(self.steps[-1]), self._first_events[-1])]
        for step, begin, end in zip(self.steps, self._first_events, ends, strict=True):
            step["device_busy_s"] = sum(step[part] for part in DEVICE_PARTS)
            step["device_idle_s"] = max(0.0, begin.elapsed_time(end) / 1000 - step["device_busy_s"])


class WorkerClockExtension:
    """What vLLM mixes into its worker class; every name is new there, as vLLM demands."""

    model_runner: Any
    draftproof_clock: Any = None

    def draftproof_clock_reason(self) -> str:
        """Why this worker's runner cannot be clocked; empty where it can."""
        self.draftproof_clock = WorkerClock(self.model_runner)
        return str(self.draftproof_clock.reason)

    def draftproof_clock_start(self) -> None:
        self.draftproof_clock.start()

    def draftproof_clock_stop(self) -> dict[str, Any]:
        return {"steps": self.draftproof_clock.stop(), "how": self.draftproof_clock.how, "pid": os.getpid()}


class CoreClock:
    """Whole steps and the core's parts of them, where the engine core is in this process. Host seconds."""

    def __init__(self, engine: Any, scheduler: Any) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._wraps = Wraps()
        self._step: Step | None = None
        self.steps: list[Step] = []

    def start(self) -> None:
        self.steps, self._step = [], None
        wrap, scheduler = self._wraps.wrap, self._scheduler
        wrap(self._engine, "step", self._whole)
        # What a step does outside of the core is output processing.
        wrap(self._engine.engine_core, "get_output", self._timed("output_s", sign=-1))
        wrap(scheduler, "schedule", self._schedule)
        for name in ("update_from_output", "update_draft_token_ids"):
            if callable(getattr(scheduler, name, None)):
                wrap(scheduler, name, self._timed("update_s"))

    def stop(self) -> list[Step]:
        self._wraps.undo()
        return self.steps

    def _whole(self, engine_step: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._step = {"rows": 0, **dict.fromkeys(CORE_PARTS, 0.0)}
            began_s = time.perf_counter()
            try:
                return engine_step(*args, **kwargs)
            finally:
                self._step["step_s"] = time.perf_counter() - began_s
                self._step["output_s"] += self._step["step_s"]
                self.steps.append(self._step)
                self._step = None

        return timed

    def _timed(self, part: str, sign: int = 1) -> Callable[[Any], Any]:
        def around(method: Any) -> Any:
            def timed(*args: Any, **kwargs: Any) -> Any:
                began_s = time.perf_counter()
                try:
                    return method(*args, **kwargs)
                finally:
                    if self._step is not None:
                        self._step[part] += sign * (time.perf_counter() - began_s)

            return timed

        return around

    def _schedule(self, schedule: Any) -> Any:
        timed_schedule = self._timed("schedule_s")(schedule)

        def timed(*args: Any, **kwargs: Any) -> Any:
            output = timed_schedule(*args, **kwargs)
            if self._step is not None:
                self._step["rows"] += output.total_num_scheduled_tokens
            return output

        return timed


class StageClock:
    """Both clocks of an arm."""

    def __init__(self, llm: Any) -> None:
        self.core_steps: list[Step] | None = None
        """Of the last block; None where the engine core is in another process."""
        self.workers: list[dict[str, Any]] = []
        """One a worker: its ``steps``, ``how`` they were measured, its ``pid``."""
        self._llm = llm
        engine = llm.llm_engine
        core = getattr(engine.engine_core, "engine_core", None)
        scheduler = getattr(core, "scheduler", None)
        self._core = CoreClock(engine, scheduler) if scheduler is not None else None
        runner = worker_runner(llm)
        self._here = WorkerClock(runner) if runner is not None else None
        self.reason = self._here.reason if self._here is not None else self._reason_elsewhere()

    def _reason_elsewhere(self) -> str:
        config = getattr(getattr(self._llm.llm_engine, "vllm_config", None), "parallel_config", None)
        if getattr(config, "pipeline_parallel_size", 1) > 1:
            return "needs all layers in every worker; found pipeline parallelism; set pipeline_parallel_size = 1"
        needs = "needs a clock in the worker processes"
        try:
            reasons = self._llm.collective_rpc("draftproof_clock_reason")
        except Exception as error:
            return (
                f"{needs}; found {type(error).__name__} when asking them for one; set VLLM_ENABLE_V1_MULTIPROCESSING=0"
            )
        return next((reason for reason in reasons if reason), "")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Record every engine step inside the block."""
        self.core_steps, self.workers = None, []
        if self._here is not None:
            self._here.start()
        else:
            self._llm.collective_rpc("draftproof_clock_start")
        if self._core is not None:
            self._core.start()
        try:
            yield
        finally:
            if self._core is not None:
                self.core_steps = self._core.stop()
            if self._here is not None:
                self.workers = [{"steps": self._here.stop(), "how": self._here.how, "pid": os.getpid()}]
        # Not after an error: an engine that failed need not answer, and the next start puts things right.
        if self._here is None:
            self.workers = self._llm.collective_rpc("draftproof_clock_stop")


def resolve(owner: Any, path: str) -> Any:
    """The attribute at a dotted path, None where there is none."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def worker_runner(llm: Any) -> Any:
    """The model runner where it lives in this process, else None."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    executor = getattr(core, "model_executor", None)
    worker = getattr(getattr(executor, "driver_worker", None), "worker", None)
    return getattr(worker, "model_runner", None)
