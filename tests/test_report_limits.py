"""Rules of the section on limits: rows that concern a cell, the worst cell of each, deciding apart from informing."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.catalog import load_catalog
from draftproof.comparison import Compared, compare
from draftproof.distances import BY_METRIC, STATES, Distance, distance, seen
from draftproof.gate import Excess, judge_throughput, limit_of
from draftproof.limits import OF_ALL, OF_CHANGES, Applied, Judged, Limits, applicable, concerned
from draftproof.quantities import PLAIN, SPECULATIVE, STAGES
from draftproof.records import NoiseLine
from draftproof.report import limits
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Page, Table
from draftproof.results import CellResult, RunResults
from draftproof.spec import Threshold
from tests.factories import make_cell
from tests.reporting import HOSTILE, cell, difference, header, markdown_tags, ratio, reference, run, sameness
from tests.reporting import page as read_page
from tests.snapshots import NGRAM, Arm, make_limits, make_series, make_snapshot

NOTHING = seen([], None)


def row(metric: str = "speedup", limit: float = 1.0, **fields: Any) -> Threshold:
    said: dict[str, Any] = {"estimator": "by a rule", "gating": True, "source": "a test"}
    return Threshold(metric=metric, limit=limit, **(said | fields))


def applied(*rows: Threshold) -> Limits:
    return Limits(rows=[Applied(hardware="cpu", row=one) for one in rows])


def with_rows(*rows: Threshold, cells: list[CellResult] | None = None, **changes: Any) -> RunResults:
    return run(*(cells if cells is not None else [reference(), cell()]), limits=applied(*rows), **changes)


def tables(results: RunResults, compared: Compared | None = None) -> list[Table]:
    section = limits.section(Page(results, header(), compared))
    return section.tables if section else []


def rows_of(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.head, line, strict=True)) for line in table.body]


def noise(width_nats: float, target: str = "tiny") -> NoiseLine:
    return NoiseLine(
        session=0,
        group=0,
        target=target,
        workload="chat",
        batch_size=1,
        rotation=0,
        arm="no_sd",
        positions=640,
        width_nats=width_nats,
        largest_nats=[width_nats],
    )


# --- which rows -------------------------------------------------------------------------------------------------------


def test_rows_that_concern_no_cell_are_counted_not_listed() -> None:
    thresholds = {
        "cpu": [row(), row(variants=["eagle"]), row("throughput_drop", 0.1), row("nobody_reads_this", 1)],
        "h100": [row()],
    }
    found = applicable([Judged(make_cell("ngram"), True)], thresholds)
    assert [one.row for one in found.rows] == [thresholds["cpu"][0]]
    assert found.others == 3


def test_without_a_cell_the_rows_of_the_studys_hardware_are_counted() -> None:
    assert applicable([], {"cpu": [row(), row()]}, "cpu") == Limits(others=2)
    assert applicable([], {}, "cpu") == Limits()


def test_no_sd_and_speculation_have_limits_of_their_own() -> None:
    rows = [
        row("throughput_drop", 0.1),
        row("speedup_drop", 0.05),
        row("divergent_share", 0.0),
        row("waiting_share", 0.1),
    ]
    plain = applicable([Judged(make_cell("no_sd"), False)], {"cpu": rows})
    spec = applicable([Judged(make_cell("ngram"), True)], {"cpu": rows})
    assert [one.row.metric for one in plain.rows] == ["throughput_drop", "waiting_share"]
    assert [one.row.metric for one in spec.rows] == ["speedup_drop", "divergent_share", "waiting_share"]


def test_of_one_metric_the_last_row_counts_as_it_does_when_judged() -> None:
    """A user's row replaces ours; floors of a speedup all count, and what informs stands beside what gates."""
    cells = [Judged(make_cell("ngram", size), True) for size in (1, 2)]
    ours, theirs = row("waiting_share", 0.1), row("waiting_share", 0.5, batch_sizes=[2])
    found = concerned([Applied(hardware="cpu", row=one) for one in (ours, theirs)], cells)
    assert found == {0: [0], 1: [1]}
    for one in cells:
        (index,) = [index for index, numbers in found.items() if cells.index(one) in numbers]
        assert limit_of([ours, theirs], "waiting_share", one.cell) is (ours, theirs)[index]
    floors = [row(limit=1.0), row(limit=0.5), row(limit=2.0, gating=False)]
    assert set(concerned([Applied(hardware="cpu", row=one) for one in floors], cells)) == {0, 1, 2}


def test_a_row_of_other_hardware_concerns_nobody() -> None:
    rows = [Applied(hardware="h100", row=row()), Applied(hardware="cpu", row=row())]
    assert set(concerned(rows, [Judged(make_cell("ngram"), True)])) == {1}


def test_every_metric_of_the_catalog_has_a_distance_and_a_name() -> None:
    """Whoever adds a metric to a file adds it here too."""
    metrics = {one.metric for rows in load_catalog().thresholds.values() for one in rows}
    assert metrics == set(limits.LIMITED) == {*BY_METRIC, *OF_CHANGES}
    assert {quantity.metric for quantity in (*SPECULATIVE, *STAGES, *PLAIN)} == OF_CHANGES
    assert metrics >= OF_ALL


# --- distances --------------------------------------------------------------------------------------------------------


def test_a_floor_is_judged_by_the_intervals_upper_end() -> None:
    near = distance(row(limit=1.55), cell(speedup=ratio(1.5, 1.4, 1.6)), NOTHING)
    assert (near.state, near.text) == ("met", "1.50 [1.40, 1.60]; upper end 0.05 above the limit")
    assert near.room == pytest.approx(0.05)
    below = distance(row(limit=1.7), cell(speedup=ratio(1.5, 1.4, 1.6)), NOTHING)
    assert (below.state, below.text) == ("not met", "1.50 [1.40, 1.60]; upper end 0.10 below the limit")
    within = distance(row("paper_speedup", limit=1.7, tolerance=0.1), cell(paper_ratio=ratio(1.5, 1.4, 1.6)), NOTHING)
    assert (within.state, round(within.room, 2)) == ("met", 0.07)


@pytest.mark.parametrize("speedup", [None, ratio(1.5, 0.0, math.inf)])
def test_without_a_finite_interval_there_is_no_distance(speedup: Any) -> None:
    assert distance(row(), cell(speedup=speedup), NOTHING) == Distance(state="not measured")


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(1.0, 2.0), st.floats(0, 0.5))
def test_a_floor_is_met_where_the_gate_passes(limit: float, value: float, width: float, tolerance: float) -> None:
    one, speedup = row(limit=limit, tolerance=tolerance), ratio(value, value / width, value * width)
    judged = judge_throughput(make_cell(), speedup, [one], [], [], needs_speedup=True)
    found = distance(one, cell(speedup=speedup, throughput=judged), NOTHING)
    assert (found.state == "met") == (judged.verdict == "PASS")
    assert (found.state == "not met") == (judged.verdict == "REGRESSED")
    assert (found.room < 0) == (found.state == "not met")


def test_what_was_not_judged_neither_meets_a_gate_nor_misses_it() -> None:
    """A busy machine, for one; a limit that informs is shown beside the figure all the same."""
    busy = cell(verdict="UNSTABLE", speedup=ratio(0.5, 0.4, 0.6))
    assert distance(row(), busy, NOTHING).state == "not judged"
    assert distance(row(gating=False), busy, NOTHING).state == "not met"


def test_gaps_are_held_against_the_wider_of_limit_and_measured_noise() -> None:
    limit = row("divergence_gap_nats", 0.02)
    same = sameness(difference(gap_nats=0.01), difference(gap_nats=0.04), limit_nats=0.05)
    found = distance(limit, cell(sameness=same), NOTHING)
    assert found.state == "met"
    assert found.text == (
        "largest gap 0.040 nats, 0.010 below the limit of 0.050 (the noise that this run measured, wider than 0.02)"
    )
    assert distance(limit, cell(sameness=sameness()), NOTHING).text == "no scored difference"
    assert distance(limit, cell(sameness=None), NOTHING).state == "not measured"


def test_a_divergent_output_is_beyond_the_gap_with_or_without_a_score() -> None:
    limit = row("divergence_gap_nats", 0.25)
    scored = cell(sameness=sameness(difference(cause="divergent", gap_nats=0.75), limit_nats=0.25))
    unscored = cell(sameness=sameness(difference(cause="divergent", gap_nats=None), limit_nats=0.25))
    far, farther = (distance(limit, one, NOTHING) for one in (scored, unscored))
    assert (far.state, far.text) == ("not met", "largest gap 0.750 nats, 0.500 above the limit of 0.250")
    assert (farther.state, farther.text) == ("not met", "1 divergent without a gap")
    assert farther.order < far.order


def test_the_width_of_a_tie_is_that_of_the_cells_target() -> None:
    beside = seen([noise(0.2), noise(0.4), noise(1.5, "other")], None)
    limit = row("noise_width_nats", 1.0)
    assert distance(limit, cell(), beside).text == "0.400 nats, 0.600 below the limit"
    assert distance(limit, cell(target="other"), beside).state == "not met"
    assert distance(limit, cell(target="third"), beside).state == "not measured"


def test_shares_are_of_all_requests() -> None:
    one = cell(sameness=sameness(*[difference(cause="divergent")] * 3))
    found = distance(row("divergent_share", 0.0), one, NOTHING)
    assert (found.state, found.text) == ("not met", "3 of 12 requests (25 %), 25 points above the limit")
    assert distance(row("inconclusive_share", 0.24), one, NOTHING).text == (
        "0 of 12 requests (0 %), 24 points below the limit"
    )


def test_ties_are_held_against_their_control_by_the_test() -> None:
    def found(p: float) -> Distance:
        excess = Excess(control="oracle", p=p, per_1000=1.5, control_per_1000=1.0)
        return distance(row("near_tie_ratio", 1.0), cell(excess=excess), NOTHING)

    assert found(0.01).state == "not met"
    assert found(0.5).state == "met"
    assert found(0.5).text == "1.50 per 1,000 tokens, with oracle 1.00: 0.50 above the limit, p = 0.5"
    assert distance(row("near_tie_ratio", 1.0), cell(), NOTHING).state == "not measured"


def test_a_busy_machine_is_beyond_its_limit() -> None:
    limit = row("waiting_share", 0.1)
    assert distance(limit, cell(waiting=0.45), NOTHING).text == "45 % of the time, 35 points above the limit"
    assert distance(limit, cell(waiting=0.03), NOTHING).state == "met"
    assert distance(limit, cell(), NOTHING).state == "not measured"


def compared(arm: Arm = NGRAM, sets: int = 12) -> Compared:
    """Of the cell that `cell` makes."""
    names: dict[str, Any] = {"target": "tiny", "workload": "chat", "batch_size": 1, "sets": sets}
    plain = [make_snapshot(luck, [make_series(NGRAM, luck=luck, **names)]) for luck in ("base",)]
    return compare(plain, [make_snapshot("new", [make_series(arm, luck="new", **names)])], make_limits())


def test_limits_on_a_change_need_a_baseline() -> None:
    limit = row("system_cost_rise", 0.05, absolute=0.03)
    assert distance(limit, cell(), NOTHING).state == "not measured"
    slow = Arm(step_s=0.012 * 1.3, length=2.0)
    found = distance(limit, cell(), seen([], compared(slow)))
    assert found.state == "not met"
    assert found.text.startswith("+")
    assert found.text.endswith(" points above the limit")
    assert distance(limit, cell(), seen([], compared())).state == "met"
    assert distance(limit, cell(build="base"), seen([], compared())).state == "not measured"


def test_where_only_the_mean_is_judged_the_mean_counts() -> None:
    """Of several gates under one limit the worst, by its name."""
    (own,) = [one for one in compared(Arm(step_s=0.0156, length=2.0)).findings if one.gate == "system"]
    mean = [
        msgspec.structs.replace(own, place="tiny ngram, geometric mean", metric="stage_rise", gate=gate, beyond=beyond)
        for gate, beyond in (("drafter", -0.04), ("system", 0.2))
    ]
    of = msgspec.structs.replace(compared(), findings=mean)
    found = distance(row("stage_rise", 0.1), cell(), seen([], of))
    assert found.state == "not met"
    assert found.text.startswith("system: +")
    assert found.text.endswith(", 20.0 points above the limit")
    assert distance(row("stage_rise", 0.1), cell("eagle"), seen([], of)).state == "not measured"


def test_too_few_prompt_sets_are_beyond_their_limit() -> None:
    limit = row("pairs", 12)
    few = seen([], compared(sets=3))
    assert distance(limit, cell(), few).text == "3 in common, 9 below the limit"
    assert distance(limit, cell(), few).state == "not met"
    assert distance(limit, cell(), seen([], compared())).text == "12 in common, 0 above the limit"
    assert distance(row("speedup_drop", 0.05), cell(), few).state == "not judged"


# --- tables -----------------------------------------------------------------------------------------------------------

SLOW = cell("eagle", "code_edit", 16, verdict="REGRESSED", speedup=ratio(0.6, 0.5, 0.7))


def test_the_worst_cell_is_named_and_all_are_counted() -> None:
    cells = [reference(), cell(), SLOW, cell("mtp", speedup=None, verdict="INSUFFICIENT")]
    (table,) = tables(with_rows(row(limit=1.0, reason="for good"), cells=cells))
    (line,) = rows_of(table)
    assert line == {
        "state": "not met",
        "what is limited": "speedup, at least",
        "limit": "1 x",
        "worst cell": "eagle on code_edit b16",
        "its distance": "0.60 [0.50, 0.70]; upper end 0.30 below the limit",
        "cells": "1 not met, 1 met, 1 not measured",
        "estimator": "by a rule",
        "source": "a test; for good",
    }


def test_what_is_not_met_comes_first() -> None:
    rows = [row("near_tie_ratio"), row("divergent_share", 0.0), row("waiting_share", 0.1), row(limit=1.0)]
    cells = [SLOW, cell(verdict="UNSTABLE", waiting=0.4)]
    (table,) = tables(with_rows(*rows, cells=cells))
    assert table.title == "■ Gating, 4 limits: 2 not met, 1 met, 1 not measured"
    states = [line["state"] for line in rows_of(table)]
    assert states == ["not met", "not met", "met", "not measured"]
    assert [STATES.index(state) for state in states] == sorted(STATES.index(state) for state in states)


def test_gating_and_informing_limits_look_different_without_colour() -> None:
    """Tables of their own, titles that say it, a filled and a hollow square, a solid and a dashed edge."""
    results = with_rows(row(), row("paper_speedup", 1.2, gating=False), cells=[cell(paper_ratio=ratio())])
    gating, informing = tables(results)
    assert (gating.title, gating.tone) == ("■ Gating, 1 limit: 1 met", "gating")
    assert (informing.title, informing.tone) == ("□ Informing only, 1 limit: 1 met", "informing")
    text = render_html(results, header())
    assert '<table class="gating">' in text
    assert '<table class="informing">' in text
    assert "table.informing { border-left: .25rem dashed" in text
    assert "table.gating { border-left: .25rem solid" in text
    assert "■ Gating" in render_markdown(results, header())


def test_the_limit_is_told_whole() -> None:
    drop = row("speedup_drop", 0.05, absolute=0.03, variants=["a", "b", "c", "d", "e"], batch_sizes=[1, 4])
    paper = row("paper_speedup", 1.166, tolerance=0.1, claims_speedup=True, studies=["s"])
    assert limits.limit_text(drop) == "5 %, and more than 0.03 in all"
    cells = [cell(name, batch_size=size) for name in ("a", "b", "c", "d", "e", "f") for size in (1, 4, 16)]
    here = limits.present(cells)
    assert limits.limited_text(drop, here) == "drop of the speedup, at most (B 1, 4; variants a, b, c and 2 more)"
    assert limits.limit_text(paper) == "1.166 x less 10 %"
    assert limits.limited_text(paper, here) == (
        "speedup by the paper's estimator, at least (cells that claim a speedup)"
    )
    assert limits.limit_text(row("waiting_share", 0.1)) == "10 %"


def test_a_selector_that_lets_all_of_the_run_pass_is_not_told() -> None:
    """Nor names that the run has not: what is told is which of these cells a row is for."""
    here = limits.present([reference(), cell("ngram"), cell("eagle", batch_size=4)])
    floor = row(variants=["ngram", "eagle", "mtp"], batch_sizes=[1, 64], workloads=["chat", "code_edit"])
    assert limits.limited_text(floor, here) == "speedup, at least (B 1)"


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (1, "1 further limit of this hardware concerns no cell"),
        (21, "21 further limits of this hardware concern no cell"),
    ],
)
def test_the_others_are_counted(others: int, said: str) -> None:
    results = run(cell(), limits=Limits(rows=applied(row()).rows, others=others))
    assert said in tables(results)[-1].note
    empty = run(arms=[], limits=Limits(others=others))
    (only,) = tables(empty)
    assert said in only.note
    assert said in read_page(empty).text


def test_results_from_before_the_limits_were_kept_have_no_section() -> None:
    assert tables(run(cell())) == []
    assert 'id="limits"' not in render_html(run(cell()), header())


def test_two_kinds_of_hardware_are_told_apart() -> None:
    rows = [Applied(hardware=name, row=row()) for name in ("cpu", "h100")]
    other = cell("eagle")
    there = CellResult(**{**_fields(other), "cell": make_cell("eagle", hardware="h100")})
    (table,) = tables(run(cell(), there, limits=Limits(rows=rows)))
    assert [line["what is limited"] for line in rows_of(table)] == [
        "speedup, at least (cpu)",
        "speedup, at least (h100)",
    ]


def _fields(of: CellResult) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


@pytest.mark.parametrize("text", HOSTILE)
def test_untrusted_text_stays_text(text: str) -> None:
    """Overlays are the user's, and a run may come from anybody."""
    hostile = row("speedup", 1.0, source=f"x{text}", estimator=text, reason=text)
    results = with_rows(hostile, row(text, 1.0), cells=[cell()])
    found = read_page(results)
    assert not [char for char in found.text if not (char.isprintable() or char in "\n\t")]
    assert not {"html_inline", "html_block", "link_open", "image", "fence"} & markdown_tags(
        render_markdown(results, header())
    )


def test_all_limits_of_the_paper_stay_quick_and_few() -> None:
    """Of 190 rows for one GPU a cell meets its own few."""
    rows = load_catalog().thresholds["h100"]
    what = make_cell("ngram", 1, study="paper-fig1", hardware="h100", target="llama3.1-8b", workload="gsm8k")
    found = applicable([Judged(what, True)], {"h100": rows})
    paper = [one.row for one in found.rows if one.row.metric == "paper_speedup"]
    assert [one.limit for one in paper] == [1.166]
    assert len(found.rows) + found.others == len(rows)
