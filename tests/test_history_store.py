"""The history's file: kept whole through kills, full disks and two writers; what is damaged or foreign is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import filelock
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import DraftproofError
from draftproof.history import store
from draftproof.history.store import add, read
from tests.histories import make_row, make_rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reports" / "history.parquet"


def test_what_was_added_is_read(path: Path) -> None:
    """Absent figures stay absent; the folder is made."""
    rows = [*make_rows([1.5, 1.25]), make_row(2, None, throughput="FAILED", git_dirty=True, waiting=0.5)]
    added = add(path, rows)
    assert (added.new, added.known, added.rows) == (["run-000", "run-001", "run-002"], [], 3)
    assert read(path) == rows
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.none() | st.floats(1e-300, 1e300), min_size=1, max_size=5),
    text=st.text(max_size=9),
    ref=st.text(),
)
def test_every_row_is_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, values: list[float | None], text: str, ref: str
) -> None:
    path = tmp_path_factory.mktemp("store") / "h.parquet"
    rows = make_rows(values, reason=text, ref=ref)
    add(path, rows)
    assert read(path) == rows


def test_a_run_is_added_once(path: Path) -> None:
    """The same run again is told, and the file is not touched; a new one beside it is added."""
    add(path, make_rows([1.5, 1.4]))
    before = path.read_bytes()
    assert add(path, make_rows([1.5])).known == ["run-000"]
    assert path.read_bytes() == before
    both = add(path, make_rows([1.5, 1.4, 1.3]))
    assert (both.new, both.known) == (["run-002"], ["run-000", "run-001"])
    assert len(read(path)) == 3


def test_other_figures_under_a_known_run_id_are_an_error(path: Path) -> None:
    """Nothing of that call is added, and the field is named; a verdict may change with the limits of the day."""
    add(path, make_rows([1.5]))
    with pytest.raises(
        DraftproofError, match=r"another value under run id 'run-000' \(t-ngram-w-b2, speedup: 1.5, now"
    ):
        add(path, [make_row(1, 1.5), make_row(0, 1.4)])
    with pytest.raises(DraftproofError, match="another commit_under_test"):
        add(path, make_rows([1.5], commit_under_test="x"))
    with pytest.raises(DraftproofError, match="other cells"):
        add(path, make_rows([1.5], batch_size=4))
    assert read(path) == make_rows([1.5])
    assert add(path, make_rows([1.5], throughput="REGRESSED", reason="new limit")).known == ["run-000"]
    assert read(path) == make_rows([1.5])


# --- what cannot be read ----------------------------------------------------------------------------------------------


def damaged(path: Path, payload: bytes) -> None:
    path.write_bytes(payload)
    for read_or_add in (lambda: read(path), lambda: add(path, make_rows([1.5]))):
        with pytest.raises(DraftproofError, match=r"h.parquet cannot be read as a history .*put a backup in its place"):
            read_or_add()
    assert path.read_bytes() == payload


def test_a_truncated_history_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    add(path, make_rows([1.5] * 30))
    whole = path.read_bytes()
    for kept in (0, 1, 4, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        damaged(path, whole[:kept])


def test_a_flipped_byte_is_never_a_figure(tmp_path: Path) -> None:
    """Wherever it is: the file is refused, or what is read is what was written."""
    path = tmp_path / "h.parquet"
    rows = make_rows([1.5 + night / 64 for night in range(30)])
    add(path, rows)
    whole = path.read_bytes()
    refused = 0
    for place in range(4, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert [(row.run_id, row.value, row.by_set) for row in read(path)] == [
                (row.run_id, row.value, row.by_set) for row in rows
            ], f"byte {place}"
        except DraftproofError:
            refused += 1
    assert refused > 20


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    add(path, make_rows([1.5]))
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({store.VERSION_KEY: b"2"}), path)
    with pytest.raises(
        DraftproofError, match=r"version of the history must be 1 \(got '2'\); read it with the draftproof"
    ):
        read(path)


def test_another_parquet_file_is_no_history(tmp_path: Path) -> None:
    path = tmp_path / "tokens.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(DraftproofError, match=r"--store must be a history of draftproof \(got .*tokens.parquet'\)"):
        add(path, make_rows([1.5]))


def test_a_history_without_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    add(path, make_rows([1.5]))
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["sets"]), path)
    with pytest.raises(DraftproofError, match=r"cannot be read as a history .*sets"):
        read(path)


def test_no_history_says_how_to_begin_one(path: Path) -> None:
    with pytest.raises(DraftproofError, match="begin one with `draftproof history add RUN"):
        read(path)


# --- writers ----------------------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_history_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(path, make_rows([1.5]))
    before = path.read_bytes()

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(DraftproofError, match="No space left on device; it is as it was"):
            add(path, make_rows([1.5, 1.4]))
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["history.parquet", "history.parquet.lock"]
    assert add(path, make_rows([1.5, 1.4])).new == ["run-001"]


def test_remains_of_a_killed_writer_do_no_harm(path: Path) -> None:
    """Half a file beside the history is overwritten."""
    add(path, make_rows([1.5]))
    path.with_name(path.name + ".part").write_bytes(b"PAR1half")
    assert read(path) == make_rows([1.5])
    assert add(path, make_rows([1.5, 1.4])).new == ["run-001"]


def test_a_lock_that_is_not_freed_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(path, make_rows([1.5]))
    monkeypatch.setattr(store, "LOCK_WAIT_S", 0.0)
    with (
        filelock.FileLock(path.with_name(path.name + ".lock")),
        pytest.raises(DraftproofError, match="locked by another process"),
    ):
        add(path, make_rows([1.5, 1.4]))


ADD_MANY = """
import sys, msgspec
from pathlib import Path
from draftproof.history.rows import Row
from draftproof.history.store import add

for line in Path(sys.argv[2]).read_bytes().splitlines():
    add(Path(sys.argv[1]), [msgspec.json.decode(line, type=Row)])
"""


def test_two_processes_add_at_once(path: Path, tmp_path: Path) -> None:
    """Twenty runs each, one call a run, five of them the same: all 35 are there once."""
    rows = make_rows([1.5 + night / 64 for night in range(35)])
    writers = []
    for name, share in (("a", rows[:20]), ("b", rows[15:])):
        lines = tmp_path / name
        lines.write_bytes(b"\n".join(msgspec.json.encode(row) for row in share))
        writers.append(subprocess.Popen([sys.executable, "-c", ADD_MANY, str(path), str(lines)]))
    assert [writer.wait() for writer in writers] == [0, 0]
    assert sorted(read(path), key=lambda row: row.run_id) == rows
