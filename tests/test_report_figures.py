"""Rules of the figures of time and acceptance: drawn is what was measured, on axes that begin where they should."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Sheet

from draftproof.analysis.anatomy import anatomy_of
from draftproof.anatomy import Anatomies, CellAnatomy
from draftproof.report import anatomy, drawing, heatmaps, panels, room, stages, view
from draftproof.report.drawing import INK, Later
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Figure, Table
from draftproof.report.stagefigures import STAGE_LOOKS, parts_of
from draftproof.results import RunResults
from tests.figured import COST, full, requests, sums
from tests.reporting import HOSTILE, arm, cell, header, page, ratio, run

seconds = st.floats(0, 1e3, allow_nan=False)


def table(results: RunResults, name: str) -> Table:
    found = {made.name: made for made in [*stages.tables(results), *anatomy.tables(results)]}
    return found[name]


def sheet_of(figure: Figure) -> Any:
    """A sheet of matplotlib's, on which it is drawn before it becomes text."""
    assert isinstance(figure.svg, Later)
    sheet = Sheet()
    figure.svg.draw(sheet)
    return sheet


def labels(sheet: Any) -> list[str]:
    return [text.get_text() for text in sheet.findobj(lambda artist: hasattr(artist, "get_text")) if text.get_text()]


FULL = full()
NAMES = ["shares", "expected", "row-prices", "by-request", "by-place", "by-position", "maps", "differences", "overlap"]


@pytest.mark.parametrize("name", NAMES)
def test_each_table_has_figures_that_say_in_words_what_they_show(name: str) -> None:
    figures = table(FULL, name).figures
    assert figures
    for figure in figures:
        assert re.search(r"\d", figure.description)
        assert figure.description.rstrip().endswith(".")
        assert all(axes.get_xlabel() or axes.get_ylabel() for axes in sheet_of(figure).axes)


def test_all_of_them_are_on_the_page_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = page(FULL)
    assert found.tags.count("figure") > sum(len(table(FULL, name).figures) for name in NAMES)
    assert len([link for link in found.values("xlink:href") if link.startswith("data:image/png;base64,i")]) >= 4
    monkeypatch.setattr(drawing, "svg", lambda *_: pytest.fail("Markdown has no drawings"))
    render_markdown(FULL, header())


def test_names_of_others_stay_text_in_figures() -> None:
    text = " ".join(HOSTILE)
    results = full(sizes=(1,))
    cells = [
        msgspec.structs.replace(
            one,
            cell=msgspec.structs.replace(one.cell, workload=text, target=text, variant=f"{one.cell.variant}_{text}"),
        )
        for one in results.cells
    ]
    known = {old.cell.id: new.cell.id for old, new in zip(results.cells, cells, strict=True)}

    def renamed(pair: Any) -> Any:
        return msgspec.structs.replace(pair, first=known[pair.first], second=known[pair.second])

    found = results.anatomies
    changed = Anatomies(
        cells=[msgspec.structs.replace(one, cell=known[one.cell]) for one in found.cells],
        differences=[renamed(pair) for pair in found.differences],
        overlaps=[renamed(pair) for pair in found.overlaps],
    )
    shown = page(msgspec.structs.replace(results, cells=cells, anatomies=changed))
    assert not [char for char in shown.text if not (char.isprintable() or char in "\n\t")]
    assert shown.tags.count("figure") > 8


@pytest.mark.parametrize("text", [*HOSTILE, "变体", "x" * 500])
def test_a_name_in_a_drawing_is_one_short_line(text: str) -> None:
    shown = panels.named(text)
    assert len(shown) <= panels.NAME_CHARS
    assert shown.isprintable()

    def draw(sheet: Sheet) -> None:
        sheet.subplots().set_title(shown)

    assert "<script" not in drawing.svg("a", (3, 2), draw)


def test_a_figure_of_thousands_says_what_it_leaves_out() -> None:
    assert room.drawn([*range(3)]) == ([0, 1, 2], "")
    some, left_out = room.drawn([*range(5000)])
    assert len(some) == room.PANELS
    assert left_out == f"The first {room.PANELS} of 5,000 panels are drawn, {5000 - room.PANELS:,} are not."
    assert [room.more(3, 3), room.more(3, 2), room.more(5, 2)] == [
        [],
        ["1 more is not drawn"],
        ["3 more are not drawn"],
    ]


def test_three_hundred_cells_of_figures_stay_below_a_megabyte() -> None:
    results = full(workloads=tuple(f"workload_{number}" for number in range(25)), sizes=(1, 4, 16))
    assert len(results.cells) == 300
    text = render_html(results, header())
    drawings = sum(len(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert drawings < 1_000_000
    assert len(text.encode()) < 3_000_000
    for what in (
        f"The first {room.PANELS} of 25 panels are drawn, {25 - room.PANELS} are not.",
        "of 75 panels are drawn",
        "of 75 maps are drawn",
    ):
        assert what in text


# --- shares of time ---------------------------------------------------------------------------------------------------


@given(seconds, seconds, seconds, seconds, seconds, st.none() | st.floats(-1, 1e3))
def test_the_parts_of_a_bar_add_up_to_the_whole(
    draft: float, verify: float, sample: float, overhead: float, head: float, rest: float | None
) -> None:
    found = sums(
        seconds={"draft": draft, "verify": verify, "sample": sample, "overhead": overhead, "prefill": 9.0},
        lm_head_s=head,
        unattributed_s=rest,
    )
    if found.decode_s > 0:
        parts = parts_of(found)
        assert list(parts) == list(STAGE_LOOKS)
        assert sum(parts.values()) == pytest.approx(1)
        assert min(parts.values()) >= 0


def test_bars_are_stacked_to_scale_from_0_to_1() -> None:
    """Verification without its LM head begins where drafting ends."""
    results = run(cell(stages=sums(1.8)))
    (figure,) = table(results, "shares").figures
    (axes,) = sheet_of(figure).axes
    assert axes.get_xlim() == (0, 1)
    bars = {to_hex(patch.get_facecolor()): patch.get_path().get_extents() for patch in axes.patches}
    assert bars[INK["t0"]].x0 == pytest.approx(0)
    assert bars[INK["t0"]].x1 == pytest.approx(0.18)
    assert bars[INK["t2"]].x1 - bars[INK["t2"]].x0 == pytest.approx(0.02)
    hatched = [patch for patch in axes.patches if patch.get_hatch()]
    assert [patch.get_path().get_extents().width for patch in hatched] == pytest.approx([0.1, 0.025])
    assert hatched[1].get_path().get_extents().x1 == pytest.approx(1)
    assert "draft 18.0 %; verify 50.0 %; LM head (in verify) 10.0 %; sample 2.0 %" in figure.description


def test_bars_stand_by_batch_size_with_no_speculation_among_them() -> None:
    (figure,) = table(FULL, "shares").figures
    (axes,) = sheet_of(figure).axes
    assert [text.get_text() for text in axes.texts if "B" in text.get_text()] == ["B = 1", "B = 4"]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["no_sd", "ngram", "eagle3", "draft_model"] * 2
    heights = [-at for at in axes.get_yticks()]
    assert heights == sorted(heights)


def test_what_was_not_measured_is_no_part_of_a_bar() -> None:
    """On a GPU nothing is said of unattributed time."""
    results = run(cell(stages=sums(0.0, unattributed_s=None)))
    (figure,) = table(results, "shares").figures
    (legend,) = sheet_of(figure).legends
    assert [text.get_text() for text in legend.get_texts()] == ["verify", "LM head (in verify)", "sample", "overhead"]
    assert "unattributed" not in figure.description


# --- expected speedup, rows -------------------------------------------------------------------------------------------


def test_expected_and_measured_speedup_share_one_scale_from_0() -> None:
    figures = table(FULL, "expected").figures
    assert len(figures) == 3
    limits = set()
    for figure in figures:
        (axes,) = sheet_of(figure).axes
        assert axes.get_xlim() == axes.get_ylim()
        assert axes.get_xlim()[0] == 0
        limits.add(axes.get_xlim())
        diagonal = axes.lines[0]
        assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    assert len(limits) == 1
    assert "0 of 6 expected figures lie within" in figures[0].description
    assert "6 of 6 expected figures lie within" in figures[1].description


def test_a_cell_without_a_measured_speedup_is_no_point() -> None:
    found = FULL.stage_findings
    bare = [msgspec.structs.replace(one, speedup=None) for one in found.explained]
    results = msgspec.structs.replace(FULL, stage_findings=msgspec.structs.replace(found, explained=bare))
    assert table(results, "expected").figures == []
    assert table(results, "expected").body


def test_the_price_of_rows_begins_at_0_and_has_a_curve_for_each_batch_size() -> None:
    plain, relative = table(FULL, "row-prices").figures
    (axes,) = sheet_of(plain).axes
    assert axes.get_ylim()[0] == 0
    assert {"B = 1", "B = 4"} <= set(labels(sheet_of(plain)))
    assert "batch size 4, 1 to 4 rows: 30.00 to 66.00 ms" in plain.description
    assert "batch size 4: 4 rows take 2.20 times as long as one" in relative.description
    (axes,) = sheet_of(relative).axes
    free, proportional = axes.lines[:2]
    assert list(free.get_ydata()) == [1, 1]
    assert list(proportional.get_xdata()) == list(proportional.get_ydata()) == [1, 4]


def test_prices_that_cannot_be_held_against_one_row_are_drawn_in_milliseconds_alone() -> None:
    (found,) = FULL.stage_findings.prices
    lone = [msgspec.structs.replace(one, relative=None) for one in found.prices if one.rows == 4]
    findings = msgspec.structs.replace(
        FULL.stage_findings, prices=[msgspec.structs.replace(found, prices=lone)], explained=[]
    )
    (figure,) = table(msgspec.structs.replace(FULL, stage_findings=findings), "row-prices").figures
    assert "4 rows: 66.00 ms" in figure.description


# --- acceptance -------------------------------------------------------------------------------------------------------


def of_variants(**chances: Callable[..., Any] | float) -> RunResults:
    """One cell each, on one workload."""
    cells, found = [], []
    for name, chance in chances.items():
        one = cell(name)
        made = anatomy_of(chance() if callable(chance) else requests(chance))
        assert made is not None
        cells.append(one)
        found.append(CellAnatomy(cell=one.cell.id, build="new", anatomy=made))
    arms = [arm("no_sd"), *[arm(name, control="oracle" if name == "oracle" else "") for name in chances]]
    return run(*cells, arms=arms, anatomies=Anatomies(cells=found))


def test_shares_by_place_have_the_whole_axis_and_a_control_is_dashed() -> None:
    results = of_variants(ngram=0.5, oracle=2.0)
    (figure,) = table(results, "by-place").figures
    sheet = sheet_of(figure)
    for axes, title in zip(sheet.axes, ("survival", "conditional"), strict=True):
        assert axes.get_ylim() == pytest.approx((0, 1), abs=0.03)
        assert axes.get_title() or axes.get_title("left") == title
    drawn = {str(line.get_color()): line for line in sheet.axes[0].lines if line.get_marker() not in ("None", "")}
    oracle, ngram = drawn[INK["s5"]], drawn[INK["s0"]]
    assert oracle.get_linestyle() == "--"
    assert ngram.get_linestyle() == "-"
    anatomies = results.anatomies.cells
    assert list(ngram.get_ydata()) == [share.value for share in anatomies[0].anatomy.survival]
    assert "oracle 1.00 to 1.00 in 3 places" in figure.description


def test_boxes_are_the_quantiles_of_the_table() -> None:
    results = of_variants(ngram=0.5, eagle3=0.7)
    (figure,) = table(results, "by-request").figures
    left, right = sheet_of(figure).axes
    for axes, read in ((left, "acceptance_length_box"), (right, "tokens_per_step_box")):
        assert axes.get_xlim()[0] == 1
        drawn = {round(float(value), 6) for line in axes.lines for value in np.ravel(line.get_xdata())}
        drawn |= {round(float(value), 6) for patch in axes.patches for value in patch.get_path().vertices[:, 0]}
        for found in results.anatomies.cells:
            quantiles = getattr(found.anatomy, read).quantiles
            assert {round(value, 6) for value in quantiles} <= drawn
    median = results.anatomies.cells[0].anatomy.acceptance_length_box
    assert median is not None
    assert f"ngram median {median.quantiles[2]:.2f}" in figure.description


def test_tenths_of_the_output_are_drawn_in_their_middles_from_0() -> None:
    results = of_variants(ngram=0.5)
    figures = table(results, "by-position").figures
    (anatomies,) = results.anatomies.cells
    assert len(figures) == len(anatomies.anatomy.lengths)
    (axes,) = sheet_of(figures[0]).axes
    assert axes.get_xlim() == (0, 100)
    assert axes.get_ylim()[0] == 0
    (line,) = [line for line in axes.lines if line.get_marker() not in ("None", "")]
    assert list(line.get_xdata()) == [10 * tenth + 5 for tenth in range(10)]
    assert list(line.get_ydata()) == [ratio.value for ratio in anatomies.anatomy.lengths[0].deciles if ratio]


def image(figure: Figure) -> Any:
    (found,) = sheet_of(figure).axes[0].images
    return found


def test_a_map_is_the_recorded_one_and_empty_where_outputs_had_ended() -> None:
    results = of_variants(ngram=0.5)
    (figure,) = table(results, "maps").figures
    heat = results.anatomies.cells[0].anatomy.heat
    assert heat is not None
    drawn = np.ma.filled(image(figure).get_array(), np.nan)
    assert drawn.shape == (len(heat.values), max(map(len, heat.values)))
    for row, values in zip(drawn, heat.values, strict=True):
        assert list(row[: len(values)]) == values
        assert np.isnan(row[len(values) :]).all()
    assert min(map(len, heat.values)) < drawn.shape[1]
    (ended,) = sheet_of(figure).axes[0].patches
    assert ended.get_facecolor() == pytest.approx([*[int(INK["line"][at : at + 2], 16) / 255 for at in (1, 3, 5)], 1])
    assert sheet_of(figure).axes[1].get_ylabel() == "tokens per step"


def test_all_maps_have_one_scale() -> None:
    figures = table(of_variants(ngram=0.2, eagle3=0.9), "maps").figures
    limits = {image(figure).get_clim() for figure in figures}
    assert len(figures) == 2
    ((low, high),) = limits
    assert low == 1
    assert 3 < high <= 4


def test_of_several_batch_sizes_the_one_with_most_prompts_is_drawn() -> None:
    few, many = anatomy_of(requests(0.5, prompts=3)), anatomy_of(requests(0.5, prompts=9))
    assert few is not None
    assert many is not None
    shown = [(cell("ngram", "chat", size), found) for size, found in ((1, few), (4, many), (16, many))]
    assert [one.cell.batch_size for one, _ in heatmaps.largest(shown)] == [4]


def test_differences_have_the_page_as_their_middle_and_equal_ends() -> None:
    figures = table(FULL, "differences").figures
    for figure in figures:
        low, high = image(figure).get_clim()
        assert low == -high
    colours = heatmaps.diverging()
    assert to_hex(colours(0.0)) == heatmaps.SECOND
    assert to_hex(colours(1.0)) == heatmaps.FIRST
    assert colours(0.0)[3] == colours(1.0)[3] == 1
    assert colours(0.5)[3] < 0.02
    assert "ngram emits more in" in figures[0].description
    assert "tokens; -" in figures[0].description


def test_bins_of_few_prompts_are_hollow_on_dotted_bars() -> None:
    """25 prompts in bins of 6, 6, 6, 6 and 1 are all few; with ten times as many none is."""
    figure = table(FULL, "overlap").figures[0]
    (axes,) = sheet_of(figure).axes
    points = [line for line in axes.lines if line.get_marker() not in ("None", "")]
    assert points
    assert {str(line.get_markerfacecolor()) for line in points} == {INK["bg"]}
    assert "n = 6" in " ".join(labels(sheet_of(figure)))
    assert "4 of them with fewer than 10 prompts" in figure.description
    many = [
        msgspec.structs.replace(pair, bins=[msgspec.structs.replace(found, few=False) for found in pair.bins])
        for pair in FULL.anatomies.overlaps
    ]
    results = msgspec.structs.replace(FULL, anatomies=msgspec.structs.replace(FULL.anatomies, overlaps=many))
    (axes,) = sheet_of(table(results, "overlap").figures[0]).axes
    points = [line for line in axes.lines if line.get_marker() not in ("None", "")]
    assert INK["bg"] not in {str(line.get_markerfacecolor()) for line in points}


def test_an_advantage_is_drawn_in_percent_around_0() -> None:
    bins = FULL.anatomies.overlaps[0].bins
    values = [100 * (found.advantage.value - 1) for found in bins if found.advantage]
    (axes,) = sheet_of(table(FULL, "overlap").figures[0]).axes
    drawn = [float(line.get_ydata()[0]) for line in axes.lines if str(line.get_color()) == INK["s3"]]
    assert set(np.round(values, 9)) <= set(np.round(drawn, 9))
    low, high = axes.get_ylim()
    assert low < min(0, *values) <= max(0, *values) < high


# --- little data ------------------------------------------------------------------------------------------------------


def one_prompt() -> list[Any]:
    return requests(0.5, prompts=1)


def nothing_accepted() -> list[Any]:
    return requests(0.0)


def unplaced() -> list[Any]:
    return [msgspec.structs.replace(one, sizes=None) for one in requests(0.5)]


@pytest.mark.parametrize("made", [one_prompt, nothing_accepted, unplaced], ids=lambda made: made.__name__)
def test_little_is_drawn_as_little(made: Callable[..., Any]) -> None:
    results = of_variants(ngram=made)
    page(results)
    names = {found.name for found in anatomy.tables(results) if found.figures}
    assert "by-place" in names
    assert ("maps" in names) == (made is not unplaced)


def test_many_variants_are_told_apart_or_left_out() -> None:
    results = of_variants(**{f"variant_{number}": 0.5 for number in range(20)})
    (figure,) = table(results, "by-place").figures
    left, _ = sheet_of(figure).axes
    assert len([line for line in left.lines if line.get_marker() not in ("None", "")]) == room.LINES
    for name in ("by-place", "by-position"):
        assert room.LINES_CUT in table(results, name).legend


def test_builds_have_panels_of_their_own() -> None:
    one, other = cell(stages=sums()), cell(build="base", arm="base:ngram", stages=sums(), speedup=ratio())
    titles = [figure.title for figure in table(run(one, other), "shares").figures]
    assert titles == ["chat (new build)", "chat (base build)"]


@pytest.mark.parametrize(("extra_s", "says"), [(0.001, "1.0 %"), (-0.001, "nothing"), (None, "-")])
def test_lost_time_is_never_below_nothing(extra_s: float | None, says: str) -> None:
    found = anatomy_of(requests(0.5), msgspec.structs.replace(COST, extra_s_per_draft=extra_s))
    assert found is not None
    shown = run(cell(), anatomies=Anatomies(cells=[CellAnatomy(cell=cell().cell.id, build="new", anatomy=found)]))
    rejected = table(shown, "rejected")
    assert rejected.body[0][rejected.head.index("lost, by drafts")] == says


def test_positions_are_told_once() -> None:
    """By the steps with intervals where these are known, else by vLLM's counters."""
    known, bare = cell(), cell("eagle3")
    found = anatomy_of(requests(0.5))
    assert found is not None
    results = run(known, bare, anatomies=Anatomies(cells=[CellAnatomy(cell=known.cell.id, build="new", anatomy=found)]))
    assert [row[0] for row in view.position_table(results)] == ["eagle3"]
    assert [row[0] for row in table(results, "by-place").body] == ["ngram", "ngram"]
