"""``draftproof report RUN --compare BASE`` and ``--sd-baseline``: the same section, in all that a report is."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draftproof import baselines
from draftproof.catalog import Catalog, load_catalog
from draftproof.comparison import compare
from draftproof.report.written import Summary
from draftproof.snapshot import Snapshot
from tests.moving.running import invoke, outcomes_of, replay_options, run_main, run_suites
from tests.toy import Bench, ToyEngine, write_gate_catalog

CELL = "toy-perfect-short-b5"
REGRESSION = "tests_perf/test_regression.py"


@pytest.fixture(scope="session")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toys, with a study that is long enough."""
    return write_gate_catalog(tmp_path_factory.mktemp("catalog"))


@pytest.fixture(scope="session")
def catalog(overlay: Path) -> Catalog:
    return load_catalog(overlay)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, catalog: Catalog) -> dict[str, Bench]:
    """Whole runs, not to be written to: one whose variant is 25 % slower than before."""
    folder, runs = tmp_path_factory.mktemp("recorded"), {}
    for seed, (name, speed) in enumerate([("before", 1.5), ("slow", 1.2)]):
        runs[name] = Bench(folder / name, catalog)
        runs[name].session(ToyEngine(speeds={"perfect": speed}, sigma=0.02, seed=seed), ["speed"])
    return runs


@pytest.fixture
def copied(recorded: dict[str, Bench], tmp_path: Path) -> Callable[[str], Path]:
    """A recorded run that may be written to."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(recorded[name].folder.path, tmp_path / name, dirs_exist_ok=True))

    return copy


def snapshot(run: Bench) -> Snapshot:
    return baselines.read_run(run.folder.path, run.catalog)


def texts(run: Path) -> dict[str, str]:
    return {name: (run / name).read_text(encoding="utf-8") for name in ("index.html", "summary.md", "summary.json")}


def check_red(shown: dict[str, str]) -> None:
    """All three hold what moved."""
    assert '<h2 id="against">Against before</h2>' in shown["index.html"]
    assert "## Against before" in shown["summary.md"]
    for name in ("index.html", "summary.md"):
        text = shown[name].replace("\\", "")
        assert "REGRESSED" in text
        assert f"regressed: {CELL} (system), {CELL} (end to end)" in text
    found = msgspec.json.decode(shown["summary.json"], type=Summary)
    assert not isinstance(found.against, msgspec.UnsetType)
    assert [one.verdict for one in found.against.of(CELL)] == ["PASS", "REGRESSED", "REGRESSED"]


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_report_holds_what_moved_and_judges_nothing(
    recorded: dict[str, Bench], overlay: Path, copied: Callable[[str], Path]
) -> None:
    """Exit status 0 where compare says 1; without the option the section is gone again."""
    run, base = copied("slow"), recorded["before"].folder.path
    code, text = invoke("report", str(run), "--compare", str(base), "--sd-catalog", str(overlay))
    assert code == 0
    assert f"red against 1 run: regressed: {CELL} (system), {CELL} (end to end) (4 tests, Holm)" in text
    assert text.rstrip().endswith(f"report: {run / 'index.html'}")
    check_red(texts(run))
    assert invoke("compare", str(base), str(run), "--sd-catalog", str(overlay))[0] == 1
    assert invoke("report", str(run), "--sd-catalog", str(overlay))[0] == 0
    shown = texts(run)
    assert 'id="against"' not in shown["index.html"]
    assert "Against before" not in shown["summary.md"]
    assert "against" not in json.loads(shown["summary.json"])


def test_a_baselines_file_is_taken_as_well(
    recorded: dict[str, Bench], overlay: Path, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    """And the run itself is left out of it, where it is there too: it would pull the mean towards itself."""
    run = copied("slow")
    path = baselines.save(snapshot(recorded["before"]), tmp_path / "kept")
    baselines.save(snapshot(recorded["slow"]), tmp_path / "kept")
    assert invoke("report", str(run), "--compare", str(path), "--sd-catalog", str(overlay))[0] == 0
    check_red(texts(run))


def test_the_help_says_what_the_exit_status_means() -> None:
    code, text = invoke("report", "--help")
    assert code == 0
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())
    assert "--compare" in text
    assert "the exit status is 0, with --compare too: draftproof compare is what judges" in text


def with_baseline(change: Callable[[Snapshot], Snapshot]) -> Callable[[Path, Bench], Path]:
    """Makes a baseline's file of a changed snapshot."""

    def make(folder: Path, run: Bench) -> Path:
        return baselines.save(change(snapshot(run)), folder)

    return make


def other_version(folder: Path, run: Bench) -> Path:
    path = baselines.save(snapshot(run), folder)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"snapshot_version":1', '"snapshot_version":2'), encoding="utf-8")
    return path


def other_schema(folder: Path, run: Bench) -> Path:
    copy = Path(shutil.copytree(run.folder.path, folder / "old"))
    header = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    (copy / "run.json").write_text(json.dumps({**header, "schema_version": 99}), encoding="utf-8")
    return copy


WRONG: dict[str, tuple[Callable[[Path, Bench], Path], str]] = {
    "nothing there": (
        lambda folder, _: folder / "none",
        "--compare must be a run's folder or a baseline's file (got 'none')",
    ),
    "an empty folder": (lambda folder, _: folder, "--compare must be a run's folder or a baseline's file (got 'kept')"),
    "another version of baselines": (other_version, ": snapshot_version must be 1 (got [2]); save the runs again"),
    "another schema of runs": (other_schema, "old/run.json: schema_version must be 1 (got 99)"),
    "the run itself": (
        lambda _, run: run.folder.path,
        "--compare must be another run than RUN (got 'slow'); name an earlier run's folder or a baseline's file",
    ),
    "a baseline of the run alone": (
        with_baseline(lambda found: found),
        "--compare must be another run than RUN (got 'toy-toy-",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_compared_with_is_one_line_and_leaves_the_report(
    recorded: dict[str, Bench],
    overlay: Path,
    copied: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    """A mistake of the user's is exit status 2; nothing is written."""
    run = copied("slow")
    make, said = WRONG[kind]
    (tmp_path / "kept").mkdir()
    base = make(tmp_path / "kept", recorded["slow"])
    options = ("--compare", str(base), "--sd-catalog", str(overlay))
    assert run_main(monkeypatch, "report", str(run), *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("draftproof: ")
    assert said in err
    assert err.count("\n") == 1
    assert str(tmp_path) not in err
    assert not (run / "index.html").exists()


def test_another_machine_is_shown_in_red_and_not_judged(
    recorded: dict[str, Bench], overlay: Path, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    """Both values; exit status 0 here too."""
    run, here = copied("slow"), snapshot(recorded["before"])
    there = msgspec.structs.replace(here, held={**here.held, "cpu": "another <b>processor</b>"})
    path = baselines.save(there, tmp_path / "kept")
    code, text = invoke("report", str(run), "--compare", str(path), "--sd-catalog", str(overlay))
    assert (code, "not judged against 1 run: 4 of 4 gates not judged" in text) == (0, True)
    shown = texts(run)
    assert "Held fields differ, so that nothing is judged" in shown["index.html"]
    assert "&#39;another &lt;b&gt;processor&lt;/b&gt;&#39;" in shown["index.html"]
    assert "&#39;toy processor&#39;" in shown["index.html"]
    assert "REGRESSED" not in shown["summary.md"]


def test_another_study_is_told(
    recorded: dict[str, Bench], overlay: Path, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    """The same cells of a study of another name are compared; whoever reads it is told."""
    run = copied("slow")
    path = baselines.save(msgspec.structs.replace(snapshot(recorded["before"]), study="other"), tmp_path / "kept")
    assert invoke("report", str(run), "--compare", str(path), "--sd-catalog", str(overlay))[0] == 0
    shown = texts(run)
    assert "the baseline is of another study, 'other', this run of 'toy'" in shown["summary.md"].replace("\\", "")
    check_red(shown)


def test_a_partial_run_is_compared_as_far_as_it_goes(
    recorded: dict[str, Bench], overlay: Path, catalog: Catalog, tmp_path: Path
) -> None:
    """A run without a finished rotation has nothing to compare, and its report says so."""
    run = Bench(tmp_path / "begun", catalog)
    base = recorded["before"].folder.path
    code, _ = invoke("report", str(run.folder.path), "--compare", str(base), "--sd-catalog", str(overlay))
    assert code == 0
    shown = texts(run.folder.path)
    assert "PARTIAL run" in shown["index.html"]
    assert '<h2 id="against">Against before</h2>' in shown["index.html"]
    assert "INSUFFICIENT" in shown["summary.md"]


# --- limits and commands, from a run's own records --------------------------------------------------------------------


def test_the_limits_of_the_runs_hardware_are_in_the_report(
    recorded: dict[str, Bench], overlay: Path, copied: Callable[[str], Path]
) -> None:
    """With distances where there is a figure; those on a change get theirs by --compare."""
    run, base = copied("slow"), recorded["before"].folder.path
    options = ("--sd-catalog", str(overlay))
    assert invoke("report", str(run), *options)[0] == 0
    shown = texts(run)
    assert '<table class="gating">' in shown["index.html"]
    # all but the floor of cells that claim a speedup, which this study has none of
    assert "1 further limit of this hardware concerns no cell of the run." in shown["summary.md"]
    kept = json.loads(shown["summary.json"])["limits"]
    rows = load_catalog(overlay).thresholds["toy"]
    assert [row["row"]["metric"] for row in kept["rows"]] == [row.metric for row in rows if not row.claims_speedup]
    assert kept["others"] == 1
    (line,) = [line for line in shown["summary.md"].splitlines() if "drop of the speedup" in line]
    assert line.startswith("| not measured |")
    assert invoke("report", str(run), "--compare", str(base), *options)[0] == 0
    (line,) = [line for line in texts(run)["summary.md"].splitlines() if "drop of the speedup" in line]
    assert line.startswith("| not met |")


def test_the_command_of_a_session_is_in_its_report(
    suites: pytest.Pytester, recorded: dict[str, Bench], overlay: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was given, without the home folder; one cell's command runs that cell alone."""
    home = tmp_path / "home" / "somebody"
    (home / "runs").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    options = replay_options(recorded["before"], overlay)
    selection = ("--sd-run-dir", str(home / "runs" / "one"), "tests_perf/test_throughput.py", "-k", "sound or speedup")
    assert run_suites(suites, *options, *selection).ret == 0
    shown = texts(home / "runs" / "one")
    for text in shown.values():
        assert str(home) not in text
        assert "somebody" not in text
    assert "--sd-run-dir ~/runs/one tests_perf/test_throughput.py -k 'sound or speedup'`" in shown["summary.md"]
    (command,) = re.findall(r"is it faster \| `(pytest .*)` \|", shown["summary.md"])
    program, *arguments = shlex.split(command)
    assert program == "pytest"
    result, outcomes = outcomes_of(suites, *arguments)
    assert list(outcomes) == [f"test_speedup[{CELL}]"]
    assert result.ret == 0


# --- pytest -----------------------------------------------------------------------------------------------------------


def report_folder(suites: pytest.Pytester) -> Path:
    (folder,) = (suites.path / "reports").iterdir()
    return folder


@pytest.mark.parametrize(
    "tests", [(REGRESSION,), ("tests_perf/test_throughput.py", "-k", "sound")], ids=["judged", "not asked about"]
)
def test_a_session_with_a_baseline_leaves_the_same_section(
    suites: pytest.Pytester, recorded: dict[str, Bench], overlay: Path, tests: tuple[str, ...]
) -> None:
    """Whichever tests were chosen; only those of the regression fail by it."""
    options = (*replay_options(recorded["slow"], overlay), "--sd-baseline", str(recorded["before"].folder.path))
    result, outcomes = outcomes_of(suites, *options, *tests)
    assert ("failed" in outcomes.values()) == (REGRESSION in tests)
    assert result.ret == (1 if REGRESSION in tests else 0)
    result.stdout.fnmatch_lines([f"red against 1 run: regressed: {CELL} (system), {CELL} (end to end) *"])
    told = "the comparison is red, and no test fails by it: tests_perf/test_regression.py was not run"
    assert (told in result.stdout.str()) == (REGRESSION not in tests)
    check_red(texts(report_folder(suites)))


def test_without_a_baseline_a_session_leaves_no_such_section(
    suites: pytest.Pytester, recorded: dict[str, Bench], overlay: Path
) -> None:
    assert run_suites(suites, *replay_options(recorded["slow"], overlay), "-k", "sound").ret == 0
    assert 'id="against"' not in texts(report_folder(suites))["index.html"]


def test_a_comparison_that_fails_leaves_a_report_without_it(
    suites: pytest.Pytester, recorded: dict[str, Bench], overlay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured is never lost to it; the session says why, and is not green."""
    from draftproof.errors import DraftproofError
    from draftproof.session import Session

    def fail(_: Any) -> None:
        raise DraftproofError("no limit for that")

    monkeypatch.setattr(Session, "compared", fail)
    options = (*replay_options(recorded["slow"], overlay), "--sd-baseline", str(recorded["before"].folder.path))
    result = run_suites(suites, *options, "-k", "sound")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["no limit for that"])
    assert 'id="against"' not in texts(report_folder(suites))["index.html"]


def test_two_builds_are_compared_in_the_report(
    suites: pytest.Pytester, catalog: Catalog, overlay: Path, tmp_path: Path, any_python: str
) -> None:
    run = Bench(tmp_path / "builds", catalog, two_builds=True)
    run.session(ToyEngine(speeds={"perfect": 1.2, "base:perfect": 1.5}, sigma=0.01), ["speed"])
    options = (*replay_options(run, overlay), "--sd-base-python", any_python, "-k", "sound")
    assert run_suites(suites, *options, "tests_perf/test_throughput.py").ret == 0
    text = texts(report_folder(suites))["index.html"]
    assert '<h2 id="against">Against the other build</h2>' in text
    assert "Both builds ran in the same rotations." in text


def test_the_job_summary_holds_what_moved_and_a_command_that_judges_it(
    suites: pytest.Pytester,
    recorded: dict[str, Bench],
    overlay: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command names the baseline: without it the test would be skipped. Also where no test asked about it."""
    path = tmp_path / "job.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    options = (*replay_options(recorded["slow"], overlay), "--sd-baseline", str(recorded["before"].folder.path))
    commands = []
    for tests in ((REGRESSION,), ("tests_perf/test_throughput.py", "-k", "sound")):
        run_suites(suites, *options, "--sd-fresh", *tests)
        text = path.read_text(encoding="utf-8").replace("\\", "")
        path.unlink()
        assert "## Failing: 1" in text
        assert text.index("## Failing") < text.index("## Cells") < text.index("## Against before")
        (command,) = re.findall(r"again: `(pytest .*)`", text)
        assert f"{REGRESSION}::test_regression[{CELL}]" in command
        commands.append(command)
    assert commands[0] == commands[1]
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    result, outcomes = outcomes_of(suites, *shlex.split(commands[0])[1:])
    assert outcomes == {f"test_regression[{CELL}]": "failed"}
    assert result.ret == 1


def test_what_compare_says_of_the_same_runs_is_what_the_report_holds(
    recorded: dict[str, Bench], overlay: Path, copied: Callable[[str], Path]
) -> None:
    run, base = copied("slow"), recorded["before"]
    assert invoke("report", str(run), "--compare", str(base.folder.path), "--sd-catalog", str(overlay))[0] == 0
    found = msgspec.json.decode(texts(run)["summary.json"], type=Summary).against
    rows = load_catalog(overlay).thresholds["toy"]
    assert found == compare([snapshot(base)], [snapshot(recorded["slow"])], rows)
