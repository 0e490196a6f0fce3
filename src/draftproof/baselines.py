"""Baselines: what earlier runs measured, one file for each hardware, study and fingerprint, several runs in each."""

from __future__ import annotations

from pathlib import Path

import filelock
import msgspec

from draftproof.analysis.held import differences
from draftproof.catalog import Catalog
from draftproof.errors import DraftproofError, rule
from draftproof.gate import RED
from draftproof.records import RunFolder, write_atomic
from draftproof.results import analyse
from draftproof.snapshot import SNAPSHOT_VERSION, Kept, Snapshot, take
from draftproof.spec import require

COMPARE = "--compare"
"""The option of ``draftproof report``."""
KEPT_RUNS = 20
"""The oldest go first."""
LOCK_TIMEOUT_S = 30.0


class Baseline(Kept, frozen=True, kw_only=True):
    """Runs of one study on one kind of machine, oldest first."""

    snapshots: list[Snapshot]

    def __post_init__(self) -> None:
        require(bool(self.snapshots), "snapshots", "at least one run", self.snapshots)

    @property
    def name(self) -> str:
        return self.snapshots[-1].name


def read_run(path: Path, catalog: Catalog) -> Snapshot:
    """The snapshot of a run's folder."""
    folder = RunFolder(path)
    return take(folder, analyse(folder, catalog.thresholds))


def read(path: Path) -> Baseline:
    """A baseline's file. Raises DraftproofError naming the file where it is none, or of another schema."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DraftproofError(f"baseline {path.name!r}: {error.strerror}") from error
    try:
        versions = {run["snapshot_version"] for run in msgspec.json.decode(raw)["snapshots"]}
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise DraftproofError(f"{path.name} is not a baseline: {error!r}") from error
    if versions - {SNAPSHOT_VERSION}:
        raise rule(
            f"{path.name}: snapshot_version",
            str(SNAPSHOT_VERSION),
            sorted(versions, key=str),
            do="save the runs again with this draftproof",
        )
    try:
        return msgspec.json.decode(raw, type=Baseline)
    except msgspec.ValidationError as error:
        raise DraftproofError(f"{path.name}: {error}") from error


def save(snapshot: Snapshot, folder: Path) -> Path:
    """Add a run to its baseline.

    Raises DraftproofError for a run that is partial, has a red cell or nothing measured, is there already, or whose
    cells are held otherwise than those of the runs that are there.
    """
    if snapshot.partial:
        raise rule("RUN", "a whole run", snapshot.partial, do="run the study again to its end: it goes on")
    red = [one for one in snapshot.series if one.throughput in RED or one.determinism in RED]
    if red:
        raise DraftproofError(
            f"run {snapshot.run_id!r} has red cells and is no baseline: "
            + "; ".join(f"{one.id}: {one.reason}" for one in red[:3])
        )
    if not any(one.sets for one in snapshot.series):
        raise DraftproofError(f"run {snapshot.run_id!r} holds no finished rotation")
    path = folder / f"{snapshot.name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_TIMEOUT_S):
            runs = with_run(read(path).snapshots if path.exists() else [], snapshot, path.name)
            write_atomic(path, msgspec.json.encode(Baseline(snapshots=runs)) + b"\n")
    except filelock.Timeout as error:
        raise DraftproofError(f"{path.name} is being written by another process; try again") from error
    except OSError as error:
        raise DraftproofError(
            f"cannot write {path.name}: {error.strerror}; choose another folder with --dir"
        ) from error
    return path


def with_run(earlier: list[Snapshot], snapshot: Snapshot, name: str) -> list[Snapshot]:
    """The runs that a baseline's file `name` then holds. Raises DraftproofError where the run may not be added."""
    if snapshot.run_id in [run.run_id for run in earlier]:
        raise DraftproofError(f"run {snapshot.run_id!r} is already in {name}")
    for run in earlier:
        for one in run.series:
            for other in snapshot.series:
                if one.id == other.id and (unlike := differences(one.held, other.held)):
                    raise DraftproofError(
                        f"{other.id} is held otherwise than in run {run.run_id!r}: {'; '.join(unlike)}; "
                        "keep them apart with --dir"
                    )
    return sorted([*earlier, snapshot], key=lambda run: run.taken)[-KEPT_RUNS:]


def everything(folder: Path) -> list[Baseline]:
    """All baselines of a folder, by name."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def resolve(path: Path, catalog: Catalog, field: str = "BASE and NEW") -> list[Snapshot]:
    """What a user names: a run's folder, or a baseline's file. Raises DraftproofError where it is neither."""
    if (path / "run.json").exists():
        return [read_run(path, catalog)]
    if path.is_file():
        return read(path).snapshots
    raise rule(field, "a run's folder or a baseline's file", str(path.name))


def others(path: Path, run: Snapshot, catalog: Catalog) -> list[Snapshot]:
    """The runs of `resolve` without `run` itself, which would pull a mean towards itself and never differ alone.

    Raises DraftproofError where nothing is left, too.
    """
    found = resolve(path, catalog, COMPARE)
    left = [one for one in found if (one.run_id, one.taken, one.build) != (run.run_id, run.taken, run.build)]
    if not left:
        raise rule(COMPARE, "another run than RUN", path.name, do="name an earlier run's folder or a baseline's file")
    return left


def table(baselines: list[Baseline]) -> list[str]:
    """One line a baseline."""
    return [
        f"{found.name:48} {len(found.snapshots):2} runs  {found.snapshots[0].taken[:10]} to "
        f"{found.snapshots[-1].taken[:10]}  vLLM {found.snapshots[-1].versions.get('vllm')}"
        for found in baselines
    ]


def provenance(found: Baseline) -> list[str]:
    """Where a baseline's figures come from, run by run, and what they hold."""
    last = found.snapshots[-1]
    lines = [f"{found.name}: study {last.study} on {last.hardware}"]
    lines += [f"  held: {name} = {value}" for name, value in sorted(last.held.items())]
    for run in found.snapshots:
        commit = (run.git_commit or "no commit")[:12] + (" (dirty)" if run.git_dirty else "")
        versions = ", ".join(f"{name} {value}" for name, value in run.versions.items() if name != "vllm_files_sha256")
        lines.append(f"  run {run.run_id}, {run.taken}, {commit}: {versions}")
        lines.append(f"    {' '.join(run.command)}")
    lines += [f"  {one.id}: {len(one.sets)} prompt sets" for one in last.series]
    return lines
