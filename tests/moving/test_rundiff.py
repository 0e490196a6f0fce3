"""``draftproof diff``: two runs' outputs by token id, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

import draftproof.cli as cli
from draftproof.errors import DraftproofError
from draftproof.rundiff import diff
from tests.toy import Bench, Flip, ToyEngine, rows

MakeBench = Callable[..., Bench]


def ran(bench: MakeBench, name: str, engine: ToyEngine | None = None, **changes: object) -> Bench:
    run = bench(name, matrix=rows(["no_sd", "perfect"]), **changes)
    run.session(engine or ToyEngine(), ["speed"])
    return run


def test_equal_runs_are_identical(bench: MakeBench) -> None:
    lines, same = diff(ran(bench, "a").folder.path, ran(bench, "b").folder.path, "no_sd", "no_sd")
    assert same
    (line,) = lines
    assert line.startswith("toy short b2: 6 of 6 requests identical (61-100 %); 0.00 first differences per 1,000")


def test_a_difference_is_told_with_its_place(bench: MakeBench) -> None:
    """By request, position and both ids; the exit status is 1."""
    left, right = ran(bench, "a"), ran(bench, "b", ToyEngine(flips=(Flip(arm="no_sd", rotation=1, request=1),)))
    lines, same = diff(left.folder.path, right.folder.path, "no_sd", "no_sd")
    assert not same
    assert lines[0].startswith("toy short b2: 5 of 6 requests identical")
    assert "rotation 1, request 1, output position 6: token " in lines[1]
    result = CliRunner().invoke(cli.app, ["diff", str(left.folder.path), str(right.folder.path)])
    assert result.exit_code == 1
    assert result.output.splitlines() == lines


def test_two_arms_of_one_run_can_be_compared(bench: MakeBench) -> None:
    path = ran(bench, "a").folder.path
    assert diff(path, path, "no_sd", "perfect")[1]


def test_runs_of_other_requests_are_refused(bench: MakeBench) -> None:
    """Nothing is cut to what both happen to have."""
    left, right = ran(bench, "a"), ran(bench, "b", rotations=2, max_rotations=2)
    with pytest.raises(DraftproofError, match="rotation 2"):
        diff(left.folder.path, right.folder.path, "no_sd", "no_sd")


def test_runs_of_other_cells_are_refused(bench: MakeBench) -> None:
    left = ran(bench, "a")
    other = bench("b", matrix=rows(["perfect"], sizes=(1,)))
    other.session(ToyEngine(), ["speed"])
    with pytest.raises(DraftproofError, match="run 'a' lacks toy short b1, which the other one has"):
        diff(left.folder.path, other.folder.path, "no_sd", "no_sd")


def test_other_prompts_of_the_same_name_are_refused(bench: MakeBench) -> None:
    left, right = ran(bench, "a"), ran(bench, "b")
    path = right.folder.path / "prompts.jsonl"
    path.write_text(path.read_text().replace("[1,", "[1,5,", 1))
    with pytest.raises(DraftproofError, match="prompt"):
        diff(left.folder.path, right.folder.path, "no_sd", "no_sd")


def test_other_tokenizers_are_refused(bench: MakeBench) -> None:
    left, right = ran(bench, "a"), ran(bench, "b")
    path = right.folder.path / "records.jsonl"
    path.write_text(path.read_text().replace('"tokenizer_sha256":"toy"', '"tokenizer_sha256":"another"'))
    with pytest.raises(DraftproofError, match="tokenizer"):
        diff(left.folder.path, right.folder.path, "no_sd", "no_sd")


def test_an_unknown_arm_is_named_with_the_known_ones(bench: MakeBench) -> None:
    path = ran(bench, "a").folder.path
    with pytest.raises(DraftproofError, match=r"run 'a': arm must be .* 'eagle'\); known: no_sd, no_sd.aa, perfect"):
        diff(path, path, "eagle", "no_sd")
