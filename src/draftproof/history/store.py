"""The history's file: Parquet, zstd, one row for each (run, cell, metric).

A file is only ever replaced as a whole: written beside, flushed to the disk, moved in place, under a lock. A process
that is killed leaves the history as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from draftproof.errors import DraftproofError, rule
from draftproof.history.rows import JUDGED, Row
from draftproof.tables import write_table

VERSION_KEY = b"draftproof_history_version"
VERSION = "1"
LOCK_WAIT_S = 60.0

SCHEMA = pa.schema(
    [
        *[(name, pa.string()) for name in ("run_id", "taken", "study", "hardware", "fingerprint", "held")],
        ("git_commit", pa.string()),
        ("git_dirty", pa.bool_()),
        *[(name, pa.string()) for name in ("vllm", "vllm_files_sha256", "commit_under_test", "ref", "command")],
        *[(name, pa.string()) for name in ("target", "variant", "workload")],
        ("batch_size", pa.int32()),
        ("metric", pa.string()),
        *[(name, pa.float64()) for name in ("value", "low", "high")],
        ("pairs", pa.int32()),
        ("sets", pa.list_(pa.string())),
        ("by_set", pa.list_(pa.float64())),
        ("waiting", pa.float64()),
        *[(name, pa.string()) for name in ("throughput", "determinism", "reason")],
    ],
    metadata={VERSION_KEY: VERSION.encode()},
)


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What one `add` did."""

    new: list[str]
    """Run ids."""
    known: list[str]
    """Run ids that the history held already, with the same figures."""
    rows: int
    """Rows added."""


def read(path: Path) -> list[Row]:
    """All rows. Raises DraftproofError where there is no history, or one that cannot be read whole."""
    if not path.exists():
        raise DraftproofError(f"no history {path}; begin one with `draftproof history add RUN --store {path}`")
    try:
        # Page checksums: a flipped bit inside a page would otherwise be a figure.
        file = pq.ParquetFile(path, page_checksum_verification=True)
        version = (file.schema_arrow.metadata or {}).get(VERSION_KEY)
        if version is None:
            raise rule("--store", "a history of draftproof", str(path), do="name another file")
        if version.decode(errors="replace") != VERSION:
            raise rule(
                f"{path}: version of the history",
                VERSION,
                version.decode(errors="replace"),
                do="read it with the draftproof that wrote it, or begin another with --store FILE",
            )
        return msgspec.convert(file.read().to_pylist(), list[Row])
    except (pa.ArrowException, OSError, msgspec.ValidationError) as error:
        raise DraftproofError(
            f"{path} cannot be read as a history ({first_line(error)}); put a backup in its place, or move it away "
            "and add the runs again"
        ) from error


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def add(path: Path, rows: Sequence[Row]) -> Added:
    """Add runs, all or none; a run that is there already with the same figures is left alone.

    Raises DraftproofError where the history holds other figures under the same run id.
    """
    with writing(path):
        before = read(path) if path.exists() else []
        held = by_run(before)
        given = by_run(rows)
        for run_id, ours in given.items():
            if run_id in held:
                check_same(path, run_id, held[run_id], ours)
        new = [run_id for run_id in given if run_id not in held]
        fresh = [row for run_id in new for row in given[run_id]]
        if fresh:
            table = pa.Table.from_pylist([msgspec.structs.asdict(row) for row in (*before, *fresh)], schema=SCHEMA)
            write_table(path, table)
    return Added(new=new, known=[run_id for run_id in given if run_id in held], rows=len(fresh))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """One process at a time adds to a history. The system frees the lock when its holder is killed."""
    lock = filelock.FileLock(path.with_name(path.name + ".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock.acquire(timeout=LOCK_WAIT_S):
            yield
    except filelock.Timeout as error:
        raise DraftproofError(
            f"{path} has been locked by another process for {LOCK_WAIT_S:.0f} s; wait for it, then add the runs again"
        ) from error
    except OSError as error:
        raise DraftproofError(
            f"cannot write {path}: {error.strerror or error}; it is as it was: free space or choose another --store"
        ) from error


def by_run(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.run_id, []).append(row)
    return found


def check_same(path: Path, run_id: str, held: list[Row], given: list[Row]) -> None:
    """Raises DraftproofError naming the first field that differs; verdicts may: limits change."""
    if [(row.cell, row.metric) for row in held] != [(row.cell, row.metric) for row in given]:
        raise DraftproofError(f"{path} holds other cells under run id {run_id!r}: it was another run, or has changed")
    for old, new in zip(held, given, strict=True):
        for field in Row.__struct_fields__:
            if field not in JUDGED and getattr(old, field) != getattr(new, field):
                raise DraftproofError(
                    f"{path} holds another {field} under run id {run_id!r} ({old.cell}, {old.metric}: "
                    f"{getattr(old, field)!r}, now {getattr(new, field)!r}); a night that is kept is not changed: add "
                    "it with the --commit and --ref of the first time, or to another --store FILE"
                )
