"""From a run's folder to a baseline's file and back: what is kept, what is refused, and what a later run is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import msgspec
import pytest

from draftproof import baselines
from draftproof.catalog import Catalog, load_catalog
from draftproof.comparison import Compared, compare
from draftproof.engines.replay import ReplayArm
from draftproof.errors import DraftproofError
from draftproof.results import analyse
from draftproof.snapshot import Series, Snapshot, take
from tests.moving.running import invoke, outcomes_of, replay_options, run_main, run_suites
from tests.snapshots import make_run, make_snapshot
from tests.toy import STOLEN_S, WAITED_S, Bench, ToyEngine, Where, write_gate_catalog

CELL, PLAIN = "toy-perfect-short-b5", "toy-no_sd-short-b5"
SPEEDS = {"perfect": 1.5}

Run = Callable[..., Bench]


@pytest.fixture(scope="session")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toys, with a study that is long enough."""
    return write_gate_catalog(tmp_path_factory.mktemp("catalog"))


@pytest.fixture(scope="session")
def catalog(overlay: Path) -> Catalog:
    return load_catalog(overlay)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, catalog: Catalog) -> dict[str, Bench]:
    """Whole runs, not to be written to: two that differ in luck alone, and one whose variant is 25 % slower."""
    folder, runs = tmp_path_factory.mktemp("recorded"), {}
    for seed, (name, speed) in enumerate([("first", 1.5), ("again", 1.5), ("slow", 1.2)]):
        runs[name] = Bench(folder / name, catalog)
        runs[name].session(ToyEngine(speeds={"perfect": speed}, sigma=0.02, seed=seed))
    return runs


@pytest.fixture
def ran(tmp_path: Path, catalog: Catalog) -> Run:
    """Makes a run's folder with an engine of its own."""

    def make(name: str = "run", engine: ToyEngine | None = None, *, two_builds: bool = False) -> Bench:
        run = Bench(tmp_path / name, catalog, two_builds=two_builds)
        run.session(engine or ToyEngine(speeds=SPEEDS), ["speed"])
        return run

    return make


def snapshot(run: Bench) -> Snapshot:
    return baselines.read_run(run.folder.path, run.catalog)


def cell(found: Snapshot, variant: str = "perfect") -> Series:
    (one,) = [series for series in found.series if series.variant == variant]
    return one


def rewrite(run: Bench, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every record of a run."""
    path = run.folder.path / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


# --- what a snapshot holds --------------------------------------------------------------------------------------------


def test_a_snapshot_holds_what_was_planted(ran: Run) -> None:
    """Two passes of five requests of 24 tokens; a perfect drafter of k = 3 takes 7 steps for each, no-SD 24."""
    found = snapshot(ran())
    one = cell(found)
    assert len(one.sets) == len(one.base_sets) == 12
    for ours, base in zip(one.sets, one.base_sets, strict=True):
        assert ours.prompts == base.prompts
        assert ours.tokens == base.tokens == 2 * 5 * 24
        assert ours.seconds == pytest.approx(2.4 / 1.5)
        assert base.seconds == pytest.approx(2.4)
        assert (ours.steps, base.steps) == (2 * 7, 2 * 24)
        assert (ours.num_drafts, ours.num_accepted_tokens) == (2 * 5 * 6, 3 * 2 * 5 * 6)
        assert base.num_drafts == base.num_accepted_tokens == 0
        assert ours.waiting == pytest.approx(2 * (WAITED_S + STOLEN_S) / (ours.seconds * 2))  # two passes, two threads
    assert len({totals.prompts for totals in one.sets}) == 12
    assert one.aa_sets == []
    assert one.id == CELL
    assert one.held["output_tokens"] == 24


def test_no_sd_stands_alone_beside_its_twin(ran: Run) -> None:
    """It has no arm to be divided by; the A/A twin ran the same prompts."""
    one = cell(snapshot(ran()), "no_sd")
    assert one.base_sets == []
    assert not one.speculative
    assert [totals.prompts for totals in one.aa_sets] == [totals.prompts for totals in one.sets]
    assert all(totals.seconds == pytest.approx(2.4) for totals in one.aa_sets)


def test_stage_seconds_are_those_of_the_stages_blocks(recorded: dict[str, Bench]) -> None:
    """Two blocks of three decode steps; the toy's forward pass takes 5 ms in the first and 10 ms in the second."""
    first, second = cell(snapshot(recorded["first"])).stages
    assert first.decode_steps == second.decode_steps == 3
    assert first.seconds["draft"] == second.seconds["draft"] == pytest.approx(3 * 7e-4)
    assert first.seconds["verify"] == pytest.approx(3 * 6e-3)
    assert second.seconds["verify"] == pytest.approx(3 * 11e-3)


def test_a_snapshot_says_where_it_is_from(recorded: dict[str, Bench]) -> None:
    found = snapshot(recorded["first"])
    assert (found.run_id, found.study, found.hardware, found.build) == ("first", "toy", "toy", "new")
    assert (found.taken, found.command, found.partial) == ("2026-01-01T00:00:00Z", ["pytest"], "")
    assert found.versions["vllm"] == "toy"
    assert found.held["cpu"] == "toy processor"
    assert found.held["seed"] == 7
    assert snapshot(recorded["again"]).fingerprint == found.fingerprint


def test_waiting_is_a_share_of_all_threads(ran: Run) -> None:
    """Two threads that together waited 0.1 s, and 0.02 s stolen, of 0.8 s in each of both passes."""
    run = ran()

    def plant(line: dict[str, Any]) -> None:
        if line["record"] == "block":
            line |= {"waited_s": 0.1, "stolen_s": 0.02}

    rewrite(run, plant)
    for totals in cell(snapshot(run)).sets:
        assert totals.waiting == pytest.approx(0.24 / (1.6 * 2))


def test_a_clock_that_went_backwards_makes_a_failed_cell(ran: Run) -> None:
    """With the field and the value as its reason; the other cells stand."""
    run = ran()

    def plant(line: dict[str, Any]) -> None:
        if line["record"] == "block" and line["arm"] == "perfect":
            line["seconds"] = -1.0

    rewrite(run, plant)
    found = snapshot(run)
    assert (cell(found).throughput, cell(found).sets) == ("FAILED", [])
    assert cell(found).reason == "seconds must be positive and finite (got -2.0)"
    assert cell(found, "no_sd").usable


def test_a_crashed_arm_is_a_failed_cell_with_its_reason(ran: Run) -> None:
    """Rotations that both arms finished are kept, but nobody compares with them."""
    found = snapshot(ran(engine=ToyEngine(crashes=(Where(arm="perfect", rotation=3),))))
    one = cell(found)
    assert one.throughput == "FAILED"
    assert one.reason.startswith("arm 'perfect' (crash): ")
    assert not one.usable
    assert cell(found, "no_sd").usable


def test_each_build_has_a_snapshot_of_its_own(ran: Run) -> None:
    """With its own arms: the base build's no-SD is beside the base build's variant."""
    speeds = {"no_sd": 1.0, "base:no_sd": 1.25, "perfect": 2.0, "base:perfect": 1.6}
    run = ran(engine=ToyEngine(speeds=speeds), two_builds=True)
    results = analyse(run.folder, run.catalog.thresholds)
    new, base = take(run.folder, results), take(run.folder, results, "base")
    assert (new.build, base.build) == ("new", "base")
    assert cell(new).sets[0].seconds == pytest.approx(2.4 / 2.0)
    assert cell(base).sets[0].seconds == pytest.approx(2.4 / 1.6)
    assert cell(base).base_sets[0].seconds == pytest.approx(2.4 / 1.25)
    assert [s.prompts for s in cell(new).sets] == [s.prompts for s in cell(base).sets]


# --- saved, listed, shown ---------------------------------------------------------------------------------------------


def saved(folder: Path, *runs: Snapshot) -> Path:
    for run in runs:
        path = baselines.save(run, folder)
    return path


def test_a_run_is_saved_listed_and_shown(recorded: dict[str, Bench], overlay: Path, tmp_path: Path) -> None:
    """By the commands alone: one file, named after hardware, study and fingerprint, with both runs in it."""
    options = ("--dir", str(tmp_path / "kept"))
    name = snapshot(recorded["first"]).name
    file = tmp_path / "kept" / f"{name}.json"
    assert invoke("baseline", "list", *options) == (0, f"no baseline in {tmp_path / 'kept'}\n")
    for number, run in enumerate(("first", "again"), start=1):
        path = str(recorded[run].folder.path)
        assert invoke("baseline", "save", path, "--sd-catalog", str(overlay), *options) == (
            0,
            f"{file}: {number} runs\n",
        )
    assert list((tmp_path / "kept").glob("*.json")) == [file]
    code, text = invoke("baseline", "list", *options)
    assert code == 0
    assert text.split() == [name, "2", "runs", "2026-01-01", "to", "2026-01-01", "vLLM", "toy"]
    code, text = invoke("baseline", "show", str(file))
    assert code == 0
    assert text.startswith(f"{name}: study toy on toy\n")
    assert "  held: cpu = toy processor\n" in text
    assert "  run again, 2026-01-01T00:00:00Z, no commit: vllm toy, torch toy, " in text
    assert f"  {CELL}: 12 prompt sets\n" in text


def test_a_baseline_that_another_process_writes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever; nothing is lost, and once it is free the run is added."""
    monkeypatch.setattr(baselines, "LOCK_TIMEOUT_S", 0.05)
    path = baselines.save(make_run("one"), tmp_path)
    with (
        filelock.FileLock(path.with_name(f".{path.name}.lock")),
        pytest.raises(DraftproofError, match="another process"),
    ):
        baselines.save(make_run("two"), tmp_path)
    baselines.save(make_run("two"), tmp_path)
    assert [run.run_id for run in baselines.read(path).snapshots] == ["one", "two"]


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    runs = [make_run("a"), make_run("b", git_commit="c" * 40, git_dirty=True)]
    path = saved(tmp_path, *runs)
    assert baselines.read(path).snapshots == runs
    (line,) = [line for line in baselines.provenance(baselines.read(path)) if line.startswith("  run b")]
    assert "cccccccccccc (dirty): vllm 1" in line


def test_runs_are_kept_by_age_and_the_oldest_go_first(tmp_path: Path) -> None:
    """In whatever order they are saved."""
    runs = [make_run(f"r{day:02}", taken=f"2026-01-{day:02}T00:00:00Z", sets=2) for day in range(1, 25)]
    path = saved(tmp_path, *runs[12:], *runs[:12])
    kept = [run.run_id for run in baselines.read(path).snapshots]
    assert kept == [f"r{day:02}" for day in range(5, 25)]


def test_other_machines_and_studies_have_files_of_their_own(tmp_path: Path) -> None:
    runs = [
        make_run("a"),
        make_run("b", held={"cpu": "another CPU", "seed": 7}),
        make_run("c", study="other"),
        make_run("d", hardware="h100"),
    ]
    assert len({saved(tmp_path, run) for run in runs}) == 4
    assert [found.name for found in baselines.everything(tmp_path)] == sorted(run.name for run in runs)


def changed(run: Snapshot, **fields: Any) -> Snapshot:
    """Its second cell changed."""
    plain, one = run.series
    return msgspec.structs.replace(run, series=[plain, msgspec.structs.replace(one, **fields)])


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (make_run("b", partial="2 of 3 groups"), "RUN must be a whole run (got '2 of 3 groups'); run the study again"),
        (
            changed(make_run("b"), throughput="REGRESSED", reason="too slow"),
            "run 'b' has red cells and is no baseline: t-ngram-w-b2: too slow",
        ),
        (
            changed(make_run("b"), determinism="FAILED", reason="1 divergent"),
            "run 'b' has red cells and is no baseline: t-ngram-w-b2: 1 divergent",
        ),
        (make_run("a"), "run 'a' is already in cpu-s-"),
        (make_run("b", sets=0), "run 'b' holds no finished rotation"),
        (make_snapshot("b"), "run 'b' holds no finished rotation"),
        (
            changed(make_run("b"), held={"dtype": "float32", "threads": 2}),
            "t-ngram-w-b2 is held otherwise than in run 'a': dtype: 'bfloat16' -> 'float32'; keep them apart with ",
        ),
    ],
    ids=["partial", "regressed", "divergent", "duplicate", "no figures", "no cells", "unlike"],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, run: Snapshot, said: str) -> None:
    """And the file stays as it was."""
    path = saved(tmp_path, make_run("a"))
    before = path.read_bytes()
    with pytest.raises(DraftproofError) as caught:
        baselines.save(run, tmp_path)
    assert str(caught.value).startswith(said)
    assert [file.read_bytes() for file in tmp_path.glob("*.json")] == [before]


def test_a_run_that_was_ended_is_refused(
    tmp_path: Path, catalog: Catalog, overlay: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command: one line, and no file."""
    run = Bench(tmp_path / "run", catalog)
    with pytest.raises(KeyboardInterrupt):
        run.session(ToyEngine(interrupts=(Where(rotation=6),)), ["speed"])
    arguments = ("save", str(run.folder.path), "--sd-catalog", str(overlay), "--dir", str(tmp_path / "kept"))
    assert run_main(monkeypatch, "baseline", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("draftproof: RUN must be a whole run (got ")
    assert error.count("\n") == 1
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(DraftproofError, match=r"^cannot write cpu-s-\w+\.json: .*; choose another folder with --dir"):
        baselines.save(make_run(), tmp_path / "kept")


BROKEN: dict[str, tuple[Callable[[str], str], str]] = {
    "truncated": (lambda text: text[: len(text) // 2], "is not a baseline: "),
    "no JSON": (lambda text: "not JSON", "is not a baseline: "),
    "empty": (lambda text: "", "is not a baseline: "),
    "a list": (lambda text: "[1]", "is not a baseline: "),
    "something else": (lambda text: '{"other": 1}', "is not a baseline: "),
    "no runs": (lambda text: '{"snapshots": []}', "snapshots must be at least one run (got [])"),
    "another version": (
        lambda text: text.replace('"snapshot_version":1', '"snapshot_version":2'),
        ": snapshot_version must be 1 (got [2]); save the runs again with this draftproof",
    ),
    "versions of two kinds": (
        lambda text: '{"snapshots": [{"snapshot_version": null}, {"snapshot_version": 2}]}',
        ": snapshot_version must be 1 (got [2, None])",
    ),
    "an unknown field": (lambda text: text.replace('"run_id"', '"run"'), "`$.snapshots[0]`"),
    "negative seconds": (lambda text: text.replace('"seconds":', '"seconds":-', 1), "seconds must be positive"),
    "no number": (lambda text: text.replace('"tokens":1000', '"tokens":null', 1), "Expected `int`, got `null`"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_file_that_is_no_baseline_is_one_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """By every command that reads one; the folder's path is not told."""
    path = saved(tmp_path, make_run("a"))
    change, said = BROKEN[damage]
    text = path.read_text(encoding="utf-8")
    broken = change(text)
    assert broken != text
    path.write_text(broken, encoding="utf-8")
    for arguments in (
        ("baseline", "show", str(path)),
        ("baseline", "list", "--dir", str(tmp_path)),
        ("compare", str(path), str(path)),
    ):
        assert run_main(monkeypatch, *arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"draftproof: {path.name}")
        assert said in err
        assert err.count("\n") == 1
        assert str(tmp_path) not in err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("nothing", None, "BASE and NEW must be a run's folder or a baseline's file (got 'nothing')"),
        ("folder", {}, "BASE and NEW must be a run's folder or a baseline's file (got 'folder')"),
        ("folder", {"run.json": "{}"}, "folder/run.json is not a run's header: "),
    ],
    ids=["nothing there", "an empty folder", "a folder that is no run"],
)
def test_what_cannot_be_compared_is_one_line_that_names_it(
    tmp_path: Path,
    recorded: dict[str, Bench],
    overlay: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: dict[str, str] | None,
    said: str,
) -> None:
    """As BASE and as NEW; exit status 2."""
    if content is not None:
        (tmp_path / name).mkdir()
        for file, text in content.items():
            (tmp_path / name / file).write_text(text, encoding="utf-8")
    good, bad = str(recorded["first"].folder.path), str(tmp_path / name)
    for pair in ((good, bad), (bad, good)):
        assert run_main(monkeypatch, "compare", *pair, "--sd-catalog", str(overlay)) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"draftproof: {said}")
        assert err.count("\n") == 1


# --- compare ----------------------------------------------------------------------------------------------------------


def compared(recorded: dict[str, Bench], overlay: Path, base: str | Path, new: str, *options: str) -> tuple[int, str]:
    """The command's exit status and output, of recorded runs by name and of a baseline's file."""
    path = base if isinstance(base, Path) else recorded[base].folder.path
    return invoke("compare", str(path), str(recorded[new].folder.path), "--sd-catalog", str(overlay), *options)


def test_an_unchanged_rerun_is_green(recorded: dict[str, Bench], overlay: Path) -> None:
    """Toy noise of 2 % a block, 12 rotations: every gate and stage passes, in either direction."""
    for pair in (("first", "again"), ("again", "first")):
        code, text = compared(recorded, overlay, *pair)
        assert code == 0, text
        lines = text.splitlines()
        assert [line.split()[0] for line in lines] == ["PASS"] * 8 + ["green"]
        assert lines[-1] == "green against 1 run: nothing moved beyond its limit (8 tests, Holm)"


def test_a_planted_slowdown_is_red_by_variant_and_gate(recorded: dict[str, Bench], overlay: Path) -> None:
    code, text = compared(recorded, overlay, "first", "slow")
    assert code == 1
    lines = text.splitlines()
    assert lines[0].startswith(f"REGRESSED    {CELL}, system [perfect]: seconds of a step over no-SD's 2.")
    assert lines[1].startswith(f"REGRESSED    {CELL}, end to end [perfect]: speedup 1.")
    assert [line.split()[0] for line in lines[2:4]] == ["PASS"] * 2
    assert lines[-1] == f"red against 1 run: regressed: {CELL} (system), {CELL} (end to end) (8 tests, Holm)"
    code, text = compared(recorded, overlay, "slow", "first")
    assert code == 0
    assert f"better: {CELL} (system), {CELL} (end to end)" in text


def test_a_run_is_compared_with_all_runs_of_a_baseline(
    recorded: dict[str, Bench], overlay: Path, tmp_path: Path
) -> None:
    path = saved(tmp_path, snapshot(recorded["first"]), snapshot(recorded["again"]))
    code, text = compared(recorded, overlay, path, "slow")
    assert code == 1
    assert text.splitlines()[-1].startswith("red against 2 runs: ")


def test_a_baseline_of_another_machine_is_incomparable(
    recorded: dict[str, Bench], overlay: Path, tmp_path: Path
) -> None:
    """The field and both values are told; exit status 3."""
    here = snapshot(recorded["first"])
    there = msgspec.structs.replace(here, held={**here.held, "cpu": "another processor"})
    code, text = compared(recorded, overlay, saved(tmp_path, there), "again")
    assert code == 3
    assert [line.split()[0] for line in text.splitlines()] == ["INCOMPARABLE"] * 4 + ["not"]
    assert "held fields differ: cpu: 'another processor' -> 'toy processor'" in text


def test_json_and_markdown_say_the_same(recorded: dict[str, Bench], overlay: Path) -> None:
    """JSON parses back into the findings; Markdown is one table under the headline."""
    code, text = compared(recorded, overlay, "first", "slow", "--json")
    assert code == 1
    found = msgspec.json.decode(text, type=Compared)
    base, new = snapshot(recorded["first"]), snapshot(recorded["slow"])
    assert found == compare([base], [new], recorded["first"].catalog.thresholds["toy"])
    code, text = compared(recorded, overlay, "first", "slow", "--markdown")
    assert code == 1
    lines = text.splitlines()
    assert lines[0].startswith("**red against 1 run: ")
    assert lines[2:4] == ["| verdict | cell | gate | arm | what was measured |", "|---|---|---|---|---|"]
    assert lines[4].startswith(f"| REGRESSED | {CELL} | system | perfect | seconds of a step ")
    assert len(lines) == 12


def test_a_limit_that_is_missing_is_one_line(
    recorded: dict[str, Bench], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Baselines carry no limits: without the overlay there is none for the toy's hardware."""
    path = saved(tmp_path, snapshot(recorded["first"]))
    assert run_main(monkeypatch, "compare", str(path), str(path)) == 2
    error = capsys.readouterr().err
    assert error.startswith("draftproof: thresholds of 'toy' hold no row for metric 'pairs' that covers toy-no_sd-")
    assert error.count("\n") == 1


# --- the suite --------------------------------------------------------------------------------------------------------

REGRESSION = "tests_perf/test_regression.py"


def test_the_suite_is_green_against_a_folder_of_baselines(
    suites: pytest.Pytester, recorded: dict[str, Bench], overlay: Path, tmp_path: Path
) -> None:
    """It takes the one of its own fingerprint; the comparison is printed at the end."""
    other = msgspec.structs.replace(snapshot(recorded["slow"]), study="other", run_id="other")
    saved(tmp_path, other, snapshot(recorded["first"]))
    options = (*replay_options(recorded["again"], overlay), "--sd-baseline", str(tmp_path), REGRESSION)
    result, outcomes = outcomes_of(suites, *options)
    assert result.ret == 0
    assert outcomes == {
        f"test_regression[{CELL}]": "passed",
        f"test_regression[{PLAIN}]": "passed",
        f"test_regression_of_means[{CELL}]": "skipped",
        f"test_regression_of_means[{PLAIN}]": "skipped",
    }
    result.stdout.fnmatch_lines(
        [
            f"PASS *{CELL}, system ?perfect?: *",
            "green against 1 run: nothing moved beyond its limit (8 tests, Holm)",
            "SKIPPED *needs two cells of the variant that can be compared; see test_regression of each",
        ]
    )


@pytest.mark.parametrize("kind", ["folder", "file", "run"])
def test_the_suite_is_red_where_an_arm_became_slower(
    suites: pytest.Pytester, recorded: dict[str, Bench], overlay: Path, tmp_path: Path, kind: str
) -> None:
    """Against a folder of baselines, a baseline's file and a run's folder alike."""
    file = saved(tmp_path, snapshot(recorded["first"]))
    path = {"folder": tmp_path, "file": file, "run": recorded["first"].folder.path}[kind]
    options = (*replay_options(recorded["slow"], overlay), "--sd-baseline", str(path), REGRESSION)
    result, outcomes = outcomes_of(suites, *options, "-k", "test_regression and not means")
    assert result.ret == 1
    assert outcomes == {f"test_regression[{CELL}]": "failed", f"test_regression[{PLAIN}]": "passed"}
    result.stdout.fnmatch_lines(["REGRESSED: system [[]perfect[]]: *; end to end [[]perfect[]]: *"])


def test_without_a_baseline_of_its_own_the_suite_judges_nothing(
    suites: pytest.Pytester, recorded: dict[str, Bench], overlay: Path, tmp_path: Path
) -> None:
    """Skipped with the reason; under --sd-gate failed; the note names what is missing."""
    options = (*replay_options(recorded["again"], overlay), "--sd-baseline", str(tmp_path), REGRESSION)
    result, outcomes = outcomes_of(suites, *options)
    assert (result.ret, set(outcomes.values())) == (0, {"skipped"})
    name = snapshot(recorded["again"]).name
    result.stdout.fnmatch_lines(
        [
            f"note: no run of {name} to compare with; save one with draftproof baseline save RUN",
            "SKIPPED *not judged: NO_BASELINE: *",
        ]
    )
    result, outcomes = outcomes_of(suites, *options, "--sd-gate", "-k", "not means")
    assert (result.ret, set(outcomes.values())) == (1, {"failed"})


def test_without_the_options_the_suite_compares_nothing(
    suites: pytest.Pytester, recorded: dict[str, Bench], overlay: Path
) -> None:
    """Its tests are deselected beside others; asked for alone they are skipped, and say what they need."""
    options = replay_options(recorded["first"], overlay)
    result, outcomes = outcomes_of(suites, *options, "tests_perf", "-k", "regression or sound")
    assert set(outcomes) == {f"test_records_are_sound[{CELL}]", f"test_records_are_sound[{PLAIN}]"}
    assert result.ret == 0
    result, outcomes = outcomes_of(suites, *options, REGRESSION)
    assert set(outcomes.values()) == {"skipped"}
    result.stdout.fnmatch_lines(["SKIPPED *needs --sd-baseline or --sd-base-python; found neither; enable with *"])


def test_two_builds_are_judged_in_the_same_rotations(
    suites: pytest.Pytester, ran: Run, overlay: Path, any_python: str
) -> None:
    """No spread between runs is added: 8 % are red here, and would not be between two nights."""
    speeds = {"perfect": 1.5 / 1.08, "base:perfect": 1.5}
    run = ran(engine=ToyEngine(speeds=speeds, sigma=0.01), two_builds=True)
    options = (*replay_options(run, overlay), "--sd-base-python", any_python, REGRESSION)
    result, outcomes = outcomes_of(suites, *options, "-k", "not means")
    assert outcomes == {f"test_regression[{CELL}]": "failed", f"test_regression[{PLAIN}]": "passed"}
    assert result.ret == 1
    result.stdout.fnmatch_lines(["red against the other build in the same rotations: *"])
    results = analyse(run.folder, run.catalog.thresholds)
    apart = compare([take(run.folder, results, "base")], [take(run.folder, results)], run.catalog.thresholds["toy"])
    assert apart.judgement(CELL).verdict == "PASS"


def test_equal_builds_are_green(suites: pytest.Pytester, ran: Run, overlay: Path, any_python: str) -> None:
    run = ran(engine=ToyEngine(speeds={"perfect": 1.5, "base:perfect": 1.5}, sigma=0.02), two_builds=True)
    options = (*replay_options(run, overlay), "--sd-base-python", any_python, REGRESSION)
    result, outcomes = outcomes_of(suites, *options, "-k", "not means")
    assert (result.ret, set(outcomes.values())) == (0, {"passed"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "--sd-baseline must be a run's folder, a baseline's file or a folder of baselines (got "),
        ('{"snapshots": [', "bad.json is not a baseline: "),
        ('{"snapshots": [{"snapshot_version": 9}]}', "bad.json: snapshot_version must be 1 (got [9])"),
    ],
    ids=["nothing there", "truncated", "another version"],
)
@pytest.mark.parametrize("inside", [False, True], ids=["the file", "in a folder"])
def test_a_baseline_that_cannot_be_read_is_told_before_the_run(
    suites: pytest.Pytester,
    recorded: dict[str, Bench],
    overlay: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    said: str,
    inside: bool,
) -> None:
    """A usage error: hours of a run are not spent first."""

    def never(*_: object) -> None:
        raise AssertionError("a block was run")

    monkeypatch.setattr(ReplayArm, "run", never)
    path = tmp_path / "kept" / "bad.json"
    if content is not None:
        path.parent.mkdir()
        path.write_text(content, encoding="utf-8")
    given = path.parent if inside else path
    options = (*replay_options(recorded["first"], overlay), "--sd-baseline", str(given), REGRESSION)
    result = run_suites(suites, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()
    assert not (suites.path / "reports").exists()


def test_a_limit_that_is_missing_is_told_before_the_run(
    suites: pytest.Pytester, recorded: dict[str, Bench], overlay: Path, tmp_path: Path
) -> None:
    """And is asked for only where something is compared."""
    bare = tmp_path / "catalog"
    shutil.copytree(overlay, bare)
    limits = bare / "thresholds" / "toy.toml"
    text = limits.read_text(encoding="utf-8")
    assert "'waiting_share'" in text
    limits.write_text(text.replace("'waiting_share'", "'other'"), encoding="utf-8")
    file = saved(tmp_path / "kept", snapshot(recorded["first"]))
    options = replay_options(recorded["first"], bare)
    result = run_suites(suites, *options, "--sd-baseline", str(file), REGRESSION)
    assert result.ret == 1
    assert "hold no row for metric 'waiting_share' that covers toy-" in result.stdout.str()
    assert not (suites.path / "reports").exists()
    assert run_suites(suites, *options, "tests_perf/test_throughput.py", "-k", "sound").ret == 0


def test_a_baseline_holds_neither_a_token_nor_a_home_path(
    suites: pytest.Pytester,
    recorded: dict[str, Bench],
    overlay: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both planted in the command line; a baseline is a file that is passed on."""
    token = "secret" + "word"
    home = tmp_path / "home" / "somebody"
    (home / "runs").mkdir(parents=True)
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HOME", str(home))
    options = replay_options(recorded["first"], overlay)
    tests = ("tests_perf/test_throughput.py", "-k", f"sound and not {token} and not hf_abcdefgh12345678")
    assert run_suites(suites, *options, "--sd-run-dir", str(home / "runs" / "one"), *tests).ret == 0
    path = baselines.save(baselines.read_run(home / "runs" / "one", load_catalog(overlay)), tmp_path / "kept")
    text = path.read_text(encoding="utf-8")
    assert "not <token>" in text
    assert "~/runs/one" in text
    for planted in (token, "hf_abcdefgh12345678", str(home), "somebody"):
        assert planted not in text
        assert planted not in "".join(baselines.provenance(baselines.read(path)))
