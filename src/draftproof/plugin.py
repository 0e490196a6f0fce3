"""The pytest plugin: options, markers, fixtures, skip reasons, and where a run begins and ends.

pytest loads this module for every project on the machine (entry point ``pytest11``), so it imports pytest and the
standard library only, and does nothing until one of its options, markers or fixtures is used. Options begin with
``--sd-``, fixtures with ``sd_``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from draftproof.comparison import Compared
    from draftproof.examples import Examples
    from draftproof.gate import Judgement
    from draftproof.results import CellResult, RunResults
    from draftproof.scenarios import Scenario
    from draftproof.session import Session
    from draftproof.spec import Cell, Variant

SESSION = pytest.StashKey["Session"]()
PROBLEM = pytest.StashKey[str]()
MARKERS = {
    "sd_cells(*purposes, **traits)": "run once per cell that has the traits; what the test needs of the engine",
    "cpu": "cells for machines without a GPU",
    "h100": "cells for H100 GPUs",
    "h100x4": "cells for four H100 GPUs",
    "h200": "cells for H200 GPUs",
    "nightly": "cells of a nightly study",
}
PROGRESS_EVERY_S = 15.0
NOBODY_ASKED = "the comparison is red, and no test fails by it: tests_perf/test_regression.py was not run"
JOB_SUMMARY = "GITHUB_STEP_SUMMARY"
"""The variable that names the file of GitHub's job summary."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("draftproof", "speculative decoding in vLLM (draftproof)")
    group.addoption(
        "--sd-study",
        metavar="NAME",
        help="study to run (default: nightly-h100 with -m h100, h200-synthetic with -m h200, else default)",
    )
    group.addoption(
        "--sd-catalog",
        metavar="DIR",
        action="append",
        default=[],
        help="folder of your own TOML entries, laid over draftproof's; may be repeated",
    )
    group.addoption(
        "--sd-prompts", metavar="FILE", help="run the study on your prompts (JSON lines of text or messages)"
    )
    group.addoption("--sd-python", metavar="PATH", default=sys.executable, help="interpreter whose vLLM is under test")
    group.addoption("--sd-base-python", metavar="PATH", help="interpreter of a second vLLM build to pair with")
    group.addoption(
        "--sd-baseline",
        metavar="PATH",
        help="judge the run against this: a run's folder, a baseline's file, or a folder of baselines",
    )
    group.addoption(
        "--sd-report-dir", metavar="DIR", help="where run folders go (default: reports beside pyproject.toml)"
    )
    group.addoption("--sd-run-dir", metavar="DIR", help="this run's own folder; an existing one is gone on with")
    group.addoption("--sd-fresh", action="store_true", help="start a new run even if an unfinished one could go on")
    group.addoption("--sd-engine", metavar="NAME", default="vllm", help="engine: vllm or replay")
    group.addoption("--sd-replay", metavar="RUN", help="with --sd-engine replay: the recorded run's folder")
    group.addoption(
        "--sd-example",
        metavar="JSON",
        help="run this one scenario, as a failed test_metamorphic.py printed it",
    )
    group.addoption(
        "--sd-require-hardware",
        action="store_true",
        help="fail where hardware is missing or nothing ran (for nightly jobs), instead of skipping",
    )
    group.addoption(
        "--sd-gate", action="store_true", help="fail on every verdict that is not green, not only on red ones"
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: draftproof: {text}")


# -- from options to a session ---------------------------------------------------------------------------------------


def default_study(markexpr: str) -> str:
    """A GPU's marker asks for the study that is made for it, anything else for the default one."""
    for marker, study in (("h100", "nightly-h100"), ("h200", "h200-synthetic")):
        if re.search(rf"(?<!not )\b{marker}", markexpr):
            return study
    return "default"


def sd_session(config: pytest.Config) -> Session:
    """This pytest session's draftproof session, made at its first use."""
    if SESSION not in config.stash:
        from draftproof.errors import DraftproofError
        from draftproof.session import Options
        from draftproof.session import Session as SessionType

        option = config.getoption
        root = config.rootpath
        try:
            config.stash[SESSION] = SessionType(
                Options(
                    study=option("--sd-study") or default_study(option("markexpr") or ""),
                    overlays=[Path(folder) for folder in option("--sd-catalog")],
                    prompts=Path(option("--sd-prompts")) if option("--sd-prompts") else None,
                    python=option("--sd-python"),
                    base_python=option("--sd-base-python"),
                    baseline=Path(option("--sd-baseline")) if option("--sd-baseline") else None,
                    gate=option("--sd-gate"),
                    report_dir=Path(option("--sd-report-dir") or root / "reports"),
                    run_dir=Path(option("--sd-run-dir")) if option("--sd-run-dir") else None,
                    fresh=option("--sd-fresh"),
                    engine=option("--sd-engine"),
                    replay=Path(option("--sd-replay")) if option("--sd-replay") else None,
                    command=["pytest", *config.invocation_params.args],
                )
            )
        except DraftproofError as error:
            raise pytest.UsageError(str(error)) from error
        for hardware in config.stash[SESSION].catalog.hardware.values():
            for name in hardware.markers:
                if name not in MARKERS:  # of an entry of the user's
                    config.addinivalue_line("markers", f"{name}: draftproof: cells for {hardware.title}")
    return config.stash[SESSION]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """With an option of ours the catalog is read before anything is collected: a mistake is one message, status 4."""
    names = ("study", "catalog", "prompts", "base-python", "baseline", "run-dir", "replay")
    config = session.config
    if any(config.getoption(f"--sd-{name}") for name in names) or config.getoption("--sd-engine") != "vllm":
        sd_session(config)
    if config.getoption("--sd-example"):
        given_example(config)


def given_example(config: pytest.Config) -> Scenario:
    """The scenario of ``--sd-example``."""
    from draftproof.errors import DraftproofError
    from draftproof.scenarios import parse

    try:
        return parse(config.getoption("--sd-example"))
    except DraftproofError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sd_served" in metafunc.fixturenames:
        session = sd_session(metafunc.config)
        first = session.cells[0]  # examples try the engine, not the models: one target is enough
        param = pytest.param(first, id=first.target, marks=hardware_marks(session, first))
        metafunc.parametrize("sd_served", [param], indirect=True, scope="session")
    if "sd_cell" not in metafunc.fixturenames:
        return
    from draftproof.spec import meaningless

    session = sd_session(metafunc.config)
    marker = metafunc.definition.get_closest_marker("sd_cells")
    wanted = marker.kwargs if marker else {}
    params = []
    seen: set[tuple[str, str]] = set()
    for cell in session.cells:
        new = (cell.target, cell.variant) not in seen
        seen.add((cell.target, cell.variant))
        variant = session.catalog.variants[cell.variant]
        traits = {
            "speculative": variant.speculative,
            "invariant": bool(variant.plain),
            "eos": not session.study.ignore_eos,
            "first_of_variant": new,
            "against": session.compares,
            "meaningful": not meaningless(variant, session.catalog.targets[cell.target]),
        }
        if any(traits[name] != value for name, value in wanted.items()):
            continue
        params.append(pytest.param(cell, id=cell.id, marks=hardware_marks(session, cell)))
    if wanted.get("against") and not session.compares:
        reason = "needs --sd-baseline or --sd-base-python; found neither; enable with --sd-baseline PATH: a run's "
        reason += "folder, a baseline's file or a folder of baselines"
        params.append(pytest.param(None, id="nothing", marks=pytest.mark.skip(reason=reason)))
    metafunc.parametrize("sd_cell", params, scope="session")


def hardware_marks(session: Session, cell: Cell) -> list[pytest.MarkDecorator]:
    names = [*session.catalog.hardware[cell.hardware].markers, *(["nightly"] if session.study.nightly else [])]
    return [getattr(pytest.mark, name) for name in names]


def cell_of(item: pytest.Item, fixture: str = "sd_cell") -> Cell | None:
    callspec = getattr(item, "callspec", None)
    cell = callspec.params.get(fixture) if callspec is not None else None
    return cell if hasattr(cell, "batch_size") else None  # pytest's own placeholder, where no cell is chosen


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One place for hardware skips: `needs ...; found ...; enable with ...`."""
    for item in items:
        cell = cell_of(item) or cell_of(item, "sd_served")
        gap = sd_session(config).hardware_gap(cell) if cell is not None else None
        if gap is not None and not config.getoption("--sd-require-hardware"):
            item.add_marker(pytest.mark.skip(reason=gap))
    leave_out_empty(config, items)
    choose_examples(config, items)


def leave_out_empty(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that no cell of the study is meant for is deselected, where there is another one to run."""
    empty = [item for item in items if item.get_closest_marker("sd_cells") and cell_of(item) is None]
    if empty and len(empty) < len(items):
        items[:] = [item for item in items if item not in empty]
        config.hook.pytest_deselected(items=empty)


def choose_examples(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Which tests of invented examples run: the given one alone, else those of a study that asks for any.

    The others are deselected. Where nothing else was collected, somebody asked for them: then they say what is missing.
    """
    mine = [item for item in items if cell_of(item, "sd_served") is not None]
    if not mine:
        return
    session, given = sd_session(config), bool(config.getoption("--sd-example"))
    chosen = [item for item in mine if ("sd_example" in getattr(item, "fixturenames", ())) == given]
    reason = ""
    if not given and not session.study.live_examples:
        reason = f"needs live_examples of at least 1; found 0 in study {session.study.name!r}; enable with "
        reason += "--sd-study smoke or a study of your own"
        chosen = chosen if len(mine) == len(items) else []
    elif session.options.engine == "replay":
        reason = "needs a live engine: a recorded run cannot answer invented requests; found --sd-engine replay; "
        reason += "enable with --sd-engine vllm"
    if reason:
        for item in chosen:
            item.add_marker(pytest.mark.skip(reason=reason))
    left_out = [item for item in mine if item not in chosen]
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def selected_cells(items: list[pytest.Item], session: Session) -> tuple[list[Cell], set[str]]:
    """Cells and purposes that the collected tests ask for; those without hardware are noted as skipped."""
    cells: dict[str, Cell] = {}
    purposes: set[str] = set()
    for item in items:
        cell = cell_of(item)
        if cell is None:
            continue
        gap = session.hardware_gap(cell)
        if gap is not None:
            session.skipped[cell.id] = gap
            continue
        cells[cell.id] = cell
        marker = item.get_closest_marker("sd_cells")
        purposes.update(marker.args if marker else ("speed",))
    return list(cells.values()), purposes


# -- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def sd_run(request: pytest.FixtureRequest) -> RunResults:
    """The study's run: everything that the collected tests need, measured once, with progress on the terminal."""
    from draftproof.errors import DraftproofError

    config = request.config
    session = sd_session(config)
    cells, purposes = selected_cells(request.session.items, session)
    progress = TerminalProgress(config)
    try:
        with progress.shown():
            return session.run(cells, purposes, progress)  # type: ignore[arg-type]
    except DraftproofError as error:
        config.stash[PROBLEM] = str(error)
        pytest.exit(f"draftproof: {error}", returncode=1)


@pytest.fixture
def sd_result(sd_cell: Cell, request: pytest.FixtureRequest) -> CellResult:
    """What was measured for this test's cell; skips or fails where it could not be run."""
    session = sd_session(request.config)
    gap = session.hardware_gap(sd_cell)
    if gap is not None:
        pytest.fail(f"--sd-require-hardware: {gap}", pytrace=False)
    sd_run: RunResults = request.getfixturevalue("sd_run")
    if sd_cell.id in session.skipped:
        pytest.skip(session.skipped[sd_cell.id])
    for cell in sd_run.cells:
        if cell.cell.id == sd_cell.id and cell.build == "new":
            from draftproof.report.ci import properties

            request.node.user_properties.extend(properties(cell))
            return cell
    pytest.fail(f"the run holds no result for {sd_cell.id}", pytrace=False)


@pytest.fixture
def sd_variant(sd_cell: Cell, request: pytest.FixtureRequest) -> Variant:
    """The catalog entry of this test's variant."""
    return sd_session(request.config).catalog.variants[sd_cell.variant]


@pytest.fixture(scope="session")
def sd_served(request: pytest.FixtureRequest) -> Iterator[Examples]:
    """Two live arms of the study's first target, no speculation and scripted drafts, started once for all examples.

    A run of the same session comes first: its engines are gone by then, and its folder takes the examples as well.
    """
    from draftproof.errors import DraftproofError

    config = request.config
    session = sd_session(config)
    gap = session.hardware_gap(request.param)
    if gap is not None:
        pytest.fail(f"--sd-require-hardware: {gap}", pytrace=False)
    if selected_cells(request.session.items, session)[0]:
        request.getfixturevalue("sd_run")
    progress = TerminalProgress(config)
    with contextlib.ExitStack() as stack:
        try:
            with progress.shown():
                served = session.examples(request.param, progress)
                stack.callback(served.close)
                progress.say(f"loading 2 engines for examples: {', '.join(served.names)}")
                served.open()
        except DraftproofError as error:
            pytest.fail(f"draftproof: {error}", pytrace=False)
        yield served


@pytest.fixture
def sd_example(request: pytest.FixtureRequest) -> Scenario:
    """The scenario of ``--sd-example``."""
    return given_example(request.config)


@pytest.fixture
def sd_against(sd_result: CellResult, request: pytest.FixtureRequest) -> Compared:
    """The run against its baseline, or against the other build; a cell that was not run is settled by `sd_result`."""
    from draftproof.errors import DraftproofError

    try:
        return sd_session(request.config).compared()
    except DraftproofError as error:
        pytest.fail(f"draftproof: {error}", pytrace=False)


class Settle(Protocol):
    def __call__(self, judgement: Judgement, **properties: float) -> None: ...


@pytest.fixture
def sd_settle(request: pytest.FixtureRequest) -> Settle:
    """Turns a verdict into this test's outcome, by the mapping in `draftproof.gate.outcome`.

    Verdict, reason and properties go to the JUnit file, beside the cell's figures from `sd_result`; not through
    ``record_property``, which warns for pytest's own default family of that file.
    """

    def settle(judgement: Judgement, **properties: float) -> None:
        from draftproof.gate import outcome

        told = [("sd_verdict", judgement.verdict), ("sd_reason", judgement.reason)]
        request.node.user_properties.extend([*told, *properties.items()])
        text = f"{judgement.verdict}: {judgement.reason}"
        result = outcome(judgement.verdict, gating=request.config.getoption("--sd-gate"))
        if result == "failed":
            pytest.fail(text, pytrace=False)
        if result == "skipped":
            pytest.skip(f"not judged: {text}")

    return settle


class TerminalProgress:
    """Lines on the terminal while the run goes on: rewritten in place there, one every while in a log."""

    def __init__(self, config: pytest.Config) -> None:
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._writer = reporter._tw if reporter is not None else None
        self._tty = bool(self._writer is not None and self._writer.hasmarkup)
        self._last = float("-inf")

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        suspended = self._capture.global_and_fixture_disabled() if self._capture else contextlib.nullcontext()
        with suspended:
            if self._writer is not None:
                self._writer.line()
            yield

    def say(self, text: str) -> None:
        if self._writer is not None:
            self._writer.line(("\r\x1b[K" if self._tty else "") + f"  draftproof: {text}")
            self._writer.flush()

    def block(self, done: int, total: int, left_s: float | None, what: str) -> None:
        if self._writer is None:
            return
        left = "" if left_s is None else f", about {left_s:.0f} s left"
        text = f"  block {done} of {total}{left}: {what}"
        now = time.monotonic()
        if self._tty:
            self._writer.write(f"\r\x1b[K{text}")
            self._writer.flush()
        elif now - self._last >= PROGRESS_EVERY_S or done == total:
            self._writer.line(text)
            self._writer.flush()
            self._last = now


# -- pytest-benchmark ------------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """No host name in a file that is passed on; only where draftproof runs a study."""
    if SESSION in config.stash:
        machine_info["node"] = "removed by draftproof"


# -- the end ---------------------------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the report of whatever was recorded, after a kill of the run too; nothing ran may be a failure."""
    config = session.config
    state = config.stash.get(SESSION, None)
    if state is None or config.getoption("collectonly"):
        return
    if state.folder is not None:
        write_session_report(session, state)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    ran = reporter is not None and any(reporter.stats.get(key) for key in ("passed", "failed", "error", "xfailed"))
    if config.getoption("--sd-require-hardware") and not ran:
        config.stash[PROBLEM] = "--sd-require-hardware: nothing ran in this session"
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if os.environ.get(JOB_SUMMARY):
        write_job_summary(config, state, Path(os.environ[JOB_SUMMARY]))


def write_session_report(session: pytest.Session, state: Session) -> None:
    """With the run against its baseline or other build; without, where that cannot be said: then why is told."""
    from draftproof.comparison import RED_EXIT
    from draftproof.errors import DraftproofError
    from draftproof.report.written import write_report

    assert state.folder is not None
    judged = state.against is not None
    problems, found = [], None
    try:
        results = state.results or state.judge()
        try:
            found = state.compared() if state.compares else None
        except DraftproofError as error:
            problems.append(str(error))
        write_report(state.folder, results, found)
    except DraftproofError as error:
        problems.append(str(error))
    if problems:
        session.config.stash[PROBLEM] = "\n".join(problems)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    elif found is not None and found.exit_code == RED_EXIT and not judged:
        session.config.stash[PROBLEM] = NOBODY_ASKED


def write_job_summary(config: pytest.Config, state: Session, path: Path) -> None:
    """Append the session's outcome to GitHub's job summary; a file that cannot be written is told, and no failure."""
    from draftproof.report.ci import FailedTest, append, job_summary

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    failed = []
    for report in (reporter.stats.get("failed", []) + reporter.stats.get("error", [])) if reporter else []:
        crash = getattr(report.longrepr, "reprcrash", None)
        failed.append(FailedTest(test=report.nodeid, reason=crash.message if crash else report.longreprtext))
    problem = config.stash.get(PROBLEM, "")

    def render(most_bytes: int) -> str:
        return job_summary(
            state.results,
            failed,
            state.test_command,
            problem=problem,
            compared=state.against,
            most_bytes=most_bytes,
        )

    try:
        append(path, render)
    except OSError as error:
        config.stash[PROBLEM] = f"{problem}\n{JOB_SUMMARY}: not written: {error.strerror or error}".strip()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    state = config.stash.get(SESSION, None)
    if state is None or config.getoption("collectonly"):
        return
    if PROBLEM in config.stash:
        terminalreporter.section("draftproof", sep="=")
        terminalreporter.line(config.stash[PROBLEM])
    if state.results is None or not state.results.cells:
        return
    from draftproof.report.terminal import comparison_lines, summary_lines

    terminalreporter.section(f"draftproof: {state.results.title}", sep="=")
    writer = terminalreporter._tw  # it has read NO_COLOR, FORCE_COLOR, PY_COLORS and --color
    colour, terminal = writer.hasmarkup, terminalreporter.isatty
    for line in summary_lines(state.results, writer.fullwidth, terminal=terminal, colour=colour):
        terminalreporter.line(line)
    if state.against is not None:
        for line in comparison_lines(state.against, colour=colour):
            terminalreporter.line(line)
    if state.folder is not None:
        terminalreporter.line(f"report: {state.folder.path / 'index.html'}")
        command = shlex.join(["pytest", *config.invocation_params.args])
        terminalreporter.line(f"again: {command}")
