"""Whether drafts can be accepted at a set rate is tried, not looked up by version."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from draftproof.engines import synthetic

Sample = Callable[..., Any]


class Rows(list[Any]):
    """What torch's tensors are here: lists."""

    def tolist(self) -> list[Any]:
        return list(self)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool, Sample], None]:
    """Stands in for vLLM and torch: a platform, and a rejection sampler."""

    def install(is_cpu: bool, sample: Sample) -> None:
        modules: dict[str, dict[str, Any]] = {
            "vllm": {},
            "vllm.platforms": {"current_platform": types.SimpleNamespace(is_cpu=lambda: is_cpu)},
            "vllm.v1": {},
            "vllm.v1.sample": {},
            "vllm.v1.sample.rejection_sampler": {"rejection_sample": sample},
            "torch": {
                "tensor": lambda values, dtype=None: Rows(values),
                "zeros": lambda rows, columns: Rows([[0.0] * columns] * rows),
                "int32": "int32",
            },
        }
        for name, content in modules.items():
            module = types.ModuleType(name)
            module.__dict__.update(content)
            monkeypatch.setitem(sys.modules, name, module)

    return install


def accepts(*given: Any, synthetic_mode: bool, synthetic_conditional_rates: Any, **rest: Any) -> Rows:
    """Every draft whose rate is 1, then the bonus token."""
    drafts, bonus = given[0], given[6]
    assert synthetic_mode
    assert list(synthetic_conditional_rates) == [1.0]
    return Rows([[drafts[0], bonus[0][0]]])


def test_a_cpu_build_that_can_is_not_refused(engine: Callable[[bool, Sample], None]) -> None:
    """Should a later one have the kernel, nothing here needs to change."""
    engine(True, accepts)
    assert synthetic.gap() == synthetic.missing("1.0") == ""


def test_an_assertion_of_the_kernel_is_the_reason(engine: Callable[[bool, Sample], None]) -> None:
    """As vLLM 0.32 answers on a CPU."""

    def refuses(*given: Any, **options: Any) -> Rows:
        raise AssertionError("not with CPU sampling")

    engine(True, refuses)
    assert synthetic.missing("0.32.0") == (
        "needs a vLLM that accepts drafts at a set rate (rejection_sample_method = 'synthetic'); "
        "found 0.32.0 for CPUs, which does not (AssertionError: not with CPU sampling); enable with a GPU"
    )


@pytest.mark.parametrize("row", [[0, -1], [1, -1], [2, 1]], ids=["rejected", "no bonus", "something else"])
def test_a_draft_that_is_not_accepted_is_told(engine: Callable[[bool, Sample], None], row: list[int]) -> None:
    """A sampler that silently judges by the target's logits would measure the drafter's own acceptance."""
    engine(True, lambda *given, **options: Rows([row]))
    assert f"came out as [{row}]" in synthetic.gap()


def test_on_a_gpu_nothing_is_tried(engine: Callable[[bool, Sample], None]) -> None:
    """Its kernels want tensors on the device, and the engine's own are the same code."""

    def never(*given: Any, **options: Any) -> Rows:
        raise AssertionError

    engine(False, never)
    assert synthetic.missing("1.0") == ""
