"""Rules of the stage tables: nothing is shown that was not measured, and what was measured says how."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from draftproof.analysis.eq1 import Expected
from draftproof.analysis.rowsprice import Interval, RowsPrice
from draftproof.analysis.stages import StageSums
from draftproof.report import paperstages
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Table
from draftproof.report.stages import tables
from draftproof.results import RunResults
from draftproof.stagefindings import Explained, StageFindings, TargetPrices
from tests.reporting import broken, cell, header, page, ratio, run

SUMS = StageSums(
    seconds={"draft": 1.0, "verify": 6.0, "sample": 1.0, "overhead": 2.0, "prefill": 1.0},
    lm_head_s=1.0,
    unattributed_s=0.25,
    decode_steps=40,
    prefill_steps=2,
    overhead_s={
        "schedule": 0.5,
        "prepare": 0.5,
        "bookkeeping": 0.25,
        "output processing": 0.5,
        "outside the worker": 0.0,
    },
)


def shown(**changes: Any) -> Table:
    table, *_ = tables(run(cell(stages=msgspec.structs.replace(SUMS, **changes))))
    return table


def test_shares_by_hand() -> None:
    table = shown()
    assert dict(zip(table.head, table.body[0], strict=True)) == {
        "variant": "ngram",
        "workload": "chat",
        "B": "1",
        "draft": "10.0 %",
        "verify": "60.0 %",
        "sample": "10.0 %",
        "overhead": "20.0 %",
        "LM head (in verify)": "10.0 %",
        "schedule (in overhead)": "5.0 %",
        "prepare (in overhead)": "5.0 %",
        "bookkeeping (in overhead)": "2.5 %",
        "output processing (in overhead)": "5.0 %",
        "unattributed (in overhead)": "2.5 %",
        "ms/step": "250.0",
        "decode steps": "40",
    }
    assert "host seconds" in table.note


def test_the_outside_of_a_worker_is_a_column_where_there_is_one() -> None:
    table = shown(overhead_s={**SUMS.overhead_s, "outside the worker": 0.5})
    assert table.body[0][table.head.index("outside the worker (in overhead)")] == "5.0 %"


def test_a_gpu_shows_busy_and_idle_and_claims_no_rest() -> None:
    table = shown(unattributed_s=None, device_busy_s=7.5, device_idle_s=2.5, clock="named scopes, CUDA events")
    line = dict(zip(table.head, table.body[0], strict=True))
    assert (line["device busy"], line["device idle"], line["unattributed (in overhead)"]) == ("75.0 %", "25.0 %", "-")
    assert "CUDA events" in table.note


def test_several_workers_are_named_with_their_spread() -> None:
    note = shown(workers=2, spread_s=0.5).note
    assert "Of 2 workers the slowest of each step is shown" in note
    assert "5.0 %" in note


@pytest.mark.parametrize("cells", [[], [broken()]], ids=["nothing", "no stages"])
def test_without_samples_there_are_no_tables(cells: list[Any]) -> None:
    assert tables(run(*cells)) == []


def full() -> RunResults:
    expected = Expected(
        k=3, alpha=0.5, c=0.1, v=1.25, tokens_per_step=1.75, iid=1.44, measured_positions=1.13, whole_step=1.02
    )
    explained = Explained(
        cell=cell().cell.id,
        build="new",
        target="tiny",
        variant="ngram",
        workload="chat",
        batch_size=1,
        expected=expected,
        speedup=ratio(1.1, 1.0, 1.2),
    )
    one = RowsPrice(
        batch_size=4, rows=1, steps=46, verify_s=Interval(0.03, 0.029, 0.031), relative=Interval(1.0, 1.0, 1.0)
    )
    four = RowsPrice(
        batch_size=4, rows=4, steps=46, verify_s=Interval(0.06, 0.058, 0.063), relative=Interval(2.0, 1.9, 2.1)
    )
    lone = RowsPrice(batch_size=8, rows=4, steps=46, verify_s=Interval(0.06, 0.058, 0.063), relative=None)
    prices = TargetPrices(target="tiny", build="new", prices=[one, four, lone])
    results = run(cell(stages=SUMS))
    return msgspec.structs.replace(results, stage_findings=StageFindings(explained=[explained], prices=[prices]))


def test_all_tables_are_in_both_reports() -> None:
    """And the data in the summary."""
    results = full()
    _, published, explained, prices = tables(results)
    assert published.name == paperstages.NAME
    assert explained.body == [
        ["ngram", "chat", "1", "3", "0.50", "0.100", "1.25", "1.75", "1.44x", "1.13x", "1.02x", "1.10x [1.00, 1.20]"]
    ]
    assert prices.body == [
        ["tiny", "4", "1", "30.00 [29.00, 31.00]", "1.00x [1.00, 1.00]", "1.00x", "46"],
        ["tiny", "4", "4", "60.00 [58.00, 63.00]", "2.00x [1.90, 2.10]", "0.50x", "46"],
        ["tiny", "8", "4", "60.00 [58.00, 63.00]", "-", "-", "46"],
    ]
    markdown, html = render_markdown(results, header()), render_html(results, header())
    page(results)
    for table in tables(results):
        assert f"## {table.title}" in markdown
        assert table.title in html
        for value in ("1.44x", "2.00x [1.90, 2.10]"):
            assert value in html
    assert b'"iid":1.44' in msgspec.json.encode(results)
