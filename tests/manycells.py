"""Results of as many cells as asked for, in a shape that studies have, with faults in a quarter of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec

from draftproof.analysis.acceptance import PerRequest
from draftproof.analysis.latency import Latency, Spread
from draftproof.analysis.stats import Ratio
from draftproof.gate import Judgement
from draftproof.memorycosts import MemoryCost
from draftproof.results import CellResult, RunResults, decays
from draftproof.rivals import Rival
from tests.reporting import arm, cell, difference, failure, run, sameness

VARIANTS = 10
SIZES = (1, 4, 16, 64, 256)


def many(count: int) -> RunResults:
    """Ten variants (one a control) on as many workloads as it takes, at five batch sizes."""
    cells = [one(index) for index in range(count)]
    names = [f"variant_{index}" for index in range(VARIANTS)]
    arms = [arm(name, control="oracle" if name == "variant_9" else "") for name in names]
    rivals = []
    for first, second in itertools.pairwise(cells):
        if first.cell.workload == second.cell.workload and first.cell.batch_size == second.cell.batch_size:
            rivals.append(Rival(first=first.cell.id, second=second.cell.id, build="new", ratio=exact(1.02)))
    return run(
        *cells,
        arms=[arm("no_sd"), *arms],
        decays=decays(cells),
        rivals=rivals,
        memory=[
            MemoryCost(target="tiny", variant=name, build="new", static_bytes=10**index, kv_bytes_per_token=768)
            for index, name in enumerate(names)
        ],
    )


def exact(value: float) -> Ratio:
    error = 0.02
    low, high = value * math.exp(-4.3 * error), value * math.exp(4.3 * error)
    return Ratio(value=value, low=low, high=high, clusters=3, method="jackknife", log_error=error)


def one(index: int) -> CellResult:
    variant, rest = index % VARIANTS, index // VARIANTS
    changes: dict[str, Any] = {"sameness": sameness(*[difference(f"left {index}", "right") for _ in range(3)])}
    if index % 20 == 3:
        changes["failures"] = [failure(message=f"ended in cell {index}", log_tail=f"line of {index}\n" * 200)]
        changes["throughput"] = Judgement(verdict="FAILED", reason="r" * 300)
    if index % 20 == 7:
        changes["throughput"] = Judgement(verdict="REGRESSED", reason="r" * 300)
    if index % 20 == 11:
        changes["problems"] = ["p" * 300] * 20
    if index % 20 == 13:
        changes["sameness"] = sameness(*[difference(f"l{index}", "r", cause="divergent") for _ in range(3)])
        changes["determinism"] = Judgement(verdict="FAILED", reason="divergent outputs: 3 divergent of 12")
    spread = Spread(requests=12, median_s=0.1, p95_s=0.2)
    made = cell(
        f"variant_{variant}",
        f"workload_{rest // len(SIZES)}",
        SIZES[rest % len(SIZES)],
        speedup=exact(0.5 + (index * 37 % 100) / 60),
        latency=Latency(ttft=spread, per_token=spread),
        base_latency=Latency(ttft=spread, per_token=spread),
        informing=["speedup 1.500 beside 1.284 (paper; ratio of means)"],
        **changes,
    )
    assert made.acceptance is not None
    requests = PerRequest(requests=12, mean=2.61, quartiles=(2.05, 2.5, 3.25))
    return msgspec.structs.replace(made, acceptance=msgspec.structs.replace(made.acceptance, per_request=requests))
