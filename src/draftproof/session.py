"""One pytest session's run: which folder, which engine, what is missing, and the results."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
import msgspec

import draftproof
from draftproof import baselines, comparable, results
from draftproof.catalog import Catalog, load_catalog
from draftproof.comparison import Compared, compare
from draftproof.engines import ENGINES, LiveArm, open_engine
from draftproof.errors import DraftproofError, rule, scrub, unknown
from draftproof.examples import FILE as EXAMPLES
from draftproof.examples import Examples
from draftproof.gate import check_limits, limit_of
from draftproof.hardware import detect_machine, gpu_state, missing, settle
from draftproof.live import Progress
from draftproof.plan import ArmSpec, Group, Plan, build_plan
from draftproof.prompts import fits, tokenize_request
from draftproof.records import SCHEMA_VERSION, RunData, RunFolder, RunHeader, SessionLine
from draftproof.resolve import CatalogResolver, ReplayResolver
from draftproof.runner import NO_MODEL, Resolver, Runner, log_name, start_request
from draftproof.scenarios import Scenario
from draftproof.snapshot import Snapshot, take
from draftproof.spec import Cell, MatrixRow, Purpose, Study, Workload
from draftproof.workloads import WorkloadUnavailable, file_workload

LOCK = ".lock"
SCRIPTED = "scripted"
"""The variant whose drafts examples invent."""
EXAMPLE_PROMPTS = "short_answers"
"""The workload whose prompts examples take, where the user gives none."""
CONTEXT = 384
"""The most tokens of context that examples run with: its end is then near enough for short prompts."""
EXAMPLES_TEST = "tests_determinism/test_metamorphic.py"
REGRESSION_TEST = "tests_perf/test_regression.py::test_regression"
MEANS_TEST = "test_regression_of_means"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The ``--sd-*`` options."""

    study: str
    overlays: list[Path] = []
    prompts: Path | None = None
    python: str = sys.executable
    base_python: str | None = None
    baseline: Path | None = None
    gate: bool = False
    report_dir: Path
    run_dir: Path | None = None
    fresh: bool = False
    engine: str = "vllm"
    replay: Path | None = None
    command: list[str] = []


class Session:
    """Catalog, study and cells of a pytest session; the run itself happens on demand, once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.pythons = {"new": interpreter_path("--sd-python", options.python)}
        """Build -> interpreter of its arms."""
        if options.base_python is not None:
            self.pythons["base"] = interpreter_path("--sd-base-python", options.base_python)
        if options.engine not in ENGINES:
            raise unknown("--sd-engine", options.engine, ENGINES)
        if (options.engine == "replay") != (options.replay is not None):
            raise DraftproofError("--sd-engine replay and --sd-replay RUN (the folder of a recorded run) go together")
        self.catalog: Catalog = settle(load_catalog(*options.overlays), detect_machine())
        self.study: Study = self.catalog.get("studies", options.study)
        self.file_workloads: dict[str, tuple[Workload, Path]] = {}
        if options.prompts is not None:
            self._use_prompts(options.prompts)
        self.cells: list[Cell] = self.catalog.study_cells(self.study.name)
        self.folder: RunFolder | None = None
        self.skipped: dict[str, str] = {}
        """Cell id -> why it cannot be run here: its hardware, or a workload that cannot be had."""
        self.results: results.RunResults | None = None
        self.against: Compared | None = None
        path = options.baseline
        self.baseline_folder = path is not None and path.is_dir() and not (path / "run.json").exists()
        """Whether it is many baselines, of which the run's own is chosen."""
        self.baseline: list[Snapshot] = self._read_baseline(path) if path is not None else []

    def _use_prompts(self, path: Path) -> None:
        """Every row of the study runs on the user's prompts instead of its workloads."""
        workload = file_workload("prompts", path)
        self.file_workloads[workload.name] = (workload, path)
        rows: list[MatrixRow] = []
        for row in self.study.matrix:
            rows.append(msgspec.structs.replace(row, workloads=[workload.name], claims_speedup=False))
        self.study = msgspec.structs.replace(self.study, matrix=rows)
        self.catalog.studies[self.study.name] = self.study

    @property
    def compares(self) -> bool:
        """Whether there is anything to compare the run with."""
        return self.options.baseline is not None or "base" in self.pythons

    def _read_baseline(self, path: Path) -> list[Snapshot]:
        """Before anything runs, so that a file that cannot be read costs no hours."""
        if not path.exists():
            raise rule("--sd-baseline", "a run's folder, a baseline's file or a folder of baselines", str(path))
        if self.baseline_folder:
            return [run for found in baselines.everything(path) for run in found.snapshots]
        return baselines.resolve(path, self.catalog)

    def hardware_gap(self, cell: Cell) -> str | None:
        """Why this machine cannot run the cell, else None. Records can be replayed anywhere."""
        if self.options.engine == "replay":
            return None
        hardware = self.catalog.get("hardware", cell.hardware)
        if self.catalog.variants[cell.variant].forces.batch_invariant and not hardware.batch_invariant:
            return (
                f"needs hardware for which vLLM has batch-invariant kernels; found {hardware.name!r}, whose entry says "
                "batch_invariant = false; enable with a GPU that vLLM's documentation of VLLM_BATCH_INVARIANT lists"
            )
        if self.catalog.variants[cell.variant].control is not None and hardware.tensor_parallel_size > 1:
            return (
                "needs the model in the engine's own process, where a control is told what to draft; found "
                f"tensor_parallel_size = {hardware.tensor_parallel_size} of {hardware.name!r}, with a process for each "
                "part; enable with hardware that holds the whole target"
            )
        return missing(hardware, detect_machine())

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, selected: Iterable[Cell], purposes: Iterable[Purpose], progress: Progress) -> results.RunResults:
        """Run what the selected cells need and judge it; each cell's failure stays its own."""
        if self.results is not None:
            return self.results
        cells = list(selected)
        self._check_room(cells)
        for cell in cells:  # before hours are spent on what could not be judged
            rows = self.catalog.thresholds.get(cell.hardware, [])
            check_limits(rows, cell)
            if self.compares:
                check_limits([row for row in rows if row.gating], cell, comparable.NEEDED)
        resolver = self._resolver(progress)
        self._check_engine()
        cells = self._available(cells, resolver)
        if not cells:
            return self._nothing("; ".join(dict.fromkeys(self.skipped.values())))
        plan = build_plan(self.catalog, self.study, self._in_study_order(cells), two_builds="base" in self.pythons)
        folder, lock = self._open_folder(plan)
        self.folder = folder
        progress.say(f"report folder: {folder.path}")
        try:
            data = folder.read()
            runner = Runner(
                plan,
                folder,
                self._engine(),
                resolver,
                self.catalog.variants,
                self.pythons,
                progress,
                self._session_line(len(data.sessions)),
            )
            done = len(runner.ledger.rotations)
            if done:
                progress.say(f"going on: {done} rotations are already recorded")
            runner.execute(purposes)
        finally:
            lock.release()
        without = without_models(folder.read())
        if without:
            raise DraftproofError(without)
        return self.judge()

    def examples(self, cell: Cell, progress: Progress) -> Examples:
        """Two arms of the cell's target for scenarios that are invented while they run; not started yet.

        What they answer goes into the folder of this session's run, where there is one, else into a folder of its own.
        """
        self._check_engine()
        resolver, engine = self._resolver(progress), self._engine()
        context = int({**self.catalog.targets[cell.target].engine, **self.study.engine}.get("max_model_len", CONTEXT))
        engine_settings = {**self.study.engine, "max_model_len": min(context, CONTEXT)}
        study = msgspec.structs.replace(self.study, aa=False, engine=engine_settings)
        (group,) = build_plan(self.catalog, study, [msgspec.structs.replace(cell, variant=SCRIPTED)]).groups
        name = cell.workload if self.options.prompts is not None else EXAMPLE_PROMPTS
        workload, loaded = resolver.workload(name)
        folder = self.folder or RunFolder(self.options.run_dir or self._new_path())
        with folder.writing("create the report folder"):
            (folder.path / "logs").mkdir(parents=True, exist_ok=True)
        progress.say(f"examples: {folder.path / EXAMPLES}")

        def start(group: Group, spec: ArmSpec) -> LiveArm:
            log = folder.path / "logs" / f"examples-{log_name(spec.key)}.log"
            variant = self.catalog.variants[spec.variant]
            started: LiveArm = engine.start(
                start_request(resolver, variant, group, spec, self.pythons[spec.build], log)
            )
            return started

        def tokenize(arm: LiveArm) -> list[list[int]]:
            rows = arm.tokenize(tokenize_request(group.target, workload, loaded)).token_ids
            return [ids for ids in rows if fits(ids, study.max_prompt_tokens)]

        return Examples(
            group=group,
            k=self.catalog.get("variants", SCRIPTED).k,
            folder=folder,
            limit_nats=limit_of(self.catalog.thresholds.get(cell.hardware, []), "divergence_gap_nats", cell).limit,
            start=start,
            tokenize=tokenize,
            command=self.example_command,
            invented=study.live_examples,
        )

    def example_command(self, scenario: Scenario) -> str:
        """What runs this one scenario again."""
        return shlex.join(["pytest", EXAMPLES_TEST, *self._given(), "--sd-example", scenario.json])

    def test_command(self, test: str) -> str:
        """What runs one test again, by its id: the engines and the cells that it needs, and no others."""
        given = self._given()
        if self.options.baseline is not None:
            given += ["--sd-baseline", str(self.options.baseline)]
        given += ["--sd-gate"] * self.options.gate
        tests = " ".join(f'"{name}"' for name in [test, *self._beside(test)])
        return f"{shlex.join(['pytest', *given])} {tests}"

    def _beside(self, test: str) -> list[str]:
        """A geometric mean is one of cells: the tests that ask for them."""
        if MEANS_TEST not in test:
            return []
        one = next((cell for cell in self.cells if f"[{cell.id}]" in test), None)
        of_variant = [cell for cell in self.cells if one and (cell.target, cell.variant) == (one.target, one.variant)]
        return [f"{REGRESSION_TEST}[{cell.id}]" for cell in of_variant]

    def _given(self) -> list[str]:
        """The options that decide what is run."""
        options = self.options
        given = ["--sd-study", self.study.name]
        for folder in options.overlays:
            given += ["--sd-catalog", str(folder)]
        if options.prompts is not None:
            given += ["--sd-prompts", str(options.prompts)]
        if options.python != sys.executable:
            given += ["--sd-python", options.python]
        if options.base_python is not None:
            given += ["--sd-base-python", options.base_python]
        if options.engine != "vllm":
            given += ["--sd-engine", options.engine]
        if options.replay is not None:
            given += ["--sd-replay", str(options.replay)]
        return given

    def judge(self) -> results.RunResults:
        """Results of what is on disk."""
        assert self.folder is not None
        self.results = results.analyse(self.folder, self.catalog.thresholds, self.skipped, catalog=self.catalog)
        return self.results

    def compared(self) -> Compared:
        """The finished run against its baseline; without one, against the other build in the same rotations.

        Raises DraftproofError where nothing ran.
        """
        if self.against is None:
            if self.folder is None or self.results is None:
                raise DraftproofError("nothing ran that could be compared")
            new, builds = take(self.folder, self.results), self.options.baseline is None
            base = [take(self.folder, self.results, "base")] if builds else self.baseline
            if self.baseline_folder:
                base = [run for run in base if run.name == new.name]
            self.against = compare(base, [new], self.catalog.thresholds.get(new.hardware, []), same_run=builds)
        return self.against

    def _nothing(self, why: str) -> results.RunResults:
        self.results = results.RunResults(
            run_id="",
            study=self.study.name,
            title=self.study.title,
            finished=True,
            partial=why,
            cells=[],
            aa=[],
            floors=[],
            lengths=[],
            noise=[],
            arms=[],
            skipped=self.skipped,
            notes=[],
        )
        return self.results

    def _resolver(self, progress: Progress) -> Resolver:
        if self.options.replay is not None:
            return ReplayResolver(RunFolder(self.options.replay))
        return CatalogResolver(self.catalog, self.study, self.file_workloads, progress)

    def _engine(self) -> Any:
        if self.options.replay is not None:
            return open_engine("replay", path=self.options.replay)
        return open_engine(self.options.engine)

    def _check_engine(self) -> None:
        """vLLM must be there before a model is built for it."""
        if self.options.engine != "vllm":
            return
        for build, python in self.pythons.items():
            probe = [python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"]
            if subprocess.run(probe, check=False, capture_output=True).returncode != 0:
                option = "--sd-base-python" if build == "base" else "--sd-python"
                raise DraftproofError(
                    f"needs vLLM under the interpreter of {option}; found none in {scrub(python)}; enable with "
                    "pip install 'draftproof[cpu]' (no GPU) or 'draftproof[gpu]', or give another interpreter"
                )

    def _check_room(self, cells: list[Cell]) -> None:
        """Two builds need four engines at once: no-SD and a variant, twice."""
        for name in dict.fromkeys(cell.hardware for cell in cells):
            hardware = self.study.on(self.catalog.hardware[name])
            room = hardware.max_live_arms
            if "base" in self.pythons and hardware.interleave == "live" and room < 4:
                raise DraftproofError(
                    f"--sd-base-python needs 4 live engines (no-SD and a variant under both builds); hardware {name!r} "
                    f"has max_live_arms = {room}; with a smaller target, raise it in an entry of your own, "
                    'or have them take turns: interleave = "restart"'
                )

    def _available(self, cells: list[Cell], resolver: Resolver) -> list[Cell]:
        """Cells whose prompts can be had; the others are noted with the reason."""
        gaps: dict[str, str | None] = {}
        for cell in cells:
            if cell.workload not in gaps:
                try:
                    resolver.workload(cell.workload)
                    gaps[cell.workload] = None
                except WorkloadUnavailable as error:
                    gaps[cell.workload] = str(error)
            gap = gaps[cell.workload]
            if gap is not None:
                self.skipped[cell.id] = gap
        return [cell for cell in cells if cell.id not in self.skipped]

    def _in_study_order(self, cells: list[Cell]) -> list[Cell]:
        """pytest may have reordered its tests; the plan of a selection is the same whatever their order."""
        chosen = {cell.id for cell in cells}
        return [cell for cell in self.cells if cell.id in chosen]

    def _open_folder(self, plan: Plan) -> tuple[RunFolder, filelock.BaseFileLock]:
        """An unfinished run of the same plan goes on; else a new folder."""
        if self.options.run_dir is not None:
            path = self.options.run_dir
            if (path / "run.json").exists():
                folder = RunFolder(path)
                if folder.header().plan_sha256 != plan.sha256:
                    raise DraftproofError(
                        f"--sd-run-dir {path.name!r} holds a run of another plan (study, cells or settings differ); "
                        "choose another folder, or leave the option out for a new one"
                    )
                return folder, take_lock(path)
            return self._create(path, plan)
        root = self.options.report_dir
        if not self.options.fresh and root.is_dir():
            for path in sorted(root.glob(f"{self.study.name}-*"), reverse=True):
                found = going_on(path, plan)
                if found is not None:
                    return found
        return self._create(self._new_path(), plan)

    def _new_path(self) -> Path:
        """A folder that is not there yet, named after the study and the time."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = self.options.report_dir / f"{self.study.name}-{stamp}"
        number = 1
        while path.exists():
            number += 1
            path = self.options.report_dir / f"{self.study.name}-{stamp}-{number}"
        return path

    def _create(self, path: Path, plan: Plan) -> tuple[RunFolder, filelock.BaseFileLock]:
        header = RunHeader(
            schema_version=SCHEMA_VERSION,
            run_id=path.name,
            plan_sha256=plan.sha256,
            study=plan.study,
            cells=list(plan.cells),
            machine=msgspec.to_builtins(detect_machine()),
            overlays=[overlay.name for overlay in self.options.overlays],
            builds=list(self.pythons),
            skipped=dict(self.skipped),
        )
        folder = RunFolder.create(path, header)
        return folder, take_lock(path)

    def _session_line(self, number: int) -> SessionLine:
        commit, dirty = git_state()
        return SessionLine(
            session=number,
            started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            command=[scrub(part) for part in self.options.command],
            draftproof=draftproof.__version__,
            git_commit=commit,
            git_dirty=dirty,
            gpu_state=gpu_state(),
        )


def interpreter_path(option: str, path: str) -> str:
    """An interpreter given by the user: it must be there and executable. Links are kept: a venv's Python is one."""
    found = Path(path).expanduser().absolute()
    if not (found.is_file() and os.access(found, os.X_OK)):
        raise rule(option, "the path of a Python interpreter", path)
    return str(found)


def without_models(data: RunData) -> str | None:
    """The one reason why nothing ran, where no arm had a model to load; None where something else happened too."""
    if data.rotations or not data.failures or any(failure.kind != NO_MODEL for failure in data.failures):
        return None
    return "; ".join(dict.fromkeys(failure.message for failure in data.failures))


def take_lock(path: Path) -> filelock.BaseFileLock:
    """One session at a time may add to a run."""
    lock = filelock.FileLock(path / LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise DraftproofError(
            f"run {path.name!r} is being written by another session; wait for it or use --sd-fresh"
        ) from error
    except OSError as error:
        raise DraftproofError(
            f"cannot write to the report folder {path.name!r}: {error.strerror}; "
            "choose another with --sd-report-dir DIR"
        ) from error
    return lock


def going_on(path: Path, plan: Plan) -> tuple[RunFolder, filelock.BaseFileLock] | None:
    """The folder and its lock where it holds an unfinished run of this plan that nobody is writing."""
    folder = RunFolder(path)
    try:
        header = folder.header()
    except DraftproofError:
        return None  # another schema, or no run at all: not ours to go on with
    if header.finished or header.plan_sha256 != plan.sha256:
        return None
    try:
        return folder, take_lock(path)
    except DraftproofError:
        return None


def git_state() -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the checkout that we were started in; (None, None) outside of one."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        status = subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None, None
    return commit, bool(status.strip())
