"""Rules of the trace reader: what is wrong with a file is said with its line, and n-gram matches are vLLM's."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.lookup import MAX_N, MIN_N
from draftproof.errors import DraftproofError
from draftproof.simulator.rules import CORRECTED, PAPER
from draftproof.simulator.table import chunks
from draftproof.simulator.traces import TraceFile, match_lengths, trace_files
from tests.simulator.toys import public_traces

AUTHORS = {
    "id": "1",
    "prompt_token_ids": [1, 2, 3],
    "generated_token_ids": [4, 5],
    "acc_ngram": {"acc_len": [1, 2]},
    "acc_eagle": {"acc_len": [1, 3, 1]},
}
OURS = {
    "schema": 1,
    "dataset": "chat",
    "id": "1",
    "limit": 5,
    "prompt_tokens": 3,
    "variants": {
        "ngram": {"lengths": [1, 2], "token_ids": [4, 5], "drafted": [0, 5]},
        "eagle": {"lengths": [1, 6], "token_ids": [4, 5]},
    },
}


def write(path: Path, *lines: Any) -> TraceFile:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return TraceFile(path)


def changed(line: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**line, "id": "2", **changes}


def test_authors_layout(tmp_path: Path) -> None:
    file = write(tmp_path / "combined_cnn.jsonl", AUTHORS, changed(AUTHORS))
    one, _ = file.read(matches=True)
    assert (one.dataset, one.id, one.prompt_tokens, one.limit) == ("cnn", "1", 3, 20)
    assert one.lengths["ngram"].tolist() == [1, 2]
    assert one.lengths["eagle"].tolist() == [1, 3, 1]
    assert not one.same_tokens(("ngram", "eagle"))
    assert one.found is not None
    assert one.found.tolist() == [0, 0]


def test_our_layout_tells_equal_output_by_ids(tmp_path: Path) -> None:
    other = {**OURS["variants"], "eagle": {"lengths": [1, 6], "token_ids": [4, 6]}}  # type: ignore[dict-item]
    one, two = write(tmp_path / "x.jsonl", OURS, changed(OURS, variants=other)).read()
    assert one.dataset == "chat"
    assert one.drafted["ngram"].tolist() == [0, 5]
    assert one.same_tokens(("ngram", "eagle"))
    assert not two.same_tokens(("ngram", "eagle")), "equal lengths of different outputs"


def variant(**values: Any) -> dict[str, Any]:
    return {"variants": {"ngram": values}}


@pytest.mark.parametrize(
    ("base", "bad", "says"),
    [
        (AUTHORS, json.dumps(AUTHORS)[:-20], "truncated"),
        (AUTHORS, "", "empty line"),
        (AUTHORS, changed(AUTHORS, generated_token_ids=[4]), "acc_ngram.acc_len must be as long as"),
        (
            AUTHORS,
            changed(AUTHORS, acc_ngram={"acc_len": [1, 0]}),
            r"acc_ngram.acc_len\[1\] must be .* \(got 0\)",
        ),
        (AUTHORS, changed(AUTHORS, acc_eagle={"acc_len": [1, -2]}), r"acc_eagle.acc_len\[1\] must be in 1..21"),
        (AUTHORS, changed(AUTHORS, acc_eagle={"acc_len": [22]}), r"must be in 1..21 \(got 22\)"),
        (AUTHORS, changed(AUTHORS, acc_eagle={"acc_len": []}), "at least one length"),
        (AUTHORS, changed(AUTHORS, acc_eagle={"acc_len": [1.5]}), "Expected `int`"),
        (AUTHORS, changed(AUTHORS, prompt_token_ids=[]), "prompt_token_ids must be at least one token"),
        (AUTHORS, changed(AUTHORS, extra=1), "unknown field `extra`; known: acc_eagle"),
        (AUTHORS, {k: v for k, v in changed(AUTHORS).items() if "acc" not in k}, "must be traced by a variant"),
        (AUTHORS, AUTHORS, "id must be unique"),
        (OURS, changed(OURS, schema=2), "schema must be 1"),
        (OURS, changed(OURS, dataset="other"), "dataset must be the same"),
        (OURS, changed(OURS, prompt_tokens=-1), "prompt_tokens must be at least 1"),
        (OURS, changed(OURS, limit=0), "limit must be in 1..254"),
        (OURS, changed(OURS, variants={}), "at least one variant"),
        (OURS, changed(OURS, prompt_token_ids=[1]), "prompt_token_ids must be as long as prompt_tokens"),
        (OURS, changed(OURS, **variant(lengths=[1, 7])), r"variants.ngram.lengths\[1\] must be in 1..6"),
        (OURS, changed(OURS, **variant(lengths=[1, 2], token_ids=[1])), "as long as token_ids"),
        (OURS, changed(OURS, **variant(lengths=[1, 2], drafted=[1])), "as long as drafted"),
        (OURS, changed(OURS, **variant(lengths=[1, 2], drafted=[0, 0])), r"lengths\[1\] must be at most drafted \+ 1"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, base: dict[str, Any], bad: Any, says: str) -> None:
    file = write(tmp_path / "bad.jsonl", base, bad)
    with pytest.raises(DraftproofError, match=says) as caught:
        list(file.read())
    assert str(caught.value).startswith(f"{tmp_path / 'bad.jsonl'}:2: ")


def test_one_request_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(DraftproofError, match=r"one\.jsonl:1: a trace file must hold at least 2 requests \(got 1\)"):
        list(write(tmp_path / "one.jsonl", AUTHORS).read())
    with pytest.raises(DraftproofError, match=r"at least 2 requests \(got 0\)"):
        list(write(tmp_path / "none.jsonl").read())


def test_where_a_trace_comes_from_is_read_over(tmp_path: Path) -> None:
    """It is for people: any facts may stand there, in both kinds of file."""
    said = variant(lengths=[1, 2], provenance={"vllm": "0.32.0", "supported_k": None, "batch": 16})
    rows = [changed(OURS, **said), changed(OURS, **said)]
    rows[1]["id"] = "other"
    write(tmp_path / "x.jsonl", *rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for file in trace_files([tmp_path / "x.jsonl", tmp_path / "x.parquet"]):
        assert [trace.lengths["ngram"].tolist() for trace in file.read()] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("rows", [[OURS, changed(OURS)], [AUTHORS, changed(AUTHORS)]], ids=["ours", "authors"])
def test_parquet_holds_either_layout(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    write(tmp_path / "x.jsonl", *rows)
    (parquet, lines) = trace_files([tmp_path / "x.parquet", tmp_path / "x.jsonl"])
    assert parquet.count() == lines.count() == 2
    for one, two in zip(parquet.read(), lines.read(), strict=True):
        assert (one.id, one.outputs, one.prompt_tokens) == (two.id, two.outputs, two.prompt_tokens)
        assert {name: values.tolist() for name, values in one.lengths.items()} == {
            name: values.tolist() for name, values in two.lengths.items()
        }


def test_bad_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([OURS, changed(OURS, limit=0)]), tmp_path / "bad.parquet")
    with pytest.raises(DraftproofError, match=r"bad\.parquet:2: limit must be"):
        list(TraceFile(tmp_path / "bad.parquet").read())
    (tmp_path / "no.parquet").write_text("not parquet")
    with pytest.raises(DraftproofError, match=r"no\.parquet: not a whole Parquet file"):
        list(TraceFile(tmp_path / "no.parquet").read())


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(DraftproofError, match="file or folder that exists"):
        trace_files([tmp_path / "absent"])
    with pytest.raises(DraftproofError, match="folder with"):
        trace_files([tmp_path])
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DraftproofError, match="a trace file"):
        trace_files([tmp_path / "notes.txt"])


def test_sampling_needs_enough_requests(tmp_path: Path) -> None:
    file = write(tmp_path / "few_gsm8k.jsonl", AUTHORS, changed(AUTHORS))
    with pytest.raises(DraftproofError, match=r"few_gsm8k\.jsonl:2: requests must be in 1\.\.2.*got 300"):
        list(chunks(file, PAPER, matches=False))
    assert sum(map(len, chunks(file, CORRECTED, matches=False))) == 2
    assert sum(map(len, chunks(file, CORRECTED, matches=False, sample=1))) == 1


def test_reading_holds_one_line_at_a_time(tmp_path: Path) -> None:
    line = changed(AUTHORS, generated_token_ids=[7] * 4000, acc_ngram={"acc_len": [1] * 4000})
    file = write(tmp_path / "long_cnn.jsonl", *({**line, "id": str(i)} for i in range(200)))
    assert file.path.stat().st_size > 4_000_000
    tracemalloc.start()
    assert sum(1 for _ in file.read()) == 200
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


@given(TOKENS, TOKENS)
def test_match_lengths_is_the_longest_repeated_suffix(prompt: list[int], output: list[int]) -> None:
    def longest(context: list[int]) -> int:
        for n in range(MAX_N, MIN_N - 1, -1):
            suffix = context[-n:]
            if len(context) > n and any(context[i : i + n] == suffix for i in range(len(context) - n)):
                return n
        return 0

    expected = [longest(prompt + output[:i]) for i in range(len(output))]
    assert match_lengths(prompt, output).tolist() == expected


def test_public_traces_agree_with_the_lookup() -> None:
    """Wherever the n-gram trace accepted something, the context of entry i (prompt and i tokens) holds a match."""
    for file in trace_files([public_traces()]):
        for trace in file.read(matches=True):
            assert trace.found is not None
            assert trace.lengths["ngram"][0] == 1, "entry 0 is the prefill"
            assert trace.found[trace.lengths["ngram"] > 1].all()
