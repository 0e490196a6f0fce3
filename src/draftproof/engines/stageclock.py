"""Seconds of each stage part, step by step, from vLLM's own named scopes. Part of the worker: no other package."""

from __future__ import annotations

import contextlib
import importlib
import time
from typing import Any

# Scope names of vLLM's V1 runner -> the stage part that their seconds belong to.
SCOPE_PARTS = {
    "gpu_model_runner: preprocess": "prepare_s",
    "gpu_model_runner: forward": "forward_s",
    "gpu_model_runner: postprocess": "lm_head_s",
    "gpu_model_runner: sample": "sample_s",
    "gpu_model_runner: draft": "draft_s",
    "gpu_model_runner: bookkeep": "bookkeep_s",
    "llm_engine step: process_outputs": "output_s",
    "llm_engine step: record_stats": "output_s",
    "schedule": "schedule_s",
    "update": "update_s",
}
PARTS = tuple(dict.fromkeys(SCOPE_PARTS.values()))


class StageClock:
    """Seconds of each stage part, step by step, from vLLM's own named scopes.

    vLLM looks its scope factory up in ``vllm.v1.utils._PROFILER_FUNC`` at each use: while the clock runs the factory is
    this object's `scope`, else ``contextlib.nullcontext``. Seconds are exclusive: a scope inside another one is taken
    off the outer one. On a GPU they are host seconds (kernels are launched, not awaited).
    """

    def __init__(self, llm: Any) -> None:
        self.steps: list[dict[str, Any]] = []
        self._stack: list[list[Any]] = []
        self._step: dict[str, Any] | None = None
        self._utils: Any = importlib.import_module("vllm.v1.utils")
        self._engine = llm.llm_engine
        core = getattr(self._engine.engine_core, "engine_core", None)
        self._scheduler: Any = getattr(core, "scheduler", None)
        runner = worker_runner(llm)
        self.reason = ""
        if not hasattr(self._utils, "_PROFILER_FUNC"):
            self.reason = "this vLLM has no named scopes (vllm.v1.utils._PROFILER_FUNC)"
        elif self._scheduler is None:
            self.reason = "the engine core runs in another process; set VLLM_ENABLE_V1_MULTIPROCESSING=0"
        elif runner is not None and ".v1.worker.gpu." in type(runner).__module__:
            self.reason = "this vLLM's V2 model runner has no named scopes; set VLLM_USE_V2_MODEL_RUNNER=0"

    @contextlib.contextmanager
    def scope(self, name: str) -> Any:
        entry = [time.perf_counter(), 0.0]
        self._stack.append(entry)
        try:
            yield
        finally:
            elapsed = time.perf_counter() - entry[0]
            self._stack.pop()
            if self._stack:
                self._stack[-1][1] += elapsed
            part = SCOPE_PARTS.get(name)
            if self._step is not None and part is not None:
                self._step[part] += elapsed - entry[1]

    @contextlib.contextmanager
    def running(self) -> Any:
        """Record every engine step inside the block into `steps`."""
        self.steps = []
        engine, scheduler = self._engine, self._scheduler
        step, schedule, update = engine.step, scheduler.schedule, scheduler.update_from_output

        def timed_step(*args: Any, **kwargs: Any) -> Any:
            self._step = dict.fromkeys(PARTS, 0.0)
            started = time.perf_counter()
            try:
                return step(*args, **kwargs)
            finally:
                self._step["step_s"] = time.perf_counter() - started
                self.steps.append(self._step)
                self._step = None

        def timed_schedule(*args: Any, **kwargs: Any) -> Any:
            with self.scope("schedule"):
                output = schedule(*args, **kwargs)
            if self._step is not None:
                self._step.update(describe_step(scheduler, output))
            return output

        def timed_update(*args: Any, **kwargs: Any) -> Any:
            with self.scope("update"):
                return update(*args, **kwargs)

        engine.step, scheduler.schedule, scheduler.update_from_output = timed_step, timed_schedule, timed_update
        self._utils._PROFILER_FUNC = self.scope
        try:
            yield
        finally:
            self._utils._PROFILER_FUNC = contextlib.nullcontext
            for owner, name in ((engine, "step"), (scheduler, "schedule"), (scheduler, "update_from_output")):
                delattr(owner, name)


def describe_step(scheduler: Any, output: Any) -> dict[str, Any]:
    """Kind (prefill, decode, mixed), rows, draft tokens and KV tokens of one scheduled step."""
    computed = {request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    kinds = set()
    kv_tokens = 0
    for request_id, rows in output.num_scheduled_tokens.items():
        request = scheduler.requests.get(request_id)
        done = computed.get(request_id, 0)
        kv_tokens += done + rows
        prompt_tokens = request.num_prompt_tokens if request is not None else 0
        kinds.add("prefill" if done < prompt_tokens else "decode")
    return {
        "kind": "mixed" if len(kinds) > 1 else next(iter(kinds), "empty"),
        "requests": len(output.num_scheduled_tokens),
        "rows": output.total_num_scheduled_tokens,
        "draft_tokens": sum(len(draft) for draft in output.scheduled_spec_decode_tokens.values()),
        "kv_tokens": kv_tokens,
    }


def worker_runner(llm: Any) -> Any:
    """The model runner where it lives in this process, else None."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    executor = getattr(core, "model_executor", None)
    worker = getattr(getattr(executor, "driver_worker", None), "worker", None)
    return getattr(worker, "model_runner", None)
