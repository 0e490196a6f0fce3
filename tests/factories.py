"""Small entries and records with sensible fields, each of which a test may change by keyword."""

from __future__ import annotations

from typing import Any

from draftproof.records import BlockLine, FailureLine
from draftproof.spec import Cell, MatrixRow, Study


def make_cell(variant: str = "ngram", batch_size: int = 2, **fields: Any) -> Cell:
    given: dict[str, Any] = {
        "study": "s",
        "hardware": "cpu",
        "target": "t",
        "workload": "w",
        "batching": "mixed",
        "output_tokens": 8,
        "num_prompts": None,
    }
    return Cell(variant=variant, batch_size=batch_size, **(given | fields))


def make_study(**fields: Any) -> Study:
    """One row of no-SD alone, without an A/A twin."""
    row = MatrixRow(target="t", variants=["no_sd"], workloads=["w"], batch_sizes=[2])
    given: dict[str, Any] = {"title": "", "hardware": "cpu", "matrix": [row], "output_tokens": 8, "aa": False}
    return Study(name="s", **(given | fields))


def make_block(**fields: Any) -> BlockLine:
    """Two requests of 8 tokens, k = 3: of 5 drafts 4 had a first token accepted, 2 a second and 1 a third."""
    given: dict[str, Any] = {
        "session": 0,
        "group": 0,
        "target": "t",
        "workload": "w",
        "batch_size": 2,
        "rotation": 0,
        "pass_index": 0,
        "order": 0,
        "arm": "ngram",
        "purpose": "speed",
        "seconds": 1.0,
        "requests": 2,
        "prompt_tokens": 8,
        "output_tokens": 16,
        "num_drafts": 5,
        "num_draft_tokens": 15,
        "num_accepted_tokens": 7,
        "num_accepted_tokens_per_pos": [4, 2, 1],
    }
    return BlockLine(**(given | fields))


def make_failure(**fields: Any) -> FailureLine:
    """An arm that could not start."""
    given: dict[str, Any] = {
        "session": 0,
        "group": 0,
        "target": "t",
        "arm": "ngram",
        "workload": None,
        "batch_size": None,
        "purpose": "speed",
        "kind": "crash",
        "message": "it fell",
        "log_tail": "",
    }
    return FailureLine(**(given | fields))
