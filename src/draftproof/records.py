"""What a run leaves on disk, and its strict reader.

A run folder holds ``run.json`` (what was asked), ``records.jsonl`` (scalars, one record a line), ``prompts.jsonl``,
``parts/*.parquet`` (token ids and step samples of one rotation each; compacted into ``tokens.parquet`` and
``steps.parquet`` when the run ends) and ``logs/``.

A rotation becomes part of the run with its `RotationLine`: its Parquet parts are written first, then all of its lines
in one append that is flushed to the disk. Blocks without that line are remains of a killed session and are ignored, so
a run can be killed at any moment and loses the unfinished rotation only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from draftproof.errors import DraftproofError, rule
from draftproof.spec import Cell, Interleave, Purpose, Study

SCHEMA_VERSION = 1
"""1: first layout. Fields that came later have defaults, so that older records are still read."""


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="record"):
    """Base of everything in ``records.jsonl``."""


class SessionLine(Line, frozen=True, kw_only=True, tag="session"):
    """One pytest session that added to this run."""

    session: int
    started: str
    """UTC, ISO 8601."""
    command: list[str]
    draftproof: str
    git_commit: str | None
    """Of the checkout that the session was started in."""
    git_dirty: bool | None
    gpu_state: list[dict[str, Any]]


Role = Literal["run", "aa", "referee"]
"""What an arm is there for: figures; the A/A twin of no-SD; scoring in float32."""


class ArmLine(Line, frozen=True, kw_only=True, tag="arm"):
    """A started engine process: what it is and what vLLM made of its configuration."""

    session: int
    group: int
    arm: str
    target: str
    variant: str
    role: Role
    build: Literal["new", "base"]
    target_sha256: str | None
    """Of the target's weights, where the catalog knows it."""
    load_s: float
    environment: dict[str, Any]
    resolved: dict[str, Any]
    speculative_config: dict[str, Any]
    config_sha256: str
    control: str = ""
    """Kind of its control proposer; empty without one."""
    meaningless: str = ""
    """Why its token ids are nobody's answer (see `spec.meaningless`); empty where they are the target's own."""


class WorkloadLine(Line, frozen=True, kw_only=True, tag="workload"):
    """A workload as this run's target saw it."""

    session: int
    target: str
    workload: str
    num_prompts: int
    left_out: int
    """Prompts longer than the study's ``max_prompt_tokens``."""
    revision: str | None
    prompts_sha256: str
    """Of the token ids, in order."""
    tokenizer_sha256: str


class UnitKey(NamedTuple):
    """What a rotation belongs to: the arms of one group on one workload at one batch size."""

    group: int
    target: str
    workload: str
    batch_size: int


class UnitLine(Line, frozen=True, kw_only=True):
    """Base of records that belong to one rotation of a unit."""

    session: int
    group: int
    target: str
    workload: str
    batch_size: int
    rotation: int

    @property
    def unit(self) -> UnitKey:
        return UnitKey(self.group, self.target, self.workload, self.batch_size)


Axis = Literal["order", "copies"]
"""What is unlike a ``speed`` block in a block of the noise floor: the same prompts in reverse order; copies of one."""


class DraftTally(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Draft tokens that were proposed in one block, those that were never verified included."""

    tokens: int
    distinct: int
    top_token: int | None
    """The most frequent token id; None: nothing was proposed."""
    top_count: int


class BlockLine(UnitLine, frozen=True, kw_only=True, tag="block"):
    """One batch run to its end on one arm."""

    pass_index: int
    """0: arms in order; 1: in reverse order."""
    order: int
    """Place of this block within its rotation."""
    arm: str
    purpose: Purpose
    seconds: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = []
    draft_tally: DraftTally | None = None
    """Of ``stages`` blocks with speculation."""
    draft_tally_reason: str = ""
    """Why such a block has none: ``needs ...; found ...; enable with ...``."""
    axis: Axis | None = None
    """Of ``trace`` blocks."""
    waited_s: float | None = None
    """Seconds that the arm's working threads, all together, were ready to run and had no CPU; None: the system does not
    say."""
    stolen_s: float | None = None
    """CPU seconds that a hypervisor took from this machine meanwhile, all CPUs together; None: the system does not
    say."""


class RotationLine(UnitLine, frozen=True, kw_only=True, tag="rotation"):
    """Closes a rotation: only now do its blocks count."""

    purpose: Purpose
    arms: list[str]
    prompt_ids: list[str]
    part: str
    axis: Axis | None = None
    interleave: Interleave = "live"


class FailureLine(Line, frozen=True, kw_only=True, tag="failure"):
    """An arm that could not start (no workload) or did not finish a block."""

    session: int
    group: int
    target: str
    arm: str
    workload: str | None
    batch_size: int | None
    purpose: Purpose
    kind: str
    message: str
    log_tail: str


class ScoreLine(UnitLine, frozen=True, kw_only=True, tag="score"):
    """Teacher-forced scores of the two tokens at a first difference from the no-SD arm."""

    arm: str
    request: int
    position: int
    """First output position that differs, from 0."""
    tokens: tuple[int, int]
    """The no-SD arm's token, the other arm's token."""
    texts: tuple[str, str]
    best_logprob: float | None
    """None: not a finite number."""
    logprobs: tuple[float | None, float | None]
    """None: not among the 20 best."""
    before: str = ""
    """The end of the text up to the difference."""
    after: tuple[str, str] = ("", "")
    """How no-SD and the other arm go on, the two tokens included."""
    by: Literal["engine", "referee"] = "engine"
    """The no-SD arm in its own precision, or the float32 referee."""


class NoiseLine(UnitLine, frozen=True, kw_only=True, tag="noise"):
    """Distance of the engine's gap between a position's two best tokens from the float32 referee's, on no-SD's text."""

    arm: str
    positions: int
    width_nats: float
    """Largest difference seen, whether the engine decoded (one row a request) or read the text as a prompt."""
    largest_nats: list[float]
    """The ten largest, falling; a position counts once, with the larger of its two differences."""
    rows_nats: float = 0.0
    """Largest difference between the engine's own two ways: what the number of rows alone moves."""
    unscored: int = 0
    """Further positions one of whose tokens is not among the 20 best of a pass: they say nothing of the width."""
    not_finite: int = 0
    """Further positions whose gap is not a finite number in some pass: a broken model."""


class GroupLine(Line, frozen=True, kw_only=True, tag="group"):
    """A group of arms has nothing left to do for these purposes."""

    session: int
    group: int
    purposes: list[Purpose]


AnyLine = (
    SessionLine | ArmLine | WorkloadLine | BlockLine | RotationLine | FailureLine | ScoreLine | NoiseLine | GroupLine
)


class RunHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``run.json``: what was asked for. A later session may only go on with the same plan."""

    schema_version: int
    run_id: str
    plan_sha256: str
    study: Study
    cells: list[Cell]
    machine: dict[str, Any]
    overlays: list[str]
    builds: list[str]
    finished: bool = False
    partial: str = ""
    """Why the run is partial, where it is."""
    skipped: dict[str, str] = {}
    """Cell id -> why it could not be run where the run was made; none of them is among `cells`."""


class Output(msgspec.Struct, frozen=True):
    """What one request received, and its acceptance step by step (steps without a draft are absent)."""

    token_ids: list[int]
    finish_reason: str | None
    accepted: list[int] = []
    drafted: list[int] = []
    ttft_s: float | None = None
    """Seconds from the request's arrival to its first token; None: the engine does not say."""
    decode_s: float | None = None
    """Seconds from its first token to its last."""


class RunData(msgspec.Struct, kw_only=True):
    """A run read back: only finished rotations."""

    header: RunHeader
    sessions: list[SessionLine]
    arms: list[ArmLine]
    workloads: list[WorkloadLine]
    rotations: list[RotationLine]
    blocks: list[BlockLine]
    failures: list[FailureLine]
    scores: list[ScoreLine]
    noise: list[NoiseLine]
    groups: list[GroupLine]
    torn: bool
    """The last line was cut off by a kill, and left out."""


class RunFolder:
    """One run's folder: the only place that writes records."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, header: RunHeader) -> RunFolder:
        folder = cls(path)
        with folder.writing("create the report folder"):
            for name in ("parts", "logs"):
                (path / name).mkdir(parents=True, exist_ok=True)
            (path / "records.jsonl").touch()
            folder.write_header(header)  # last: a folder with a header is a run that can be gone on with
        return folder

    @contextlib.contextmanager
    def writing(self, what: str) -> Any:
        """Turn a full disk or a read-only folder into one clear message."""
        try:
            yield
        except OSError as error:
            raise DraftproofError(
                f"cannot {what}: {error.strerror or error} (folder {self.path.name!r}); finished rotations are safe; "
                "free space or choose another folder with --sd-report-dir DIR, then run again to go on"
            ) from error

    def write_header(self, header: RunHeader) -> None:
        write_atomic(self.path / "run.json", msgspec.json.format(msgspec.json.encode(header)) + b"\n")

    def header(self) -> RunHeader:
        path = self.path / "run.json"
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise DraftproofError(
                f"{self.path.name}: no run.json ({error.strerror}); is this a run's folder?"
            ) from error
        try:
            version = msgspec.json.decode(raw)["schema_version"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise DraftproofError(f"{self.path.name}/run.json is not a run's header: {error}") from error
        if version != SCHEMA_VERSION:
            raise rule(
                f"{self.path.name}/run.json: schema_version",
                str(SCHEMA_VERSION),
                version,
                do="read it with the draftproof that wrote it, or run the study again",
            )
        try:
            return msgspec.json.decode(raw, type=RunHeader)
        except msgspec.ValidationError as error:
            raise DraftproofError(f"{self.path.name}/run.json: {error}") from error

    def append(self, lines: Iterable[AnyLine]) -> None:
        """Append all records or none, flushed to the disk."""
        self.append_to("records.jsonl", lines)

    def append_to(self, name: str, lines: Iterable[msgspec.Struct]) -> None:
        """The same to any file of JSON lines of the run."""
        payload = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        path = self.path / name
        # Unbuffered: a buffer would write the rest of a failed payload when the file is closed.
        with self.writing(f"append to {name}"), path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                left = memoryview(payload)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                os.truncate(path, size)
                raise

    def add_rotation(
        self,
        closing: RotationLine,
        blocks: list[BlockLine],
        outputs: list[list[Output]],
        steps: list[list[dict[str, Any]]],
    ) -> None:
        """Record one rotation: `outputs[i]` and `steps[i]` belong to `blocks[i]`."""
        from draftproof import tables

        with self.writing("write a Parquet part"):
            tables.write_outputs(self.path / "parts" / f"tokens-{closing.part}.parquet", closing, blocks, outputs)
            if any(steps):
                tables.write_steps(self.path / "parts" / f"steps-{closing.part}.parquet", closing, blocks, steps)
        self.append([*blocks, closing])

    def repair(self) -> bool:
        """Cut a torn last line off, so that the next append starts a line of its own. True if there was one."""
        path = self.path / "records.jsonl"
        raw = path.read_bytes()
        end = raw.rfind(b"\n") + 1
        if end == len(raw):
            return False
        with self.writing("repair records.jsonl"):
            os.truncate(path, end)
        return True

    def read(self) -> RunData:
        header = self.header()
        lines, torn = read_lines(self.path / "records.jsonl")
        rotations = [line for line in lines if isinstance(line, RotationLine)]
        closed = {(line.unit, line.rotation, line.purpose, line.axis, line.session) for line in rotations}
        return RunData(
            header=header,
            sessions=[line for line in lines if isinstance(line, SessionLine)],
            arms=[line for line in lines if isinstance(line, ArmLine)],
            workloads=[line for line in lines if isinstance(line, WorkloadLine)],
            rotations=rotations,
            blocks=[
                line
                for line in lines
                if isinstance(line, BlockLine)
                and (line.unit, line.rotation, line.purpose, line.axis, line.session) in closed
            ],
            failures=[line for line in lines if isinstance(line, FailureLine)],
            scores=[line for line in lines if isinstance(line, ScoreLine)],
            noise=[line for line in lines if isinstance(line, NoiseLine)],
            groups=[line for line in lines if isinstance(line, GroupLine)],
            torn=torn,
        )

    def prompts(self) -> dict[tuple[str, str, str], list[int]]:
        """(target, workload, prompt id) -> token ids."""
        path = self.path / "prompts.jsonl"
        if not path.exists():
            return {}
        rows = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
        return {(row["target"], row["workload"], row["id"]): row["token_ids"] for row in rows}

    def write_prompts(self, prompts: dict[tuple[str, str, str], list[int]]) -> None:
        rows = [
            msgspec.json.encode({"target": target, "workload": workload, "id": name, "token_ids": token_ids})
            for (target, workload, name), token_ids in prompts.items()
        ]
        with self.writing("write prompts.jsonl"):
            write_atomic(self.path / "prompts.jsonl", b"".join(row + b"\n" for row in rows))


def write_atomic(path: Path, payload: bytes | Iterable[bytes]) -> None:
    """Write beside and move in place: a reader sees the old file or the new one. `payload`: whole or in pieces."""
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.writelines([payload] if isinstance(payload, bytes) else payload)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_lines(path: Path) -> tuple[list[AnyLine], bool]:
    """All records and whether the last line was torn; any other bad line is an error with its number."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DraftproofError(f"{path.parent.name}/{path.name}: {error.strerror}") from error
    whole, _, rest = raw.rpartition(b"\n")
    decoder = msgspec.json.Decoder(AnyLine)
    lines: list[AnyLine] = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            lines.append(decoder.decode(line))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise DraftproofError(f"{path.parent.name}/{path.name}, line {number}: {error}") from error
    return lines, bool(rest)
