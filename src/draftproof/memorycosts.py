"""What each variant of a run takes beside its target: expected from the catalog, and what vLLM's cache showed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from draftproof.analysis.memory import GIB
from draftproof.catalog import Catalog
from draftproof.errors import DraftproofError, scrub
from draftproof.records import ArmLine
from draftproof.spec import NO_SD

CPU_POOL = "VLLM_CPU_KVCACHE_SPACE"
"""vLLM's variable: GiB of KV cache of each worker on a CPU."""


MEASURED = ("target_parameter_bytes", "drafter_parameter_bytes", "resident_bytes")


class MemoryCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one variant of a target, in one build."""

    target: str
    variant: str
    build: str
    static_bytes: int | None = None
    """Weights that come to the target's own, expected from headers of files or configurations; None: not known."""
    kv_bytes_per_token: int | None = None
    """KV cache that comes to each token, expected alike."""
    target_static_bytes: int | None = None
    target_kv_bytes_per_token: int | None = None
    unknown: str = ""
    """Why nothing is expected."""
    kv_cache_tokens: int | None = None
    """Tokens that the KV cache of its engine held; None: not recorded."""
    base_kv_cache_tokens: int | None = None
    """The same of the no-SD engine beside it."""
    kv_pool_bytes: int | None = None
    """Memory that the engine was given for KV cache alone; None on a GPU, where it takes what the weights leave."""
    target_parameter_bytes: int | None = None
    """Parameters of the loaded target, measured; None: not recorded, as where the model is in another process."""
    drafter_parameter_bytes: int | None = None
    """Parameters that the loaded drafter has for itself, measured."""
    resident_bytes: int | None = None
    """Resident set of the engine's process once loaded, libraries and cache included."""
    base_resident_bytes: int | None = None
    """The same of the no-SD engine beside it."""

    @property
    def order(self) -> tuple[float, float]:
        """Sorts by memory; what is not known comes last."""
        known = self.static_bytes is not None and self.kv_bytes_per_token is not None
        return (self.static_bytes or 0, self.kv_bytes_per_token or 0) if known else (float("inf"), float("inf"))

    @property
    def measured_kv_bytes(self) -> float | None:
        """Bytes of KV cache per token, pool / tokens: too high by less than one block's part of the pool."""
        return self.kv_pool_bytes / self.kv_cache_tokens if self.kv_pool_bytes and self.kv_cache_tokens else None

    @property
    def measured_lost_share(self) -> float | None:
        """Part of the KV tokens that speculation took, from 0 to 1; below 0 where there is room for more."""
        if not self.kv_cache_tokens or not self.base_kv_cache_tokens:
            return None
        return 1 - self.kv_cache_tokens / self.base_kv_cache_tokens

    @property
    def expected_lost_share(self) -> float | None:
        """The same in the same memory for KV cache, weights left out; None of no speculation, and where not known."""
        if self.variant == "no_sd" or not self.target_kv_bytes_per_token or self.kv_bytes_per_token is None:
            return None
        return 1 - self.target_kv_bytes_per_token / (self.target_kv_bytes_per_token + self.kv_bytes_per_token)


def memory_costs(arms: Iterable[ArmLine], catalog: Catalog | None) -> list[MemoryCost]:
    """One for each speculative (target, variant, build) that was started; without a catalog, what was recorded."""
    running = [arm for arm in arms if arm.role == "run"]
    bases = {(arm.target, arm.group, arm.build): arm for arm in running if arm.variant == "no_sd"}
    found: dict[tuple[str, str, str], MemoryCost] = {}
    for arm in running:
        key = (arm.target, arm.variant, arm.build)
        if key in found or arm.variant == "no_sd":
            continue
        base = bases.get((arm.target, arm.group, arm.build))
        cost = expected(arm.target, arm.variant, arm.build, catalog)
        found[key] = msgspec.structs.replace(
            cost,
            kv_cache_tokens=cache_tokens(arm),
            base_kv_cache_tokens=cache_tokens(base) if base else None,
            kv_pool_bytes=pool_bytes(arm),
            base_resident_bytes=measured(base, "resident_bytes") if base else None,
            **{name: measured(arm, name) for name in MEASURED},
        )
    return list(found.values())


def cache_tokens(arm: ArmLine) -> int | None:
    tokens = arm.resolved.get("kv_cache_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def measured(arm: ArmLine, name: str) -> int | None:
    """What the engine's process told of itself (`draftproof.engines.footprint`)."""
    value = arm.environment.get(name)
    return value if isinstance(value, int) and value > 0 else None


def pool_bytes(arm: ArmLine) -> int | None:
    """On a CPU each worker has a pool of its own, and a part of every token in it."""
    variables = arm.environment.get("variables")
    if arm.environment.get("gpus") or not isinstance(variables, dict):
        return None
    try:
        pool = float(variables.get(CPU_POOL, "")) * GIB * int(arm.resolved.get("tensor_parallel_size") or 1)
    except (TypeError, ValueError):
        return None
    return int(pool) if 0 < pool < float("inf") else None


def expected(target: str, variant: str, build: str, catalog: Catalog | None) -> MemoryCost:
    """By `draftproof.memory.expect`: whatever it refuses is not known, and no fault of the run's."""
    from draftproof.memory import expect

    cost = MemoryCost(target=target, variant=variant, build=build)
    if catalog is None:
        return msgspec.structs.replace(cost, unknown="no catalog was read")
    try:
        if variant not in catalog.variants or catalog.variants[variant].method == NO_SD:
            return msgspec.structs.replace(cost, unknown="the catalog has no such variant")
        if "/" in target or target.startswith("~"):
            # The name comes from a record: it may not point to a folder.
            return msgspec.structs.replace(cost, unknown="the catalog has no such target")
        report = expect(target, variant, catalog)
    except (DraftproofError, OSError) as error:
        return msgspec.structs.replace(cost, unknown=scrub(str(error)))
    drafter = report.drafter
    return msgspec.structs.replace(
        cost,
        static_bytes=drafter.static_bytes if drafter else 0,
        kv_bytes_per_token=drafter.kv_bytes_per_token if drafter else 0,
        target_static_bytes=report.target.static_bytes,
        target_kv_bytes_per_token=report.target.kv_bytes_per_token,
    )
