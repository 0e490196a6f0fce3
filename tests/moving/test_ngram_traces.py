"""``draftproof traces ngram``: the no-SD outputs of a run, in the layout that ``simulate`` reads."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import draftproof.cli as cli
from draftproof import tables
from draftproof.analysis.lookup import LIMIT, MAX_N, MIN_N, lookup_trace
from draftproof.catalog import Catalog
from draftproof.errors import DraftproofError
from draftproof.simulator.traces import TraceFile
from tests.toy import EOS, Bench, Flip, ToyEngine, Where, rows


def ngram(run: Path, *arguments: object) -> str:
    return invoke("traces", "ngram", run, *arguments)


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def run(clean_run: Bench, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clean_run.folder.path, tmp_path / "run"))


def test_every_request_of_every_rotation(run: Path, clean_run: Bench) -> None:
    """Three rotations of one and of three requests, for each workload; ids, lengths and drafts belong together."""
    shown = ngram(run)
    prompts = clean_run.folder.prompts()
    assert sorted(path.name for path in run.glob("traces-*")) == ["traces-toy-long.jsonl", "traces-toy-short.jsonl"]
    for workload, asked in (("short", 6), ("long", 4)):
        file = run / f"traces-toy-{workload}.jsonl"
        assert f"{file}: toy on {workload}, 12 requests of {asked} prompts, 288 positions" in shown
        found = [json.loads(line) for line in file.read_text().splitlines()]
        assert len({row["id"] for row in found}) == 12
        for row in found:
            one = row["variants"]["ngram"]
            trace = lookup_trace(row["prompt_token_ids"], one["token_ids"])
            assert one["lengths"] == trace.lengths.tolist()
            assert one["drafted"] == trace.drafted.tolist()
            assert prompts["toy", workload, row["id"].rpartition(": ")[2]] == row["prompt_token_ids"]
            assert (row["dataset"], row["limit"]) == (workload, 20)


def test_the_ids_are_those_of_no_sd_in_the_first_pass(bench: Callable[..., Bench], tmp_path: Path) -> None:
    made = bench(matrix=rows(["no_sd", "perfect"], ["short"], [2]))
    flips = (Flip(arm="perfect", position=3), Flip(arm="no_sd", position=3, pass_index=1))
    made.session(ToyEngine(flips=flips))
    ngram(made.folder.path, "--out", tmp_path / "x.jsonl")
    lines = [line for line in made.folder.read().rotations if line.purpose == "speed"]
    outputs = tables.read_outputs(made.folder.path, {line.part for line in lines})
    expected = [output.token_ids for line in lines for output in outputs[line.part, "no_sd", 0]]
    found = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [row["variants"]["ngram"]["token_ids"] for row in found] == expected


def test_the_files_pass_the_check_and_are_simulated(run: Path) -> None:
    ngram(run, "--min-n", 1, "--max-n", 2, "--limit", 6)
    file = run / "traces-toy-short.jsonl"
    assert f"{file}: ok: short, 12 requests" in invoke("traces", "check", file)
    traces = list(TraceFile(file).read())
    assert {trace.limit for trace in traces} == {6}
    assert any(trace.drafted["ngram"].any() for trace in traces)
    options = ("--hardware", "llama3.1-8b-h100", "--variants", "ngram", "--policies", "fixed:3", "oracle")
    assert "short" in invoke("simulate", "--traces", file, *options, "--batch-sizes", 1)


def test_outputs_that_end_early(bench: Callable[..., Bench], tmp_path: Path) -> None:
    made = bench(ignore_eos=False, matrix=rows(["no_sd", "perfect"], ["short"], [2]))
    made.session(ToyEngine(eos_at=9))
    ngram(made.folder.path, "--out", tmp_path / "x.jsonl")
    for line in (tmp_path / "x.jsonl").read_text().splitlines():
        one = json.loads(line)["variants"]["ngram"]
        assert len(one["lengths"]) == len(one["token_ids"]) == 10
        assert one["token_ids"][-1] == EOS


def test_rotations_that_no_sd_did_not_finish_are_left_out(bench: Callable[..., Bench]) -> None:
    made = bench(matrix=rows(["no_sd", "perfect"], ["short", "long"], [2]))
    made.session(ToyEngine(crashes=(Where(arm="no_sd", workload="short"),)))
    assert "toy on long" in ngram(made.folder.path)
    assert [path.name for path in made.folder.path.glob("traces-*")] == ["traces-toy-long.jsonl"]


def test_groups_that_ran_the_same_requests_count_once(bench: Callable[..., Bench], catalog: Catalog) -> None:
    """Each group has its own no-SD arm; the first one's outputs are taken."""
    small = msgspec.structs.replace(catalog.hardware["toy"], max_live_arms=2)
    made = bench(hardware=small, matrix=rows(["perfect", "partly"], ["short"], [2]), aa=False)
    made.session(ToyEngine())
    assert {line.group for line in made.folder.read().rotations if line.purpose == "speed"} == {0, 1}
    assert "toy on short, 6 requests of" in ngram(made.folder.path)


def test_the_options_default_to_the_lookup_of_the_public_traces() -> None:
    """They are written out in the command line, which must not load numpy to show its help."""
    defaults = {name: entry.default for name, entry in inspect.signature(cli.traces_ngram).parameters.items()}
    assert (defaults["min_n"], defaults["max_n"], defaults["limit"]) == (MIN_N, MAX_N, LIMIT)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--out", "x.jsonl"],
            r"^--out must be left out for several files .*; known: toy on long, toy on short; or name",
        ),
        (["--target", "none"], r"^--target must be one of the known names \(got 'none'\); known: toy$"),
        (["--workload", "none"], r"^--workload must be one of the known names \(got 'none'\); known: long, short$"),
        (["--min-n", 0], r"^min_n must be at least 1 \(got 0\)$"),
        (["--max-n", 2], r"^max_n must be at least min_n, 3 \(got 2\)$"),
        (["--limit", 255], r"^limit must be in 1\.\.254 \(got 255\)$"),
    ],
)
def test_bad_options(run: Path, arguments: list[Any], says: str) -> None:
    with pytest.raises(DraftproofError, match=says):
        ngram(run, *arguments)
    assert not list(run.glob("traces-*"))


def test_a_run_that_has_nothing_yet(bench: Callable[..., Bench]) -> None:
    with pytest.raises(DraftproofError, match=r"^rotations with no-SD outputs must be at least one \(got 0\); run"):
        ngram(bench().folder.path)


def test_one_request_is_no_trace(bench: Callable[..., Bench]) -> None:
    made = bench(matrix=rows(["no_sd", "perfect"], ["short"], [1]))
    made.session(ToyEngine(crashes=(Where(arm="no_sd", rotation=1),)))
    with pytest.raises(DraftproofError, match=r"no-SD outputs of toy on short must be at least 2 requests \(got 1\)"):
        ngram(made.folder.path)


def test_a_prompt_that_is_missing_is_named(run: Path) -> None:
    (run / "prompts.jsonl").unlink()
    with pytest.raises(DraftproofError, match=r"^run/prompts\.jsonl: prompt must be one of the known names \(got"):
        ngram(run)
