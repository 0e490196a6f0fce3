"""Parquet rows held as columns, of which one block at a time becomes Python objects.

A list of Python integers takes ten times the memory of its column: the objects of a run of thousands of cells would not
fit where the run does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Key = TypeVar("Key")
Row = TypeVar("Row")

KEPT_VALUES = 500_000
"""Values of blocks that are kept as objects, since what is asked for once is mostly asked for again soon."""


class Column:
    """One column of numbers or texts, some of which may be absent."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        array = column.combine_chunks()
        self.known = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
        self.words: list[str] | None = None
        if pa.types.is_string(array.type):
            array = array.dictionary_encode()
            self.words = array.dictionary.to_pylist() or [""]
            array = array.indices
        self.numbers = array.fill_null(0).to_numpy(zero_copy_only=False)

    def values(self, start: int, stop: int) -> list[Any]:
        """Of the rows from `start` up to `stop`; None: absent."""
        found: list[Any] = self.numbers[start:stop].tolist()
        if self.words is not None:
            found = [self.words[number] for number in found]
        if self.known is not None:
            known = self.known[start:stop].tolist()
            found = [value if is_known else None for value, is_known in zip(found, known, strict=True)]
        return found


class ListColumn:
    """One column of lists of integers; an absent list is an empty one."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        array = column.combine_chunks()
        self.offsets = array.offsets.to_numpy()
        self.numbers = array.values.to_numpy(zero_copy_only=False)

    def values(self, start: int, stop: int) -> list[list[int]]:
        """Of the rows from `start` up to `stop`."""
        ends = self.offsets[start : stop + 1].tolist()
        first = ends[0]
        flat = self.numbers[first : ends[-1]].tolist()
        return [flat[low - first : high - first] for low, high in itertools.pairwise(ends)]


class Blocks(Mapping[Key, list[Row]], Generic[Key, Row]):
    """Key -> the rows of a block; they are made when they are asked for, and made again when they were not for long.

    `places`: first row of each block, and the one behind its last. `make`: of such a range of rows. `row_values`: about
    how many values a row has.
    """

    def __init__(
        self, places: Mapping[Key, tuple[int, int]], make: Callable[[int, int], list[Row]], row_values: int
    ) -> None:
        self._places = places
        self._make = make
        self._most_rows = KEPT_VALUES // max(row_values, 1)
        self._kept: dict[Key, list[Row]] = {}
        self._kept_rows = 0

    def __getitem__(self, key: Key) -> list[Row]:
        if key not in self._kept:
            start, stop = self._places[key]
            if self._kept_rows + stop - start > self._most_rows:
                self._kept.clear()
                self._kept_rows = 0
            self._kept[key] = self._make(start, stop)
            self._kept_rows += stop - start
        return self._kept[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def places(table: pa.Table, names: list[str]) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Values of the named columns -> the rows with them, which stand together: the first, and one behind the last."""
    if not table.num_rows:
        return {}
    columns = [table.column(name).combine_chunks() for name in names]
    ends = np.unique(np.concatenate([pc.run_end_encode(column).run_ends.to_numpy() for column in columns])).tolist()
    starts = [0, *ends[:-1]]
    keys = zip(*[column.take(pa.array(starts)).to_pylist() for column in columns], strict=True)
    return dict(zip(keys, zip(starts, ends, strict=True), strict=True))
