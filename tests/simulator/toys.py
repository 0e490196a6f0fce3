"""Small traces and costs, strategies over them, and where the public traces are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

from draftproof.simulator.costs import CostModel
from draftproof.simulator.rules import CORRECTED, Rules
from draftproof.simulator.table import Table
from draftproof.simulator.traces import Trace

LIMIT = 6
TOY_COSTS: dict[str, Any] = {
    "name": "toy",
    "title": "toy",
    "target": "toy",
    "hardware": "toy",
    "units": {"time": "seconds", "length": "tokens"},
    "verify": {"fixed_s": 1.0, "per_token_s": 0.05, "per_kv_token_s": 0.001},
    "step": {"overhead_s": 0.2, "max_batched_tokens": 16},
    "drafters": {
        "ngram": {"share_of_verify": 0.01, "can_miss": True},
        "eagle": {"fixed_s": 0.3, "per_token_s": 0.002, "per_kv_token_s": 0.0001, "fitted_k": 3},
    },
    "fit": {"method": "made up", "data": "none", "error": "none"},
    "provenance": [
        {
            "constants": [
                *("verify.fixed_s", "verify.per_token_s", "verify.per_kv_token_s"),
                *("step.overhead_s", "step.max_batched_tokens"),
                *("drafters.ngram.share_of_verify", "drafters.ngram.can_miss"),
                *("drafters.eagle.fixed_s", "drafters.eagle.per_token_s", "drafters.eagle.per_kv_token_s"),
                "drafters.eagle.fitted_k",
            ],
            "source": "made up",
        }
    ],
}


def toy_costs(**changes: Any) -> CostModel:
    """The toy model with some of its tables changed, as in ``toy_costs(verify={"fixed_s": 2.0})``."""
    merged = dict(TOY_COSTS)
    for key, value in changes.items():
        merged[key] = {**merged.get(key, {}), **value}
    new = [f"{key}.{field}" for key in ("step", "prefill", "padding", "roofline") for field in changes.get(key, ())]
    new += [f"drafters.{name}.{field}" for name, value in changes.get("drafters", {}).items() for field in value]
    merged["provenance"] = [*TOY_COSTS["provenance"], {"constants": new, "source": "made up"}]
    return msgspec.convert(merged, type=CostModel)


def make_trace(prompt: int, found: list[int] | None = None, limit: int = LIMIT, **lengths: list[int]) -> Trace:
    arrays = {name: np.array(values, dtype=np.uint8) for name, values in lengths.items()}
    return Trace(
        origin="toy:1",
        dataset="gsm8k",
        id="1",
        prompt_tokens=prompt,
        limit=limit,
        lengths=arrays,
        outputs={},
        found=None if found is None else np.array(found, dtype=np.uint8),
    )


def make_table(traces: list[Trace], *variants: str, rules: Rules = CORRECTED) -> Table:
    return Table("gsm8k", traces, variants, rules)


def number(most: float) -> st.SearchStrategy[float]:
    return st.floats(0.0, most, allow_nan=False)


@st.composite
def trace_lists(draw: st.DrawFn, longest: int = 12) -> list[Trace]:
    """Requests with n-gram and EAGLE lengths of one output; a lookup that had something accepted had found it."""
    traces = []
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(st.integers(1, longest))
        length = st.lists(st.integers(1, LIMIT + 1), min_size=tokens, max_size=tokens)
        ngram, eagle = draw(length), draw(length)
        found = [3 if n > 1 or more > 3 else 0 for n, more in zip(ngram, draw(length), strict=True)]
        traces.append(make_trace(draw(st.integers(1, 30)), found, ngram=ngram, eagle=eagle))
    return traces


@st.composite
def cost_models(draw: st.DrawFn) -> CostModel:
    """Arbitrary non-negative costs, with and without graph sizes and a roofline."""
    changes: dict[str, Any] = {
        "verify": {
            "fixed_s": draw(st.floats(0.01, 2.0)),
            "per_token_s": draw(number(0.5)),
            "per_kv_token_s": draw(number(0.01)),
        },
        "step": {
            "overhead_s": draw(number(1.0)),
            "per_request_s": draw(number(0.1)),
            "per_draft_token_s": draw(number(0.1)),
            "max_batched_tokens": draw(st.integers(1, 64)),
        },
        "drafters": {
            "ngram": {"share_of_verify": draw(number(0.5)), "can_miss": True},
            "eagle": {
                "fixed_s": draw(number(1.0)),
                "per_token_s": draw(number(0.2)),
                "per_kv_token_s": draw(number(0.01)),
                "per_prompt_token_s": draw(number(0.1)),
                "fitted_k": draw(st.integers(1, 5)),
            },
        },
    }
    if draw(st.booleans()):
        changes["prefill"] = {"fixed_s": draw(number(2.0)), "per_token_s": draw(number(0.5))}
    if draw(st.booleans()):
        changes["padding"] = {"sizes": [1, 2, 4, 8, 16]}
    if draw(st.booleans()):
        changes["roofline"] = {
            "flops_per_token": draw(number(1.0)),
            "flops_per_s": 1.0,
            "weight_bytes": draw(number(2.0)),
            "kv_bytes_per_token": draw(number(0.1)),
            "bytes_per_s": 1.0,
        }
    return toy_costs(**changes)


def public_traces() -> Path:
    """The folder of the public traces, or a skip."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data" / "specdecode-bench"
    folder = Path(os.environ.get("DRAFTPROOF_TRACES") or beside)
    if not any(folder.glob("*.jsonl")):
        pytest.skip("needs the public traces of arXiv 2601.11580; found none; enable with DRAFTPROOF_TRACES=FOLDER")
    return folder
