"""Rules of the figures of speedups: a panel for each workload, every figure where it belongs, whatever was measured."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

from draftproof.analysis.stats import Ratio
from draftproof.published import Published
from draftproof.report import room
from draftproof.report.drawing import INK, Later, look
from draftproof.report.endtoend import section, table
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Page as Asked
from draftproof.report.parts import Table
from draftproof.report.speed import break_even_figures, break_even_text
from draftproof.results import CellResult, RunResults, decays
from tests.figures import axes_of, marked, row_names, xs, ys
from tests.reporting import HOSTILE, Page, arm, broken, cell, header, page, ratio, reference, run

FIGURE_1 = Published(speedup=1.73, estimator="ratio of means", source="arXiv 2601.11580 Figure 1")


def exact(value: float) -> Ratio:
    return ratio(value, value * 0.95, value * 1.05)


def over_sizes(variant: str, *speedups: float, workload: str = "chat", **changes: Any) -> list[CellResult]:
    return [cell(variant, workload, 4**place, speedup=exact(value), **changes) for place, value in enumerate(speedups)]


CONTROLLED = [arm("no_sd"), arm("ngram"), arm("oracle", control="oracle")]
GRID = run(
    reference(),
    *over_sizes("oracle", 3.0, 2.0, 1.5),
    *over_sizes("ngram", 1.5, 1.2, 0.9),
    *over_sizes("eagle", 2.0, 1.5, 0.8, published=FIGURE_1),
    cell("ngram", "code", 4, speedup=exact(1.1)),
    cell("eagle", "code", 4, speedup=exact(0.7), published=FIGURE_1),
    arms=CONTROLLED,
)


def found(results: RunResults) -> Table:
    made = table(results)
    assert made is not None
    return made


def drawn(axes: Axes) -> list[tuple[str, str, list[float]]]:
    """(Colour, line style, heights) of each line but the rule."""
    return [(str(line.get_color()), str(line.get_linestyle()), ys(line)) for line in axes.lines if xs(line) != [0, 1]]


def test_a_panel_for_each_workload_with_a_line_for_each_variant() -> None:
    chat, code = found(GRID).figures
    assert (chat.title, code.title) == ("chat", "code")
    axes = axes_of(chat)
    assert drawn(axes) == [
        (look("ngram").colour, "-", [1.5, 1.2, 0.9]),
        (look("eagle").colour, "-", [2.0, 1.5, 0.8]),
        (look("eagle").colour, ":", [1.73] * 3),
        (look("oracle").colour, "--", [3.0, 2.0, 1.5]),
    ]
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "4", "16"]
    assert axes.get_ylabel() == "speedup over no-SD (x)"


def test_the_axis_begins_at_0_and_has_a_line_at_1() -> None:
    for results in (GRID, run(*over_sizes("ngram", 0.2, 0.1))):
        axes = axes_of(found(results).figures[0])
        low, high = axes.get_ylim()
        assert low == 0
        assert high > 1
        assert any(ys(line) == [1.0, 1.0] for line in axes.lines)


def test_panels_of_a_target_share_their_axis() -> None:
    results = run(*over_sizes("ngram", 1.5, 1.2), *over_sizes("ngram", 4.0, 3.0, workload="code"))
    chat, code = (axes_of(figure).get_ylim() for figure in found(results).figures)
    assert chat == code


def test_one_batch_size_alone_has_rows_with_names() -> None:
    axes = axes_of(found(GRID).figures[1])
    assert row_names(axes) == ["ngram", "eagle"]
    assert [xs(line) for line in marked(axes)] == [[1.1], [0.7], [1.73]]
    assert axes.get_xlabel() == "speedup over no-SD (x)"
    assert axes.get_xlim()[0] == 0


def test_the_table_holds_what_the_figures_draw() -> None:
    made = found(GRID)
    assert made.head[3:] == ["speedup [95 %]", "by the paper's estimator [95 %]", "published"]
    assert ["eagle", "chat", "4", "1.50x [1.42, 1.58]", "-", "1.73x"] in made.body
    assert ["ngram", "code", "4", "1.10x [1.04, 1.16]", "-", "-"] in made.body
    assert FIGURE_1.source in made.note
    assert "1.73x" in render_markdown(GRID, header())


def test_nothing_published_needs_no_column() -> None:
    made = found(run(*over_sizes("ngram", 1.5, 1.2)))
    assert made.head == ["variant", "workload", "B", "speedup [95 %]"]
    assert "ublished" not in made.note + made.legend


def test_a_base_build_is_hollow_and_named() -> None:
    results = run(*over_sizes("ngram", 1.5, 1.2), *over_sizes("ngram", 1.4, 1.1, build="base"))
    made = found(results)
    new, base = (line for line in axes_of(made.figures[0]).lines if line.get_marker() == look("ngram").marker)
    assert new.get_markerfacecolor() == look("ngram").colour
    assert base.get_markerfacecolor() == INK["bg"]
    assert "Hollow: the base build." in made.legend
    assert "ngram (base build) 1.40x" in made.figures[0].description


def test_a_figure_says_in_words_what_it_draws() -> None:
    text = found(GRID).figures[0].description
    assert text.startswith("Speedup over no-SD over batch sizes 1 to 16, 0.80x to 3.00x; ")
    assert "eagle 2.00x [1.90, 2.10] at 1 (published 1.73x) and 0.80x [0.76, 0.84] at 16 (published 1.73x)" in text
    shown = page(GRID)
    assert text in shown.values("aria-label")
    assert shown.values("id").count("speedups") == 1


def test_the_link_on_top_says_speedups() -> None:
    made = section(Asked(GRID, header()))
    assert made is not None
    assert (made.id, made.title, made.nav) == ("speedups", "End to end", "Speedups")
    text = render_html(GRID, header())
    assert '<a href="#speedups">Speedups</a>' in text
    assert '<h2 id="speedups">End to end</h2>' in text


def test_controls_are_dashed_and_the_legend_says_so() -> None:
    assert "Dashed: controls" in found(GRID).legend
    assert "Dashed" not in found(run(*over_sizes("ngram", 1.5, 1.2))).legend
    names = re.findall(r"</svg>\s*([^<]+)</li>", found(GRID).legend)
    assert names == ["ngram", "eagle", "oracle"]


@pytest.mark.parametrize("results", [run(), run(reference()), run(reference(), broken()), run(cell(speedup=None))])
def test_a_run_without_a_speedup_has_no_section(results: RunResults) -> None:
    assert table(results) is None
    assert 'href="#speedups"' not in render_html(results, header())


def test_cells_without_an_interval_are_counted() -> None:
    made = found(run(reference(), cell(), broken("eagle"), cell("eagle3", speedup=None)))
    assert len(made.body) == 1
    assert "left out: 2 cells" in made.note


positive = st.floats(min_value=0, max_value=1e300, exclude_min=True, allow_subnormal=False)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(positive, positive, positive).map(sorted), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_however_wild_the_intervals_are_the_page_is_drawn(
    ratios: list[list[float]], endless: bool, sizes: bool
) -> None:
    """An end without a bound, a figure of 1e300: what cannot be drawn is in the table."""
    cells = [
        cell("ngram", "chat", place + 1 if sizes else 1, speedup=ratio(v, low, float("inf") if endless else high))
        for place, (low, v, high) in enumerate(ratios)
    ]
    made = found(run(*cells))
    assert len(made.body) == len(cells)
    undrawn = [v for _, v, _ in ratios if v > 1000]
    assert (f"no axis holds them: {len(undrawn)}." in made.note) == bool(undrawn)
    for figure in made.figures:
        assert isinstance(figure.svg, Later)
        assert not re.search(r"\bnan\b|\binf\b", Page(figure.svg.__html__()).text)
        axes = axes_of(figure)
        low, high = axes.get_ylim() if axes.get_xscale() == "log" else axes.get_xlim()
        assert low == 0
        assert 1 < high < 2000


@pytest.mark.parametrize("name", HOSTILE)
def test_foreign_names_stay_text(name: str) -> None:
    cells = [*over_sizes(name, 1.5, 1.2), *over_sizes("ngram", 1.5, 1.2, workload=name), cell(name, name, 2)]
    page(run(*cells, decays=decays(cells)))


def test_a_run_of_very_many_panels_and_variants_says_what_is_not_drawn() -> None:
    cells = [cell(f"v{v}", f"w{w}", 4**s) for w in range(30) for v in range(25) for s in range(2)]
    made = found(run(*cells))
    assert len(made.figures) == room.PANELS
    assert f"The first {room.PANELS} of 30 panels are drawn, {30 - room.PANELS} are not." in made.legend
    assert f"{25 - room.LINES} more are not drawn" in made.figures[0].description
    assert len(made.body) == len(cells)
    assert len(marked(axes_of(made.figures[0]))) == room.LINES


# -- break-even --------------------------------------------------------------------------------------------------------


def with_curves(*cells: CellResult) -> RunResults:
    return run(*cells, decays=decays(list(cells)))


def told(value: float) -> Ratio:
    return Ratio(value=value, low=value * 0.95, high=value * 1.05, clusters=12, method="", log_error=0.02)


def curve(variant: str, *speedups: float, workload: str = "chat") -> list[CellResult]:
    return [cell(variant, workload, 4**place, speedup=told(value)) for place, value in enumerate(speedups)]


def test_a_row_for_each_variant_and_an_arrow_where_it_lies_outside() -> None:
    results = with_curves(
        *curve("ngram", 1.5, 1.2, 0.8), *curve("eagle", 0.6, 0.5, 0.4), *curve("eagle3", 3.0, 2.8, 2.6)
    )
    (figure,), note = break_even_figures(results)
    assert note == ""
    axes = axes_of(figure)
    assert row_names(axes) == ["ngram", "eagle", "eagle3"]
    marks = {line.get_marker(): ys(line) for line in axes.lines}
    assert marks["<"] == [1]
    assert marks[">"] == [2]
    (inside,) = [line for line in axes.lines if line.get_marker() == look("ngram").marker]
    median = results.decays[0].break_even.median
    assert xs(inside) == [median]
    assert f"ngram {break_even_text(results.decays[0])}; eagle not reached in the grid: below 1" in figure.description


def test_a_panel_for_each_workload_in_the_section() -> None:
    results = with_curves(*curve("ngram", 1.5, 0.8), *curve("ngram", 1.5, 0.9, workload="code"))
    text = page(results).text
    assert "Break-even, chat" in text
    assert "Break-even, code" in text
    assert "batch size (log scale)" in text
