"""Rules of published figures: only the cell's own are taken, from whichever study's row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from draftproof.catalog import load_catalog
from draftproof.published import published
from draftproof.spec import Cell, Threshold
from tests.reporting import cell


def of(**changes: Any) -> Cell:
    return msgspec.structs.replace(cell("eagle", "gsm8k", 16, target="llama3.1-8b").cell, **changes)


def row(**changes: Any) -> Threshold:
    whole: dict[str, Any] = {
        "metric": "paper_speedup",
        "limit": 1.7,
        "estimator": "ratio of means",
        "gating": True,
        "source": "arXiv",
        "targets": ["llama3.1-8b"],
        "variants": ["eagle"],
        "workloads": ["gsm8k"],
        "batch_sizes": [16],
    }
    return Threshold(**(whole | changes))


def test_a_figure_is_the_cells_own_in_any_study() -> None:
    """A row gates its own study; as a figure it may stand beside every run of the same cell."""
    found = published(of(study="mine"), [row(studies=["paper-fig1"])])
    assert found is not None
    assert (found.speedup, found.source) == (1.7, "arXiv")


@pytest.mark.parametrize(
    "other",
    [
        {"metric": "speedup"},
        {"targets": ["qwen3-8b"]},
        {"variants": ["ngram"]},
        {"workloads": ["sharegpt"]},
        {"batch_sizes": [64]},
        {"targets": []},
        {"variants": []},
        {"workloads": []},
        {"batch_sizes": []},
        {"batch_sizes": [1, 16]},
    ],
)
def test_other_cells_and_limits_for_many_cells_are_no_figure(other: dict[str, Any]) -> None:
    assert published(of(), [row(**other)]) is None


def rows_of(hardware: str) -> Iterator[tuple[Threshold, Cell]]:
    for found in load_catalog().thresholds[hardware]:
        if found.metric == "paper_speedup":
            (target,), (variant,), (workload,), (size,) = (
                found.targets,
                found.variants,
                found.workloads,
                found.batch_sizes,
            )
            yield found, of(target=target, variant=variant, workload=workload, batch_size=size)


@pytest.mark.parametrize(("hardware", "count"), [("h100", 104), ("h100x4", 52)])
def test_all_of_figure_1_is_found(hardware: str, count: int) -> None:
    limits = load_catalog().thresholds[hardware]
    found = [(line.limit, published(cell, limits)) for line, cell in rows_of(hardware)]
    assert len(found) == count
    assert all(figure is not None and figure.speedup == limit for limit, figure in found)
