"""``draftproof memory``: what a target and its drafter take in vLLM, and what that leaves for tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec

from draftproof.analysis import memory
from draftproof.analysis.memory import GIB, KIB, NOTHING, Footprint, Sized
from draftproof.catalog import Catalog
from draftproof.drafters.layout import DTYPES
from draftproof.errors import rule
from draftproof.modelfacts import Basis, Model, find_drafter, find_target
from draftproof.spec import Target


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One row: a target, or what a drafter adds to it."""

    model: str
    basis: Basis
    static_bytes: int
    kv_bytes_per_token: int
    method: str | None = None
    """Of a drafter: vLLM's name of its method."""
    assumed: str = ""

    @property
    def footprint(self) -> Footprint:
        return Footprint(self.static_bytes, self.kv_bytes_per_token)


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of KV cache in a memory of that size."""

    budget_bytes: int
    """For weights and KV cache together, over all GPUs."""
    tokens_without: int
    tokens_with: int
    lost_share: float | None
    """From 0 to 1; None where the target alone does not fit."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that is printed, over all GPUs together."""

    dtype: str
    """Of weights and KV cache."""
    target: Part
    drafter: Part | None = None
    """None: nothing is added."""
    lost_share_per_gib: float
    """Part of the tokens that a GiB of KV cache holds no longer, from 0 to 1."""
    capacity: Capacity | None = None

    @property
    def together(self) -> Footprint:
        return self.target.footprint.plus(self.drafter.footprint if self.drafter else NOTHING)


# --- the report -------------------------------------------------------------------------------------------------------


def engine_dtype(target: Target, model: Model) -> str:
    """The type that vLLM computes in: the entry's; for ``auto`` the configuration's, but bfloat16 for float32."""
    dtype = target.dtype
    if dtype == "auto":
        found = model.config.get("dtype", model.config.get("torch_dtype", "bfloat16"))
        dtype = "bfloat16" if found == "float32" else str(found)
    if dtype not in DTYPES:
        raise rule("dtype", "a type that is known", dtype, DTYPES, "correct the target's entry or its config.json")
    return dtype


def expect(
    target: str, drafter: str | None, catalog: Catalog, *, method: str | None = None, budget: int | None = None
) -> Report:
    """What `target` takes, and `drafter` beside it.

    `method`: vLLM's, for a drafter that is a folder. `budget`: bytes for weights and KV cache, of all GPUs together.
    """
    entry, model = find_target(target, catalog)
    dtype = engine_dtype(entry, model)
    first = target_part(model, dtype)
    found = find_drafter(drafter, entry, model, catalog, method) if drafter is not None else None
    second = drafter_part(*found, model, dtype) if found else None
    together = first.footprint.plus(second.footprint if second else NOTHING)
    return Report(
        dtype=dtype,
        target=first,
        drafter=second,
        lost_share_per_gib=1 - first.kv_bytes_per_token / together.kv_bytes_per_token,
        capacity=None if budget is None else capacity(first.footprint, together, budget),
    )


def target_part(model: Model, dtype: str) -> Part:
    tensors = memory.model_tensors(model.config, dtype, model.name) if model.tensors is None else model.tensors
    static, kv = memory.target_footprint(model.config, tensors, dtype, model.name)
    return Part(model=model.name, basis=model.basis, static_bytes=static, kv_bytes_per_token=kv)


def drafter_part(method: str, model: Model, target: Model, dtype: str) -> Part:
    """`target`: whose embedding and LM head a head shares."""
    table = (target.config["vocab_size"], target.config["hidden_size"])
    if model.tensors is not None:
        tensors = model.tensors
        names = [name for name in memory.SHARED.get(method, ()) if is_shared(method, name, tensors, table)]
    elif method in ("eagle", "eagle3"):
        tensors, names = memory.head_tensors(method, model.config, dtype, model.name), list(memory.SHARED[method])
    else:
        tensors, names = memory.model_tensors(model.config, dtype, model.name), []
    static, kv = memory.drafter_footprint(method, model.config, tensors, dtype, table, model.name)
    return Part(
        model=model.name,
        basis=model.basis,
        static_bytes=static,
        kv_bytes_per_token=kv,
        method=method,
        assumed=f"{' and '.join(names)}: taken to be the target's own" if names and method != "mtp" else "",
    )


def is_shared(method: str, end: str, tensors: Mapping[str, Sized], table: tuple[int, int]) -> bool:
    return any(name.endswith(end) and memory.shares(method, name, t, table) for name, t in tensors.items())


def budget_bytes(gpu_memory_gib: float, utilisation: float) -> int:
    """What vLLM may fill: memory of all GPUs together x ``gpu_memory_utilization``."""
    if not 0 < gpu_memory_gib < math.inf:
        raise rule("--gpu-memory-gib", "above 0", gpu_memory_gib, do="give the memory of all GPUs together, in GiB")
    if not 0 < utilisation <= 1:
        raise rule("--utilisation", "above 0 and at most 1", utilisation, do="give vLLM's gpu_memory_utilization")
    return int(gpu_memory_gib * utilisation * GIB)


def capacity(alone: Footprint, together: Footprint, budget: int) -> Capacity:
    without, with_drafter = memory.tokens_that_fit(budget, alone), memory.tokens_that_fit(budget, together)
    return Capacity(
        budget_bytes=budget,
        tokens_without=without,
        tokens_with=with_drafter,
        lost_share=memory.lost_share(without, with_drafter),
    )


# --- text -------------------------------------------------------------------------------------------------------------


def lines(report: Report) -> Iterator[str]:
    """The table, one line each."""
    drafter, together = report.drafter, report.together
    parts = [("target", report.target), *([("drafter", drafter)] if drafter else [])]
    for label, part in parts:
        method = f", {part.method}" if part.method else ""
        yield f"{label:9}{part.model} (from its {part.basis}{method})"
        if part.assumed:
            yield f"{'':9}{part.assumed}"
    yield ""
    yield f"{'':9}{'static GiB':>12}{'KV KiB/token':>14}{'tokens/GiB of KV':>18}"
    rows = [(label, part.footprint) for label, part in parts]
    for label, footprint in [*rows, ("together", together)] if drafter else rows:
        static, kv = footprint.static_bytes / GIB, footprint.kv_bytes_per_token / KIB
        yield f"{label:9}{static:12.2f}{kv:14.2f}" + ("" if label == "drafter" else f"{per_gib(footprint):18,d}")
    if drafter:
        static = drafter.static_bytes / report.target.static_bytes
        kv = drafter.kv_bytes_per_token / report.target.kv_bytes_per_token
        yield f"{'change':9}{static:+12.1%}{kv:+14.1%}{-report.lost_share_per_gib:+18.1%}"
    else:
        yield "nothing is added to the target"
    if report.capacity:
        yield ""
        yield capacity_line(report.capacity)


def per_gib(footprint: Footprint) -> int:
    return GIB // footprint.kv_bytes_per_token


def capacity_line(room: Capacity) -> str:
    text = f"tokens beside the weights in {room.budget_bytes / GIB:.1f} GiB: {room.tokens_without:,d} without"
    text += f" and {room.tokens_with:,d} with the drafter"
    return f"{text}: {room.lost_share:.1%} lost" if room.lost_share is not None else f"{text}: the target does not fit"


def as_json(report: Report) -> str:
    """The report, with what both take together, as indented JSON."""
    table = msgspec.to_builtins(report)
    table["together"] = report.together._asdict()
    return msgspec.json.format(msgspec.json.encode(table), indent=2).decode()
