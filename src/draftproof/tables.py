"""The Parquet side of the records: token ids, per-request acceptance and step samples.

Requests of one block that repeat another one's output (copies of one prompt) are stored as differences: the index of
the earlier request, how many leading tokens they share, and the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from draftproof.records import BlockLine, Output, RotationLine

KEY = [("part", pa.string()), ("arm", pa.string()), ("pass_index", pa.int8())]

OUTPUTS = pa.schema(
    [
        *KEY,
        ("request", pa.int32()),
        ("prompt_id", pa.string()),
        ("same_as", pa.int32()),
        ("shared_tokens", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),
        ("accepted", pa.list_(pa.int16())),
        ("drafted", pa.list_(pa.int16())),
        ("ttft_s", pa.float64()),
        ("decode_s", pa.float64()),
    ]
)

PARTS_S = (
    "step_s",
    "draft_s",
    "forward_s",
    "lm_head_s",
    "sample_s",
    "schedule_s",
    "prepare_s",
    "bookkeep_s",
    "update_s",
    "output_s",
)

BESIDE = [
    ("outside_s", pa.float64()),
    ("workers", pa.int16()),
    ("spread_s", pa.float64()),
    ("device_busy_s", pa.float64()),
    ("device_idle_s", pa.float64()),
    ("clock", pa.string()),
]
"""Columns that came later, null in older runs, and device times on a CPU: seconds of the step outside of the worker
where that is a process of its own; workers that took part, and by how much the fastest was faster than the recorded
one; how the seconds were measured."""

STEPS = pa.schema(
    [
        *KEY,
        ("step", pa.int32()),
        ("kind", pa.string()),
        ("requests", pa.int32()),
        ("rows", pa.int32()),
        ("draft_tokens", pa.int32()),
        ("kv_tokens", pa.int64()),
        *[(name, pa.float64()) for name in PARTS_S],
        *BESIDE,
    ]
)


def write_outputs(path: Path, closing: RotationLine, blocks: list[BlockLine], outputs: list[list[Output]]) -> None:
    rows = []
    for block, block_outputs in zip(blocks, outputs, strict=True):
        firsts: dict[str, int] = {}
        for index, (prompt_id, output) in enumerate(zip(closing.prompt_ids, block_outputs, strict=True)):
            first = firsts.setdefault(prompt_id, index)
            shared = 0 if first == index else shared_prefix(block_outputs[first].token_ids, output.token_ids)
            rows.append(
                {
                    "part": closing.part,
                    "arm": block.arm,
                    "pass_index": block.pass_index,
                    "request": index,
                    "prompt_id": prompt_id,
                    "same_as": None if first == index else first,
                    "shared_tokens": shared,
                    "token_ids": output.token_ids[shared:],
                    "finish_reason": output.finish_reason,
                    "accepted": output.accepted,
                    "drafted": output.drafted,
                    "ttft_s": output.ttft_s,
                    "decode_s": output.decode_s,
                }
            )
    write_table(path, pa.Table.from_pylist(rows, schema=OUTPUTS))


def shared_prefix(left: list[int], right: list[int]) -> int:
    """Number of leading tokens that two sequences share."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def write_steps(path: Path, closing: RotationLine, blocks: list[BlockLine], steps: list[list[dict[str, Any]]]) -> None:
    rows = [
        {"part": closing.part, "arm": block.arm, "pass_index": block.pass_index, "step": number, **step}
        for block, block_steps in zip(blocks, steps, strict=True)
        for number, step in enumerate(block_steps)
    ]
    write_table(path, pa.Table.from_pylist(rows, schema=STEPS))


def write_table(path: Path, table: pa.Table) -> None:
    temporary = path.with_name(path.name + ".part")
    try:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_rows(folder: Path, kind: str, parts: set[str]) -> Iterator[dict[str, Any]]:
    """Rows of the given parts, compacted or not yet; ``kind``: tokens or steps."""
    compacted = folder / f"{kind}.parquet"
    seen: set[str] = set()
    if compacted.exists():
        table = pq.read_table(compacted)
        seen = set(table.column("part").unique().to_pylist())
        for row in table.to_pylist():
            if row["part"] in parts:
                yield row
    for part in sorted(parts - seen):
        path = folder / "parts" / f"{kind}-{part}.parquet"
        if path.exists():
            yield from pq.read_table(path).to_pylist()


def read_outputs(folder: Path, parts: set[str]) -> dict[tuple[str, str, int], list[Output]]:
    """(part, arm, pass) -> outputs in request order, differences undone."""
    result: dict[tuple[str, str, int], list[Output]] = {}
    for row in read_rows(folder, "tokens", parts):
        block = result.setdefault((row["part"], row["arm"], row["pass_index"]), [])
        token_ids = row["token_ids"]
        if row["same_as"] is not None:
            token_ids = block[row["same_as"]].token_ids[: row["shared_tokens"]] + token_ids
        block.append(
            Output(
                token_ids=token_ids,
                finish_reason=row["finish_reason"],
                accepted=row["accepted"],
                drafted=row["drafted"],
                ttft_s=row.get("ttft_s"),
                decode_s=row.get("decode_s"),
            )
        )
    return result


def read_steps(folder: Path, parts: set[str]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """(part, arm) -> step samples in order; a stage block has one pass."""
    result: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in read_rows(folder, "steps", parts):
        result.setdefault((row["part"], row["arm"]), []).append(row)
    return result


def compact(folder: Path, parts: set[str]) -> None:
    """Join the parts of finished rotations into one file a kind, then remove them. Safe to be killed at any point."""
    for kind, schema in (("tokens", OUTPUTS), ("steps", STEPS)):
        whole = folder / f"{kind}.parquet"
        seen = set(pq.read_table(whole, columns=["part"]).column("part").to_pylist()) if whole.exists() else set()
        paths = [folder / "parts" / f"{kind}-{part}.parquet" for part in sorted(parts - seen)]
        sources = [path for path in ([whole] if whole.exists() else []) + paths if path.exists()]
        if sources and sources != [whole]:
            temporary = whole.with_name(whole.name + ".part")
            with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
                for source in sources:
                    writer.write_table(pq.read_table(source, schema=schema))
            with temporary.open("rb") as file:
                os.fsync(file.fileno())  # before the parts go
            temporary.replace(whole)
        for path in (folder / "parts").glob(f"{kind}-*.parquet"):
            path.unlink()
