"""Slows one method of a real vLLM when its module is imported; vLLM's files stay as they are.

`planted_faults.py` copies this file into an interpreter of its own, whose ``.pth`` file calls `install` at each start.
Standard library only: it runs before anything else, in every process of that interpreter.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A method of vLLM's that a fault wraps."""

    module: str
    owner: str
    method: str

    def __str__(self) -> str:
        return ".".join(self)


Method = Callable[..., Any]
Wrap = Callable[[Method], Method]

# EAGLE, EAGLE-3, MTP and draft models share the first one; custom classes are not vLLM's and stay as fast as they are.
PROPOSERS = (
    Place("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer", "propose"),
    Place("vllm.v1.spec_decode.ngram_proposer", "NgramProposer", "propose"),
)
REJECTION = Place("vllm.v1.sample.rejection_sampler", "RejectionSampler", "forward")
REJECTION_MADE = Place("vllm.v1.sample.rejection_sampler", "RejectionSampler", "__init__")
SAMPLER = Place("vllm.v1.sample.sampler", "Sampler", "forward")


def sleep_always(seconds: float) -> Wrap:
    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def late(*args: Any, **kwargs: Any) -> Any:
            time.sleep(seconds)
            return method(*args, **kwargs)

        return late

    return wrap


def drafter_sleep(seconds: float) -> dict[Place, Wrap]:
    """Every proposal comes late; arms without speculation make none."""
    return dict.fromkeys(PROPOSERS, sleep_always(seconds))


def sampler_sleep(seconds: float) -> dict[Place, Wrap]:
    """Every rejection sampling comes late: arms with speculation, and no others.

    vLLM 0.32 asks the rejection sampler in each of their steps, also where nothing was drafted.
    """
    return {REJECTION: sleep_always(seconds)}


def base_sleep(seconds: float) -> dict[Place, Wrap]:
    """Every sampling comes late where nothing speculates.

    A rejection sampler calls the sampler too, so it is as fast as ever once one was made in this process.
    """
    made: list[bool] = []

    def noted(method: Method) -> Method:
        @functools.wraps(method)
        def noting(*args: Any, **kwargs: Any) -> Any:
            made.append(True)
            return method(*args, **kwargs)

        return noting

    def unless_made(method: Method) -> Method:
        late = sleep_always(seconds)(method)

        @functools.wraps(method)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            return (method if made else late)(*args, **kwargs)

        return chosen

    return {REJECTION_MADE: noted, SAMPLER: unless_made}


FAULTS: dict[str, Callable[[float], dict[Place, Wrap]]] = {
    fault.__name__: fault for fault in (drafter_sleep, sampler_sleep, base_sleep)
}


class Planter:
    """A finder ahead of all others: it lets them find a module, and wraps the module's methods once it is executed."""

    def __init__(self, wraps: dict[Place, Wrap], told: str) -> None:
        self._wraps = wraps
        self.told = told

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        wraps = {place: wrap for place, wrap in self._wraps.items() if place.module == name}
        if not wraps:
            return None
        spec = self._find(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        # Set on the loader, which was made for this module alone: what asks it for the source still gets it.
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            for place, wrap in wraps.items():
                self._plant(module, place, wrap)

        loader.exec_module = exec_module
        return spec

    def _find(self, name: str, path: Sequence[str] | None, target: Any) -> importlib.machinery.ModuleSpec | None:
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in behind)
        return next((spec for spec in specs if spec is not None), None)

    def _plant(self, module: Any, place: Place, wrap: Wrap) -> None:
        owner = getattr(module, place.owner)  # its absence is an error: a fault that is not there proves nothing
        setattr(owner, place.method, wrap(vars(owner)[place.method]))
        print(f"planted fault: {self.told} in {place}", file=sys.stderr, flush=True)


def install(fault: str, ms: float) -> None:
    """Plant `fault`, of `ms` milliseconds a call, in this process: once, though a venv reads its .pth files twice."""
    told = f"{fault} of {ms:g} ms"
    if not any(isinstance(finder, Planter) and finder.told == told for finder in sys.meta_path):
        sys.meta_path.insert(0, Planter(FAULTS[fault](ms / 1e3), told))
