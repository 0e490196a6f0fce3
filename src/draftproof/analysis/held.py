"""Like with like: what must be equal on two arms before their figures are compared."""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.records import ArmLine

HELD_RESOLVED = (
    "dtype",
    "max_model_len",
    "vocab_size",
    "revision",
    "enforce_eager",
    "seed",
    "prefix_caching",
    "max_num_seqs",
    "async_scheduling",
    "chunked_prefill",
    "tensor_parallel_size",
    "runner",
)
"""Of what vLLM resolved. Not held: what follows from ``speculative_config`` (cache size, graph mode, token budget)."""

HELD_ENVIRONMENT = ("cpu", "cores", "threads", "gpus", "preloads", "variables")
"""Of the process. Not held: versions of vLLM, torch and Python, which are under test."""


BUILD = ("vllm", "vllm_files_sha256", "torch", "transformers", "python")
"""What makes a build: it may differ between two builds that are compared, never within one run's arm."""


def held(arm: ArmLine) -> dict[str, Any]:
    """The held fields of an arm that it knows; a field that an older vLLM lacks is absent."""
    resolved = {name: arm.resolved[name] for name in HELD_RESOLVED if name in arm.resolved}
    environment = {name: arm.environment[name] for name in HELD_ENVIRONMENT if name in arm.environment}
    return {**resolved, **environment, "target_sha256": arm.target_sha256}


def unlike(reference: ArmLine, other: ArmLine) -> list[str]:
    """Held fields that differ, as ``field: reference -> other``; empty where the arms may be compared."""
    return differences(held(reference), held(other))


def changed(earlier: ArmLine, now: ArmLine) -> list[str]:
    """What is no longer as it was when an earlier session of the run started the same arm: held fields, the build."""

    def facts(arm: ArmLine) -> dict[str, Any]:
        return held(arm) | {name: arm.environment.get(name) for name in BUILD}

    return differences(facts(earlier), facts(now))


class Changed(NamedTuple):
    """One field that differs; both values as Python writes them."""

    field: str
    reference: str
    other: str

    @property
    def text(self) -> str:
        return f"{self.field}: {self.reference} -> {self.other}"


def changes(reference: dict[str, Any], other: dict[str, Any]) -> list[Changed]:
    """Fields that differ, in the order of their texts; of a dictionary or list inside only what differs in it."""
    if reference == other:  # nearly always, and DeepDiff takes a millisecond to say so
        return []
    from deepdiff import DeepDiff

    difference = DeepDiff(reference, other, view="tree")
    found = []
    for of_a_kind in difference.values():
        for change in of_a_kind:
            path = ".".join(str(part) for part in change.path(output_format="list"))
            found.append(Changed(path, repr(change.t1), repr(change.t2)))
    return sorted(found, key=lambda change: change.text)


def differences(reference: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Fields that differ, as ``field: reference -> other``, sorted."""
    return [change.text for change in changes(reference, other)]
