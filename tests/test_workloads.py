"""Rules of workloads: strict files, hub data sets without a network, and the dealing of prompt sets."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.errors import DraftproofError
from draftproof.spec import Workload
from draftproof.workloads import Prompt, WorkloadUnavailable, deal, file_workload, load_workload, one_line

DATA = Path(__file__).resolve().parents[1] / "fixtures" / "workloads" / "data"
UNCACHED = "draftproof-tests/no-such-data-set"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches the hub or the user's own cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    # `datasets` waits 5 s for its network threads whenever a shuffled stream of several files ends.
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def hub_workload(**fields: Any) -> Workload:
    given = {"name": "w", "kind": "chat", "title": "", "source": "hub", "dataset": "edits", "prompt": "{instruction}"}
    return Workload(**(given | fields))


def first_turns(prompts: tuple[Prompt, ...]) -> list[str]:
    return [prompt.messages[0]["content"] for prompt in prompts if prompt.messages]


@pytest.fixture
def edits(tmp_path: Path) -> Path:
    """A folder of entries; in it `edits`, an InstructCoder-like data set of 20 rows in two parquet files."""
    folder = tmp_path / "entries" / "edits" / "data"
    folder.mkdir(parents=True)
    for part in range(2):
        rows = range(part * 10, part * 10 + 10)
        table = pa.table(
            {
                "input": [f"code {row}" for row in rows],
                "instruction": [f"edit {row}" for row in rows],
                "output": ["x" for _ in rows],
            }
        )
        pq.write_table(table, folder / f"train-{part:05d}-of-00002.parquet")
    return tmp_path / "entries"


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """A folder of entries; in it `chats`, a ShareGPT-like JSON file: good rows, one-turn rows, rows begun by gpt."""
    rows = []
    for number in range(5):
        human, gpt = {"from": "human", "value": f"good {number}"}, {"from": "gpt", "value": "answer"}
        rows.append({"id": f"g{number}", "conversations": [human, gpt]})
        rows.append({"id": f"s{number}", "conversations": [{"from": "human", "value": f"single {number}"}]})
        rows.append({"id": f"r{number}", "conversations": [{"from": "gpt", "value": f"reversed {number}"}, human]})
        rows.append({"id": f"e{number}", "conversations": []})
    folder = tmp_path / "entries" / "chats"
    folder.mkdir(parents=True)
    (folder / "cleaned.json").write_text(json.dumps(rows), "utf-8")
    (folder / "other.json").write_text(json.dumps([{"unrelated": 1}]), "utf-8")
    return tmp_path / "entries"


class TestFile:
    @pytest.mark.parametrize(
        ("name", "count"),
        [
            ("chat", 32),
            ("code_edit", 32),
            ("competition_math", 12),
            ("grade_math", 12),
            ("science_mc", 12),
            ("summarisation", 12),
        ],
    )
    def test_our_own_files_load_whole(self, name: str, count: int) -> None:
        path = DATA / f"{name}.jsonl"
        loaded = load_workload(file_workload(name, path), path)
        assert [prompt.id for prompt in loaded.prompts] == [f"{name}-{n:03d}" for n in range(1, count + 1)]
        assert all(prompt.messages and prompt.messages[-1]["role"] == "user" for prompt in loaded.prompts)
        assert loaded.revision == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        assert loaded.source == f"{name}.jsonl"

    def test_messages_and_text_keep_their_content_and_order(self, tmp_path: Path) -> None:
        chat = [{"role": "system", "content": "Be brief."}, user("a"), {"role": "assistant", "content": "b"}, user("ü")]
        path = write_lines(tmp_path / "p.jsonl", {"messages": chat, "answer": "7"}, "", {"text": " raw\n", "id": "z"})
        loaded = load_workload(file_workload("mine", path), path)
        assert loaded.prompts == (
            Prompt(id="mine-0001", messages=chat, text=None),
            Prompt(id="z", messages=None, text=" raw\n"),
        )

    def test_a_default_id_holds_the_line_number_of_the_file(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "p.jsonl", {"text": "a"}, "", {"text": "b"})
        assert [p.id for p in load_workload(file_workload("n", path), path).prompts] == ["n-0001", "n-0003"]

    def test_a_byte_order_mark_and_windows_line_ends_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "p.jsonl"
        path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n')
        assert [p.text for p in load_workload(file_workload("n", path), path).prompts] == ["a", "b"]

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("{", "truncated"),
            ('["text"]', "Expected `object`"),
            ({"text": "a", "extra": 1}, "`extra`; known: id, messages, text, answer"),
            ({"text": "a", "messages": [user("a")]}, "exactly one of 'messages' and 'text'"),
            ({"id": "a"}, "exactly one of 'messages' and 'text'"),
            ({"text": " \n"}, "text must be a non-empty string (got ' \\n')"),
            ({"text": "a", "id": ""}, "id must be a non-empty string"),
            ({"text": "a", "id": 3}, "$.id"),
            ({"text": "a", "id": "first"}, "id must be unique (got 'first'); line 1 has it already"),
            ({"messages": []}, "the last message must be by 'user' (got None)"),
            ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "must be by 'user' (got 'assistant')"),
            ({"messages": [user("")]}, "messages[0].content must be a non-empty string"),
            (
                {"messages": [user("a"), {"role": "tool", "content": "b"}]},
                "(got 'tool'); known: assistant, system, user",
            ),
            ({"messages": [user("a") | {"name": "x"}]}, "unknown field `name`"),
            ({"messages": [{"role": "user"}]}, "content"),
            ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "Expected `str`, got `array`"),
        ],
    )
    def test_a_bad_line_is_refused_by_file_and_line_number(self, tmp_path: Path, line: object, told: str) -> None:
        path = write_lines(tmp_path / "p.jsonl", {"text": "ok", "id": "first"}, line)
        with pytest.raises(DraftproofError) as caught:
            load_workload(file_workload("n", path), path)
        assert str(caught.value).startswith("p.jsonl:2: ")
        assert told in str(caught.value)
        assert str(tmp_path) not in str(caught.value)

    def test_bytes_that_are_not_utf8_are_refused_by_line(self, tmp_path: Path) -> None:
        path = tmp_path / "p.jsonl"
        path.write_bytes(b'{"text": "ok"}\n{"text": "\xff"}\n')
        with pytest.raises(DraftproofError, match=r"^p\.jsonl:2: "):
            load_workload(file_workload("n", path), path)

    def test_a_file_without_prompts_is_an_error(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "p.jsonl", "", " ")
        with pytest.raises(DraftproofError, match="no prompts"):
            load_workload(file_workload("n", path), path)

    def test_a_missing_file_is_named_without_its_folder(self, tmp_path: Path) -> None:
        workload = Workload(name="n", kind="chat", title="", source="file", path="gone.jsonl")
        with pytest.raises(DraftproofError, match=r"path must be a file of JSON lines \(got 'gone.jsonl'\)") as caught:
            load_workload(workload, tmp_path / "gone.jsonl")
        with pytest.raises(DraftproofError, match="--sd-prompts must be a file"):
            file_workload("n", tmp_path / "gone.jsonl")
        assert str(tmp_path) not in str(caught.value)

    def test_the_users_own_file_leaves_no_folder_in_the_workload(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "p.jsonl", {"text": "a"})
        assert file_workload("n", path).path == "p.jsonl"
        assert load_workload(file_workload("n", path), tmp_path).source == "p.jsonl"

    def test_the_first_prompts_are_taken_after_a_seeded_shuffle(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "p.jsonl", *({"text": str(n)} for n in range(10)))
        fields: dict[str, Any] = {"name": "n", "kind": "chat", "title": "", "source": "file", "path": "p.jsonl"}
        order = [str(n) for n in range(10)]
        assert [p.text for p in load_workload(Workload(**fields, num_prompts=3), path).prompts] == order[:3]
        random.Random(42).shuffle(order)
        shuffled = Workload(**fields, num_prompts=3, shuffle_seed=42)
        assert [p.text for p in load_workload(shuffled, path).prompts] == order[:3]
        assert [p.text for p in load_workload(shuffled, path, num_prompts=5).prompts] == order[:5]
        assert [p.text for p in load_workload(shuffled, path, num_prompts=99).prompts] == order

    def test_no_prompts_cannot_be_asked_for(self) -> None:
        with pytest.raises(DraftproofError, match=r"num_prompts must be at least 1 \(got 0\)"):
            load_workload(file_workload("chat", DATA / "chat.jsonl"), DATA, num_prompts=0)

    @pytest.mark.parametrize(("messages", "text"), [(None, None), ([user("a")], "a")])
    def test_a_prompt_is_a_chat_or_a_text(self, messages: Any, text: str | None) -> None:
        with pytest.raises(ValueError, match="exactly one"):
            Prompt(id="a", messages=messages, text=text)


class TestHub:
    @pytest.mark.parametrize("streaming", [True, False])
    def test_the_template_makes_the_user_turn(self, edits: Path, streaming: bool) -> None:
        workload = hub_workload(prompt="{input}\n\n{instruction} Just output the code.", streaming=streaming)
        loaded = load_workload(workload, edits)
        assert first_turns(loaded.prompts) == [f"code {n}\n\nedit {n} Just output the code." for n in range(20)]
        assert [prompt.id for prompt in loaded.prompts] == [f"w-{n:04d}" for n in range(1, 21)]
        assert (loaded.source, loaded.revision) == ("edits", None)

    @pytest.mark.parametrize("streaming", [True, False])
    def test_the_order_and_the_choice_are_those_of_datasets_shuffle(self, edits: Path, streaming: bool) -> None:
        rows = datasets.load_dataset(str(edits / "edits"), split="train", streaming=streaming).shuffle(seed=42)
        expected = [row["instruction"] for row in rows]
        workload = hub_workload(shuffle_seed=42, num_prompts=7, streaming=streaming)
        assert first_turns(load_workload(workload, edits).prompts) == expected[:7]
        assert first_turns(load_workload(workload, edits, num_prompts=12).prompts) == expected[:12]
        assert expected != [f"edit {n}" for n in range(20)]

    def test_the_filters_keep_rows_of_two_turns_begun_by_the_human(self, chats: Path) -> None:
        fields: dict[str, Any] = {"dataset": "chats", "data_files": "cleaned.json"}
        workload = hub_workload(**fields, prompt="{conversations[0][value]}", min_turns=2, first_role="human")
        assert first_turns(load_workload(workload, chats).prompts) == [f"good {n}" for n in range(5)]
        turns = hub_workload(**fields, prompt="{id}", min_turns=2)
        assert [turn[0] for turn in first_turns(load_workload(turns, chats).prompts)] == list("gr" * 5)
        speaker = hub_workload(**fields, prompt="{id}", first_role="human")
        assert [turn[0] for turn in first_turns(load_workload(speaker, chats).prompts)] == list("gs" * 5)

    def test_prompts_are_counted_after_the_filters(self, chats: Path) -> None:
        workload = hub_workload(
            dataset="chats", data_files="cleaned.json", prompt="{id}", min_turns=2, first_role="human", num_prompts=3
        )
        assert first_turns(load_workload(workload, chats).prompts) == ["g0", "g1", "g2"]

    def test_filters_that_leave_no_row_are_an_error(self, chats: Path) -> None:
        workload = hub_workload(dataset="chats", data_files="cleaned.json", prompt="{id}", min_turns=9)
        with pytest.raises(DraftproofError, match="no row of 'chats' is left; filters: min_turns 9"):
            load_workload(workload, chats)

    def test_a_filter_needs_a_list_of_turns(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        write_lines(tmp_path / "d" / "train.jsonl", {"conversations": "hello"})
        with pytest.raises(DraftproofError, match=r"'conversations' must be a list of turns \(got 'str'\)"):
            load_workload(hub_workload(dataset="d", prompt="x", min_turns=1), tmp_path)

    @pytest.mark.parametrize("fields", [{"prompt": "{inputs}"}, {"min_turns": 2}, {"first_role": "human"}])
    def test_an_absent_column_is_an_error_that_lists_the_known(self, edits: Path, fields: dict[str, Any]) -> None:
        with pytest.raises(DraftproofError, match="known: input, instruction, output"):
            load_workload(hub_workload(**fields), edits)

    @pytest.mark.parametrize("prompt", ["{", "{}", "{0}", "{input!}"])
    def test_a_template_without_columns_is_an_error_before_any_download(self, prompt: str) -> None:
        with pytest.raises(DraftproofError, match=r"prompt must be a str.format template"):
            load_workload(hub_workload(dataset=UNCACHED, prompt=prompt), None)

    def test_a_template_that_fits_not_all_rows_is_an_error(self, chats: Path) -> None:
        workload = hub_workload(dataset="chats", data_files="cleaned.json", prompt="{conversations[1][value]}")
        with pytest.raises(DraftproofError, match=r"IndexError.*known: conversations, id"):
            load_workload(workload, chats)

    def test_absent_values_are_empty_and_blank_turns_are_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        rows = [{"a": "x", "b": None}, {"a": None, "b": None}, {"a": "y", "b": "z"}]
        write_lines(tmp_path / "d" / "train.jsonl", *rows)
        loaded = load_workload(hub_workload(dataset="d", prompt="{a}{b}"), tmp_path)
        assert first_turns(loaded.prompts) == ["x", "yz"]

    def test_subset_and_split_choose_the_rows(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        for name in ("one", "two"):
            write_lines(tmp_path / "d" / f"{name}.jsonl", {"a": name})
        card = "configs:\n- config_name: c\n  data_files:\n  - {split: train, path: one.jsonl}\n"
        card += "  - {split: test, path: two.jsonl}\n"
        (tmp_path / "d" / "README.md").write_text(f"---\n{card}---\n", "utf-8")
        workload = hub_workload(dataset="d", prompt="{a}", subset="c", split="test")
        assert first_turns(load_workload(workload, tmp_path).prompts) == ["two"]
        with pytest.raises(DraftproofError, match=r"could not be read.*train.*test"):
            load_workload(hub_workload(dataset="d", prompt="{a}", subset="c", split="validation"), tmp_path)
        with pytest.raises(DraftproofError, match=r"could not be read.*'other' not found. Available: \['c'\]"):
            load_workload(hub_workload(dataset="d", prompt="{a}", subset="other"), tmp_path)

    def test_a_folder_of_the_hubs_cache_gives_its_commit(self, tmp_path: Path) -> None:
        folder = tmp_path / "snapshots" / COMMIT
        folder.mkdir(parents=True)
        write_lines(folder / "train.jsonl", {"a": "x"})
        assert load_workload(hub_workload(dataset=str(folder), prompt="{a}"), None).revision == COMMIT

    def test_an_absolute_folder_is_told_by_its_name(self, edits: Path) -> None:
        loaded = load_workload(hub_workload(dataset=str(edits / "edits")), None)
        assert (loaded.source, len(loaded.prompts)) == ("edits", 20)

    @pytest.mark.parametrize("dataset", ["/nowhere/at/all", "./gone"])
    def test_a_folder_that_does_not_exist_is_never_sought_on_the_hub(self, tmp_path: Path, dataset: str) -> None:
        with pytest.raises(DraftproofError, match=r"dataset must be a data set id .* or a folder") as caught:
            load_workload(hub_workload(dataset=dataset), tmp_path)
        assert not isinstance(caught.value, WorkloadUnavailable)

    def test_a_namesake_in_the_current_folder_never_stands_in(
        self, edits: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(edits)
        with pytest.raises(DraftproofError, match="dataset must be a data set id"):
            load_workload(hub_workload(), None)

    def test_a_broken_file_is_an_error_without_folders(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "train.parquet").write_bytes(b"not parquet")
        for streaming in (True, False):
            with pytest.raises(DraftproofError, match="'d' could not be read: ArrowInvalid") as caught:
                load_workload(hub_workload(dataset="d", streaming=streaming), tmp_path)
            assert str(tmp_path) not in str(caught.value)


class TestUnavailable:
    @pytest.mark.parametrize("streaming", [True, False])
    def test_a_data_set_neither_cached_nor_reachable_is_a_skip_reason(self, streaming: bool) -> None:
        with pytest.raises(WorkloadUnavailable) as caught:
            load_workload(hub_workload(dataset=UNCACHED, streaming=streaming), None)
        needs, found, enable = str(caught.value).split("; ")
        assert needs == f"needs data set '{UNCACHED}' in the local cache, or the hub"
        assert found.startswith("found ConnectionError")
        assert "network access and HF_HUB_OFFLINE unset" in enable
        assert caught.value.__suppress_context__

    def test_the_variable_itself_gives_the_same(self, tmp_path: Path) -> None:
        fields = {"name": "w", "kind": "", "title": "", "source": "hub", "dataset": UNCACHED, "prompt": "x"}
        code = (
            "from draftproof.spec import Workload\nfrom draftproof.workloads import load_workload\n"
            f"load_workload(Workload(**{fields}), None)"
        )
        variables = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
        variables["PYTHONPATH"] = os.pathsep.join(sys.path)
        variables.pop("HF_DATASETS_OFFLINE", None)
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert f"WorkloadUnavailable: needs data set '{UNCACHED}' in the local cache" in done.stderr
        assert str(tmp_path) not in done.stderr

    @pytest.mark.parametrize("gated", [True, False])
    def test_a_gated_data_set_says_how_to_get_access(self, monkeypatch: pytest.MonkeyPatch, gated: bool) -> None:
        why = "doesn't exist on the Hub or cannot be accessed." if gated else "is a gated dataset on the Hub."
        error = datasets.exceptions.DatasetNotFoundError(f"Dataset 'o/d' {why} token hf_abcdefgh1234")
        monkeypatch.setattr(datasets, "load_dataset_builder", raising(error))
        with pytest.raises(WorkloadUnavailable, match="needs access to the gated data set 'o/d'") as caught:
            load_workload(hub_workload(dataset="o/d", gated=gated), None)
        assert "enable with `hf auth login`" in str(caught.value)
        assert "https://huggingface.co/datasets/o/d" in str(caught.value)
        assert "hf_abcdefgh" not in str(caught.value)

    def test_an_unknown_name_is_not_taken_for_a_lost_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        error = datasets.exceptions.DatasetNotFoundError(
            "Dataset 'o/d' doesn't exist on the Hub or cannot be accessed."
        )
        monkeypatch.setattr(datasets, "load_dataset_builder", raising(error))
        with pytest.raises(WorkloadUnavailable, match="enable with a name and revision that exist"):
            load_workload(hub_workload(dataset="o/d"), None)

    def test_a_network_lost_in_mid_stream_is_a_skip_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def rows() -> Any:
            yield {"instruction": "a"}
            raise ConnectionError("reset")

        monkeypatch.setattr(datasets, "load_dataset_builder", fake_builder(COMMIT, rows()))
        with pytest.raises(WorkloadUnavailable, match="found ConnectionError: reset"):
            load_workload(hub_workload(dataset="o/d"), None)

    def test_the_commit_that_was_read_is_the_revision(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for asked in (None, "main", COMMIT):
            monkeypatch.setattr(datasets, "load_dataset_builder", fake_builder(COMMIT, [{"instruction": "a"}]))
            loaded = load_workload(hub_workload(dataset="o/d", revision=asked), None)
            assert (loaded.revision, loaded.source) == (COMMIT, "o/d")

    def test_a_cached_commit_never_stands_in_for_a_pinned_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(datasets, "load_dataset_builder", fake_builder("f" * 40, [{"instruction": "a"}]))
        with pytest.raises(WorkloadUnavailable, match=f"needs revision {COMMIT} .*; found revision f{{40}} "):
            load_workload(hub_workload(dataset="o/d", revision=COMMIT), None)

    @pytest.mark.parametrize("stand_in", [None, SimpleNamespace(__version__="3.6.0")])
    def test_the_package_must_be_there_and_too_new_to_run_code(
        self, monkeypatch: pytest.MonkeyPatch, stand_in: Any
    ) -> None:
        monkeypatch.setitem(sys.modules, "datasets", stand_in)
        with pytest.raises(WorkloadUnavailable, match=r"enable with pip install 'draftproof\[hub\]'"):
            load_workload(hub_workload(), None)

    def test_files_need_no_datasets_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        path = DATA / "chat.jsonl"
        assert len(load_workload(file_workload("chat", path), path).prompts) == 32

    def test_a_data_sets_own_code_is_never_run(self, edits: Path) -> None:
        (edits / "edits" / "edits.py").write_text(f"open({str(edits / 'ran')!r}, 'w')\n", "utf-8")
        with pytest.raises(DraftproofError, match="scripts are no longer supported"):
            load_workload(hub_workload(), edits)
        assert not (edits / "ran").exists()


def raising(error: Exception) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise error

    return call


def fake_builder(commit: str, rows: Any) -> Any:
    return lambda *_, **__: SimpleNamespace(hash=commit, as_streaming_dataset=lambda split: rows)


class TestScrub:
    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("no hf_AbCdEfGh12 here", "no <token> here"),
            ("Authorization: Bearer abc.def x", "Authorization: Bearer <token> x"),
            ("at https://u:p@host/a/b?X-Sig=1&t=2 end", "at https://host/a/b end"),
            ("in /home/someone/.cache/hf/file.json.", "in .../file.json."),
            ("two\n\nlines", "two lines"),
            ("org/name, train/test and 1/2", "org/name, train/test and 1/2"),
            ("hf://datasets/o/d@main/x.json", "hf://datasets/o/d@main/x.json"),
            ("https://huggingface.co/datasets/o/d", "https://huggingface.co/datasets/o/d"),
        ],
    )
    def test_what_is_private_goes_and_the_rest_stays(self, text: str, clean: str) -> None:
        assert one_line(text) == clean

    def test_home_and_the_token_in_use_never_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/data/Jo Doe")
        monkeypatch.setenv("HF_TOKEN", "plainsecret")
        assert one_line("plainsecret of /data/Jo Doe/x") == "<token> of ~/x"
        assert one_line("/data/Jo Doe") == "~"

    def test_long_text_is_cut(self) -> None:
        assert one_line("a" * 1000) == "a" * 400 + "..."


def slow_deal(num_prompts: int, batch_size: int, rotations: int, seed: int) -> list[tuple[int, ...]]:
    """The oracle: a hand of cards that is reshuffled when it cannot fill the next batch."""
    sets: list[tuple[int, ...]] = []
    epoch = -1
    hand: list[int] = []
    while len(sets) < rotations:
        if len(hand) < min(batch_size, num_prompts):
            epoch += 1
            hand = list(range(num_prompts))
            random.Random(f"{seed}-{epoch}").shuffle(hand)
        batch, hand = hand[:batch_size], hand[batch_size:]
        while len(batch) < batch_size:
            batch = (batch + batch[:num_prompts])[:batch_size]
        sets.append(tuple(batch))
    return sets


sizes = st.integers(1, 40)
seeds = st.integers(-(2**31), 2**31)


class TestDeal:
    @given(sizes, sizes, st.integers(1, 30), seeds)
    def test_equals_the_slow_dealer(self, num_prompts: int, batch_size: int, rotations: int, seed: int) -> None:
        sets = [deal(num_prompts, batch_size, rotation, seed) for rotation in range(rotations)]
        assert sets == slow_deal(num_prompts, batch_size, rotations, seed)

    @given(sizes, sizes, st.integers(0, 1000), seeds)
    def test_a_set_fills_the_batch_with_known_prompts(self, n: int, batch_size: int, rotation: int, seed: int) -> None:
        indices = deal(n, batch_size, rotation, seed)
        assert len(indices) == batch_size
        assert set(indices) <= set(range(n))
        assert indices == deal(n, batch_size, rotation, seed)

    @given(sizes, st.integers(1, 12), st.integers(0, 5), seeds)
    def test_sets_of_one_epoch_are_disjoint(self, num_prompts: int, batch_size: int, epoch: int, seed: int) -> None:
        per_epoch = num_prompts // batch_size
        sets = [deal(num_prompts, batch_size, epoch * per_epoch + batch, seed) for batch in range(per_epoch)]
        dealt = [index for indices in sets for index in indices]
        assert len(dealt) == len(set(dealt)) == per_epoch * batch_size

    @given(st.integers(1, 8), st.integers(1, 8), seeds)
    def test_an_epoch_covers_all_prompts_when_batches_fill_it(self, batch_size: int, batches: int, seed: int) -> None:
        dealt = [i for rotation in range(batches) for i in deal(batch_size * batches, batch_size, rotation, seed)]
        assert sorted(dealt) == list(range(batch_size * batches))

    def test_prompts_left_out_of_one_epoch_come_in_another(self) -> None:
        dealt = {index for rotation in range(30) for index in deal(10, 4, rotation, 0)}
        assert dealt == set(range(10))

    @given(sizes, st.integers(0, 100), st.integers(0, 20), seeds)
    def test_a_batch_above_the_workload_repeats_cyclically(self, n: int, more: int, rotation: int, seed: int) -> None:
        indices = deal(n, n + more, rotation, seed)
        assert sorted(indices[:n]) == list(range(n))
        assert all(indices[slot] == indices[slot % n] for slot in range(n + more))
        counts = Counter(indices).values()
        assert max(counts) - min(counts) <= 1

    def test_the_dealing_never_changes_between_releases(self) -> None:
        """Stored runs are compared set by set: another order would make them incomparable."""
        assert [deal(6, 2, rotation, 0) for rotation in range(4)] == [(0, 5), (3, 1), (4, 2), (4, 3)]

    def test_seeds_and_epochs_deal_differently(self) -> None:
        assert deal(32, 32, 0, 0) != deal(32, 32, 0, 1)
        assert deal(32, 32, 0, 0) != deal(32, 32, 1, 0)

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ((0, 1, 0), "the workload is empty"),
            ((3, 0, 0), "batch_size, rotation"),
            ((3, 1, -1), "batch_size, rotation"),
        ],
    )
    def test_nothing_can_be_dealt_from_or_to_nothing(self, arguments: tuple[int, int, int], told: str) -> None:
        with pytest.raises(DraftproofError, match=told):
            deal(*arguments, seed=0)
