"""Rules of rows held as columns: each block comes back as it was written, however often it is made again."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import columns
from draftproof.columns import Blocks, Column, ListColumn, places

VALUES = {
    "numbers": pa.array([1, 2, None, 4], pa.int16()),
    "seconds": pa.array([0.5, None, float("nan"), 2.0]),
    "texts": pa.array(["a", None, "b", "a"]),
    "nothing": pa.nulls(4, pa.string()),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_column_gives_back_its_values(name: str, pieces: int) -> None:
    """Absent ones too, and a number that is none stays one."""
    array = VALUES[name]
    column = Column(pa.chunked_array([array] if pieces == 1 else [array[:3], array[3:]]))
    for start in range(5):
        for stop in range(start, 5):
            assert str(column.values(start, stop)) == str(array[start:stop].to_pylist())


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=6), st.data())
def test_a_column_of_lists_gives_back_its_lists(rows: list[list[int]], data: st.DataObject) -> None:
    array = pa.array(rows, pa.list_(pa.int32()))
    cut = data.draw(st.integers(0, len(rows)))
    column = ListColumn(pa.chunked_array([array[:cut], array[cut:]], pa.list_(pa.int32())))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert column.values(start, stop) == rows[start:stop]


def test_an_absent_list_is_empty() -> None:
    assert ListColumn(pa.chunked_array([pa.array([[1, 2], None, [3]], pa.list_(pa.int32()))])).values(0, 3) == [
        [1, 2],
        [],
        [3],
    ]


def test_blocks_end_where_any_of_their_columns_changes() -> None:
    table = pa.table({"part": ["a", "a", "a", "b", "b"], "arm": ["x", "x", "y", "y", "y"], "pass": [0, 1, 1, 1, 1]})
    assert places(table, ["part", "arm", "pass"]) == {
        ("a", "x", 0): (0, 1),
        ("a", "x", 1): (1, 2),
        ("a", "y", 1): (2, 3),
        ("b", "y", 1): (3, 5),
    }
    assert places(table.slice(0, 0), ["part", "arm"]) == {}


def test_a_block_is_kept_until_others_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six values fit, two a row: the third block drops the first two, which are made again."""
    monkeypatch.setattr(columns, "KEPT_VALUES", 6)
    asked: list[tuple[int, int]] = []

    def make(start: int, stop: int) -> list[int]:
        asked.append((start, stop))
        return list(range(start, stop))

    blocks = Blocks({"a": (0, 1), "b": (1, 3), "c": (3, 4), "large": (4, 9)}, make, 2)
    assert [blocks[key] for key in "abab"] == [[0], [1, 2], [0], [1, 2]]
    assert asked == [(0, 1), (1, 3)]
    assert (blocks["c"], blocks["a"]) == ([3], [0])
    assert asked[2:] == [(3, 4), (0, 1)]
    assert blocks["large"] == [4, 5, 6, 7, 8]
    assert blocks.get("none") is None
    assert (list(blocks), len(blocks)) == (["a", "b", "c", "large"], 4)
    assert blocks == {"a": [0], "b": [1, 2], "c": [3], "large": [4, 5, 6, 7, 8]}
