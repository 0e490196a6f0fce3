"""Rules of what a loaded engine tells of its memory: shared parameters count once, what is not known is left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftproof.engines import footprint


def tensor(count: int, size: int = 2) -> Any:
    return SimpleNamespace(numel=lambda: count, element_size=lambda: size)


def model(*tensors: Any) -> Any:
    return SimpleNamespace(parameters=lambda: iter(tensors))


def test_a_parameter_that_the_drafter_shares_is_the_targets() -> None:
    embedding, layer, head = tensor(100), tensor(30), tensor(7, 4)
    runner = SimpleNamespace(model=model(embedding, layer), drafter=SimpleNamespace(model=model(embedding, head)))
    found = footprint.loaded(runner)
    assert (found["target_parameter_bytes"], found["drafter_parameter_bytes"]) == (260, 28)
    assert found["resident_bytes"] > 0


@pytest.mark.parametrize("runner", [None, SimpleNamespace(), SimpleNamespace(model=model(), drafter=SimpleNamespace())])
def test_what_is_in_another_process_is_left_out(runner: Any) -> None:
    assert "drafter_parameter_bytes" not in footprint.loaded(runner)


@pytest.mark.parametrize("text", ["", "VmRSS:\n", "Name: x\n"])
def test_a_kernel_that_does_not_tell_gives_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "status").write_text(text)
    assert footprint.resident_bytes(str(tmp_path / "status")) is None
    assert footprint.resident_bytes(str(tmp_path / "none")) is None


def test_the_resident_set_is_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name: x\nVmRSS:\t  2048 kB\n")
    assert footprint.resident_bytes(str(tmp_path / "status")) == 2 * 2**20
