"""Invented examples on live arms, from the plugin's options to the record of each: with toys for engines."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import draftproof.session
from draftproof.errors import EngineError
from draftproof.examples import FILE, ArmsLine, ExampleLine, Line, VerdictLine
from draftproof.hardware import Machine
from draftproof.scenarios import Request, Scenario
from tests.toy import ENTRIES, ToyEngine, write_catalog

ROOT = Path(__file__).resolve().parents[2]
TEST = "tests_determinism/test_metamorphic.py"


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy catalog, and its study with a few invented examples, as ``lively``."""
    folder = write_catalog(tmp_path_factory.mktemp("lively"))
    study = ENTRIES["studies/toy.toml"].replace('name = "toy"', 'name = "lively"\n        live_examples = 3')
    (folder / "studies" / "lively.toml").write_text(study, encoding="utf-8")
    hardware = folder / "hardware" / "toy.toml"  # no setting that scripted drafts would have to force
    text = hardware.read_text(encoding="utf-8").replace(
        "max_num_seqs = 64", "max_num_seqs = 64, async_scheduling = false"
    )
    hardware.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project that holds the suite of outputs and this one's pytest settings."""
    shutil.copytree(
        ROOT / "tests_determinism", pytester.path / "tests_determinism", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", pytester.path / "pyproject.toml")
    return pytester


class Toys:
    """Runs pytest with toys for engines, one new engine a session."""

    def __init__(self, project: pytest.Pytester, lively: Path, python: str, patch: pytest.MonkeyPatch) -> None:
        self.project = project
        self.options = ("-p", "no:cacheprovider", "--sd-catalog", str(lively), "--sd-python", python)
        self.patch = patch
        self.engine = ToyEngine()

    def run(self, *arguments: str, study: str = "lively", **changes: Any) -> pytest.RunResult:
        self.engine = ToyEngine(**changes)
        self.patch.setattr(draftproof.session.Session, "_engine", lambda session: self.engine)
        given = ("--sd-study", study, *arguments)
        return self.project.runpytest_inprocess(*self.options, *given)

    def again(self, command: str, **changes: Any) -> pytest.RunResult:
        """Run a command as a user would paste it; what ``pytest`` is, is known here."""
        self.engine = ToyEngine(**changes)
        words = shlex.split(command)
        assert words[0] == "pytest"
        return self.project.runpytest_inprocess("-p", "no:cacheprovider", *words[1:])

    def lines(self) -> list[Line]:
        """What the newest folder holds of examples."""
        folders = sorted((self.project.path / "reports").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        decoder = msgspec.json.Decoder(Line)
        return [decoder.decode(line) for line in (folders[-1] / FILE).read_bytes().splitlines()]


@pytest.fixture
def toys(project: pytest.Pytester, lively: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toys:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    python.chmod(0o755)
    return Toys(project, lively, str(python), monkeypatch)


def commands(result: pytest.RunResult) -> list[str]:
    """The commands that failures print, each once."""
    return list(
        dict.fromkeys(re.findall(r"^ *(pytest tests_determinism.*--sd-example .*)$", result.stdout.str(), re.M))
    )


# --- as they should be ------------------------------------------------------------------------------------------------


def test_a_clean_engine_passes_and_everything_is_recorded(toys: Toys) -> None:
    """Two arms, started once and closed; the example first, then its verdict; no run is made for it."""
    result = toys.run(TEST)
    result.assert_outcomes(passed=4, deselected=1)
    assert sorted(toys.engine.started) == ["no_sd", "scripted"]
    assert not toys.engine.live
    assert toys.engine.calls == []
    arms, *lines = toys.lines()
    assert isinstance(arms, ArmsLine)
    assert set(arms.resolved) == set(arms.environment) == {"no_sd", "scripted"}
    examples, verdicts = lines[::2], lines[1::2]
    assert all(isinstance(line, ExampleLine) and line.others and not line.error for line in examples)
    assert all(line == VerdictLine(ties=[], problems=[]) for line in verdicts)
    assert len(examples) == len(verdicts) == 5 + 3 * 3, "five chosen ones, and three invented ones for three properties"
    (folder,) = (toys.project.path / "reports").iterdir()
    assert not (folder / "run.json").exists()
    assert "run this example again" not in result.stdout.str()


def test_the_same_examples_every_time(toys: Toys) -> None:
    toys.run(TEST)
    first = toys.lines()
    toys.run(TEST)
    assert toys.lines() == first


def test_examples_go_into_the_folder_of_the_sessions_run(toys: Toys) -> None:
    """The run comes first, with its own engines, which are closed by then."""
    result = toys.run("tests_determinism", "-k", "metamorphic or perfect-short-b1")
    assert result.ret == 0
    (folder,) = (toys.project.path / "reports").iterdir()
    assert (folder / "records.jsonl").stat().st_size > 0
    assert (folder / "index.html").exists()
    assert isinstance(toys.lines()[0], ArmsLine)
    assert toys.engine.started[-2:] in (["no_sd", "scripted"], ["scripted", "no_sd"])
    assert toys.engine.most_live == len(toys.engine.started) - 2
    assert not toys.engine.live


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_failure_prints_a_command_that_runs_its_example_again(toys: Toys) -> None:
    """Pasted, it fails again with that one example; with the fault mended it passes."""
    result = toys.run(TEST, serves={"scripted": "flips a token"})
    assert result.parseoutcomes() == {"failed": 4, "deselected": 1}
    text = result.stdout.str()
    assert re.search(
        r"request \d on scripted: divergent: first difference at position 6: no-SD \d+ '<\d+>', here", text
    )
    assert "run this example again with" in text
    assert "Traceback" not in text
    first = commands(result)[0]
    result = toys.again(first, serves={"scripted": "flips a token"})
    result.assert_outcomes(failed=1, deselected=4)
    assert commands(result) == [first]
    _, example, verdict = toys.lines()
    assert isinstance(example, ExampleLine)
    assert shlex.split(first)[-1] == example.scenario.json
    assert isinstance(verdict, VerdictLine)
    assert [problem.name for problem in verdict.problems] == ["divergent"] * len(verdict.problems)
    toys.again(first).assert_outcomes(passed=1, deselected=4)


def test_a_tie_is_no_failure(toys: Toys) -> None:
    """Both tokens within the limit of the best: the same flip passes, and is recorded as a tie."""
    result = toys.run(TEST, serves={"scripted": "flips a token"}, gap_nats=0.2)
    result.assert_outcomes(passed=4, deselected=1)
    ties = [tie for line in toys.lines() if isinstance(line, VerdictLine) for tie in line.ties]
    assert ties
    assert all("position 6: " in tie and "0.200 nats from the best (limit 0.25)" in tie for tie in ties)
    assert toys.engine.scored


def test_an_arm_that_does_not_answer_fails_its_example_and_is_started_again(toys: Toys) -> None:
    error = EngineError("crash", "arm 'scripted' ended during 'serve' (signal SIGKILL)", "the toy's last words")
    result = toys.run(TEST, serves={"scripted": error})
    assert result.parseoutcomes() == {"failed": 4, "deselected": 1}
    text = result.stdout.str()
    assert "arm 'scripted' ended during 'serve' (signal SIGKILL)" in text
    assert "the toy's last words" in text
    assert commands(result)
    assert toys.engine.started.count("scripted") == 4, "each property tries a new one"
    assert not toys.engine.live
    examples = [line for line in toys.lines() if isinstance(line, ExampleLine)]
    assert all(line.bases and not line.others and "SIGKILL" in line.error for line in examples)


def test_a_score_that_cannot_be_had_is_a_failure(toys: Toys) -> None:
    error = EngineError("timeout", "arm 'no_sd' did not answer 'score' within 300 s")
    result = toys.run(TEST, serves={"scripted": "flips a token"}, score_error=error)
    assert result.parseoutcomes() == {"failed": 4, "deselected": 1}
    assert "a first difference could not be scored: arm 'no_sd' did not answer" in result.stdout.str()


def test_an_arm_that_cannot_start_is_told_once(toys: Toys) -> None:
    result = toys.run(TEST, refuses={"scripted": EngineError("method", "this vLLM has no method 'custom_class'")})
    assert result.parseoutcomes() == {"errors": 4, "deselected": 1}
    assert "this vLLM has no method 'custom_class'" in result.stdout.str()
    assert not toys.engine.live


def test_a_known_fault_is_an_expected_failure(toys: Toys) -> None:
    """Never a pass, and shown with its command; what is beside it is judged as ever."""
    given = Scenario(requests=[Request(min_tokens=2, ignore_eos=True, stop_ids=[5], drafts=[[], [0] * 4])]).json
    result = toys.run(TEST, "--sd-example", given, serves={"scripted": "masks the bonus token"})
    result.assert_outcomes(xfailed=1, deselected=4)
    text = result.stdout.str()
    assert "vLLM masks stop ids and EOS for a step's last token" in text
    assert f"--sd-example '{given}'" in text
    result = toys.run(TEST, "--sd-example", given, serves={"scripted": "garbles the text"})
    result.assert_outcomes(failed=1, deselected=4)


# --- who runs them ----------------------------------------------------------------------------------------------------


def test_a_study_that_asks_for_none_leaves_them_out(toys: Toys) -> None:
    """Beside other tests they are deselected; asked for alone they say what is missing."""
    result = toys.run("tests_determinism", "--collect-only", "-q", study="toy")
    assert "test_metamorphic" not in result.stdout.str()
    result = toys.run(TEST, study="toy")
    result.assert_outcomes(skipped=4, deselected=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED *needs live_examples of at least 1; found 0 in study 'toy'; enable with --sd-study smoke or *"]
    )
    assert toys.engine.started == []


def test_a_given_example_runs_in_any_study(toys: Toys) -> None:
    given = '{"requests":[{"prompt":[5,6,7],"max_tokens":9,"ignore_eos":true,"drafts":[[0,0]]}]}'
    toys.run(TEST, "--sd-example", given, study="toy").assert_outcomes(passed=1, deselected=4)
    _, example, _ = toys.lines()
    assert isinstance(example, ExampleLine)
    assert example.asked[0].prompt == [5, 6, 7]
    assert sum(example.others[0].accepted) > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "--sd-example must be the JSON of a scenario (got '{')"),
        ('{"requests":[]}', "requests must be at least one"),
        ('{"requests":[{"prompts":1}]}', "unknown field `prompts`"),
        ('{"requests":[{"max_tokens":3,"min_tokens":4}]}', "min_tokens must be from 0 to max_tokens = 3 (got 4)"),
    ],
)
def test_an_example_that_is_none_is_a_usage_error(toys: Toys, given: str, message: str) -> None:
    result = toys.run(TEST, "--sd-example", given)
    text = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in text
    assert "Traceback" not in text


def test_a_recorded_run_cannot_answer(toys: Toys, clean_run: Any) -> None:
    options = ("--sd-engine", "replay", "--sd-replay", str(clean_run.folder.path))
    result = toys.run(TEST, *options)
    result.assert_outcomes(skipped=4, deselected=1)
    result.stdout.fnmatch_lines(["SKIPPED *needs a live engine: *; found --sd-engine replay; enable with *"])


def test_without_the_hardware_they_are_skipped(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draftproof.session, "detect_machine", lambda: Machine("a CPU", cores=2, memory_gib=8.0))
    lively = '[[matrix]]\ntarget = "toy"\nvariants = ["no_sd"]\nworkloads = ["short"]\nbatch_sizes = [1]\n'
    head = 'name = "far"\ntitle = "far"\nhardware = "h100"\noutput_tokens = 8\nlive_examples = 2\n'
    folder = toys.project.path / "far" / "studies"
    folder.mkdir(parents=True)
    (folder / "far.toml").write_text(head + lively, encoding="utf-8")
    result = toys.run(TEST, "--sd-catalog", str(folder.parent), study="far")
    result.assert_outcomes(skipped=4, deselected=1)
    result.stdout.fnmatch_lines(["SKIPPED *needs 1 x H100 *"])
    result = toys.run(TEST, "--sd-catalog", str(folder.parent), "--sd-require-hardware", study="far")
    assert result.parseoutcomes() == {"errors": 4, "deselected": 1}
    assert toys.engine.started == []
