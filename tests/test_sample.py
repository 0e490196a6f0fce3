"""README's figures are the committed sample's, and the sample tells nothing of the machine that it was made on."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draftproof.catalog import load_catalog
from draftproof.errors import DraftproofError
from draftproof.records import RunFolder
from draftproof.results import RunResults, analyse
from tests.reporting import HOSTILE, broken, cell, ratio, reference, run

TOOL = Path(__file__).resolve().parents[1] / "tools" / "sample_report.py"
README = "# Title\n\n<!-- sample:begin -->\nold\n<!-- sample:end -->\nrest\n"
RESULTS = run(reference(), cell("eagle", "code_edit", 16, verdict="REGRESSED", speedup=ratio(0.6, 0.5, 0.7)), broken())


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("sample_report", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A sample's folder, with all that one has."""
    folder = tmp_path / "sample"
    folder.mkdir()
    for name in tool.SHOTS:
        (folder / name).write_bytes(b"\x89PNG")
    (folder / "index.html").write_text("<p>~/models, /usr/bin/python</p>", encoding="utf-8")
    (folder / "summary.md").write_text("# draftproof", encoding="utf-8")
    (folder / "summary.json").write_bytes(msgspec.json.encode(RESULTS))
    return folder


def main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["sample_report.py", *map(str, arguments)])
    status = tool.main()
    assert isinstance(status, int)
    return status


def test_the_block_has_a_row_for_each_speculative_cell() -> None:
    lines = [line for line in tool.block(RESULTS).splitlines() if line.startswith("|")]
    assert lines == [
        "| variant | workload | B | speedup [95 %] | AL | same output | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| draft_model | chat | 1 | - | - | - | FAILED |",
        "| eagle | code_edit | 16 | 0.60x \\[0.50, 0.70\\] | 2.50 | 12/12 (75-100 %) | REGRESSED |",
    ]


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.isprintable()])
def test_names_of_others_add_no_column(text: str) -> None:
    lines = [line for line in tool.block(run(cell(text))).splitlines() if line.startswith("|")]
    assert len(lines) == 3
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_the_block_goes_between_the_marks_and_nothing_else_changes() -> None:
    once = tool.with_block(README, "new")
    assert once == README.replace("old", "new")
    assert tool.with_block(once, "new") == once


@pytest.mark.parametrize("text", ["", tool.BEGIN, tool.END + tool.BEGIN, README + README])
def test_a_readme_without_its_marks_is_refused(text: str) -> None:
    with pytest.raises(DraftproofError, match=r"README\.md must be a text with one"):
        tool.with_block(text, "new")


def test_a_readme_that_differs_is_found_and_can_be_written(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(README, encoding="utf-8")
    places = ("--sample", sample, "--readme-file", readme)
    assert main(monkeypatch, "--check", *places) == 1
    assert "README.md differs from the sample" in capsys.readouterr().out
    assert readme.read_text(encoding="utf-8") == README
    assert main(monkeypatch, "--readme", *places) == 0
    assert "0.60x" in readme.read_text(encoding="utf-8")
    assert main(monkeypatch, "--check", *places) == 0
    readme.write_text(readme.read_text(encoding="utf-8").replace("0.60x", "0.61x"), encoding="utf-8")
    assert main(monkeypatch, "--check", *places) == 1


def test_a_whole_sample_has_no_problem(sample: Path) -> None:
    assert tool.problems(sample) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("index.html", "from /home/alice/x.py", "index.html, line 1: '/home/alice'"),
        ("summary.md", "\n/Users/bob", "summary.md, line 2: '/Users/bob'"),
        ("summary.json", '"/root"', "summary.json, line 1: '/root'"),
        ("records.jsonl", '{"node": "secret-host"}', "records.jsonl, line 1: 'secret-host'"),
        ("g0-ngram.log", "x", "g0-ngram.log is not of a sample"),
        ("phone-dark.png", "x" * 250_001, "phone-dark.png has more than 250,000 bytes"),
    ],
)
def test_what_does_not_belong_into_a_sample_is_found(
    sample: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, problem: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-host.example")
    (sample / name).write_text(text, encoding="utf-8")
    assert tool.problems(sample) == [problem]


def test_a_missing_picture_is_found(sample: Path) -> None:
    (sample / "phone-dark.png").unlink()
    assert tool.problems(sample) == [f"phone-dark.png is missing; {tool.AGAIN}"]


def test_commands_keep_their_words_but_not_this_machines_folders() -> None:
    words = [
        "pytest",
        "--sd-report-dir",
        "/data/x/grid/",
        "--sd-run-dir=/data/y",
        "tests_perf/a.py",
        "a/b",
        "-k",
        "x or y",
    ]
    lines = [{"record": "session", "command": words}, {"record": "block", "seconds": 0.1, "arm": "/not/a/command"}]
    raw = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    first, second = tool.without_folders(raw).splitlines()
    assert json.loads(first)["command"] == [
        *("pytest", "--sd-report-dir", "grid", "--sd-run-dir=y", "tests_perf/a.py", "a/b", "-k", "x or y")
    ]
    assert second == raw.splitlines()[1]


def test_an_old_summary_says_what_to_do(sample: Path) -> None:
    (sample / "summary.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DraftproofError, match="make it again with"):
        tool.load(sample)


# -- the committed one -------------------------------------------------------------------------------------------------


@pytest.fixture
def committed() -> Path:
    if not tool.SAMPLE.exists():
        pytest.skip("needs reports/sample; found none; enable with python tools/sample_report.py RUN")
    folder: Path = tool.SAMPLE
    return folder


def test_readme_has_the_samples_figures(committed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the sample is whole, of a moderate size and without home folders or this machine's name."""
    assert main(monkeypatch, "--check") == 0


def test_the_samples_figures_are_those_of_its_records(committed: Path) -> None:
    if not (committed / "run.json").exists():
        pytest.skip(f"needs the sample's records; found none: they have more than {tool.RECORDS_BYTES:,} bytes")
    results: RunResults = analyse(RunFolder(committed), load_catalog().thresholds)
    assert tool.block(results) == tool.block(tool.load(committed))
