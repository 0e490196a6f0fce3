"""What measuring costs, paired: the harness against a bare `LLM.generate`, or the stage clock against none.

``harness``: the study's no-SD arm beside a process that gets the same engine arguments, variables and preloads and is a
loop around `LLM.generate` and nothing else: no statistics, no counters, no clock. ``clock``: blocks with and without
the stage clock in one process of each variant, and beside them the clock's own work on a step that does nothing.
Blocks alternate, forward and reverse. Run it in an environment that holds vLLM:
python tools/harness_cost.py [clock] [--pairs N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from draftproof.analysis.stats import PairSums, paired_ratio
from draftproof.catalog import load_catalog
from draftproof.engines import BlockRequest, StartRequest, TokenizeRequest, stageclock
from draftproof.engines.vllm import VllmArm
from draftproof.models import resolve_drafter, resolve_target
from draftproof.plan import ArmSpec, Group, build_plan, speculative_config
from draftproof.records import UnitKey
from draftproof.spec import Purpose, Sampling
from draftproof.workloads import deal, load_workload

Block = Callable[[list[list[int]]], tuple[float, int]]
"""Runs a batch of prompts; its seconds and output tokens."""

BARE = """
import json, sys, time
channel = sys.stdout
sys.stdout = sys.stderr
from vllm import LLM, SamplingParams
llm = LLM(**json.loads(sys.stdin.readline()))
for line in sys.stdin:
    job = json.loads(line)
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    sampling = SamplingParams(temperature=0.0, max_tokens=job["tokens"], ignore_eos=True)
    started = time.perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - started
    tokens = sum(len(o.outputs[0].token_ids) for o in outputs)
    print(json.dumps({"seconds": seconds, "tokens": tokens}), file=channel, flush=True)
"""


class Bare:
    def __init__(self, arguments: dict[str, Any], environment: dict[str, str], log: Path) -> None:
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-c", BARE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment,
                text=True,
            )
        self._send(arguments)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def run(self, prompts: list[list[int]], tokens: int) -> tuple[float, int]:
        self._send({"prompts": prompts, "tokens": tokens})
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline())
        return answer["seconds"], answer["tokens"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["harness", "clock"], default="harness")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--tokens", type=int, help="output tokens of a block; default: the study's")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--variants", nargs="+", default=["no_sd"], help="of the default study, for the clock")
    options = parser.parse_args()
    catalog = load_catalog()
    study = catalog.studies["default"]
    group = build_plan(catalog, study, catalog.study_cells("default")).groups[0]
    model = resolve_target(group.target, catalog, say=print)
    tokens = options.tokens or study.output_tokens
    if options.what == "clock":
        print(f"the clock's own work on an empty step: {1e6 * clock_work_s():.1f} us")
    for name in options.variants if options.what == "clock" else ["no_sd"]:
        variant = catalog.variants[name]
        spec = next(arm for arm in group.arms if arm.variant == name and arm.role == "run")
        drafter = resolve_drafter(variant, group.target, model, catalog, say=print)
        config = speculative_config(variant, group.target.name, drafter)
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "arm.log"
            request = StartRequest(
                spec=spec,
                group=0,
                hardware=group.hardware,
                model=model,
                revision=None,
                speculative_config=config,
                python=sys.executable,
                log=log,
            )
            arm = VllmArm(request)
            bare = start_bare(arm, group, spec, model, folder) if options.what == "harness" else None
            try:
                without = bare_block(bare, tokens) if bare else block_of(arm, "speed", tokens)
                ours = block_of(arm, "speed" if bare else "stages", tokens)
                title = "harness / bare" if bare else f"{name}, with the clock / without"
                measure(arm, ours, without, title, options)
            finally:
                if bare:
                    bare.close()
                arm.close()


def start_bare(arm: VllmArm, group: Group, spec: ArmSpec, model: str, folder: str) -> Bare:
    preloads = ":".join(path for path in map(find, arm.facts.environment["preloads"]) if path)
    environment = {
        **os.environ,
        **group.hardware.variables,
        **spec.variables,
        "LD_PRELOAD": preloads,
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    return Bare({"model": model, **spec.engine}, environment, Path(folder) / "bare.log")


def find(name: str) -> str | None:
    from draftproof.engines.surroundings import find_library

    return find_library(name)


def bare_block(bare: Bare, tokens: int) -> Block:
    return lambda prompts: bare.run(prompts, tokens)


def block_of(arm: VllmArm, purpose: Purpose, tokens: int) -> Block:
    def run(prompts: list[list[int]]) -> tuple[float, int]:
        result = arm.run(
            BlockRequest(
                unit=UnitKey(0, "", "code_edit", len(prompts)),
                rotation=0,
                pass_index=0,
                purpose=purpose,
                prompts=prompts,
                sampling=Sampling(),
                output_tokens=tokens,
                ignore_eos=True,
            )
        )
        if result.stages_reason:
            raise SystemExit(f"there is no stage clock: {result.stages_reason}")
        return result.seconds, sum(len(output.token_ids) for output in result.outputs)

    return run


def measure(arm: VllmArm, ours: Block, without: Block, title: str, options: argparse.Namespace) -> None:
    catalog = load_catalog()
    workload = catalog.workloads["code_edit"]
    loaded = load_workload(workload, catalog.workload_path(workload))
    rows = arm.tokenize(
        TokenizeRequest(
            target="",
            workload=workload.name,
            ids=[p.id for p in loaded.prompts],
            prompts=[p.messages for p in loaded.prompts],
            template_options={},
        )
    ).token_ids
    for size in options.batch_sizes:
        pairs = []
        for rotation in range(-1, options.pairs):  # -1 warms up
            prompts = [rows[index] for index in deal(len(rows), size, max(rotation, 0), 0)]
            first_ours = ours(prompts)
            first_bare, second_bare = without(prompts), without(prompts)
            second_ours = ours(prompts)
            if rotation >= 0:
                pairs.append(
                    PairSums(
                        tokens=first_ours[1] + second_ours[1],
                        seconds=first_ours[0] + second_ours[0],
                        base_tokens=first_bare[1] + second_bare[1],
                        base_seconds=first_bare[0] + second_bare[0],
                    )
                )
        ratio = paired_ratio(pairs)
        assert ratio is not None
        print(
            f"batch {size}: {title} = {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of the throughput, "
            f"{len(pairs)} pairs, {1000 * sum(p.base_seconds for p in pairs) / sum(p.base_tokens for p in pairs):.1f} "
            "ms a token without",
            flush=True,
        )


def clock_work_s(steps: int = 2000, requests: int = 16) -> float:
    """Seconds a step that both clocks take beside an engine that does nothing, with as many scopes as vLLM's."""
    import vllm.v1.utils as utils

    cached = SimpleNamespace(req_ids=[str(n) for n in range(requests)], num_computed_tokens=[100] * requests)
    output = SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=dict.fromkeys(cached.req_ids, 4),
        total_num_scheduled_tokens=4 * requests,
        scheduled_spec_decode_tokens={name: [1, 2, 3] for name in cached.req_ids},
    )

    class Idle:
        """Runner, scheduler and engine in one."""

        def execute_model(self, _: Any) -> None:
            for name in stageclock.SCOPE_PARTS:
                with utils.record_function_or_nullcontext(name):
                    pass

        def sample_tokens(self) -> None:
            pass

        def take_draft_token_ids(self) -> None:
            pass

        def schedule(self) -> Any:
            return output

        def update_from_output(self) -> None:
            pass

        def get_output(self) -> None:
            self.execute_model(self.schedule())
            self.sample_tokens()
            self.update_from_output()
            self.take_draft_token_ids()

        def step(self) -> None:
            self.engine_core.get_output()

        @property
        def engine_core(self) -> Idle:
            return self

    idle = Idle()

    def seconds() -> float:
        began_s = time.perf_counter()
        for _ in range(steps):
            idle.step()
        return (time.perf_counter() - began_s) / steps

    seconds()
    without_s = seconds()
    worker, core = stageclock.WorkerClock(idle), stageclock.CoreClock(idle, idle)
    worker.has_scopes = True  # they are opened by this file, not by the runner's module
    worker.start()
    core.start()
    with_s = seconds()
    core.stop()
    worker.stop()
    return with_s - without_s


if __name__ == "__main__":
    main()
