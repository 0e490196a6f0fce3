"""What each variant of a run takes beside its target: expected from the catalog, and what vLLM's cache showed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from draftproof.catalog import Catalog
from draftproof.errors import DraftproofError, scrub
from draftproof.records import ArmLine
from draftproof.spec import NO_SD


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

    @property
    def order(self) -> tuple[float, float]:
        """Sorts by memory; what is not known comes last."""
        known = self.static_bytes is not None and self.kv_bytes_per_token is not None
        return (self.static_bytes or 0, self.kv_bytes_per_token or 0) if known else (float("inf"), float("inf"))


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
            cost, kv_cache_tokens=cache_tokens(arm), base_kv_cache_tokens=cache_tokens(base) if base else None
        )
    return list(found.values())


def cache_tokens(arm: ArmLine) -> int | None:
    tokens = arm.resolved.get("kv_cache_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def expected(target: str, variant: str, build: str, catalog: Catalog | None) -> MemoryCost:
    """By `draftproof.memory.expect`: whatever it refuses is not known, and no fault of the run's."""
    from draftproof.memory import expect

    cost = MemoryCost(target=target, variant=variant, build=build)
    if catalog is None:
        return msgspec.structs.replace(cost, unknown="no catalog was read")
    try:
        if variant not in catalog.variants or catalog.variants[variant].method == NO_SD:
            return msgspec.structs.replace(cost, unknown="the catalog has no such variant")
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
