"""Run folders whose steps follow known constants: plain loops, one request after the other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftproof.records import (
    SCHEMA_VERSION,
    ArmLine,
    BlockLine,
    Output,
    RotationLine,
    RunFolder,
    RunHeader,
    SessionLine,
)
from draftproof.tables import PARTS_S
from tests.factories import make_block, make_cell, make_study

TRUE: dict[str, dict[str, float]] = {
    "verify": {"fixed_s": 8e-3, "per_token_s": 4e-4, "per_kv_token_s": 2e-6, "per_request_s": 3e-4},
    "sample": {"fixed_s": 2e-4, "per_request_s": 5e-5, "per_draft_token_s": 1e-4},
    "overhead": {"fixed_s": 1.5e-3, "per_request_s": 1e-4, "per_draft_token_s": 2e-5},
    "prefill": {"fixed_s": 5e-3, "per_token_s": 1e-4},
    "eagle3": {"fixed_s": 2e-3, "per_token_s": 1e-4, "per_kv_token_s": 1e-6, "per_prompt_token_s": 3e-5},
    "ngram": {"fixed_s": 2e-4, "per_token_s": 5e-6, "per_kv_token_s": 1e-7, "per_prompt_token_s": 1e-7},
}
K = 3
BUDGET = 4096
METHODS = {"eagle3": "eagle3", "ngram": "ngram"}


def beside(requests: int, drafts: int) -> tuple[float, float]:
    """Seconds of sampling and of overhead."""
    sample, overhead = (
        TRUE[stage]["fixed_s"] + TRUE[stage]["per_request_s"] * requests + TRUE[stage]["per_draft_token_s"] * drafts
        for stage in ("sample", "overhead")
    )
    return sample, overhead


def drafting(variant: str, rows: int, cached: int, prompt: int = 0) -> float:
    if variant == "no_sd":
        return 0.0
    true = TRUE[variant]
    spent = true["fixed_s"] + true["per_token_s"] * rows + true["per_kv_token_s"] * cached
    return spent + true["per_prompt_token_s"] * prompt


def step(kind: str, requests: int, rows: int, drafts: int, kv: int, draft_s: float, verify_s: float) -> dict[str, Any]:
    sample_s, overhead_s = beside(requests, drafts)
    parts = dict.fromkeys(PARTS_S, 0.0)
    parts |= {"draft_s": draft_s, "forward_s": verify_s * 0.9, "lm_head_s": verify_s * 0.1, "sample_s": sample_s}
    parts |= {
        "schedule_s": overhead_s / 2,
        "prepare_s": overhead_s / 2,
        "step_s": draft_s + verify_s + sample_s + overhead_s,
    }
    counts = {"requests": requests, "rows": rows, "draft_tokens": drafts, "kv_tokens": kv}
    return {"kind": kind, **counts, **parts}


def run_block(
    variant: str, prompts: Sequence[int], count: int, dice: random.Random
) -> tuple[list[Output], list[dict[str, Any]]]:
    """One batch of `count` output tokens a request, all prompts in one prefill."""
    total = sum(prompts)
    true = TRUE["verify"]
    prefill = TRUE["prefill"]["fixed_s"] + TRUE["prefill"]["per_token_s"] * total
    prefill += true["per_request_s"] * len(prompts)  # what a cost model's per_request_s holds of the forward
    end = drafting(variant, len(prompts) * (1 + K), total, total)
    steps = [step("prefill", len(prompts), total, 0, total, end, prefill)]
    accepted: list[list[int]] = [[] for _ in prompts]
    drafted: list[list[int]] = [[] for _ in prompts]
    done = [1 for _ in prompts]
    while any(mine < count for mine in done):
        requests = drafts = cached = 0
        for index, prompt in enumerate(prompts):
            if done[index] >= count:
                continue
            requests += 1
            cached += prompt + done[index]
            tried = 0
            if variant == "eagle3" or (variant == "ngram" and dice.random() < 0.6):
                tried = K
                taken = dice.choice([0, 0, 1, 2, 3])
                drafted[index].append(tried)
                accepted[index].append(taken)
                done[index] += taken
            drafts += tried
            done[index] = min(done[index] + 1, count)
        rows = requests + drafts
        verify = true["fixed_s"] + true["per_token_s"] * rows + true["per_kv_token_s"] * cached
        verify += true["per_request_s"] * requests
        steps.append(step("decode", requests, rows, drafts, cached + drafts, drafting(variant, rows, cached), verify))
    outputs = [
        Output(token_ids=[1] * count, finish_reason="length", accepted=a, drafted=d)
        for a, d in zip(accepted, drafted, strict=True)
    ]
    return outputs, steps


def shaken(steps: list[dict[str, Any]], dice: random.Random, sigma: float, slow: float) -> list[dict[str, Any]]:
    """Log-normal noise on every part, and a share `slow` of steps that take five times as long."""
    found = []
    for one in steps:
        times = 5.0 if dice.random() < slow else 1.0
        parts = {name: one[name] * times * dice.lognormvariate(0.0, sigma) for name in PARTS_S if name != "step_s"}
        found.append({**one, **parts, "step_s": sum(parts.values())})
    return found


def make_arm(variant: str, target: str, **fields: Any) -> ArmLine:
    method = METHODS.get(variant)
    given: dict[str, Any] = {
        "session": 0,
        "group": 0,
        "arm": variant,
        "target": target,
        "variant": variant,
        "role": "run",
        "build": "new",
        "target_sha256": None,
        "load_s": 1.0,
        "environment": {"vllm": "9.9", "torch": "8.8", "cpu": "a processor", "threads": 2, "gpus": []},
        "resolved": {"max_num_batched_tokens": BUDGET, "speculative_method": method},
        "speculative_config": {"method": method, "num_speculative_tokens": K} if method else {},
        "config_sha256": "0",
    }
    return ArmLine(**(given | fields))


def write_run(
    path: Path,
    *,
    targets: Sequence[str] = ("t",),
    variants: Sequence[str] = ("no_sd", "eagle3"),
    workloads: Sequence[str] = ("chat", "code"),
    sizes: Sequence[int] = (1, 4),
    rotations: int = 2,
    stage_tokens: int = 24,
    speed_tokens: int = 40,
    sigma: float = 0.0,
    slow: float = 0.0,
    finished: bool = True,
    arms: dict[str, dict[str, Any]] | None = None,
    speeds: dict[str, float] | None = None,
    edit: Any = None,
) -> RunFolder:
    """A recorded run. `arms`: fields of arm lines; `speeds`: factors of the measured speed; `edit`: of each step."""
    dice = random.Random(7)
    cells = [
        make_cell(variant, size, target=target, workload=workload)
        for target in targets
        for workload in workloads
        for size in sizes
        for variant in variants
    ]
    header = RunHeader(
        schema_version=SCHEMA_VERSION,
        run_id="toyrun",
        plan_sha256="0",
        study=make_study(),
        cells=cells,
        machine={},
        overlays=[],
        builds=["new"],
        finished=finished,
    )
    folder = RunFolder.create(path, header)
    session = SessionLine(
        session=0,
        started="2026-01-02T03:04:05Z",
        command=["pytest"],
        draftproof="0",
        git_commit=None,
        git_dirty=None,
        gpu_state=[],
    )
    folder.append([session])
    prompts: dict[tuple[str, str, str], list[int]] = {}
    for group, target in enumerate(targets):
        folder.append([make_arm(v, target, group=group, **(arms or {}).get(v, {})) for v in variants])
        for place, (workload, size) in enumerate((w, s) for w in workloads for s in sizes):
            for rotation in range(rotations):
                lengths = [dice.randint(20, 120) * (1 + 2 * (place % 3)) for _ in range(size)]
                names = [f"{workload}-{size}-{rotation}-{index}" for index in range(size)]
                prompts |= {(target, workload, n): [0] * tokens for n, tokens in zip(names, lengths, strict=True)}
                for purpose, passes, count in (("speed", (0, 1), speed_tokens), ("stages", (0,), stage_tokens)):
                    if not count:
                        continue
                    where: dict[str, Any] = {"group": group, "target": target, "workload": workload, "batch_size": size}
                    where |= {"rotation": rotation, "purpose": purpose}
                    blocks: list[BlockLine] = []
                    outputs, steps = [], []
                    for pass_index in passes:
                        for variant in variants:
                            out, exact = run_block(variant, lengths, count, dice)
                            noisy = shaken(exact, dice, sigma, slow) if sigma or slow else exact
                            kept = noisy if purpose == "stages" else []
                            seconds = sum(one["step_s"] for one in exact) / (speeds or {}).get(variant, 1.0)
                            blocks.append(
                                make_block(
                                    arm=variant,
                                    pass_index=pass_index,
                                    order=len(blocks),
                                    seconds=seconds,
                                    requests=size,
                                    prompt_tokens=sum(lengths),
                                    output_tokens=size * count,
                                    num_drafts=sum(len(o.drafted) for o in out),
                                    num_draft_tokens=sum(sum(o.drafted) for o in out),
                                    num_accepted_tokens=sum(sum(o.accepted) for o in out),
                                    num_accepted_tokens_per_pos=[],
                                    **where,
                                )
                            )
                            outputs.append(out)
                            steps.append(
                                [edit(variant, number, one) for number, one in enumerate(kept)] if edit else kept
                            )
                    closing = RotationLine(
                        session=0,
                        arms=list(variants),
                        prompt_ids=names,
                        part=f"g{group}-{workload}-b{size}-r{rotation:04d}-{purpose}",
                        **where,
                    )
                    folder.add_rotation(closing, blocks, outputs, steps)
    folder.write_prompts(prompts)
    return folder
