"""From a run to the three reports: where its drafts were accepted and rejected."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from draftproof.anatomy import LEARNED, lookup_rule
from draftproof.catalog import Catalog
from draftproof.records import RunFolder
from draftproof.report.anatomy import TITLE, tables
from draftproof.report.written import write_report
from draftproof.results import analyse
from tests.reporting import arm, page
from tests.toy import Bench, ToyEngine, rows


@pytest.fixture
def run(clean_run: Bench, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(clean_run.folder.path, tmp_path / "run")))


def test_every_speculative_cell_is_in_all_three_reports(run: RunFolder, catalog: Catalog) -> None:
    """`perfect` accepts all of k = 3, `partly` less of k = 2; no-SD has no row."""
    results = analyse(run, catalog.thresholds)
    cells = {found.cell: found.anatomy for found in results.anatomies.cells}
    assert len(cells) == len([cell for cell in results.cells if cell.arm != cell.base_arm])
    perfect = cells["toy-perfect-short-b3"]
    assert [share.value for share in perfect.survival] == [1.0, 1.0, 1.0]
    assert perfect.rejected is not None
    assert perfect.rejected.value == 0.0
    partly = cells["toy-partly-short-b3"]
    assert partly.rejected is not None
    assert 0.0 < partly.rejected.low < partly.rejected.value < partly.rejected.high < 1.0
    assert partly.cost is not None
    assert partly.cost.rejected > 0
    assert partly.unplaced == 0
    write_report(run, results)
    summary = json.loads((run.path / "summary.json").read_text())
    assert len(summary["anatomies"]["cells"]) == len(cells)
    assert f"## {TITLE}" in (run.path / "summary.md").read_text()
    shown = page(results).text
    for table in tables(results):
        assert table.title in shown
        assert all(len(row) == len(table.head) for row in table.body)


def test_stages_that_were_not_clocked_are_a_dash(bench: Callable[..., Bench], catalog: Catalog) -> None:
    made = bench(matrix=rows(["no_sd", "partly"], ["short"], [2]))
    made.session(ToyEngine(no_stages={"partly": "its runner has no named scopes"}))
    results = analyse(made.folder, catalog.thresholds)
    (found,) = results.anatomies.cells
    assert found.anatomy.cost is None
    (row,) = next(table for table in tables(results) if table.name == "rejected").body
    assert row[-4:] == ["-"] * 4


def test_a_run_without_drafts_has_no_section(bench: Callable[..., Bench], catalog: Catalog) -> None:
    made = bench(matrix=rows(["no_sd"], ["short"], [2]))
    made.session(ToyEngine())
    assert tables(analyse(made.folder, catalog.thresholds)) == []


def test_an_n_gram_variant_is_held_against_learned_ones(bench: Callable[..., Bench], catalog: Catalog) -> None:
    """On the same prompts, bin by bin; two n-gram variants are no pair."""
    made = bench(matrix=rows(["no_sd", "perfect", "partly"], ["short"], [2]))
    made.session(ToyEngine())
    assert analyse(made.folder, catalog.thresholds).anatomies.differences == []
    path = made.folder.path / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["record"] == "arm" and line["variant"] == "partly":
            line["speculative_config"]["method"] = "eagle3"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = analyse(made.folder, catalog.thresholds)
    (pair,) = results.anatomies.differences
    assert (pair.first, pair.second) == ("toy-perfect-short-b2", "toy-partly-short-b2")
    assert pair.map.longer > pair.map.shorter
    assert "differences" in [table.name for table in tables(results)]
    assert "eagle3" in LEARNED
    (overlap,) = results.anatomies.overlaps
    assert (overlap.first, overlap.second, overlap.basis) == (pair.first, pair.second, "seconds")
    assert sum(found.prompts for found in overlap.bins) == 6
    table = next(table for table in tables(results) if table.name == "overlap")
    assert any("(few)" in text for text in table.body[0])


def test_the_lookup_of_an_arm_is_what_its_records_say() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    found = lookup_rule(arm(speculative_config=config))
    assert found is not None
    assert (found.min_n, found.max_n, found.k) == (2, 4, 5)
    assert lookup_rule(arm(speculative_config={**config, "method": "eagle"})) is None
    assert lookup_rule(arm(speculative_config={"method": "ngram", "num_speculative_tokens": 5})) is None
    assert msgspec.structs.asdict(found) == {"min_n": 2, "max_n": 4, "k": 5}


def test_the_library_of_bleu_is_not_imported_with_the_package() -> None:
    """Reports without such a pair need none of it, and the plugin must start fast."""
    code = "import sys, draftproof.plugin, draftproof.cli, draftproof.results; print('sacrebleu' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"
