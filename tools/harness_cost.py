"""What the harness costs: the study's no-SD arm against a bare `LLM.generate` of the same prompts, paired.

Both processes get the same engine arguments, variables and preloads. The bare one is a loop around `LLM.generate` and
nothing else: no statistics, no counters, no clock. Blocks alternate, forward and reverse. Run it in an environment that
holds vLLM: python tools/harness_cost.py [--pairs N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from draftproof.analysis.stats import PairSums, paired_ratio
from draftproof.catalog import load_catalog
from draftproof.engines import BlockRequest, StartRequest, TokenizeRequest
from draftproof.engines.vllm import VllmArm
from draftproof.models import resolve_target
from draftproof.plan import build_plan
from draftproof.records import UnitKey
from draftproof.workloads import deal, load_workload

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
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    catalog = load_catalog()
    study = catalog.studies["default"]
    plan = build_plan(catalog, study, catalog.study_cells("default"))
    group, spec = plan.groups[0], plan.groups[0].arms[0]
    model = resolve_target(group.target, None, say=print)
    with tempfile.TemporaryDirectory() as folder:
        request = StartRequest(
            spec=spec,
            group=0,
            hardware=group.hardware,
            model=model,
            revision=None,
            speculative_config=None,
            python=sys.executable,
            log=Path(folder) / "arm.log",
        )
        arm = VllmArm(request)
        preloads = ":".join(path for path in map(find, arm.facts.environment["preloads"]) if path)
        environment = {
            **os.environ,
            **group.hardware.variables,
            **spec.variables,
            "LD_PRELOAD": preloads,
            "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        bare = Bare({"model": model, **spec.engine}, environment, Path(folder) / "bare.log")
        try:
            measure(
                arm,
                bare,
                catalog.workloads["code_edit"],
                catalog.workload_path(catalog.workloads["code_edit"]),
                study.output_tokens,
                options,
            )
        finally:
            bare.close()
            arm.close()


def find(name: str) -> str | None:
    from draftproof.engines.surroundings import find_library

    return find_library(name)


def measure(arm: VllmArm, bare: Bare, workload: Any, path: Path, tokens: int, options: argparse.Namespace) -> None:
    loaded = load_workload(workload, path)
    rows = arm.tokenize(
        TokenizeRequest(
            target="",
            workload=workload.name,
            ids=[p.id for p in loaded.prompts],
            prompts=[p.messages for p in loaded.prompts],
            template_options={},
        )
    ).token_ids

    def ours(prompts: list[list[int]], size: int) -> tuple[float, int]:
        from draftproof.spec import Sampling

        result = arm.run(
            BlockRequest(
                unit=UnitKey(0, "", workload.name, size),
                rotation=0,
                pass_index=0,
                purpose="speed",
                prompts=prompts,
                sampling=Sampling(),
                output_tokens=tokens,
                ignore_eos=True,
            )
        )
        return result.seconds, sum(len(output.token_ids) for output in result.outputs)

    for size in options.batch_sizes:
        pairs = []
        for rotation in range(-1, options.pairs):  # -1 warms up
            prompts = [rows[index] for index in deal(len(rows), size, max(rotation, 0), 0)]
            first_ours = ours(prompts, size)
            first_bare, second_bare = bare.run(prompts, tokens), bare.run(prompts, tokens)
            second_ours = ours(prompts, size)
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
            f"batch {size}: harness / bare = {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], {len(pairs)} pairs"
        )


if __name__ == "__main__":
    main()
