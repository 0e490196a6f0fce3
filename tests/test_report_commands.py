"""Rules of commands on a page: exact, without anybody's home folder, and ready for a shell."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.records import SessionLine
from draftproof.report import commands
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from tests.reporting import HOSTILE, broken, cell, header, markdown_tags, reference, run
from tests.reporting import page as read_page


def session(*command: str, **fields: Any) -> SessionLine:
    said: dict[str, Any] = {
        "session": 0,
        "started": "2026-01-02T03:04:05Z",
        "draftproof": "0.9",
        "git_commit": "abcdef0123456789",
        "git_dirty": False,
        "gpu_state": [],
    }
    return SessionLine(command=list(command), **(said | fields))


# --- lines for a shell ------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="~/"), min_size=1)))
def test_a_shell_reads_back_what_was_given(words: list[str]) -> None:
    assert shlex.split(commands.shell_line(words)) == words


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("/home/alice/runs/a", "~/runs/a"),
        ("/home/alice", "~"),
        ("/Users/alice/my runs", "~/'my runs'"),
        ("--sd-run-dir=/home/alice/x", "--sd-run-dir ~/x"),
        ("--sd-run-dir=/root/a b", "--sd-run-dir ~/'a b'"),
        (f"{Path.home()}/y", "~/y"),
        ("/opt/runs", "/opt/runs"),
        ("test_x[a-b1]", "'test_x[a-b1]'"),
        ("hf_abcdefgh1234", "'<token>'"),
        ("https://user:pass@example.org/x?key=1", "https://example.org/x"),
        ("", "''"),
        ("$(rm x)", "'$(rm x)'"),
    ],
)
def test_home_folders_and_tokens_are_taken_out(word: str, line: str) -> None:
    """Whoever's home it is; what is left of the path is quoted, the tilde is not: a shell reads it."""
    assert commands.shell_line([word]) == line


@pytest.mark.parametrize(
    ("command", "given_options"),
    [
        (["pytest"], []),
        (["pytest", "--sd-catalog", "a", "-k", "x", "--sd-catalog=b"], ["--sd-catalog", "a", "--sd-catalog", "b"]),
        (["pytest", "--sd-study", "s", "--sd-gate", "--sd-run-dir", "r"], []),
        (["pytest", "--sd-python"], []),
        (["pytest", "--sd-engine=replay", "--sd-replay", "r"], ["--sd-engine", "replay", "--sd-replay", "r"]),
    ],
)
def test_only_what_decides_a_cell_is_given_again(command: list[str], given_options: list[str]) -> None:
    assert commands.given(command) == given_options


# --- one cell alone ---------------------------------------------------------------------------------------------------


def test_one_cell_runs_again_with_the_options_of_the_last_session() -> None:
    sessions = [session("pytest"), session("pytest", "--sd-study", "default", "--sd-catalog", "/home/alice/my catalog")]
    results = run(reference(), cell(), sessions=sessions)
    line = commands.again(results, "tests_perf/test_throughput.py::test_speedup[tiny-ngram-chat-b1]")
    assert line == (
        "pytest --sd-study default --sd-catalog ~/'my catalog' --sd-fresh "
        "'tests_perf/test_throughput.py::test_speedup[tiny-ngram-chat-b1]'"
    )
    assert "--sd-catalog" not in commands.again(run(cell()), "test_x")


def test_the_cell_that_is_shown_is_the_one_that_somebody_will_ask_about() -> None:
    red = cell("eagle", verdict="REGRESSED")
    assert commands.example(run(reference(), cell(), red)) is red
    assert commands.example(run(reference(), cell(), broken())) == broken()
    assert commands.example(run(reference(), cell())) == cell()
    assert commands.example(run(reference())) == reference()
    assert commands.example(run()) is None


def test_no_sd_is_asked_for_its_records_alone() -> None:
    assert [asked for asked, _ in commands.tests_of(reference())] == ["are the records sound"]
    assert [asked for asked, _ in commands.tests_of(cell())] == ["is it faster", "is it the same"]


def test_the_named_tests_exist() -> None:
    root = Path(__file__).resolve().parents[1]
    for test in (commands.SPEEDUP_TEST, commands.OUTPUTS_TEST, commands.RECORDS_TEST):
        file, _, name = test.partition("::")
        assert f"def {name}(" in (root / file).read_text(encoding="utf-8")


# --- on the page ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_each_session_is_there_with_its_exact_command(render: Any) -> None:
    sessions = [
        session("pytest", "--sd-study", "default", "--sd-run-dir", "/home/alice/a"),
        session("pytest", "-k", "a or b", session=1, git_dirty=True),
        session("pytest", session=2, git_commit=None),
    ]
    text = str(render(run(cell(), sessions=sessions), header())).replace("&#39;", "'")
    for what in (
        "Environment and exact commands",
        "pytest --sd-study default --sd-run-dir ~/a",
        "pytest -k 'a or b'",
        "abcdef012345",
        "(dirty)",
        "2026-01-02T03:04:05Z",
        "One cell alone",
        "test_same_outputs_as_no_sd[tiny-ngram-chat-b1]'",
    ):
        assert what in text.replace("\\", ""), what
    assert "alice" not in text


def test_commands_are_code() -> None:
    """Copied as they are: no backslash of Markdown's in them."""
    results = run(cell(), sessions=[session("pytest", "tests_perf", "-k", "a_b[c]*")])
    assert "<code>pytest tests_perf -k &#39;a_b[c]*&#39;</code>" in render_html(results, header())
    assert "`pytest tests_perf -k 'a_b[c]*'`" in render_markdown(results, header())


def test_markdown_names_no_home_folder() -> None:
    """As the page does not: records hold none, but for what slipped in."""
    where = "/home/alice/vllm/x.py, /Users/alice/y.py and /root/z.py"
    results = run(cell(reason=where), notes=[where], skipped={"a": where}, sessions=[session("pytest", where)])
    text = render_markdown(results, header())
    assert "alice" not in text
    assert "/root" not in text
    assert "\\~" not in text
    assert "~/vllm/x.py" in text


def test_a_run_without_sessions_or_cells_still_says_what_it_ran_in() -> None:
    for results in (run(arms=[]), run(cell()), run(reference())):
        found = read_page(results)
        assert "The study, as it was asked for" in found.text
        assert "Exact commands" not in found.text
    assert "One cell alone" not in read_page(run(arms=[])).text


@pytest.mark.parametrize("text", HOSTILE)
def test_untrusted_text_stays_text(text: str) -> None:
    results = run(cell(), sessions=[session("pytest", text, started=text, draftproof=text, git_commit=text)])
    found = read_page(results)
    assert not [char for char in found.text if not (char.isprintable() or char in "\n\t")]
    markdown = render_markdown(results, header())
    markdown.encode()
    assert not {"html_inline", "html_block", "link_open", "image", "fence"} & markdown_tags(markdown)
