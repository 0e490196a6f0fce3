"""Invented nights: rows of a history as a nightly job would have kept them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from draftproof.history.rows import Row
from draftproof.spec import Threshold

FIRST = date(2026, 1, 1)
SETS = ("set-a", "set-b", "set-c")


def day(number: int) -> str:
    return (FIRST + timedelta(days=number)).isoformat()


def limit_row(metric: str, limit: float, **fields: Any) -> Threshold:
    given: dict[str, Any] = {"estimator": "a test's", "gating": True, "source": "a test's"}
    return Threshold(metric=metric, limit=limit, **(given | fields))


LIMITS = {
    "cpu": [
        limit_row("throughput_drop", 0.05),
        limit_row("speedup_drop", 0.05),
        limit_row("acceptance_drop", 0.05),
        limit_row("system_cost_rise", 0.05),
        limit_row("waiting_share", 0.2),
    ]
}


def make_row(night: int, value: float | None, **fields: Any) -> Row:
    """One speedup on one night; the figure is the same on all of its prompt sets unless `by_set` says otherwise."""
    sets = list(SETS) if value is not None else []
    given: dict[str, Any] = {
        "run_id": f"run-{night:03d}",
        "taken": f"{day(night)}T02:00:00Z",
        "study": "s",
        "hardware": "cpu",
        "fingerprint": "f",
        "held": '{"cpu":"a"}',
        "git_commit": None,
        "git_dirty": None,
        "vllm": "0",
        "vllm_files_sha256": None,
        "commit_under_test": f"commit-{night}",
        "ref": "",
        "command": "pytest --sd-study s",
        "target": "t",
        "variant": "ngram",
        "workload": "w",
        "batch_size": 2,
        "metric": "speedup",
        "value": value,
        "low": None,
        "high": None,
        "pairs": len(sets),
        "sets": sets,
        "by_set": [value] * len(sets),
        "waiting": None,
        "throughput": "PASS",
        "determinism": "PASS",
        "reason": "",
    }
    return Row(**(given | fields))


def make_rows(values: Sequence[float | None], metric: str = "speedup", **fields: Any) -> list[Row]:
    return [make_row(night, value, metric=metric, **fields) for night, value in enumerate(values)]


def cell_rows(sd: Sequence[float], no_sd: Sequence[float], **fields: Any) -> list[Row]:
    """A cell's speedup and both arms' tokens per second."""
    return [
        *make_rows([ours / base for ours, base in zip(sd, no_sd, strict=True)], **fields),
        *make_rows(sd, "tokens_per_s", **fields),
        *make_rows(no_sd, "base_tokens_per_s", **fields),
    ]
