"""Rules of the memory section: what is expected and what was measured, each shown where it is known."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure as Sheet
from matplotlib.patches import PathPatch

from draftproof.memorycosts import MemoryCost
from draftproof.report.drawing import Later
from draftproof.report.markdown import render_markdown
from draftproof.report.memory import TITLE, memory_table, section
from draftproof.report.parts import Page
from tests.figured import memory
from tests.reporting import cell, header, page, run

COSTS = [memory("ngram"), memory("eagle3", 1), memory("draft_model", 3)]


def test_the_table_by_hand() -> None:
    table = memory_table(run(memory=COSTS))
    assert table.body[0] == ["no_sd", "0.250", "0.000", "-", "-", "-", "22.50", "0.00", "22.51", "46,592", "-", "-"]
    assert table.body[3] == [
        "draft_model",
        "0.250",
        "0.003",
        "-",
        "-",
        "-",
        "22.50",
        "2.25",
        "24.82",
        "42,240",
        "9.1 %",
        "9.3 %",
    ]
    assert "Nothing is expected" not in table.note


def test_the_section_is_in_both_reports() -> None:
    results = run(cell(), memory=COSTS)
    assert "24.82" in page(results).text
    assert f"## {TITLE}" in render_markdown(results, header())


@pytest.mark.parametrize("costs", [[], [memory("ngram", target_static_bytes=None, kv_cache_tokens=None)]])
def test_without_figures_there_is_no_section(costs: list[MemoryCost]) -> None:
    assert section(Page(run(memory=costs), header())) is None


def test_what_was_measured_is_shown_without_an_expectation() -> None:
    nothing = ("static_bytes", "kv_bytes_per_token", "target_static_bytes", "target_kv_bytes_per_token")
    bare: dict[str, Any] = dict.fromkeys(nothing) | {"unknown": "its folder is not on this machine"}
    costs = [memory("eagle3", **bare, kv_cache_tokens=40000)]
    table = memory_table(run(memory=costs))
    assert table.body == [
        ["no_sd", "-", "-", "-", "-", "-", "-", "-", "22.51", "46,592", "-", "-"],
        ["eagle3", "-", "-", "-", "-", "-", "-", "-", "26.21", "40,000", "-", "14.1 %"],
    ]
    assert "Nothing is expected of eagle3 on tiny: its folder is not on this machine" in table.note
    (figure,) = table.figures
    assert figure.title == "KV cache of tiny"
    assert "lost to speculation, measured: eagle3 14.1 %" in figure.description
    page(run(cell(), memory=costs))


def test_an_engine_that_did_not_say_has_its_expectation() -> None:
    costs = [memory("eagle3", 1, kv_cache_tokens=None, base_kv_cache_tokens=None, kv_pool_bytes=None)]
    table = memory_table(run(memory=costs))
    assert table.body[1] == ["eagle3", "0.250", "0.001", "-", "-", "-", "22.50", "0.75", "-", "-", "3.2 %", "-"]
    assert "measured: memory set aside" not in table.note
    page(run(cell(), memory=costs))


def test_reasons_are_few_and_cut() -> None:
    costs = [memory(f"v{number}", unknown="r" * 999) for number in range(9)]
    note = memory_table(run(memory=costs)).note
    assert "and 5 more" in note
    assert len(note) < 2500


def drawn(number: int, costs: list[MemoryCost]) -> Any:
    figure = memory_table(run(memory=costs)).figures[number].svg
    assert isinstance(figure, Later)
    sheet = Sheet()
    figure.draw(sheet)
    return sheet


def test_bars_begin_at_0_and_stack_the_drafter_on_the_target() -> None:
    (weights,) = drawn(0, COSTS).axes
    left, right = drawn(1, COSTS).axes
    assert [axes.get_xlim()[0] for axes in (weights, left, right)] == [0, 0, 0]
    ends = {round(one.get_path().get_extents().x1, 2) for one in left.patches if isinstance(one, PathPatch)}
    assert ends == {22.50, 23.25, 24.75}
    (measured,) = left.lines
    assert [round(float(value), 2) for value in measured.get_xdata()] == [22.51, 22.51, 23.27, 24.82]
    assert [text.get_text() for text in left.get_yticklabels()] == ["no_sd", "ngram", "eagle3", "draft_model"]


def test_room_that_speculation_gained_is_not_cut_off() -> None:
    _, right = drawn(1, [memory("ngram", kv_cache_tokens=50000)]).axes
    assert right.get_xlim()[0] < 0


def test_targets_and_builds_have_figures_of_their_own() -> None:
    costs = [memory("ngram", target=f"t{number}") for number in range(9)]
    table = memory_table(run(memory=costs))
    assert len({figure.title for figure in table.figures}) == 8
    assert "The first 4 of 9 targets are drawn, 5 are not." in table.legend
    cells = [cell(), cell(build="base")]
    table = memory_table(run(*cells, memory=[memory("ngram"), memory("ngram", build="base")]))
    assert [row[0] for row in table.body] == [
        f"{variant} ({build} build)" for build in ("new", "base") for variant in ("no_sd", "ngram")
    ]
