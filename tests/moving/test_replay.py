"""A recorded run is served again: the same blocks give the same results, without an engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import filelock
import msgspec
import pytest

from draftproof import tables
from draftproof.errors import DraftproofError
from draftproof.records import Output, RunFolder
from draftproof.results import CellResult, RunResults, analyse
from draftproof.session import LOCK, Options, Session
from draftproof.spec import Interleave, Purpose
from tests.toy import ALL, WAITED_S, Bench, Flip, Silent, ToyEngine, rows


@pytest.fixture
def replay(tmp_path: Path, overlay: Path) -> Callable[..., tuple[Session, RunResults]]:
    """Replays a run through a pytest session's `Session`, into a new folder."""

    def make(source: Path, *, purposes: tuple[Purpose, ...] = ALL, **options: Any) -> tuple[Session, RunResults]:
        given: dict[str, Any] = {
            "study": "toy",
            "overlays": [overlay],
            "report_dir": tmp_path / "reports",
            "engine": "replay",
            "replay": source,
            "command": ["pytest", "--sd-study", "toy"],
        }
        session = Session(Options(**(given | options)))
        return session, session.run(session.cells, purposes, Silent())

    return make


Replay = Callable[..., tuple[Session, RunResults]]


def told(cell: CellResult) -> dict[str, Any]:
    """All that is said of a cell but for the sessions and kinds of its failures."""
    return {name: getattr(cell, name) for name in cell.__struct_fields__ if name != "failures"}


def outputs_of(folder: RunFolder) -> Mapping[tuple[str, str, int], list[Output]]:
    return tables.read_outputs(folder.path, {line.part for line in folder.read().rotations})


def source_results(run: Bench) -> RunResults:
    return analyse(run.folder, run.catalog.thresholds)


def test_a_replay_gives_the_same_results(clean_run: Bench, replay: Replay) -> None:
    """Speedups, outputs, acceptance, stages and verdicts: nothing is lost on the way through the records."""
    session, again = replay(clean_run.folder.path)
    source = source_results(clean_run)
    assert session.folder is not None
    assert session.folder.path != clean_run.folder.path
    assert [told(cell) for cell in again.cells] == [told(cell) for cell in source.cells]
    assert again.aa == source.aa
    assert again.notes == source.notes
    assert again.finished
    assert any(cell.stages for cell in again.cells)
    blocks, recorded = session.folder.read().blocks, clean_run.folder.read().blocks
    assert [(b.waited_s, b.stolen_s) for b in blocks] == [(b.waited_s, b.stolen_s) for b in recorded]
    assert all(block.waited_s == WAITED_S for block in blocks)
    assert outputs_of(session.folder) == outputs_of(clean_run.folder), "latencies included"


def test_a_replay_of_faults_gives_the_same_figures(faulty_run: Bench, replay: Replay) -> None:
    """Scores, causes and the width of a tie are served too."""
    _, again = replay(faulty_run.folder.path)
    source = source_results(faulty_run)
    assert [cell.sameness for cell in again.cells] == [cell.sameness for cell in source.cells]
    assert [line.width_nats for line in again.noise] == [line.width_nats for line in source.noise]
    kinds = {cell.cell.id: (cell.throughput.verdict, cell.determinism.verdict) for cell in again.cells}
    assert kinds == {cell.cell.id: (cell.throughput.verdict, cell.determinism.verdict) for cell in source.cells}
    assert kinds["toy-perfect-long-b3"][1] == "FAILED"
    assert kinds["toy-partly-long-b3"][1] == "UNSTABLE"


def test_a_replay_tells_the_recorded_cause_of_a_failure(faulty_run: Bench, replay: Replay) -> None:
    """Judging a run again must not turn a crash into "the recorded run has no such block"."""
    _, again = replay(faulty_run.folder.path)
    (cell,) = [cell for cell in again.cells if cell.cell.id == "toy-partly-short-b3"]
    (source,) = [cell for cell in source_results(faulty_run).cells if cell.cell.id == "toy-partly-short-b3"]
    assert cell.throughput == source.throughput


def test_stages_that_could_not_be_clocked_stay_unavailable(faulty_run: Bench, replay: Replay) -> None:
    """A reason to skip must not come back as a failure."""
    _, again = replay(faulty_run.folder.path)
    (cell,) = [cell for cell in again.cells if cell.cell.id == "toy-partly-long-b1"]
    assert [(failure.kind, failure.purpose) for failure in cell.failures] == [("unavailable", "stages")]


def test_a_run_with_more_rotations_than_asked_is_replayed_whole(
    bench: Callable[..., Bench], tmp_path: Path, replay: Replay
) -> None:
    """Adaptive repeats are decided from the recorded seconds, so they come to the same number."""
    changes = {"max_rotations": 9, "half_width": 0.02}
    run = bench(**changes)
    run.session(ToyEngine(sigma=0.03, seed=5), ["speed"])
    entry = tmp_path / "more" / "studies" / "toy.toml"
    entry.parent.mkdir(parents=True)
    text = (run.catalog.folders["studies/toy"] / "toy.toml").read_text(encoding="utf-8")
    text = text.replace("max_rotations = 3", "max_rotations = 9\n        half_width = 0.02")
    entry.write_text(text, encoding="utf-8")
    overlays = [run.catalog.folders["studies/toy"].parent, tmp_path / "more"]
    session, again = replay(run.folder.path, purposes=("speed",), overlays=overlays)
    assert session.folder is not None
    assert [told(cell) for cell in again.cells] == [told(cell) for cell in source_results(run).cells]
    assert max(cell.pairs for cell in again.cells) > 3


def test_the_replayed_session_is_recorded_as_its_own(clean_run: Bench, replay: Replay) -> None:
    """Its own command and version; no path of the interpreter, and no home folder."""
    session, _ = replay(clean_run.folder.path, command=["pytest", str(Path.home() / "x")])
    assert session.folder is not None
    (line,) = session.folder.read().sessions
    assert line.command == ["pytest", "~/x"]
    header = session.folder.header()
    assert header.plan_sha256 == clean_run.plan.sha256
    assert header.run_id.startswith("toy-2")
    assert (header.study, header.cells) == (clean_run.study, list(clean_run.plan.cells))


def test_nothing_but_records_is_needed(clean_run: Bench, replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started for an arm, no interpreter is looked at."""
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    real = subprocess.Popen

    def no_worker(command: Any, *args: Any, **kwargs: Any) -> Any:
        assert command[0] == "git"
        return real(command, *args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", no_worker)
    replay(clean_run.folder.path)


def test_a_selection_of_cells_is_replayed(clean_run: Bench, overlay: Path, tmp_path: Path) -> None:
    """Only the units that the chosen cells need, with their no-SD."""
    options = Options(
        study="toy", overlays=[overlay], report_dir=tmp_path / "r", engine="replay", replay=clean_run.folder.path
    )
    session = Session(options)
    chosen = [cell for cell in session.cells if cell.id == "toy-partly-long-b3"]
    results = session.run(chosen, ["speed"], Silent())
    (cell,) = results.cells
    (source,) = [cell for cell in source_results(clean_run).cells if cell.cell.id == "toy-partly-long-b3"]
    assert (cell.cell, cell.speedup) == (source.cell, source.speedup)
    assert session.folder is not None
    assert {(line.workload, line.batch_size) for line in session.folder.read().rotations} == {("long", 3)}


# --- which folder -----------------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_gone_on_with(clean_run: Bench, replay: Replay) -> None:
    first, _ = replay(clean_run.folder.path)
    second, _ = replay(clean_run.folder.path)
    assert first.folder is not None
    assert second.folder is not None
    assert first.folder.path != second.folder.path


@pytest.mark.parametrize("fresh", [False, True])
def test_an_unfinished_run_of_the_same_plan_is_gone_on_with(clean_run: Bench, replay: Replay, fresh: bool) -> None:
    """Unless a fresh one is asked for."""
    first, _ = replay(clean_run.folder.path)
    assert first.folder is not None
    header = first.folder.header()
    first.folder.write_header(msgspec.structs.replace(header, finished=False))
    second, _ = replay(clean_run.folder.path, fresh=fresh)
    assert second.folder is not None
    assert (second.folder.path == first.folder.path) != fresh
    assert len(second.folder.read().sessions) == (1 if fresh else 2)


def test_a_run_of_another_plan_is_refused(clean_run: Bench, replay: Replay, tmp_path: Path) -> None:
    run_dir = tmp_path / "mine"
    session, _ = replay(clean_run.folder.path, run_dir=run_dir)
    assert session.folder is not None
    assert session.folder.path == run_dir
    other = Session(
        Options(
            study="toy",
            overlays=session.options.overlays,
            report_dir=tmp_path,
            run_dir=run_dir,
            engine="replay",
            replay=clean_run.folder.path,
        )
    )
    with pytest.raises(DraftproofError, match="--sd-run-dir 'mine' holds a run of another plan"):
        other.run(other.cells[:1], ["speed"], Silent())
    assert len(RunFolder(run_dir).read().sessions) == 1


def test_two_sessions_do_not_write_to_one_run(clean_run: Bench, replay: Replay, tmp_path: Path) -> None:
    run_dir = tmp_path / "mine"
    replay(clean_run.folder.path, run_dir=run_dir)
    with filelock.FileLock(run_dir / LOCK), pytest.raises(DraftproofError, match="written by another session"):
        replay(clean_run.folder.path, run_dir=run_dir)


@pytest.mark.parametrize("interleave", ["live", "restart"])
def test_two_builds_need_room_for_four_engines_only_where_they_are_alive_together(
    bench: Callable[..., Bench], overlay: Path, tmp_path: Path, replay: Replay, interleave: Interleave
) -> None:
    """No-SD and a variant under both builds; one at a time they need room for one."""
    hardware = bench().catalog.hardware["toy"]
    hardware = msgspec.structs.replace(hardware, max_live_arms=2, interleave=interleave)
    run = bench("builds", two_builds=True, hardware=hardware)
    run.session(ToyEngine())
    entry = tmp_path / "small" / "hardware" / "toy.toml"
    entry.parent.mkdir(parents=True)
    text = (overlay / "hardware" / "toy.toml").read_text(encoding="utf-8")
    text = text.replace("max_live_arms = 6", f'max_live_arms = 2\n        interleave = "{interleave}"')
    entry.write_text(text, encoding="utf-8")
    options: dict[str, Any] = {"base_python": sys.executable, "overlays": [overlay, tmp_path / "small"]}
    if interleave == "live":
        with pytest.raises(DraftproofError, match=r"needs 4 live engines .* max_live_arms = 2; .* interleave = "):
            replay(run.folder.path, **options)
        return
    _, again = replay(run.folder.path, **options)
    assert [told(cell) for cell in again.cells] == [told(cell) for cell in source_results(run).cells]
    assert any(cell.build_ratio is not None for cell in again.cells)


# --- what cannot be replayed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay": None}, "--sd-engine replay and --sd-replay RUN .* go together"),
        ({"engine": "sglang"}, "--sd-engine must be one of the known names .*known: replay, vllm"),
        ({"base_python": "/no/such/python"}, "--sd-base-python must be the path of a Python interpreter"),
        ({"study": "toys"}, "study must be one of the known names .*toy.*"),
    ],
)
def test_wrong_options_are_one_clear_error(
    clean_run: Bench, replay: Replay, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DraftproofError, match=message):
        replay(clean_run.folder.path, **options)


def test_a_folder_that_is_no_run_is_said(replay: Replay, tmp_path: Path) -> None:
    with pytest.raises(DraftproofError, match="run"):
        replay(tmp_path / "nothing")


def test_a_run_without_a_workload_of_the_study_is_said(
    bench: Callable[..., Bench], replay: Replay, tmp_path: Path
) -> None:
    """Before an engine or a folder is made."""
    run = bench(matrix=rows(["perfect"]))
    run.session(ToyEngine(flips=(Flip(arm="perfect"),)), ["speed"])
    with pytest.raises(DraftproofError, match="the replayed run holds no prompts of workload 'long'"):
        replay(run.folder.path)
    assert not (tmp_path / "reports").exists()
