"""Rules of the section on outputs: every table has the right numbers, a rate its interval, and text stays text."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet

from draftproof.analysis.acceptance import AcceptanceRepeat
from draftproof.analysis.lengths import length_rows
from draftproof.analysis.survival import Observation, Rate, rate, survival
from draftproof.analysis.tokendiff import Cause
from draftproof.determinism import LengthTable
from draftproof.gate import Excess
from draftproof.noisefloor import AxisName, FloorAxis, UnitFloor
from draftproof.report import curves, outputs, parts
from draftproof.report.determinism import (
    CAUSES,
    EARLIEST,
    earliest,
    grid,
    longest_of,
    per_1000,
    rate_text,
    survival_at,
    survival_text,
    tables,
)
from draftproof.report.drawing import KNOWN, look
from draftproof.report.html import render_html
from draftproof.report.markdown import differences, render_markdown
from draftproof.report.parts import Table
from draftproof.report.room import LINES, PANELS
from draftproof.results import CellResult, RunResults
from tests.figures import row_names, xs, ys
from tests.reporting import (
    HOSTILE,
    Page,
    arm,
    broken,
    cell,
    difference,
    header,
    markdown_tags,
    page,
    reference,
    run,
    sameness,
    unfolded,
)


def axis(name: AxisName, differing: int = 0, requests: int = 16) -> FloorAxis:
    seen = [Observation(50, True)] * differing + [Observation(64, False)] * (requests - differing)
    return FloorAxis(axis=name, requests=requests, identical=requests - differing, rate=rate(seen))


def unit_floor(*axes: FloorAxis, workload: str = "chat", batch_size: int = 4) -> UnitFloor:
    return UnitFloor(target="tiny", workload=workload, batch_size=batch_size, axes=list(axes))


def control(name: str, kind: str, k: int, *positions: int, batch_size: int = 4) -> tuple[CellResult, Any]:
    """A control's cell, with a near tie at each position, and its arm."""
    found = [
        difference(position=position, tokens_at_risk=position + 1, prompt_id=f"p{number}")
        for number, position in enumerate(positions)
    ]
    config = {"method": "custom_class", "num_speculative_tokens": k}
    return cell(name, batch_size=batch_size, sameness=sameness(*found)), arm(
        name, control=kind, speculative_config=config
    )


def lengths(limit: int = 90) -> LengthTable:
    no_sd = {f"p{n}": [40 + n] for n in range(8)}
    found = {
        ("no_sd", 1): no_sd,
        ("no_sd", 4): no_sd,
        ("ngram", 1): {name: [own[0] + 2] for name, own in no_sd.items()},
        ("ngram", 4): {name: [limit] for name in no_sd},
    }
    return LengthTable(target="tiny", workload="chat", limit=limit, rows=length_rows(found, limit))


def full() -> RunResults:
    """A run that has something for every table."""
    oracle, oracle_arm = control("oracle", "oracle", 3, 30)
    wrong, wrong_arm = control("adversarial", "adversarial", 3, 5, 6, 7)
    deep, deep_arm = control("oracle_k7", "oracle", 7, 20, 40)
    mixed = [
        difference(position=9, tokens_at_risk=10, cause="near_tie", request=1),
        difference(
            position=40,
            tokens_at_risk=41,
            cause="divergent",
            gap_nats=1.5,
            prompt_id="p7",
            before="def f(",
            after=(" the end", " a start"),
        ),
        difference(position=2, tokens_at_risk=3, cause="exact_tie", gap_nats=None, request=2),
        difference(position=7, tokens_at_risk=8, cause="inconclusive", gap_nats=None, texts=None, request=3),
    ]
    repeats = AcceptanceRepeat(requests=10, differing=2, steps=(61, 64))
    return run(
        reference(batch_size=4),
        cell(batch_size=4, sameness=sameness(*mixed, repeats=repeats), excess=excess()),
        oracle,
        wrong,
        deep,
        cell("eagle", batch_size=1, sameness=sameness()),
        floors=[
            unit_floor(axis("pass"), batch_size=1),
            unit_floor(axis("pass"), axis("process"), axis("batch_size", 3), axis("order", 1), axis("copies", 0, 1)),
        ],
        lengths=[lengths()],
        arms=[arm("no_sd"), arm(), oracle_arm, wrong_arm, deep_arm],
    )


def excess(control: str = "oracle") -> Excess:
    return Excess(control=control, p=0.0321, per_1000=3.0, control_per_1000=1.0)


def table_of(results: RunResults, name: str) -> Table:
    return next(table for table in tables(results) if table.name == name)


def told(results: RunResults, name: str) -> list[dict[str, str]]:
    """Rows of a table by column."""
    table = table_of(results, name)
    assert len(set(table.head)) == len(table.head)
    return [dict(zip(table.head, line, strict=True)) for line in table.body]


# -- the tables --------------------------------------------------------------------------------------------------------


def test_a_full_run_has_every_table() -> None:
    assert [table.name for table in tables(full())] == ["causes", "floor", "rows", "repeats", "survival", "lengths-1"]


def test_causes_are_counted_and_stand_beside_the_control_of_the_same_k() -> None:
    eagle, ngram, oracle = told(full(), "causes")[-1], told(full(), "causes")[0], told(full(), "causes")[1]
    assert [ngram[cause.replace("_", " ")] for cause in CAUSES] == ["8", "1", "1", "1", "1"]
    assert (ngram["variant"], ngram["B"], ngram["requests"], ngram["no-SD itself"]) == (
        "ngram",
        "4",
        "12",
        "12/12, 11/12",
    )
    # 4 first differences in 10 + 41 + 3 + 8 tokens of these and 64 of each other request
    assert ngram["first differences per 1,000 tokens [95 %]"].startswith(f"{4000 / (62 + 8 * 64):.2f} [")
    assert (ngram["control of the same k"], ngram["p"]) == ("oracle", "0.032")
    assert ngram["its differences [95 %]"] == oracle["first differences per 1,000 tokens [95 %]"]
    assert (eagle["control of the same k"], eagle["its differences [95 %]"], eagle["p"]) == ("-", "-", "-")


def test_without_a_control_there_are_no_columns_for_it() -> None:
    assert "p" not in table_of(run(cell()), "causes").head


def test_a_control_of_another_build_is_not_compared_with() -> None:
    oracle, oracle_arm = control("oracle", "oracle", 3, 30)
    other = msgspec.structs.replace(oracle, build="base")
    shown = told(run(cell(batch_size=4, excess=excess()), other, arms=[arm(), oracle_arm]), "causes")
    assert shown[0]["its differences [95 %]"] == "-"


def test_a_garbage_reference_is_told_above_the_causes() -> None:
    table = table_of(run(cell(sameness=sameness(garbage="token 5 alone"))), "causes")
    assert "ngram on chat b1 (token 5 alone)" in table.note


def test_the_floor_is_told_axis_by_axis_in_the_order_of_the_cells() -> None:
    assert [line["B"] for line in told(full(), "floor")] == ["4", "1"]
    four, one = told(full(), "floor")
    assert four["second pass"] == "16/16; 0.00 [0.00, 3.60]"
    assert four["smallest batch size"].startswith("13/16; ")
    assert four["copies of one prompt"].startswith("1/1; ")
    assert [one[name] for name in ("second process", "smallest batch size", "other order")] == ["-"] * 3


def test_an_axis_that_no_unit_has_gets_no_column() -> None:
    results = run(cell(), floors=[unit_floor(axis("pass"))])
    assert table_of(results, "floor").head == ["workload", "B", "second pass"]


def test_rows_alone_are_told_by_k_with_right_and_with_wrong_drafts() -> None:
    three, seven = told(full(), "rows")
    assert (three["k"], three["rows a request"], seven["k"]) == ("3", "4", "7")
    assert (three["right drafts: changed"], three["wrong drafts: changed"]) == ("1 of 12", "3 of 12")
    assert three["wrong drafts: per 1,000 tokens [95 %]"].startswith(f"{3000 / (6 + 7 + 8 + 9 * 64):.2f} [")
    assert (seven["right drafts: changed"], seven["wrong drafts: changed"]) == ("2 of 12", "-")
    assert seven["wrong drafts: per 1,000 tokens [95 %]"] == "-"


def test_other_controls_say_nothing_of_rows_alone() -> None:
    half, half_arm = control("random_half", "random", 3, 5)
    assert "rows" not in {table.name for table in tables(run(half, arms=[half_arm]))}


def test_acceptance_that_does_not_repeat_is_told_with_its_steps() -> None:
    table = table_of(full(), "repeats")
    assert table.body == [["ngram", "chat", "4", "10", "2", "61", "64"]]
    assert "Of 58 requests" in table.note
    same = table_of(run(cell()), "repeats")
    assert (same.body, same.note[-24:]) == ([], "otherwise in the second.")


def test_the_shares_of_a_curve_are_those_of_its_steps() -> None:
    ngram = told(full(), "survival")[0]
    assert list(ngram) == ["variant", "workload", "B", "after 16", "after 32", "after 64"]
    assert ngram["after 16"].startswith("0.75 [")
    assert ngram["after 64"].startswith("0.67 [")
    assert ngram["after 64"].endswith(" (8)")


def test_lengths_are_the_papers_table_with_differences_and_what_was_cut() -> None:
    table = table_of(full(), "lengths-1")
    assert table.head == ["variant", "B = 1", "B = 4"]
    assert table.body[2][1].startswith("45.5 ±")
    assert table.body[3][1].startswith("Δ +2.0 [2.0, 2.0]")
    assert "8 of 8 at the limit" in table.body[3][2]
    assert "over 8 prompts" in table.note
    assert "(8 in all cells)" in table.note
    assert "Left out" not in table.note
    partial = msgspec.structs.replace(lengths(), left_out=["eagle b4"])
    assert "not all prompts ran: eagle b4." in table_of(run(cell(), lengths=[partial]), "lengths-1").note


@pytest.mark.parametrize("value", [None, Rate(events=1, tokens=100, per_1000=10.0, low=0.2534, high=55.72)])
def test_no_rate_without_its_interval(value: Rate | None) -> None:
    assert rate_text(value) == ("-" if value is None else "10.00 [0.25, 55.72]")
    assert per_1000(0.00123) == "0.001"


def test_several_targets_and_builds_are_told_apart() -> None:
    results = run(
        cell(), cell(target="other", build="base"), floors=[unit_floor(axis("pass"), batch_size=1)], lengths=[lengths()]
    )
    assert [line["variant"] for line in told(results, "causes")] == [
        "ngram (tiny, new build)",
        "ngram (other, base build)",
    ]
    assert told(results, "floor")[0]["workload"] == "chat (tiny, new build)"
    assert [panel.title for panel in curves.panels_of(results)] == [
        "chat (tiny, new build), batch size 1",
        "chat (other, base build), batch size 1",
    ]


# -- runs that lack something ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "results",
    [
        pytest.param(run(arms=[]), id="no cells"),
        pytest.param(run(reference()), id="no-SD alone"),
        pytest.param(run(broken(), arms=[]), id="failed before anything started"),
    ],
)
def test_where_nothing_was_compared_there_is_no_section(results: RunResults) -> None:
    assert (tables(results), earliest(results), curves.panels_of(results)) == ([], [], [])
    assert outputs.section(parts.Page(results, header())) is None
    found = page(results)
    assert "outputs" not in found.values("id")
    assert "#outputs" not in found.values("href")


@pytest.mark.parametrize(
    "results",
    [
        pytest.param(full(), id="full"),
        pytest.param(run(cell(sameness=sameness(rate=None, survival=None)), finished=False), id="no rate, no curve"),
        pytest.param(
            run(cell(sameness=sameness(repeats=AcceptanceRepeat(requests=0, differing=0, steps=(0, 0))))),
            id="no repeat",
        ),
        pytest.param(run(cell(excess=excess("gone"))), id="control without a cell"),
        pytest.param(run(cell("oracle"), arms=[]), id="no arms"),
        pytest.param(run(broken(), floors=[unit_floor(axis("pass"))]), id="floor alone"),
        pytest.param(run(reference(), lengths=[lengths()]), id="lengths alone"),
        pytest.param(
            run(cell(), lengths=[LengthTable(target="tiny", workload="chat", limit=9, rows=[])]), id="no row of lengths"
        ),
        pytest.param(run(cell(sameness=sameness(*[difference()] * 12))), id="all differ"),
    ],
)
def test_whatever_is_missing_the_rest_is_shown(results: RunResults) -> None:
    found = page(results)
    text = render_markdown(results, header())
    for table in tables(results):
        assert table.name in found.values("id")
        assert table.title in found.text
        assert f"### {table.title.replace('*', '')}" in text
        for line in table.body:
            assert len(line) == len(table.head)
            assert all(value in found.text for value in line)
    check_tables(text)


def check_tables(text: str) -> None:
    """Every row of every table has as many columns as its head."""
    columns = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = 0
            continue
        found = len(re.findall(r"(?<!\\)\|", line))
        columns = columns or found
        assert found == columns, line


# -- the earliest differences ------------------------------------------------------------------------------------------


def test_variants_that_differ_alike_are_one() -> None:
    """One tie that rounding decides is met by every drafter with as many rows: it must not fill the list."""
    tie = difference(position=5, tokens_at_risk=6, prompt_id="p")
    cells = [cell(name, sameness=sameness(tie)) for name in ("eagle", "mtp")]
    other = cell("ngram", sameness=sameness(difference(position=9, tokens_at_risk=10, prompt_id="p")))
    found = earliest(run(*cells, other))
    assert [one.variant for one in found] == ["eagle, mtp", "ngram"]
    assert found[0].label.startswith("eagle, mtp on ")
    assert cells[0].cell.id in found[0].command
    many = earliest(run(*[cell(f"v{number}", sameness=sameness(tie)) for number in range(20)]))
    assert [one.variant for one in many] == [", ".join(f"v{number}" for number in range(12)) + " and 8 more"]


def test_divergent_ones_come_first_then_the_earliest() -> None:
    found = earliest(full())
    assert found[0].difference.cause == "divergent"
    positions = [one.difference.position or 0 for one in found[1:]]
    assert positions == sorted(positions) == [2, 5, 6, 7, 7, 9, 20, 30, 40]
    assert [one.number for one in found] == list(range(1, 11))


def test_no_more_than_ten_are_shown_and_the_rest_counted() -> None:
    results = run(cell(sameness=sameness(*[difference(position=n, request=n) for n in range(12)])))
    assert len(earliest(results)) == EARLIEST
    assert "10 of 12, divergent ones first" in page(results).text
    assert "10 of 12, divergent ones first" in render_markdown(results, header())


@pytest.mark.parametrize(
    ("cause", "gap", "texts", "margin"),
    [
        ("near_tie", 0.012, ("a", "b"), "0.012 nats (limit 0.050)"),
        ("divergent", 1.5, ("a", "b"), "1.500 nats (limit 0.050)"),
        ("divergent", None, ("a", "b"), "not among the scored tokens (limit 0.050)"),
        ("divergent", None, None, "none: one output ends there"),
        ("exact_tie", None, ("a", "b"), "none in the engine"),
        ("exact_tie", 0.001, ("a", "b"), "0.001 nats (limit 0.050)"),
        ("inconclusive", None, None, "not scored"),
    ],
)
def test_a_margin_stands_beside_its_limit(
    cause: Cause, gap: float | None, texts: tuple[str, str] | None, margin: str
) -> None:
    (found,) = earliest(run(cell(sameness=sameness(difference(cause=cause, gap_nats=gap, texts=texts)))))
    assert found.margin == margin


def test_all_that_it_takes_to_look_into_a_difference_is_shown() -> None:
    text = render_markdown(full(), header())
    for shown in (page(full()).text, text.replace("\\_", "_")):
        for what in ["prompt p7", "def f(", " the end", " a start", "1.500 nats (limit 0.050)", "tiny-ngram-chat-b4"]:
            assert what in shown, what
    assert "`' the end'`" in text


def test_the_command_is_one_word_for_the_test_in_a_shell() -> None:
    (found,) = earliest(run(cell(sameness=sameness(difference())), study="o'clock; rm x"))
    assert shlex.split(found.command) == [
        "pytest",
        "--sd-study",
        "o'clock; rm x",
        "--sd-fresh",
        "tests_determinism/test_outputs.py::test_same_outputs_as_no_sd[tiny-ngram-chat-b1]",
    ]


def test_the_end_of_the_text_before_is_what_is_kept() -> None:
    before = "x" * 5000 + "THE END"
    results = run(cell(sameness=sameness(difference(before=before))))
    for shown in (page(results).text, render_markdown(results, header())):
        assert "THE END" in shown
        assert "x" * 300 not in shown


def hostile(text: str) -> RunResults:
    """The text wherever a model, a data set or a recorded reason could bring it in."""
    kept = full()
    found = difference(text, text, prompt_id=text, before=text, after=(text, text))
    return msgspec.structs.replace(
        kept,
        study=text,
        cells=[cell(sameness=sameness(found, garbage=text), excess=excess(text)), *kept.cells],
        floors=[UnitFloor(target=text, workload=text, batch_size=1, axes=[axis("pass")])],
        lengths=[LengthTable(target=text, workload=text, limit=90, rows=lengths().rows)],
    )


@pytest.mark.parametrize(
    "text", [*HOSTILE, "<" * 100_000, "`" * 50 + "|" * 50, "- [ ] x\n\n# y", "\N{RIGHT-TO-LEFT MARK}"]
)
def test_untrusted_text_breaks_no_table(text: str) -> None:
    plain, found = (unfolded(hostile(given)) for given in ("harmless", text))
    known = {"span", "i", "code", "wbr"}  # named characters and an empty text of tokens; where names may break
    assert [tag for tag in found.tags if tag not in known] == [tag for tag in plain.tags if tag not in known]
    assert all(char.isprintable() or char in "\n\t" for char in found.text)
    shown = render_markdown(hostile(text), header())
    assert not {"html_inline", "html_block", "link_open", "image", "fence", "hr"} & markdown_tags(shown)
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert blocks(shown) == blocks(render_markdown(hostile("harmless"), header()))
    check_tables(shown)
    shown.encode()


def test_a_models_text_is_cut_wherever_it_is_long() -> None:
    """What five texts of 100,000 characters add to a report is less than a tenth of one, escaped as they are."""

    def made(text: str) -> RunResults:
        return run(cell(sameness=sameness(difference(text, text, prompt_id=text, before=text, after=(text, text)))))

    short, long = made("<"), made("<" * 100_000)
    assert len(render_markdown(long, header())) - len(render_markdown(short, header())) < 10_000
    assert len(render_html(long, header())) - len(render_html(short, header())) < 10_000


def blocks(text: str) -> list[str]:
    return [token.type for token in MarkdownIt("commonmark").enable("table").parse(text)]


@given(st.text(st.characters(codec="utf-8"), max_size=30), st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_around_a_difference_is_harmless(before: str, after: str) -> None:
    results = run(cell(sameness=sameness(difference(after, after, before=before, after=(after, after)))))
    shown = "\n".join(differences(results, earliest(results)))
    assert not {"html_inline", "html_block", "link_open", "image", "fence"} & markdown_tags(shown)
    check_tables(shown)
    Page(render_html(results, header()))


# -- the curves --------------------------------------------------------------------------------------------------------


def drawn(curves_of: Sequence[curves.Curve], longest: int) -> Axes:
    axes = Sheet().subplots()
    curves.curves_on(axes, curves_of, longest)
    return axes


def test_a_panel_for_each_workload_and_batch_size_and_a_line_for_each_variant() -> None:
    found = curves.panels_of(full())
    assert [panel.title for panel in found] == ["chat, batch size 4", "chat, batch size 1"]
    assert [curve.variant for curve in found[0].curves] == ["ngram", "oracle", "adversarial", "oracle_k7"]
    assert [curve.look.line for curve in found[0].curves] == ["-", "--", "--", "--"]
    assert "Dashed: controls" in page(full()).text
    assert "Dashed" not in page(run(cell())).text


def test_a_variant_looks_the_same_in_every_panel_and_in_the_legend() -> None:
    names = [*(name for name in KNOWN if name != "no_sd"), *(f"v{number}" for number in range(8))]
    results = run(*[cell(name, batch_size=size) for size in (1, 4) for name in names[:: 1 if size == 1 else -1]])
    for panel in curves.panels_of(results):
        assert {curve.variant: curve.look for curve in panel.curves} == {name: look(name) for name in names}
    legend = curves.legend(results)
    assert re.findall(r"</svg>\s*([^<]+)</li>", legend) == names


def test_the_figures_say_in_words_what_they_draw() -> None:
    found = page(full())
    told = [text for text in found.values("aria-label") if text.startswith("Share of requests still identical")]
    assert len(told) == 2
    assert "eagle after 64 tokens: 1.00 [0.74, 1.00] (12)" in " ".join(found.values("aria-label"))
    assert found.text.count("output tokens (log scale)") == 2


def test_further_panels_are_folded_and_very_many_not_drawn() -> None:
    results = run(*[cell(batch_size=2**number) for number in range(8)])
    assert "Further figures: 2" in page(results).text
    many = run(*[cell(f"v{v}", batch_size=size) for size in range(1, PANELS + 4) for v in range(LINES + 1)])
    figures = curves.figures(many)
    assert len(figures) == PANELS
    assert figures[0].description.endswith("; 1 more is not drawn.")
    assert f"The first {PANELS} of {PANELS + 3} panels are drawn, 3 are not." in curves.legend(many)


seen = st.lists(st.tuples(st.integers(1, 9000), st.booleans()), min_size=1, max_size=20)


@given(seen)
def test_a_line_falls_where_the_curve_falls(outputs: list[tuple[int, bool]]) -> None:
    """All steps of a short curve; the last of those that no eye could tell apart; from 1 down to the end."""
    curve = survival([Observation(*one) for one in outputs])
    assert curve is not None
    longest = curve.tokens[-1]
    at, shares = curves.steps(curve, longest)
    assert at == sorted(at)
    assert shares == sorted(shares, reverse=True)
    assert (at[0], at[-1], shares[0]) == (1, max(longest, 1), 1.0)
    assert shares[-1] == curve.share[-1]
    for tokens, share in zip(at[1:], shares[1:], strict=True):
        point = survival_at(curve, tokens)
        assert point is not None
        assert share == point.share
    if all(b - a > b / 20 for a, b in itertools.pairwise(sorted({length for length, _ in outputs}))):
        assert set(shares) == {1.0, *curve.share}


def test_a_curve_of_very_many_steps_stays_small() -> None:
    curve = survival([Observation(length, True) for length in range(1, 9000)])
    assert curve is not None
    assert len(curves.steps(curve, 9000)[0]) <= curves.PLACES + 3


@settings(max_examples=20)
@given(st.lists(seen, min_size=1, max_size=6))
def test_curves_stay_within_their_frame(lines: list[list[tuple[int, bool]]]) -> None:
    cells = [
        cell(f"v{number}", sameness=sameness(survival=survival([Observation(*one) for one in line])))
        for number, line in enumerate(lines)
    ]
    results = run(*cells)
    longest = longest_of(results)
    axes = drawn(curves.panels_of(results)[0].curves, longest)
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    for line in axes.lines:
        assert all(left <= x <= right for x in xs(line))
        assert all(low <= y <= high for y in ys(line))
    assert row_names(axes) == ["0", "0.25", "0.5", "0.75", "1"]
    assert (low, high) == pytest.approx((0, 1), abs=0.05)


@given(seen, st.integers(0, 9000))
def test_the_curve_after_some_tokens_is_what_counting_gives(outputs: list[tuple[int, bool]], tokens: int) -> None:
    """Where nothing ended early it is the share of those that had not differed; no more are at risk than were."""
    curve = survival([Observation(*one) for one in outputs])
    assert curve is not None
    point = survival_at(curve, tokens)
    if point is None:
        assert tokens > max(length for length, _ in outputs)
        return
    assert 0 <= point.low <= point.share <= point.high <= 1
    assert 1 <= point.at_risk <= sum(length >= tokens for length, _ in outputs)
    if all(differs or length >= tokens for length, differs in outputs):
        gone = sum(differs and length <= tokens for length, differs in outputs)
        assert point.share == pytest.approx(1 - gone / len(outputs))


def test_a_share_of_one_is_not_certain() -> None:
    """Before the first difference all are identical: how sure that is depends on how many were looked at."""
    curve = survival([Observation(50, True)] + [Observation(64, False)] * 15)
    assert curve is not None
    assert survival_text(survival_at(curve, 16)) == "1.00 [0.79, 1.00] (16)"
    assert survival_text(survival_at(curve, 65)) == "-"


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [(1, [1]), (8, [8]), (16, [16]), (64, [16, 32, 64]), (100, [16, 32, 64, 100]), (129, [16, 32, 64, 129])],
)
def test_lengths_double_up_to_the_longest(longest: int, lengths: list[int]) -> None:
    assert grid(longest) == lengths
