"""What a loaded engine takes, measured in the process that holds its model. Standard library and torch only."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any


def loaded(runner: Any) -> dict[str, int]:
    """Bytes by name; what cannot be told here (a model in another process, no GPU) is left out.

    A CPU build may keep packed copies of weights beside or instead of parameters: the resident set holds them all.
    """
    found: dict[str, int] = {}
    if (resident := resident_bytes()) is not None:
        found["resident_bytes"] = resident
    target = getattr(runner, "model", None)
    if hasattr(target, "parameters"):
        own = parameters_of(target)
        found["target_parameter_bytes"] = sum(own.values())
        drafter = getattr(getattr(runner, "drafter", None), "model", None)
        if hasattr(drafter, "parameters"):
            found["drafter_parameter_bytes"] = sum(v for key, v in parameters_of(drafter).items() if key not in own)
    with contextlib.suppress(ImportError, RuntimeError):
        cuda = importlib.import_module("torch").cuda
        if cuda.is_available():
            found["gpu_allocated_bytes"] = int(cuda.memory_allocated())
    return found


def parameters_of(model: Any) -> dict[int, int]:
    """Identity of each parameter -> its bytes; one that modules share counts once."""
    return {id(each): int(each.numel()) * int(each.element_size()) for each in model.parameters()}


def resident_bytes(status: str = "/proc/self/status") -> int | None:
    """The resident set of this process; None where the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError), open(status, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("VmRSS:"):
                words = line.split()
                return int(words[1]) * 1024 if len(words) > 1 else None
    return None
