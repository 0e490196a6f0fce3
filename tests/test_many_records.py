"""The run that the cost of a report is measured on is a sound one: what was planted shows, and nothing else.

How long its report takes, and how much memory, is measured by tools/render_cost.py.
"""

from __future__ import annotations

import msgspec
import pytest

from draftproof.catalog import load_catalog
from draftproof.records import RunFolder
from draftproof.report.written import formatted, summary_of, write_report
from draftproof.results import RunResults, analyse
from tests.manyrecords import VARIANTS, write_run

CELLS = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("many") / "run", CELLS)


@pytest.fixture(scope="module")
def results(folder: RunFolder) -> RunResults:
    catalog = load_catalog()
    return analyse(folder, catalog.thresholds, catalog=catalog)


def test_no_cell_breaks_an_invariant(results: RunResults) -> None:
    assert len(results.cells) == CELLS
    assert [cell.cell.id for cell in results.cells if cell.broken] == []


def test_every_twentieth_cell_fails_and_every_tenth_has_a_near_tie(results: RunResults) -> None:
    failing = [number for number, cell in enumerate(results.cells) if cell.failures]
    assert failing == [number for number in range(CELLS) if number % 20 == 3]
    tied = [number for number, cell in enumerate(results.cells) if cell.sameness and cell.sameness.differences]
    assert tied == [number for number in range(CELLS) if number % 10 == 4]


def test_drafts_have_their_place_in_the_output(results: RunResults) -> None:
    """Of n-gram variants too, whose lookup is replayed."""
    anatomies = [found.anatomy for found in results.anatomies.cells]
    assert len(anatomies) == CELLS * (len(VARIANTS) - 1) // len(VARIANTS)
    assert [found.unplaced for found in anatomies] == [0] * len(anatomies)
    assert results.anatomies.differences
    assert results.anatomies.overlaps


def test_the_summary_is_written_in_pieces_as_it_would_be_whole(folder: RunFolder, results: RunResults) -> None:
    whole = msgspec.json.format(msgspec.json.encode(summary_of(results)))
    pieces = list(formatted(summary_of(results)))
    assert b"".join(pieces) == whole
    assert max(map(len, pieces)) < len(whole) / 10
    write_report(folder, results)
    assert (folder.path / "summary.json").read_bytes() == whole + b"\n"


def test_lists_and_records_without_anything_in_them_are_written_alike() -> None:
    class Nothing(msgspec.Struct):
        pass

    class Kept(msgspec.Struct):
        nothing: Nothing
        none: list[int]
        text: str
        table: dict[str, list[str]]
        absent: msgspec.UnsetType = msgspec.UNSET
        rows: list[dict[str, int]] = []

    kept = Kept(Nothing(), [], "two\nlines", {"a": ["\n"], "b": []}, rows=[{"x": 1}, {}])
    assert b"".join(formatted(kept)) == msgspec.json.format(msgspec.json.encode(kept))
