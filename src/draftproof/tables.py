"""The Parquet side of the records: token ids, per-request acceptance and step samples.

Requests of one block that repeat another one's output (copies of one prompt) are stored as differences: the index of
the earlier request, how many leading tokens they share, and the rest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from draftproof.columns import Blocks, Column, ListColumn, places
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

SCHEMAS = {"tokens": OUTPUTS, "steps": STEPS}


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


def read_file(path: Path) -> pa.Table:
    """All of one file; `pyarrow.parquet.read_table` takes three times as long for the many row groups of a run."""
    with pq.ParquetFile(path) as file:
        return file.read()


def read_table(folder: Path, kind: str, parts: set[str]) -> pa.Table:
    """Rows of the given parts, compacted or not yet; ``kind``: tokens or steps. Older files may lack columns."""
    compacted = folder / f"{kind}.parquet"
    tables: list[pa.Table] = []
    seen: set[str] = set()
    if compacted.exists():
        table = read_file(compacted)
        seen = set(table.column("part").unique().to_pylist())
        wanted = pa.array(sorted(parts), pa.string())
        tables.append(table if seen <= parts else table.filter(pc.is_in(table.column("part"), wanted)))
    paths = [folder / "parts" / f"{kind}-{part}.parquet" for part in sorted(parts - seen)]
    tables += [read_file(path) for path in paths if path.exists()]
    return pa.concat_tables(tables, promote_options="default") if tables else SCHEMAS[kind].empty_table()


def read_outputs(folder: Path, parts: set[str]) -> Blocks[tuple[str, str, int], Output]:
    """(part, arm, pass) -> outputs in request order, differences undone."""
    table = read_table(folder, "tokens", parts)
    absent = pa.nulls(table.num_rows, pa.float64())

    def timed(name: str) -> Column:
        return Column(table.column(name) if name in table.column_names else pa.chunked_array([absent]))

    ids, accepted, drafted = (ListColumn(table.column(name)) for name in ("token_ids", "accepted", "drafted"))
    firsts, shared, reasons = (Column(table.column(name)) for name in ("same_as", "shared_tokens", "finish_reason"))
    ttft, decode = timed("ttft_s"), timed("decode_s")

    def make(start: int, stop: int) -> list[Output]:
        columns = [column.values(start, stop) for column in (ids, reasons, accepted, drafted, ttft, decode)]
        block = list(map(Output, *columns))
        pairs = zip(firsts.values(start, stop), shared.values(start, stop), strict=True)
        for index, (first, length) in enumerate(pairs):
            if first is not None:
                whole = block[first].token_ids[:length] + block[index].token_ids
                block[index] = msgspec.structs.replace(block[index], token_ids=whole)
        return block

    values = sum(len(column.numbers) for column in (ids, accepted, drafted))
    return Blocks(places(table, [name for name, _ in KEY]), make, 1 + values // max(table.num_rows, 1))


def read_steps(folder: Path, parts: set[str]) -> Blocks[tuple[str, str], dict[str, Any]]:
    """(part, arm) -> step samples in order; a stage block has one pass."""
    table = read_table(folder, "steps", parts)
    names = table.column_names
    columns = [Column(table.column(name)) for name in names]

    def make(start: int, stop: int) -> list[dict[str, Any]]:
        rows = zip(*[column.values(start, stop) for column in columns], strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    return Blocks(places(table, ["part", "arm"]), make, len(names))


def compact(folder: Path, parts: set[str]) -> None:
    """Join the parts of finished rotations into one file a kind, then remove them. Safe to be killed at any point."""
    for kind, schema in SCHEMAS.items():
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
