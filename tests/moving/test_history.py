"""``draftproof history``: from recorded runs to a file, from the file to verdicts and an exit status."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

import draftproof.cli as cli
from draftproof.errors import DraftproofError
from draftproof.history.rows import FIGURES, OF_NO_SD, rows_of
from draftproof.history.store import add, read
from draftproof.results import analyse
from draftproof.snapshot import Snapshot, take
from tests.histories import LIMITS, day, make_rows
from tests.toy import Bench, ToyEngine, Where, rows

MakeBench = Callable[..., Bench]
LIMIT_LINES = "\n".join(
    f'[[threshold]]\nmetric = "{row.metric}"\nlimit = {row.limit}\nestimator = "e"\ngating = true\nsource = "s"\n'
    for row in LIMITS["cpu"]
)


@pytest.fixture(scope="session")
def limits(tmp_path_factory: pytest.TempPathFactory, overlay: Path) -> Path:
    """The toys with limits to a change."""
    folder = tmp_path_factory.mktemp("limits") / "catalog"
    shutil.copytree(overlay, folder)
    with (folder / "thresholds" / "toy.toml").open("a", encoding="utf-8") as file:
        file.write("\n" + LIMIT_LINES)
    return folder


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["history", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def taken_on(path: Path, night: int) -> Path:
    """A finished run's folder, as if it had been taken on this night."""
    records = path / "records.jsonl"
    records.write_text(records.read_text("utf-8").replace("2026-01-01T", f"{day(night)}T"), "utf-8")
    return path


def taken(run: Bench) -> Snapshot:
    return take(run.folder, analyse(run.folder, run.catalog.thresholds))


# --- rows -------------------------------------------------------------------------------------------------------------


def test_the_figures_of_a_night_are_those_of_its_report(clean_run: Bench) -> None:
    """Each cell's speedup with its interval, throughput of both arms, acceptance length and seconds a step."""
    kept = {(row.cell, row.metric): row for row in rows_of(taken(clean_run))}
    for cell in analyse(clean_run.folder, clean_run.catalog.thresholds).cells:
        names = OF_NO_SD if cell.cell.variant == "no_sd" else tuple(FIGURES)
        ours = {metric: kept.pop((cell.cell.id, metric)) for metric in names}
        assert ours["tokens_per_s"].value == pytest.approx(cell.tokens_per_s)
        assert all(len(row.sets) == len(row.by_set) == row.pairs == 3 for row in ours.values())
        if cell.speedup is not None:
            speedup = ours["speedup"]
            interval = [cell.speedup.value, cell.speedup.low, cell.speedup.high]
            assert [speedup.value, speedup.low, speedup.high] == pytest.approx(interval)
            assert ours["base_tokens_per_s"].value == pytest.approx(cell.base_tokens_per_s)
            assert cell.acceptance is not None
            assert ours["acceptance_length"].value == pytest.approx(cell.acceptance.length)
        expected = {"perfect": 4 * cell.cell.batch_size, "no_sd": cell.cell.batch_size}.get(cell.cell.variant)
        if expected is not None:
            tokens_a_step = ours["seconds_per_step"].value * ours["tokens_per_s"].value  # type: ignore[operator]
            assert 0.7 * expected < tokens_a_step <= expected
    assert kept == {}


def test_what_was_under_test_is_named(clean_run: Bench) -> None:
    """By its commit; without one by vLLM's version and the digest of its files."""
    snapshot = taken(clean_run)
    assert {row.commit_under_test for row in rows_of(snapshot, "abc", "main")} == {"abc"}
    assert {row.commit_under_test for row in rows_of(snapshot)} == {"vllm toy"}
    files = msgspec.structs.replace(snapshot, versions={"vllm": "0.32.0", "vllm_files_sha256": "0123456789abcdef"})
    assert {row.commit_under_test for row in rows_of(files)} == {"vllm 0.32.0 files 0123456789ab"}
    bare = msgspec.structs.replace(snapshot, versions={})
    assert {row.commit_under_test for row in rows_of(bare)} == {"unknown"}


def test_a_cell_that_failed_is_a_night_without_figures(bench: MakeBench) -> None:
    run = bench(matrix=rows(["no_sd", "perfect"]))
    run.session(ToyEngine(crashes=(Where(arm="perfect", rotation=0),)), ["speed"])
    kept = [row for row in rows_of(taken(run)) if row.variant == "perfect"]
    assert {(row.value, row.throughput) for row in kept} == {(None, "FAILED")}
    assert all("SIGKILL" in row.reason for row in kept)


# --- add and show -----------------------------------------------------------------------------------------------------


def test_a_slower_variant_is_found_over_the_nights(bench: MakeBench, limits: Path, tmp_path: Path) -> None:
    """Recorded runs, night by night: nothing to judge by, clean, suspicious, a regression with its commits."""
    history = ("--store", tmp_path / "h.parquet", "--sd-catalog", limits)
    told = []
    for night in range(11):
        run = bench(f"night-{night}", matrix=rows(["no_sd", "perfect"]))
        run.session(ToyEngine(speeds={"perfect": 1.5 if night < 9 else 1.3}, sigma=0.01, seed=night), ["speed"])
        code, text = invoke("add", taken_on(run.folder.path, night), "--commit", f"c{night}", "--ref", "main", *history)
        assert (code, text) == (0, f"added night-{night} to {tmp_path / 'h.parquet'}: 7 rows\n")
        told.append(invoke("show", *history))
    assert [code for code, _ in told] == [3] * 6 + [0] * 4 + [1]
    assert "suspicious: toy-perfect-short-b2 speedup: -1" in told[9][1]
    regression = told[10][1]
    assert "regression: toy-perfect-short-b2 speedup: -1" in regression
    assert "since 2026-01-10 (limit 5 %); commits c8 (main) .. c9 (main); the SD arm moved" in regression
    assert "reproduce night-9 on c9 (main): pytest" in regression
    assert regression.rstrip().endswith("3 regression, 0 suspicious, 0 insufficient_data, 3 no_regression")
    code, text = invoke("show", "--json", *history)
    series = {(one["cell"], one["metric"]): one for one in json.loads(text)["series"]}
    speedup = series["toy-perfect-short-b2", "speedup"]
    assert (code, speedup["verdict"], speedup["current"]["first"]["run_id"]) == (1, "regression", "night-9")
    assert len(speedup["nights"]) == 11
    assert invoke("show", "--since", day(9), *history)[0] == 3
    assert invoke("show", "--study", "toy", *history)[0] == 1


def test_runs_are_added_all_or_none_and_once(clean_run: Bench, bench: MakeBench, overlay: Path, tmp_path: Path) -> None:
    """A partial run is refused with all that was named beside it; a known one is told and changes nothing."""
    store = tmp_path / "h.parquet"
    whole = clean_run.folder.path
    partial = bench("partial", matrix=rows(["no_sd", "perfect"]))
    with pytest.raises(KeyboardInterrupt):
        partial.session(ToyEngine(interrupts=(Where(arm="perfect", rotation=1),)), ["speed"])
    arguments = ("--store", store, "--sd-catalog", overlay)
    with pytest.raises(DraftproofError, match=r"run 'partial' must be whole .*\(not finished\)"):
        invoke("add", whole, partial.folder.path, *arguments)
    assert not store.exists()
    assert invoke("add", whole, whole, *arguments)[1].startswith("added clean to")
    before = store.read_bytes()
    assert invoke("add", whole, *arguments) == (0, f"clean is in {store} already: nothing changed\n")
    assert store.read_bytes() == before
    assert {row.run_id for row in read(store)} == {"clean"}


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (None, [], "no history "),
        (b"PAR1", [], "cannot be read as a history"),
        ("nights", ["--study", "other"], "--study must be one of the known names (got 'other'); known: s;"),
        ("nights", ["--since", "last week"], "--since must be a day, YYYY-MM-DD (got 'last week')"),
        ("nights", [], "thresholds of 'cpu' hold no row for metric 'speedup_drop'"),
    ],
)
def test_what_cannot_be_shown_is_one_line_and_exit_status_2(
    content: bytes | str | None,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "h.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        add(path, make_rows([1.5] * 3))
    if "speedup_drop" in message:
        monkeypatch.setattr("draftproof.catalog.load_catalog", lambda: SimpleNamespace(thresholds={}))
    monkeypatch.setattr("sys.argv", ["draftproof", "history", "show", "--store", str(path), *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert message.rstrip(";") in capsys.readouterr().err


def test_help_loads_neither_tables_nor_statistics() -> None:
    """What reads and judges a history is imported when it is used."""
    code = (
        "import sys\nfrom typer.testing import CliRunner\nimport draftproof.cli as cli\n"
        "assert CliRunner().invoke(cli.app, ['history', 'show', '--help']).exit_code == 0\n"
        "print(sorted({'pyarrow', 'ruptures', 'scipy', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
