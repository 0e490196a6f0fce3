"""From a run's records to its bounds: a planted share of the oracle's gain is found, with what the folder holds."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from draftproof.bounds import Bounds, Reached
from draftproof.report.bound import reached_table, simulated_table
from draftproof.results import RunResults, analyse
from draftproof.simulator.simulate import Cell
from tests.toy import Bench, ToyEngine, rows

MakeBench = Callable[..., Bench]


def judged(run: Bench) -> RunResults:
    return analyse(run.folder, run.catalog.thresholds)


def by_place(found: Bounds) -> dict[tuple[str, str, int], Reached]:
    return {(row.variant, row.workload, row.batch_size): row for row in found.reached}


def test_a_planted_share_is_found(bench: MakeBench) -> None:
    """An oracle of 2.0 and variants of 1.5 and 0.75: half of its gain, and a quarter of it lost."""
    run = bench(matrix=rows(["perfect", "partly", "wise"], sizes=(1, 3)))
    run.session(ToyEngine(speeds={"wise": 2.0, "perfect": 1.5, "partly": 0.75}), ["speed"])
    results = judged(run)
    found = by_place(results.bounds)
    assert set(found) == {(variant, "short", size) for variant in ("perfect", "partly") for size in (1, 3)}
    for (variant, _, _), row in found.items():
        assert row.share is not None
        assert row.share.value == pytest.approx({"perfect": 0.5, "partly": -0.25}[variant])
        assert (row.oracle, row.oracle_k, row.k) == ("wise", 3, {"perfect": 3, "partly": 2}[variant])
        assert row.oracle_speedup.value == pytest.approx(2.0)
    assert results.bounds.without == []
    table = reached_table(results)
    assert table is not None
    assert len(table.body) == len(found)


@pytest.mark.parametrize("seed", range(3))
def test_noise_widens_the_interval_around_the_planted_share(bench: MakeBench, seed: int) -> None:
    run = bench(matrix=rows(["perfect", "wise"]), rotations=8, max_rotations=8)
    run.session(ToyEngine(speeds={"wise": 2.0, "perfect": 1.5}, sigma=0.03, seed=seed), ["speed"])
    (row,) = judged(run).bounds.reached
    assert row.share is not None
    assert row.share.clusters == 8
    assert row.share.low - 0.02 < 0.5 < row.share.high + 0.02
    assert 0 < row.share.high - row.share.low < 0.5


def test_an_oracle_that_gains_nothing_is_no_bound(bench: MakeBench) -> None:
    run = bench(matrix=rows(["perfect", "wise"]))
    run.session(ToyEngine(speeds={"wise": 0.9, "perfect": 1.5}), ["speed"])
    (row,) = judged(run).bounds.reached
    assert row.share is None


def test_an_oracle_alone_is_told_without_a_variant(bench: MakeBench) -> None:
    run = bench(matrix=rows(["wise"]))
    run.session(ToyEngine(speeds={"wise": 2.0}), ["speed"])
    results = judged(run)
    (row,) = results.bounds.reached
    assert (row.variant, row.speedup, row.share, row.oracle) == ("", None, None, "wise")
    assert simulated_table(results) is None


def test_without_an_oracle_the_target_is_named(bench: MakeBench) -> None:
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(), ["speed"])
    results = judged(run)
    assert results.bounds.reached == []
    assert results.bounds.without == [run.folder.header().cells[0].target]


def test_what_simulate_left_in_the_folder_is_part_of_the_results(bench: MakeBench) -> None:
    run = bench(matrix=rows(["perfect", "wise"]))
    run.session(ToyEngine(speeds={"wise": 2.0}), ["speed"])
    target = run.folder.header().cells[0].target
    cells = [
        Cell(
            dataset="short",
            variant="perfect",
            policy="fixed",
            k=3,
            batch_size=1,
            speedup=1.7,
            rules="corrected",
            requests=6,
            tokens_per_step=2.0,
        )
    ]
    (run.folder.path / f"simulated-{target}.json").write_bytes(msgspec.json.encode(cells))
    (run.folder.path / "simulated-nobody.json").write_bytes(b"not for this run")
    results = judged(run)
    assert [(one.target, one.cells) for one in results.bounds.simulated] == [(target, cells)]
    assert results.bounds.notes == []
    table = simulated_table(results)
    assert table is not None
    assert ["perfect", "short", "fixed k=3", "1.70x"] in table.body
