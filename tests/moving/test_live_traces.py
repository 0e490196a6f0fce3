"""``draftproof trace``: what is drafted at every position of no-SD's output, as traces that ``simulate`` reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.analysis.lookup import lookup_trace
from draftproof.catalog import Catalog
from draftproof.engines import TraceRequest
from draftproof.engines.replay import ReplayArm, ReplayEngine
from draftproof.errors import DraftproofError, EngineError
from draftproof.simulator.command import check
from draftproof.simulator.livetraces import Asked, layout_named, names_of, trace
from draftproof.simulator.traces import TraceFile
from tests.moving.running import invoke
from tests.toy import EOS, FIRST, Bench, Flip, ToyEngine, generate, is_wrong

SEEN: list[str] = []


def asked(tmp_path: Path, *variants: str, **changes: Any) -> Asked:
    given: dict[str, Any] = {
        "variants": list(variants) or ["ngram"],
        "workload": "short",
        "target": "toy",
        "hardware": "toy",
        "prompts": 4,
        "tokens": 24,
        "out": tmp_path / "x.jsonl",
        "python": sys.executable,
    }
    return Asked(**(given | changes))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_n_gram_trace_is_the_lookup_replayed_on_the_same_ids(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live trace and the offline one agree exactly, at limits below, at and above what is found.

    The model's text goes round in a circle, with a hitch from time to time.
    """
    monkeypatch.setattr("tests.toy.next_token", lambda ids: FIRST + (ids[-1] * 7 + 5 + (len(ids) % 29 == 0)) % 11)
    for limit in (1, 5, 20):
        path = trace(asked(tmp_path, tokens=120, limit=limit), catalog, ToyEngine(), SEEN.append)
        drafted, accepted = 0, 0
        for line in lines(path):
            one = line["variants"]["ngram"]
            expected = lookup_trace(line["prompt_token_ids"], one["token_ids"], limit=limit)
            assert one["lengths"] == expected.lengths.tolist()
            assert one["drafted"] == expected.drafted.tolist()
            assert one["token_ids"] == generate(line["prompt_token_ids"], 120)
            drafted += sum(one["drafted"])
            accepted += sum(one["lengths"]) - len(one["lengths"])
        assert 0 < accepted < drafted


def test_lengths_are_the_leading_drafts_that_agree_and_one_more(catalog: Catalog, tmp_path: Path) -> None:
    """`partly` is wrong at known places; near the end no more than the output holds is counted."""
    path = trace(asked(tmp_path, "partly", limit=6), catalog, ToyEngine(), SEEN.append)
    for line in lines(path):
        prompt, one = len(line["prompt_token_ids"]), line["variants"]["partly"]
        assert one["drafted"] == [0] + [6] * 23
        for place, length in enumerate(one["lengths"][1:], start=1):
            agreed = 0
            while agreed < min(6, 24 - place) and not is_wrong(prompt + place + agreed, 3):
                agreed += 1
            assert length == 1 + agreed


def test_several_variants_are_held_against_one_continuation(catalog: Catalog, tmp_path: Path) -> None:
    """One engine after the other, no-SD first; the file passes the check and is simulated."""
    engine = ToyEngine()
    path = trace(asked(tmp_path, "ngram", "partly"), catalog, engine, SEEN.append)
    assert engine.started == ["no_sd", "ngram", "partly"]
    assert (engine.most_live, engine.live) == (1, set())
    said: list[str] = []
    check([path], said.append)
    assert "short, 4 requests" in said[0]
    assert "4 requests whose variants belong to the same output" in said[0]
    assert {found.limit for found in TraceFile(path).read()} == {20}
    options = ("--hardware", "llama3.1-8b-h100", "--variants", "ngram", "--policies", "fixed:3", "oracle")
    code, shown = invoke("simulate", "--traces", str(path), *options, "--batch-sizes", "1")
    assert code == 0
    assert "short" in shown


def test_where_it_comes_from_is_in_the_file(catalog: Catalog, tmp_path: Path) -> None:
    (line, *_) = lines(trace(asked(tmp_path), catalog, ToyEngine(), SEEN.append))
    found = line["variants"]["ngram"]["provenance"]
    assert (found["vllm"], found["method"], found["target"]) == ("toy", "ngram", "toy")
    assert (found["prompt_lookup_min"], found["prompt_lookup_max"]) == (3, 7)
    assert "differs_from_no_sd_at" not in found


def test_a_trace_ends_where_its_output_leaves_no_sd(catalog: Catalog, tmp_path: Path) -> None:
    """Planted: a wrong token in one request, and another one's first; both are said, the latter has no trace."""
    flips = (Flip(arm="ngram", request=1, position=7), Flip(arm="ngram", request=2, position=0))
    said: list[str] = []
    found = lines(trace(asked(tmp_path), catalog, ToyEngine(flips=flips), said.append))
    assert [line["id"] for line in found] == ["short-0", "short-1", "short-3"]
    cut = found[1]["variants"]["ngram"]
    assert cut["provenance"]["differs_from_no_sd_at"] == 7
    assert len(cut["lengths"]) == len(cut["drafted"]) == len(cut["token_ids"]) == 7
    assert any("2 of 4 outputs leave no-SD's" in text for text in said)


def test_eos_ends_an_output(catalog: Catalog, tmp_path: Path) -> None:
    for line in lines(trace(asked(tmp_path), catalog, ToyEngine(eos_at=9), SEEN.append)):
        one = line["variants"]["ngram"]
        assert len(one["lengths"]) == 10
        assert one["token_ids"][-1] == EOS


def test_the_layout_of_the_public_traces(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys, and a file name whose last part is the data set."""
    monkeypatch.chdir(tmp_path)
    path = trace(asked(tmp_path, layout="public", out=None), catalog, ToyEngine(), SEEN.append)
    assert path.name == "toy_short.jsonl"
    assert list(lines(path)[0]) == ["id", "prompt_token_ids", "generated_token_ids", "acc_ngram"]
    ours = trace(asked(tmp_path), catalog, ToyEngine(), SEEN.append)
    for one, other in zip(TraceFile(path).read(), TraceFile(ours).read(), strict=True):
        assert (one.dataset, one.id, one.limit) == (other.dataset, other.id, other.limit)
        assert one.lengths["ngram"].tolist() == other.lengths["ngram"].tolist()
        assert one.outputs == other.outputs


def test_prompts_that_do_not_fit_are_left_out(catalog: Catalog, tmp_path: Path) -> None:
    said: list[str] = []
    tight = asked(tmp_path, workload="long", tokens=200, limit=20)
    assert len(lines(trace(tight, catalog, ToyEngine(), said.append))) == 4
    assert "long: 1 prompts are copies or longer than 36 tokens and were left out" in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"limit": 0}, r"^--limit must be in 1\.\.254 \(got 0\)$"),
        ({"limit": 255}, r"^--limit must be in 1\.\.254 \(got 255\)$"),
        ({"prompts": 1}, r"^--prompts must be at least 2"),
        ({"tokens": 1}, r"^--tokens must be at least 2"),
        ({"layout": "public", "limit": 7}, r"^--limit must be 20 with --layout public \(got 7\)"),
        ({"variants": ["no_sd"]}, r"^variant must be one that proposes by itself \(got 'no_sd'\); it drafts nothing$"),
        ({"variants": ["wise"]}, r"^variant must be one that proposes by itself \(got 'wise'\); a control drafts"),
        ({"variants": ["none"]}, r"^variant must be one of the known names \(got 'none'\); known: "),
        ({"variants": ["mtp"], "layout": "public"}, r"^variant must be of a method that the public layout has"),
        (
            {"variants": ["ngram", "partly"], "layout": "public"},
            r"^variants must be of different methods with --layout",
        ),
        (
            {"variants": ["eagle3"]},
            r"^--target must be one that all variants have a drafter for \(got 'toy'\); known: ",
        ),
        ({"tokens": 250}, r"^prompts of short that fit must be at least 2 \(got 0\); a context of 256 holds a prompt"),
        ({"out": Path("x.csv")}, r"^--out must be a \.jsonl file"),
    ],
)
def test_bad_options(catalog: Catalog, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DraftproofError, match=says):
        trace(asked(tmp_path, **changes), catalog, ToyEngine(), SEEN.append)


def test_names_and_layouts_as_they_are_typed() -> None:
    assert names_of("ngram, eagle3") == ["ngram", "eagle3"]
    with pytest.raises(DraftproofError, match=r"^variant must be a name, or several with commas \(got 'ngram,'\)$"):
        names_of("ngram,")
    assert layout_named("public") == "public"
    with pytest.raises(DraftproofError, match=r"^--layout must be one of the known names \(got 'csv'\); known: ours"):
        layout_named("csv")


def test_a_failed_arm_ends_in_one_error_and_leaves_nothing_running(catalog: Catalog, tmp_path: Path) -> None:
    engine = ToyEngine(refuses={"ngram": EngineError("method", "no such method")})
    with pytest.raises(EngineError, match="no such method"):
        trace(asked(tmp_path), catalog, engine, SEEN.append)
    assert engine.live == set()
    assert not (tmp_path / "x.jsonl").exists()


def test_a_recorded_run_refuses(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.session(ToyEngine())
    replay = ReplayEngine(made.folder.path)
    arm = ReplayArm(replay, replay.data.arms[0])
    with pytest.raises(EngineError, match="a recorded run holds no drafts of every position; trace with an engine"):
        arm.trace(TraceRequest(prompts=[[1]], output_tokens=2))
