"""Runs the two suites (under pytester) and the command from a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pynvml  # noqa: F401  (loaded before pytester takes its picture of sys.modules: what it unloads is loaded twice)
import pytest
import scipy.stats  # noqa: F401  (the same)
from typer.testing import CliRunner

import draftproof.cli as cli
from tests.toy import Bench

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("tests_perf", "tests_determinism")


def replay_options(run: Bench, overlay: Path, study: str = "toy") -> tuple[str, ...]:
    return (
        "--sd-study",
        study,
        "--sd-catalog",
        str(overlay),
        "--sd-engine",
        "replay",
        "--sd-replay",
        str(run.folder.path),
    )


def run_suites(suites: pytest.Pytester, *arguments: str, plugins: Sequence[object] = ()) -> pytest.RunResult:
    given = arguments if any(argument.startswith("tests_") for argument in arguments) else (*arguments, *SUITES)
    return suites.runpytest_inprocess("-p", "no:cacheprovider", *given, plugins=plugins, no_reraise_ctrlc=True)


class Outcomes:
    """A plugin that notes ``test[cell]`` -> passed, failed, skipped or error."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2]
        if report.when == "call" or (report.when == "setup" and report.skipped):
            self.found[name] = report.outcome
        elif report.failed:
            self.found[name] = "error"


def outcomes_of(suites: pytest.Pytester, *arguments: str) -> tuple[pytest.RunResult, dict[str, str]]:
    """A run of the suites, and the outcome of each of its tests."""
    outcomes = Outcomes()
    result = run_suites(suites, *arguments, plugins=[outcomes])
    return result, outcomes.found


def invoke(*arguments: str) -> tuple[int, str]:
    """Exit status and everything printed."""
    result = CliRunner().invoke(cli.app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["draftproof", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code
