"""Rules of the end of a pytest run: it fits the terminal, colours only where they are wanted, whole in a log."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from draftproof.comparison import compare
from draftproof.gate import Verdict
from draftproof.report import view
from draftproof.report.compared import lines as compare_lines
from draftproof.report.templates import VERDICTS
from draftproof.report.terminal import GATES_SHOWN, STYLES, comparison_lines, summary_lines
from draftproof.snapshot import Snapshot
from tests.reporting import HOSTILE, broken, cell, ratio, reference, run
from tests.snapshots import NGRAM, Arm, make_limits, make_run, make_series, make_snapshot

RUN = run(
    reference("code_edit", 16),
    cell("draft_model", "code_edit", 16, speedup=ratio(0.61, 0.55, 0.68), verdict="REGRESSED"),
    cell("ngram", "code_edit", 16, verdict="INSUFFICIENT"),
    broken("eagle3"),
)
ESCAPE = "\x1b["
WHOLE = ["variant", "workload", "B", *view.metric_titles(), "verdict", "outputs"]


def table(lines: list[str]) -> list[str]:
    """The head and a line for each cell."""
    return lines[: 1 + len(RUN.cells)]


def test_a_log_has_the_whole_table_whatever_its_width() -> None:
    """pytest takes 80 columns where there is no terminal; a log has room."""
    for width in (20, 80, 120):
        lines = summary_lines(RUN, width)
        assert [title for title in WHOLE if title not in lines[0]] == []
        assert "left out" not in "\n".join(lines)
        assert ESCAPE not in "\n".join(lines)


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(80, ["tok/s", "tok/step", "same output", "no-SD itself"]), (120, []), (200, [])],
)
def test_on_a_terminal_the_table_fits(width: int, left_out: list[str]) -> None:
    """What leaves it is named; cell, speedup and both verdicts always stay."""
    lines = summary_lines(RUN, width, terminal=True)
    assert max(map(len, table(lines))) <= width
    assert [title for title in WHOLE if title in lines[0]] == [title for title in WHOLE if title not in left_out]
    note = lines[1 + len(RUN.cells)]
    assert (note == f"left out for want of width, and in the report: {', '.join(left_out)}") == bool(left_out)
    for verdict in ("REGRESSED", "INSUFFICIENT", "FAILED", "0.61x [0.55, 0.68]"):
        assert verdict in "\n".join(table(lines))


@given(st.integers(40, 200), st.text("abc_", min_size=1, max_size=30))
def test_no_line_of_the_table_is_wider_than_the_terminal(width: int, name: str) -> None:
    """Names of any length fold; nothing is lost but the columns that are named."""
    lines = summary_lines(run(cell(name, name)), width, terminal=True)
    head = next(index for index, line in enumerate(lines) if line.startswith("left out") or "faster" in line.lower())
    assert max(map(len, lines[:head])) <= width


def test_verdicts_have_colours_only_where_they_are_wanted() -> None:
    """A word without its colour is still the word."""
    plain, coloured = summary_lines(RUN, 120, terminal=True), summary_lines(RUN, 120, terminal=True, colour=True)
    assert ESCAPE not in "\n".join(plain)
    assert re.search(r"\x1b\[1;31m *REGRESSED\x1b\[0m", "\n".join(coloured))
    assert re.search(r"\x1b\[33m *INSUFFICIENT\x1b\[0m", "\n".join(coloured))
    assert [Text.from_ansi(line).plain.rstrip() for line in coloured] == plain


@pytest.mark.parametrize("name", ["NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"])
def test_the_environment_is_asked_by_the_caller_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """pytest has settled NO_COLOR, FORCE_COLOR, PY_COLORS and --color before: no second answer here."""
    before = summary_lines(RUN, 100, terminal=True, colour=True), summary_lines(RUN, 100)
    monkeypatch.setenv(name, "dumb" if name == "TERM" else "1")
    assert (summary_lines(RUN, 100, terminal=True, colour=True), summary_lines(RUN, 100)) == before


def test_every_tone_has_a_colour() -> None:
    assert {tone for _, tone, _ in VERDICTS.values()} == set(STYLES)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_others_do_not_reach_the_terminal_raw(text: str) -> None:
    results = run(
        cell(text, text),
        skipped={text: text},
        notes=[text],
        finished=False,
        partial=text,
    )
    for line in summary_lines(results, 80, terminal=True):
        assert all(char.isprintable() for char in line), line


# --- the comparison ---------------------------------------------------------------------------------------------------

SLOW = compare([make_run("base")], [make_run(arm=Arm(step_s=0.0156, length=2.0))], make_limits())


def test_a_comparison_is_told_as_the_command_tells_it() -> None:
    assert comparison_lines(SLOW) == compare_lines(SLOW)
    coloured = comparison_lines(SLOW, colour=True)
    assert coloured[0].startswith("\x1b[1;31mREGRESSED")
    assert [Text.from_ansi(line).plain for line in coloured] == comparison_lines(SLOW)


def test_gates_that_one_reason_stops_are_one_line() -> None:
    found = compare([make_run("base", sets=3)], [make_run(sets=3)], make_limits())
    assert comparison_lines(found) == [
        "INSUFFICIENT 4 gates (t-ngram-w-b2, t-no_sd-w-b2): 3 prompt sets in common; a gate needs 12",
        "not judged against 1 run: 4 of 4 gates not judged (0 tests, Holm)",
    ]


def test_of_many_gates_the_most_important_are_told() -> None:
    """Red ones first: those of a run of many cells would scroll away."""

    def many(luck: str, last: Arm) -> list[Snapshot]:
        cells = [make_series(NGRAM, luck=luck, variant=f"v{n}", workload=f"w{n}") for n in range(40)]
        return [make_snapshot(luck, [*cells, make_series(last, luck=luck)])]

    found = compare(many("base", NGRAM), many("new", Arm(step_s=0.02, length=2.0)), make_limits())
    lines = comparison_lines(found)
    assert len(found.findings) == 3 * 41
    assert lines[0].startswith("REGRESSED    t-ngram-w-b2, system [ngram]")
    assert lines[GATES_SHOWN] == f"and {3 * 41 - GATES_SHOWN} more gates, in the report"
    assert lines[-1].startswith("red against 1 run")


def test_a_reason_of_others_is_made_visible() -> None:
    bad = make_run()
    verdict: Verdict = "FAILED"
    series = [bad.series[0], make_series(NGRAM, luck="x", throughput=verdict, reason="\x1b[2Jgone")]
    found = compare([make_run("base")], [make_snapshot("new", series)], make_limits())
    assert not [line for line in comparison_lines(found) if ESCAPE in line]
    assert "[U+001B][2Jgone" in "\n".join(comparison_lines(found))
