"""Fitted constants -> a cost model with ranges, errors and sources -> its TOML file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from draftproof.errors import scrub
from draftproof.simulator.calibrate import Sample, StepModel, held_out_by
from draftproof.simulator.costs import (
    CostModel,
    DraftCost,
    Fit,
    PrefillCost,
    Provenance,
    StageError,
    StepCost,
    Units,
    VerifyCost,
)
from draftproof.simulator.recorded import Measured, settings

AUTOREGRESSIVE = ("eagle", "eagle3", "mtp", "draft_model")
"""vLLM's methods with one forward per draft token: their cost grows with k."""
LOOKUPS = ("ngram", "ngram_gpu", "suffix")
"""Methods that may find nothing to propose."""
LEAST_FIXED_S = 1e-9
"""A cost model needs a fixed cost of a forward above 0."""


def cost_model(found: Measured, fit: StepModel, spread: Sequence[StageError]) -> CostModel:
    """The fitted constants as `draftproof simulate` reads them, each with its source."""
    verify = fit.verify.seconds
    drafters = {}
    for name, k in found.k.items():
        method = settings(found.arms[name])[0]
        drafters[name] = DraftCost(
            **{key: digits(value) for key, value in fit.drafts[name].seconds.items()},
            per_prompt_token_s=digits(fit.prompts[name].seconds["per_prompt_token_s"]),
            fitted_k=k if method in AUTOREGRESSIVE else 0,
            can_miss=method in LOOKUPS,
        )
    tokens = [arm.resolved.get("max_num_batched_tokens") for arm in found.arms.values()]
    budget = next((count for count in tokens if count), StepCost(overhead_s=0.0).max_batched_tokens)
    header = found.run.header
    return CostModel(
        name=f"{header.run_id}-{found.target}",
        title=f"{found.target}, fitted to run {header.run_id}",
        target=found.target,
        hardware=header.study.hardware,
        units=Units(time="seconds", length="tokens"),
        verify=VerifyCost(
            fixed_s=max(digits(verify["fixed_s"]), LEAST_FIXED_S),
            per_token_s=digits(verify["per_token_s"]),
            per_kv_token_s=digits(verify["per_kv_token_s"]),
        ),
        step=StepCost(
            overhead_s=digits(fit.beside_s("fixed_s")),
            per_request_s=digits(fit.beside_s("per_request_s")),
            per_draft_token_s=digits(fit.beside_s("per_draft_token_s")),
            max_batched_tokens=budget,
        ),
        prefill=PrefillCost(**{key: digits(value) for key, value in fit.prefill.seconds.items()}),
        drafters=drafters,
        fit=Fit(
            method="non-negative least squares of relative errors, Huber weights (draftproof calibrate)",
            data=data_text(found),
            error=error_text(found.samples, spread),
            errors=list(spread),
            batch_sizes=sorted({line.batch_size for line in found.run.rotations if line.target == found.target}),
            caution=caution_text(found, fit),
        ),
        provenance=provenance(found, fit, drafters),
    )


def digits(value: float) -> float:
    """Seven digits: all that a step time could ever tell."""
    return float(f"{value:.6e}")


def data_text(found: Measured) -> str:
    decode = [s for s in found.samples if not s.prefill]
    prefill = [s for s in found.samples if s.prefill]
    workloads = sorted({s.workload for s in found.samples})
    spans = ", ".join(
        f"{min(values)} to {max(values)} {what}"
        for what, values in (
            ("requests", [s.requests for s in decode]),
            ("tokens", [s.tokens for s in decode]),
            ("cached tokens", [s.cached_tokens for s in decode]),
        )
    )
    left = f"; {found.mixed_steps} steps of prompts and decoding together are left out" if found.mixed_steps else ""
    return (
        f"{len(decode)} decode steps ({spans}) and {len(prefill)} prefill steps "
        f"({min(s.tokens for s in prefill)} to {max(s.tokens for s in prefill)} prompt tokens) of "
        f"{', '.join(found.arms)} on {', '.join(workloads)}{left}"
    )


def error_text(samples: Sequence[Sample], spread: Sequence[StageError]) -> str:
    by = held_out_by(samples)
    what = f"left-out {by}s" if by else "nothing held out: there is one block"
    rows = [
        f"{row.stage.removeprefix('step ')} {row.median:.1%} and {row.p90:.1%}"
        + (f" ({row.held_out_median:.1%} and {row.held_out_p90:.1%})" if row.held_out_median is not None else "")
        for row in spread
        if row.stage.startswith("step ")
    ]
    return f"median and 90th percentile of |fitted - measured| / measured of decode steps ({what}): {'; '.join(rows)}"


def caution_text(found: Measured, fit: StepModel) -> str:
    """What the run could not tell, in sentences."""
    notes = ["beyond the ranges in data it is an extrapolation"]
    stages = {"verify": fit.verify, "sample": fit.sample, "overhead": fit.overhead, "prefill": fit.prefill}
    stages |= {f"draft {name}": one for name, one in fit.drafts.items()}
    untold = [f"{name} {', '.join(one.untold)}" for name, one in stages.items() if one.untold]
    if untold:
        notes.append(f"the run cannot tell apart, and 0 stands for: {'; '.join(untold)}")
    if digits(fit.verify.seconds["fixed_s"]) < LEAST_FIXED_S:
        notes.append(f"no fixed cost of a forward shows: {LEAST_FIXED_S:g} s stands for it")
    if any(arm.environment.get("gpus") for arm in found.arms.values()):
        notes.append("stages are host time, on a GPU that of launches: a stage may hold the kernels of another")
    ahead = {bool(arm.resolved.get("async_scheduling")) for arm in found.arms.values()}
    if True in ahead:
        notes.append("with async scheduling steps overlap and cached tokens are counted ahead")
    if len(ahead) > 1:
        notes.append("some arms ran with async scheduling and some without")
    return "; ".join(notes)


def provenance(found: Measured, fit: StepModel, drafters: dict[str, DraftCost]) -> list[Provenance]:
    """One row for each set of constants that was fitted together."""
    dates = sorted({line.started[:10] for line in found.run.sessions})
    facts = next(iter(found.arms.values())).environment
    machine = [facts.get("cpu"), f"{facts['threads']} threads" if facts.get("threads") else None]
    machine += [gpu.get("name") if isinstance(gpu, dict) else str(gpu) for gpu in facts.get("gpus") or []]
    run = ", ".join(
        [
            f"run {found.run.header.run_id} of {' and '.join(dates) or 'an unknown date'}",
            f"vLLM {facts.get('vllm')}",
            f"torch {facts.get('torch')}",
            *(scrub(str(part)) for part in machine if part),
        ]
    )

    def row(constants: Iterable[str], what: str) -> Provenance:
        return Provenance(constants=list(constants), source=f"{run}: {what}")

    arms = ", ".join(found.arms)
    rows = [
        row(
            [f"verify.{name}" for name in ("fixed_s", "per_token_s", "per_kv_token_s")],
            f"forward and LM head of {fit.verify.steps} decode steps of {arms}",
        ),
        row(
            [f"step.{name}" for name in ("overhead_s", "per_request_s", "per_draft_token_s")],
            f"sampling and all that no other stage claims of {fit.overhead.steps} decode steps of {arms}; of "
            f"per_request_s {fit.verify.seconds['per_request_s']:.3g} s are of the forward and LM head",
        ),
        row(["step.max_batched_tokens"], "max_num_batched_tokens as vLLM resolved it, or the default"),
        row(
            ["prefill.fixed_s", "prefill.per_token_s"],
            f"{fit.prefill.steps} prefill steps of {arms}, but for drafting and what their requests cost in any step",
        ),
    ]
    for name in drafters:
        method, k = settings(found.arms[name])
        rows += [
            row(
                [f"drafters.{name}.{field}" for field in ("fixed_s", "per_token_s", "per_kv_token_s")],
                f"drafting in {fit.drafts[name].steps} decode steps of {name}",
            ),
            row(
                [f"drafters.{name}.per_prompt_token_s"],
                f"drafting in {fit.prompts[name].steps} prefill steps of {name}, but for one draft",
            ),
            row(
                [f"drafters.{name}.fitted_k", f"drafters.{name}.can_miss"],
                f"method {method}, k = {k}: one forward per draft token for {', '.join(AUTOREGRESSIVE)}; "
                f"lookups ({', '.join(LOOKUPS)}) can miss",
            ),
        ]
    return rows


def as_toml(model: CostModel) -> str:
    """A cost model's file; tables in the order of its fields, without what is left out."""
    lines = [
        f"# Step times of {model.target}: made by draftproof calibrate, read by draftproof simulate --hardware FILE.",
    ]
    values: dict[str, Any] = msgspec.to_builtins(model)
    lines += list(toml_lines("", values))
    return "\n".join(lines) + "\n"


def toml_lines(prefix: str, table: dict[str, Any]) -> Iterator[str]:
    inner = {}
    for key, value in table.items():
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            inner[key] = value
        elif value is not None and value != [] and value != "":
            yield f"{key} = {toml_value(value)}"
    for key, value in inner.items():
        path = f"{prefix}.{toml_key(key)}" if prefix else toml_key(key)
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(value, list) or not all(isinstance(one, dict) for one in entry.values()):
                yield ""
                yield f"[[{path}]]" if isinstance(value, list) else f"[{path}]"
            yield from toml_lines(path, entry)


def toml_key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key)
    return key if bare else json.dumps(key, ensure_ascii=False)


def toml_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value!r}" if 1e-3 <= abs(value) < 1e6 or value == 0.0 else f"{value:.6e}"
    return json.dumps(value, ensure_ascii=False)
