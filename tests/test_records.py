"""Rules of the records: what was written is read back, and a kill or a full disk loses the unfinished rotation only."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import tables
from draftproof.errors import DraftproofError
from draftproof.records import (
    SCHEMA_VERSION,
    ArmLine,
    BlockLine,
    NoiseLine,
    Output,
    RotationLine,
    RunFolder,
    RunHeader,
    ScoreLine,
    SessionLine,
    WorkloadLine,
    write_atomic,
)
from tests.factories import make_block, make_failure, make_study

Outputs = list[list[Output]]
ARMS = ("no_sd", "ngram")


def make_header(**fields: Any) -> RunHeader:
    given_: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": "s-1",
        "plan_sha256": "0" * 64,
        "study": make_study(),
        "cells": [],
        "machine": {"cores": 2},
        "overlays": [],
        "builds": ["new"],
    }
    return RunHeader(**(given_ | fields))


def make_closing(rotation: int = 0, prompt_ids: tuple[str, ...] = ("p0", "p1"), **fields: Any) -> RotationLine:
    given_: dict[str, Any] = {
        "session": 0,
        "group": 0,
        "target": "t",
        "workload": "w",
        "batch_size": 2,
        "purpose": "speed",
        "arms": list(ARMS),
        "part": f"g0-w-b2-r{rotation:04d}-speed",
    }
    return RotationLine(rotation=rotation, prompt_ids=list(prompt_ids), **(given_ | fields))


class Rotation(msgspec.Struct):
    """One rotation of two arms and two passes, ready to be written."""

    closing: RotationLine
    blocks: list[BlockLine]
    outputs: Outputs
    steps: list[list[dict[str, Any]]]

    def add_to(self, folder: RunFolder) -> None:
        folder.add_rotation(self.closing, self.blocks, self.outputs, self.steps)

    def by_key(self) -> dict[tuple[str, str, int], list[Output]]:
        """As `tables.read_outputs` gives them."""
        return {
            (self.closing.part, block.arm, block.pass_index): outputs
            for block, outputs in zip(self.blocks, self.outputs, strict=True)
        }


def make_step(kind: str = "decode") -> dict[str, Any]:
    counts = {"requests": 2, "rows": 8, "draft_tokens": 6, "kv_tokens": 40}
    return {"kind": kind, **counts, **dict.fromkeys(tables.PARTS_S, 0.25)}


def make_rotation(rotation: int = 0, session: int = 0, *, stages: bool = False) -> Rotation:
    purpose = "stages" if stages else "speed"
    blocks = [
        make_block(arm=arm, pass_index=p, order=2 * p + i, rotation=rotation, session=session, purpose=purpose)
        for p in (0, 1)
        for i, arm in enumerate(ARMS if p == 0 else ARMS[::-1])
    ]
    outputs = [
        [
            Output(token_ids=[rotation, p, 7, 8 + request], finish_reason="length", accepted=[1], drafted=[3])
            for request in range(2)
        ]
        for p in (0, 0, 1, 1)
    ]
    part = f"g0-w-b2-r{rotation:04d}-{purpose}"
    closing = make_closing(rotation, session=session, purpose=purpose, part=part)
    return Rotation(closing, blocks, outputs, [[make_step(), make_step("prefill")] if stages else [] for _ in blocks])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", make_header())


def records_of(folder: RunFolder) -> bytes:
    return (folder.path / "records.jsonl").read_bytes()


def outputs_of(folder: RunFolder) -> Mapping[tuple[str, str, int], list[Output]]:
    return tables.read_outputs(folder.path, {line.part for line in folder.read().rotations})


def rows_of(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tables.read_table(
        folder.path, kind, {line.part for line in folder.read().rotations}
    ).to_pylist()
    return rows


def parts_of(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in (folder.path / "parts").iterdir())


# -- round trips -----------------------------------------------------------------------------------------------------


def test_every_kind_of_line_comes_back_as_it_was(folder: RunFolder) -> None:
    session = SessionLine(
        session=0, started="2026-01-01T00:00:00Z", command=["pytest"], draftproof="0", git_commit=None, git_dirty=None,
        gpu_state=[{"clock_mhz": 1980}],
    )  # fmt: skip
    arm = ArmLine(
        session=0, group=0, arm="ngram", target="t", variant="ngram", role="run", build="new", target_sha256=None,
        load_s=2.5, environment={"vllm": "1"}, resolved={"max_num_seqs": 4}, speculative_config={"method": "ngram"},
        config_sha256="0" * 64,
    )  # fmt: skip
    workload = WorkloadLine(
        session=0, target="t", workload="w", num_prompts=3, left_out=1, revision=None, prompts_sha256="1" * 64,
        tokenizer_sha256="2" * 64,
    )  # fmt: skip
    failure = make_failure(arm="eagle", log_tail="Traceback")
    score = ScoreLine(
        session=0, group=0, target="t", workload="w", batch_size=2, rotation=0, arm="ngram", request=1, position=3,
        tokens=(8, 9), texts=(" a", "é\n"), best_logprob=-0.5, logprobs=(-0.5, None),
    )  # fmt: skip
    noise = NoiseLine(
        session=0, group=0, target="t", workload="w", batch_size=2, rotation=0, arm="no_sd", positions=64,
        width_nats=0.1, largest_nats=[0.1, 0.05],
    )  # fmt: skip
    folder.append([session, arm, workload, failure, score, noise])
    rotation = make_rotation()
    rotation.add_to(folder)
    data = folder.read()
    assert (data.sessions, data.arms, data.workloads, data.failures, data.scores) == (
        [session], [arm], [workload], [failure], [score],
    )  # fmt: skip
    assert data.noise == [noise]
    assert (data.rotations, data.blocks) == ([rotation.closing], rotation.blocks)
    assert (data.header, data.torn) == (make_header(), False)


def test_outputs_are_the_same_before_and_after_compaction(folder: RunFolder) -> None:
    rotations = [make_rotation(0), make_rotation(1)]
    expected: dict[tuple[str, str, int], list[Output]] = {}
    for rotation in rotations:
        rotation.add_to(folder)
        expected |= rotation.by_key()
    assert outputs_of(folder) == expected
    tables.compact(folder.path, {r.closing.part for r in rotations})
    assert outputs_of(folder) == expected
    assert parts_of(folder) == []


def test_steps_are_the_same_before_and_after_compaction(folder: RunFolder) -> None:
    rotation = make_rotation(stages=True)
    rotation.add_to(folder)
    before = rows_of(folder, "steps")
    assert [(row["arm"], row["pass_index"], row["step"], row["kind"]) for row in before][:2] == [
        ("no_sd", 0, 0, "decode"),
        ("no_sd", 0, 1, "prefill"),
    ]
    assert len(before) == 8
    assert {name: before[0][name] for name in make_step()} == make_step()
    tables.compact(folder.path, {rotation.closing.part})
    assert rows_of(folder, "steps") == before


def test_a_speed_rotation_leaves_no_steps(folder: RunFolder) -> None:
    make_rotation().add_to(folder)
    assert parts_of(folder) == ["tokens-g0-w-b2-r0000-speed.parquet"]
    assert rows_of(folder, "steps") == []


def test_prompts_come_back_as_they_were(folder: RunFolder) -> None:
    assert folder.prompts() == {}
    prompts = {("t", "w", "p0"): [1, 2], ("t", "w", "é"): [3], ("u", "w", "p0"): []}
    folder.write_prompts(prompts)
    assert folder.prompts() == prompts


def test_the_header_can_be_written_again(folder: RunFolder) -> None:
    done = make_header(finished=True, partial="a group did not start")
    folder.write_header(done)
    assert folder.header() == done
    assert not list(folder.path.glob("*.part"))


TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=12)
COUNTS = st.lists(st.integers(0, 2**15 - 1), max_size=4)
OUTPUTS = st.builds(
    Output, token_ids=TOKENS, finish_reason=st.sampled_from(["stop", "length", None]), accepted=COUNTS, drafted=COUNTS
)


@st.composite
def rotations(draw: st.DrawFn) -> Rotation:
    """Blocks of any outputs on a batch in which prompts may repeat, as copies that may or may not agree."""
    size = draw(st.integers(1, 6))
    prompt_ids = tuple(draw(st.lists(st.sampled_from(["p0", "p1", "p2"]), min_size=size, max_size=size)))
    model = {name: draw(OUTPUTS) for name in ("p0", "p1", "p2")}
    blocks = [make_block(arm=arm, pass_index=p) for p in (0, 1) for arm in ARMS]
    outputs = [[draw(st.one_of(st.just(model[name]), OUTPUTS)) for name in prompt_ids] for _ in blocks]
    return Rotation(make_closing(prompt_ids=prompt_ids), blocks, outputs, [[] for _ in blocks])


@settings(max_examples=60)
@given(rotations())
def test_any_outputs_come_back_as_they_were(rotation: Rotation) -> None:
    """Differences undone: copies, half copies, empty outputs, requests without a draft; compacted or not."""
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder.create(Path(name) / "run", make_header())
        rotation.add_to(folder)
        assert outputs_of(folder) == rotation.by_key()
        tables.compact(folder.path, {rotation.closing.part})
        assert outputs_of(folder) == rotation.by_key()


def test_copies_are_stored_as_differences(folder: RunFolder) -> None:
    """Of 64 equal outputs one is stored; a copy that leaves the others keeps what is its own."""
    ids = [(7919 * i * i) % 49152 for i in range(4000)]
    outputs = [Output(token_ids=ids, finish_reason="length") for _ in range(63)]
    outputs.append(Output(token_ids=[*ids[:3990], 1, 2], finish_reason="stop"))
    closing = make_closing(prompt_ids=("p",) * 64, arms=["no_sd"])
    folder.add_rotation(closing, [make_block(arm="no_sd")], [outputs], [[]])
    rows = rows_of(folder, "tokens")
    assert rows[0]["token_ids"] == ids
    assert [row["token_ids"] for row in rows[1:]] == [[]] * 62 + [[1, 2]]
    assert outputs_of(folder)[closing.part, "no_sd", 0] == outputs


def test_copies_take_no_more_space_than_one(tmp_path: Path) -> None:
    sizes = []
    for copies in (1, 64):
        folder = RunFolder.create(tmp_path / f"{copies}", make_header())
        outputs = [Output(token_ids=[(7919 * i * i) % 49152 for i in range(4000)], finish_reason=None)] * copies
        folder.add_rotation(make_closing(prompt_ids=("p",) * copies), [make_block()], [outputs], [[]])
        sizes.append(next((folder.path / "parts").iterdir()).stat().st_size)
    assert sizes[1] < 1.5 * sizes[0]


@given(TOKENS, TOKENS, TOKENS)
def test_the_shared_prefix_is_the_longest_one(head: list[int], left: list[int], right: list[int]) -> None:
    a, b = head + left, head + right
    slow = max(n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n])
    assert tables.shared_prefix(a, b) == slow


# -- torn, corrupt, old ----------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_dropped_and_repaired(folder: RunFolder) -> None:
    """A kill in the middle of an append: the run reads on, and the next append starts a line of its own."""
    make_rotation(0).add_to(folder)
    whole = records_of(folder)
    make_rotation(1).add_to(folder)
    torn = records_of(folder)[:-10]
    (folder.path / "records.jsonl").write_bytes(torn)
    data = folder.read()
    assert data.torn
    assert [line.rotation for line in data.rotations] == [0]
    assert {block.rotation for block in data.blocks} == {0}
    assert folder.repair()
    assert records_of(folder) == torn[: torn.rfind(b"\n") + 1]
    assert records_of(folder).startswith(whole)
    assert not folder.repair()
    make_rotation(1, session=1).add_to(folder)
    data = folder.read()
    assert not data.torn
    assert [(line.session, line.rotation) for line in data.rotations] == [(0, 0), (1, 1)]
    assert len(data.blocks) == 8


@settings(max_examples=50)
@given(st.data())
def test_a_kill_at_any_byte_leaves_the_finished_rotations(data: st.DataObject) -> None:
    """Cut the file anywhere: it reads, with exactly the rotations whose last line is whole, and can be gone on with."""
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder.create(Path(name) / "run", make_header())
        ends = []
        for number in range(2):
            make_rotation(number).add_to(folder)
            ends.append(len(records_of(folder)))
        cut = data.draw(st.integers(0, ends[-1]))
        (folder.path / "records.jsonl").write_bytes(records_of(folder)[:cut])
        found = folder.read()
        finished = [number for number, end in enumerate(ends) if end <= cut]
        assert [line.rotation for line in found.rotations] == finished
        assert len(found.blocks) == 4 * len(finished)
        folder.repair()
        make_rotation(9, session=1).add_to(folder)
        assert [line.rotation for line in folder.read().rotations] == [*finished, 9]


def test_a_repair_of_a_whole_file_changes_nothing(folder: RunFolder) -> None:
    assert not folder.repair()
    make_rotation().add_to(folder)
    before = records_of(folder)
    assert not folder.repair()
    assert records_of(folder) == before


@pytest.mark.parametrize("broken", [b'{"record":"block"', b"", b"\x00\x00", b'{"record":"blok"}', b"[]"])
def test_a_broken_line_elsewhere_is_an_error_with_its_number(folder: RunFolder, broken: bytes) -> None:
    """Only a kill may be forgiven, and a kill tears the last line alone."""
    make_rotation().add_to(folder)
    lines = records_of(folder).splitlines()
    (folder.path / "records.jsonl").write_bytes(b"\n".join([*lines[:2], broken, *lines[2:]]) + b"\n")
    with pytest.raises(DraftproofError, match=r"run/records\.jsonl, line 3: "):
        folder.read()


def test_an_unknown_key_in_a_line_is_an_error(folder: RunFolder) -> None:
    make_rotation().add_to(folder)
    lines = records_of(folder).splitlines()
    lines[1] = lines[1][:-1] + b',"colour":1}'
    (folder.path / "records.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(DraftproofError, match=r"line 2: .*`colour`"):
        folder.read()


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1, "1", None])
def test_another_schema_version_is_an_error_that_says_what_to_do(folder: RunFolder, version: object) -> None:
    """Said before anything else is read: an older header may have other keys too."""
    (folder.path / "run.json").write_bytes(msgspec.json.encode({"schema_version": version, "formerly": 1}))
    with pytest.raises(
        DraftproofError, match=r"run/run\.json: schema_version must be 1 \(got .*; read it with the draftproof"
    ):
        folder.read()


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "{}", '{"run_id": "x"}'])
def test_a_file_that_is_no_header_is_said_to_be_none(folder: RunFolder, text: str) -> None:
    (folder.path / "run.json").write_text(text)
    with pytest.raises(DraftproofError, match=r"run/run\.json is not a run's header"):
        folder.header()


def test_a_header_with_a_wrong_or_unknown_key_names_it(folder: RunFolder) -> None:
    header = msgspec.to_builtins(make_header())
    for change, said in (({"colour": 1}, "`colour`"), ({"run_id": 1}, "run_id")):
        (folder.path / "run.json").write_bytes(msgspec.json.encode(header | change))
        with pytest.raises(DraftproofError, match=rf"run/run\.json: .*{said}"):
            folder.header()


def test_a_folder_without_a_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(DraftproofError, match=r"no run\.json"):
        RunFolder(tmp_path).read()


def test_blocks_without_their_rotation_line_are_ignored(folder: RunFolder) -> None:
    """The remains of a killed session, also where a later session has finished the same rotation."""
    folder.append([make_block(seconds=99.0), make_block(seconds=98.0, rotation=1)])
    again = make_rotation(0, session=1)
    again.add_to(folder)
    data = folder.read()
    assert data.blocks == again.blocks
    assert data.rotations == [again.closing]


@pytest.mark.parametrize(
    "other",
    [{"purpose": "stages"}, {"group": 1}, {"workload": "v"}, {"batch_size": 1}, {"target": "u"}, {"rotation": 1}],
    ids=str,
)
def test_a_rotation_line_closes_its_own_blocks_only(folder: RunFolder, other: dict[str, Any]) -> None:
    folder.append([make_block(**other)])
    rotation = make_rotation()
    rotation.add_to(folder)
    assert folder.read().blocks == rotation.blocks


# -- kills -----------------------------------------------------------------------------------------------------------


def test_a_kill_between_the_part_and_the_records_leaves_a_readable_run(folder: RunFolder) -> None:
    """The part is there, its lines are not: the rotation does not count, and is written again whole."""
    make_rotation(0).add_to(folder)
    lost = make_rotation(1)
    for output in lost.outputs[0]:
        output.token_ids.append(99)
    path = folder.path / "parts" / f"tokens-{lost.closing.part}.parquet"
    tables.write_outputs(path, lost.closing, lost.blocks, lost.outputs)
    assert [line.rotation for line in folder.read().rotations] == [0]
    assert outputs_of(folder) == make_rotation(0).by_key()
    make_rotation(1, session=1).add_to(folder)
    assert outputs_of(folder) == make_rotation(0).by_key() | make_rotation(1).by_key()


def test_compaction_leaves_the_parts_of_unfinished_rotations_out(folder: RunFolder) -> None:
    rotation, unfinished = make_rotation(0), make_rotation(1)
    rotation.add_to(folder)
    path = folder.path / "parts" / f"tokens-{unfinished.closing.part}.parquet"
    tables.write_outputs(path, unfinished.closing, unfinished.blocks, unfinished.outputs)
    tables.compact(folder.path, {rotation.closing.part})
    found = set(pq.read_table(folder.path / "tokens.parquet").column("part").to_pylist())
    assert found == {rotation.closing.part}


def test_a_part_that_was_half_written_is_not_read(folder: RunFolder) -> None:
    make_rotation().add_to(folder)
    (folder.path / "parts" / "tokens-g0-w-b2-r0001-speed.parquet.part").write_bytes(b"PAR1")
    assert outputs_of(folder) == make_rotation().by_key()
    tables.compact(folder.path, {make_rotation().closing.part})
    assert outputs_of(folder) == make_rotation().by_key()


@pytest.mark.parametrize("kind", ["tokens", "steps"])
def test_compaction_cut_short_before_the_parts_are_gone_doubles_nothing(folder: RunFolder, kind: str) -> None:
    """The whole is there and so are the parts: each row is read once, and compacting again ends it."""
    rotation = make_rotation(stages=True)
    rotation.add_to(folder)
    before = rows_of(folder, kind)
    kept = {path: path.read_bytes() for path in (folder.path / "parts").iterdir()}
    tables.compact(folder.path, {rotation.closing.part})
    for path, content in kept.items():
        path.write_bytes(content)
    assert rows_of(folder, kind) == before
    tables.compact(folder.path, {rotation.closing.part})
    assert rows_of(folder, kind) == before
    assert parts_of(folder) == []


def test_compaction_killed_while_it_writes_loses_nothing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole is written beside and moved in place."""
    rotation = make_rotation()
    rotation.add_to(folder)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            tables.compact(folder.path, {rotation.closing.part})
    assert outputs_of(folder) == rotation.by_key()
    tables.compact(folder.path, {rotation.closing.part})
    assert outputs_of(folder) == rotation.by_key()
    assert not list(folder.path.glob("*.part"))


def test_a_later_session_adds_to_what_is_compacted(folder: RunFolder) -> None:
    first, second = make_rotation(0), make_rotation(1, session=1)
    first.add_to(folder)
    tables.compact(folder.path, {first.closing.part})
    second.add_to(folder)
    assert outputs_of(folder) == first.by_key() | second.by_key()
    tables.compact(folder.path, {first.closing.part, second.closing.part})
    assert outputs_of(folder) == first.by_key() | second.by_key()
    assert parts_of(folder) == []


@pytest.mark.parametrize("compacted", [False, True])
def test_only_the_parts_asked_for_are_read(folder: RunFolder, compacted: bool) -> None:
    """Those whose rotation is closed: the rest may be remains."""
    first, second = make_rotation(0), make_rotation(1)
    first.add_to(folder)
    second.add_to(folder)
    if compacted:
        tables.compact(folder.path, {first.closing.part, second.closing.part})
    assert tables.read_outputs(folder.path, {second.closing.part}) == second.by_key()
    assert tables.read_outputs(folder.path, set()) == {}


def test_compacting_nothing_writes_nothing(folder: RunFolder) -> None:
    tables.compact(folder.path, set())
    assert not list(folder.path.glob("*.parquet"))


def test_a_run_killed_while_its_folder_is_made_is_no_run_or_a_readable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every later session would find the unfinished run, try to go on with it and fail."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "touch", killed)
        RunFolder.create(tmp_path / "run", make_header())
    folder = RunFolder(tmp_path / "run")
    if (folder.path / "run.json").exists():
        folder.repair()
        assert folder.read().rotations == []


# -- a full disk, a folder that cannot be written --------------------------------------------------------------------


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """The kernel itself cuts writes short, as on a full disk: a file may not grow beyond this size."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_leaves_the_records_as_they_were(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rotation(0).add_to(folder)
    before = records_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(
            DraftproofError, match=r"cannot append to records\.jsonl: No space left on device .*finished"
        ):
            folder.append([make_block()])
    assert records_of(folder) == before
    make_rotation(1).add_to(folder)
    assert [line.rotation for line in folder.read().rotations] == [0, 1]


@pytest.mark.parametrize("blocks", [4, 40, 400])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_an_append_cut_short_leaves_the_records_as_they_were(folder: RunFolder, blocks: int, share: float) -> None:
    """A part of the lines fits the disk, the rest does not: none of them stays, whatever the buffers still held."""
    make_rotation(0).add_to(folder)
    before = records_of(folder)
    lines = [make_block(order=order) for order in range(blocks)]
    room_bytes = int(share * sum(len(msgspec.json.encode(line)) for line in lines))
    with files_end_at(len(before) + room_bytes), pytest.raises(DraftproofError, match="cannot append"):
        folder.append(lines)
    assert records_of(folder) == before


@pytest.mark.parametrize(("module", "name"), [(os, "fsync"), (pq, "write_table")], ids=["flush", "write"])
def test_a_full_disk_while_a_part_is_written_adds_no_rotation(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    make_rotation(0).add_to(folder)
    before = records_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, no_space)
        with pytest.raises(DraftproofError, match=r"cannot write a Parquet part: No space left on device"):
            make_rotation(1).add_to(folder)
    assert records_of(folder) == before
    assert parts_of(folder) == ["tokens-g0-w-b2-r0000-speed.parquet"], "nothing half-written stays"
    make_rotation(1).add_to(folder)
    assert outputs_of(folder) == make_rotation(0).by_key() | make_rotation(1).by_key()


def test_a_part_cut_short_by_the_kernel_adds_no_rotation(folder: RunFolder) -> None:
    with files_end_at(200), pytest.raises(DraftproofError, match="cannot write a Parquet part"):
        make_rotation().add_to(folder)
    assert (records_of(folder), parts_of(folder)) == (b"", [])


@pytest.mark.parametrize("write", [RunFolder.write_prompts, RunFolder.write_header], ids=["prompts", "header"])
def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    folder.write_prompts({("t", "w", "p"): [1]})
    before = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    value = {("t", "w", "p"): [2]} if write is RunFolder.write_prompts else make_header(finished=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises((DraftproofError, OSError)):
            write(folder, value)
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


def test_a_read_only_folder_is_said_in_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the folder without its home, and another way."""

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(DraftproofError, match=r"cannot create the report folder: Read-only file system") as caught:
        RunFolder.create(tmp_path / "run", make_header())
    assert "--sd-report-dir" in str(caught.value)
    assert "'run'" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_folder_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DraftproofError, match=r"cannot create the report folder: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", make_header())


def test_writing_in_place_leaves_nothing_beside(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"1")
    write_atomic(tmp_path / "a", b"2")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"2")]
