"""From records to advice: variants paired in the same rotations, kept reasons, what ``summary.json`` holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from draftproof.analysis.pairs import speed_pairs
from draftproof.analysis.stats import ratio_of_totals
from draftproof.recommendation import recommend
from draftproof.report.written import write_report
from draftproof.results import analyse
from draftproof.spec import Cell
from tests.moving.running import invoke
from tests.toy import Bench, ToyEngine

MakeBench = Callable[..., Bench]


def test_variants_are_told_apart_by_their_own_rotations(clean_run: Bench) -> None:
    """The pair's ratio is that of totals over the same prompt sets, the faster one over the slower."""
    results = analyse(clean_run.folder, clean_run.catalog.thresholds)
    cells = {cell.cell.id: cell for cell in results.cells}
    data = clean_run.folder.read()
    assert results.rivals
    for rival in results.rivals:
        first, second = cells[rival.first], cells[rival.second]
        assert first.cell.batch_size == second.cell.batch_size
        unit = next(line.unit for line in data.rotations if line.unit[1:] == first_unit(first.cell))
        pairs = speed_pairs(data.blocks, unit, first.arm, second.arm)
        assert rival.ratio.value == pytest.approx(ratio_of_totals(pairs))
        assert rival.ratio.clusters == len(pairs)
        assert first.speedup is not None
        assert second.speedup is not None
        assert rival.ratio.value == pytest.approx(first.speedup.value / second.speedup.value)
    for one, other in itertools.combinations(results.rivals, 2):
        assert {one.first, one.second} != {other.first, other.second}


def first_unit(cell: Cell) -> tuple[str, str, int]:
    return cell.target, cell.workload, cell.batch_size


def test_a_planted_speed_is_advised_and_a_slow_one_is_not(clean_run: Bench) -> None:
    results = analyse(clean_run.folder, clean_run.catalog.thresholds, catalog=clean_run.catalog)
    choices = recommend(results)
    assert choices
    for choice in choices:
        assert choice.chosen is not None
        assert choice.chosen.variant == "perfect"
        assert choice.chosen.k is not None
        assert choice.excluded == []


def test_a_divergent_variant_is_not_advised(faulty_run: Bench) -> None:
    results = analyse(faulty_run.folder, faulty_run.catalog.thresholds)
    bad = {
        (one.variant, choice.workload, choice.batch_size) for choice in recommend(results) for one in choice.excluded
    }
    assert ("perfect", "long", 3) in bad
    assert ("partly", "short", 3) in bad


def test_the_advice_is_in_summary_json(clean_run: Bench, tmp_path: Path) -> None:
    run = Bench(tmp_path / "run", clean_run.catalog)
    run.session(ToyEngine(speeds={"perfect": 1.5}), ["speed"])
    results = analyse(run.folder, run.catalog.thresholds, catalog=run.catalog)
    write_report(run.folder, results)
    summary = msgspec.json.decode((run.folder.path / "summary.json").read_bytes())
    assert summary["recommendations"] == msgspec.to_builtins(recommend(results))
    assert set(summary) == {*msgspec.structs.asdict(results), "recommendations"}


def test_why_cells_were_skipped_is_in_the_records(bench: MakeBench, overlay: Path) -> None:
    """A run that is rendered again, elsewhere and later, still says what it lacks and why."""
    run = bench()
    run.session(ToyEngine(), ["speed"])
    why = "needs a data set; found none; enable with a network"
    header = run.folder.header()
    left_out = next(cell for cell in header.cells if cell.variant == "partly")
    rest = [cell for cell in header.cells if cell.id != left_out.id]
    run.folder.write_header(msgspec.structs.replace(header, cells=rest, skipped={left_out.id: why}))
    assert invoke("report", str(run.folder.path), "--sd-catalog", str(overlay))[0] == 0
    for name in ("index.html", "summary.md"):
        text = (run.folder.path / name).read_text(encoding="utf-8").replace("\\", "")
        assert why in text
        assert left_out.id in text


def test_a_header_of_before_has_no_reasons(bench: MakeBench) -> None:
    run = bench()
    path = run.folder.path / "run.json"
    table = msgspec.json.decode(path.read_bytes())
    del table["skipped"]
    path.write_bytes(msgspec.json.encode(table))
    assert run.folder.header().skipped == {}
