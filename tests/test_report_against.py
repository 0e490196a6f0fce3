"""Rules of the section on a baseline: what matters first, both values of what is held apart, never a bare change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from draftproof.comparison import Apart, Compared, Finding, compare
from draftproof.gate import Verdict
from draftproof.report import against, parts
from draftproof.report.against import MOVES_HEAD
from draftproof.report.compared import headline, ordered
from draftproof.report.html import render_html
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Table
from draftproof.report.sections import sections
from draftproof.report.written import Summary, summary_of
from draftproof.results import RunResults
from draftproof.snapshot import Snapshot
from tests.reporting import HOSTILE, Page, cell, header, markdown_tags, reference, run
from tests.snapshots import NGRAM, NO_SD, Arm, make_limits, make_run, make_series, make_snapshot, with_stage_gates

RUN = run(reference(), cell())


def slower(arm: Arm, factor: float) -> Arm:
    return Arm(step_s=arm.step_s * factor, length=arm.length, sigma=arm.sigma)


def found(new: Snapshot | None = None, *base: Snapshot) -> Compared:
    return compare(list(base) or [make_run("base")], [new or make_run()], make_limits())


def finding(verdict: Verdict, beyond: float | None = None, **fields: Any) -> Finding:
    """Of the end-to-end gate; with figures where it says how far beyond."""
    change = None if beyond is None else -(beyond + 0.05)
    given: dict[str, Any] = {
        "place": "t-ngram-w-b2",
        "gate": "end to end",
        "arm": "ngram",
        "base": None if change is None else 1.5,
        "new": None if change is None else 1.5 * (1 + change),
        "change": change,
        "low": None if change is None else change - 0.01,
        "high": None if change is None else change + 0.01,
        "p": None if change is None else 0.01,
        "reason": "because",
        "metric": "speedup_drop",
        "noun": "speedup",
        "unit": "x",
        "limit": None if change is None else -0.05,
        "beyond": beyond,
        "why": "",
    }
    return Finding(verdict=verdict, **(given | fields))


def said(*findings: Finding, **fields: Any) -> Compared:
    given: dict[str, Any] = {"base": ["before"], "new": ["now"], "same_run": False, "tests": 1, "notes": []}
    return Compared(findings=list(findings), **(given | fields))


def table(of: Compared, name: str) -> Table:
    (one,) = [one for one in against.tables(of) if one.name == name]
    return one


def html(of: Compared, results: RunResults = RUN) -> str:
    return render_html(results, header(), sections(parts.Page(results, header(), of)))


def markdown_of(of: Compared, results: RunResults = RUN) -> str:
    return render_markdown(results, header(), sections(parts.Page(results, header(), of)))


def page(of: Compared, results: RunResults = RUN) -> Page:
    return Page(html(of, results))


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_without_a_comparison_there_is_no_section(render: Any) -> None:
    text = render(RUN, header())
    assert "Against" not in text.replace("Outputs against", "")
    assert "against-moves" not in text


def test_the_section_is_on_the_page_and_in_markdown() -> None:
    """With the verdict, who is compared with whom, and each gate's figures: the same on both."""
    of = found(make_run(arm=slower(NGRAM, 1.3)))
    shown, text = page(of).text, markdown_of(of).replace("\\", "")
    worst = ordered(of)[0]
    for where in (shown, text):
        for what in (
            "Against base",
            "Red against 1 run: regressed: t-ngram-w-b2 (system), t-ngram-w-b2 (end to end)",
            "Before: base; now: new.",
            "REGRESSED",
            "system: seconds of a step over no-SD's",
            "end to end: speedup",
            "end to end: throughput",
            "drafter: acceptance length",
            against.change_text(worst),
            "of the stages verify rose most",
        ):
            assert what in where, what


def test_a_row_holds_the_planted_figures() -> None:
    """30 % more seconds a step: 25 points beyond a limit of 5 %; a speedup that falls by 23 %: 18 beyond."""
    still = Arm(sigma=0)
    base = make_run("base", Arm(step_s=0.012, length=2.0, sigma=0), still)
    new = make_run("new", Arm(step_s=0.012 * 1.3, length=2.0, sigma=0), still)
    moves = table(compare([base], [new], make_limits()), "against-moves")
    rows = {row[2]: dict(zip(moves.head, row, strict=True)) for row in moves.body}
    system, speedup = rows["system: seconds of a step over no-SD's"], rows["end to end: speedup"]
    assert (system["before -> now"], system["limit"]) == ("1.2 -> 1.56 x", "+5 %")
    assert (system["beyond"], speedup["beyond"]) == ("+25.0", "+18.1")
    assert system["change [95 %]"].startswith("+30.0 % [+")
    assert (speedup["before -> now"], speedup["limit"]) == ("1.67 -> 1.28 x", "-5 %")
    assert speedup["change [95 %]"].startswith("-23.1 % [-")
    assert {row["sets"] for row in rows.values()} == {"12"}
    assert rows["end to end: throughput"]["limit"] == "-10 %"
    assert rows["end to end: throughput"]["before -> now"].endswith(" tokens/s")


def test_the_arm_at_fault_is_named() -> None:
    """A slower no-SD raises every speedup, and is what is red: in its own row and in that of the ratio to it."""
    of = found(make_run(no_sd=slower(NO_SD, 1.5)))
    moves = table(of, "against-moves")
    red = [dict(zip(moves.head, row, strict=True)) for row in moves.body if row[0] == "REGRESSED"]
    assert [(row["cell"], row["arm"]) for row in red] == [("t-no_sd-w-b2", "no_sd"), ("t-ngram-w-b2", "no_sd")]
    assert red[1]["besides"].startswith("it is no-SD that became slower: ")


def test_what_matters_comes_first() -> None:
    """Regressed by the distance to the limit, failed, not judged, better by the gain, the rest."""
    some = [
        finding("PASS", -0.05),
        finding("IMPROVED", -0.2),
        finding("NO_BASELINE"),
        finding("REGRESSED", 0.01),
        finding("UNSTABLE", 0.02),
        finding("FAILED"),
        finding("IMPROVED", -0.4),
        finding("REGRESSED", 0.3),
        finding("PASS", -0.01),
    ]
    order = [(one.verdict, one.beyond) for one in ordered(said(*some))]
    assert order == [
        ("REGRESSED", 0.3),
        ("REGRESSED", 0.01),
        ("FAILED", None),
        ("UNSTABLE", 0.02),
        ("NO_BASELINE", None),
        ("IMPROVED", -0.4),
        ("IMPROVED", -0.2),
        ("PASS", -0.01),
        ("PASS", -0.05),
    ]


def test_what_only_looks_closer_and_cannot_tell_stands_last() -> None:
    """It leaves nothing unjudged, and is no news."""
    closer = finding("UNSTABLE", 0.4, gate="draft stage", only_adds=True)
    red = finding("REGRESSED", 0.1, gate="verify stage", only_adds=True)
    of = said(closer, finding("PASS", -0.01), red)
    assert ordered(of) == [red, finding("PASS", -0.01), closer]
    assert "not judged" not in headline(of)


def test_a_stage_that_rose_is_a_row_of_its_own() -> None:
    slow = with_stage_gates(make_run(arm=Arm(step_s=0.012, length=2.0, draft_s=0.0035)))
    moves = table(found(slow, with_stage_gates(make_run("base"))), "against-moves")
    rows = [dict(zip(moves.head, row, strict=True)) for row in moves.body if row[2].startswith("draft stage: ")]
    assert [(row["verdict"], row["arm"], row["limit"]) for row in rows] == [("REGRESSED", "ngram", "+10 %")]


def test_a_verdict_is_a_word_with_a_sign() -> None:
    """Colour alone says nothing."""
    text = html(found(make_run(arm=slower(NGRAM, 1.3))))
    section = text[text.index('id="against"') :]
    assert '<span class="verdict bad"><span class="sign" aria-hidden="true">▼</span>REGRESSED</span>' in section


def test_gates_without_figures_stand_together_by_reason() -> None:
    """Failed ones first, each reason once however many gates it stops."""
    of = said(
        finding("NO_BASELINE", why="nothing there", place="a"),
        finding("NO_BASELINE", why="nothing there", place="b"),
        finding("NO_BASELINE", why="nothing there", place="b"),
        finding("FAILED", why="it fell", place="c"),
    )
    unjudged = table(of, "against-unjudged")
    assert unjudged.title == "Failed, or not judged"
    assert unjudged.body == [["FAILED", "it fell", "1", "c"], ["NO_BASELINE", "nothing there", "3", "a, b"]]


def test_what_is_too_little_to_judge_is_in_the_table_all_the_same() -> None:
    """With its interval; no p-value, since nothing was tested."""
    of = found(make_run(sets=3), make_run("base", sets=3))
    rows = [dict(zip(MOVES_HEAD, row, strict=True)) for row in table(of, "against-moves").body]
    assert {(row["verdict"], row["p"], row["sets"], row["besides"]) for row in rows} == {
        ("INSUFFICIENT", "-", "3", "3 prompt sets in common; a gate needs 12")
    }
    assert all("[" in row["change [95 %]"] for row in rows)
    assert [one.name for one in against.tables(of)] == ["against-moves"]


# --- held apart -------------------------------------------------------------------------------------------------------


def test_held_fields_that_differ_are_red_with_both_values_and_nothing_is_judged() -> None:
    of = found(make_run(held={"cpu": "this <CPU>", "seed": 8}))
    assert of.unlike == [
        Apart(field="cpu", base="'a CPU'", new="'this <CPU>'"),
        Apart(field="seed", base="7", new="8"),
    ]
    assert {one.verdict for one in of.findings} == {"INCOMPARABLE"}
    held = table(of, "against-held")
    assert (held.tone, held.body) == (
        "bad",
        [["cpu", "'a CPU'", "'this <CPU>'", "all"], ["seed", "7", "8", "all"]],
    )
    assert held.title == "Held fields differ, so that nothing is judged"
    text = html(of)
    assert '<table class="bad">' in text
    assert "&#39;this &lt;CPU&gt;&#39;" in text
    assert not table(of, "against-moves").body
    assert against.tables(of)[0] == held
    assert Page(text).text.count("Not judged against 1 run: 4 of 4 gates not judged") == 1


def test_a_cell_that_is_held_otherwise_stands_alone() -> None:
    """The other cells are judged."""
    base = make_run("base")
    other = msgspec.structs.replace(base.series[1], held={"dtype": "float32", "threads": 2})
    of = found(make_run(), msgspec.structs.replace(base, series=[base.series[0], other]))
    assert of.unlike == [Apart(field="dtype", base="'float32'", new="'bfloat16'", places=["t-ngram-w-b2"])]
    held = table(of, "against-held")
    assert held.title == "Held fields differ, so that these cells are not judged"
    assert held.body[0][3] == "t-ngram-w-b2"
    assert [row[0] for row in table(of, "against-moves").body] == ["PASS"]


def test_what_is_alike_is_not_held_apart() -> None:
    of = found()
    assert (of.unlike, of.under_test) == ([], [])
    assert [one.name for one in against.tables(of)] == ["against-moves"]


def test_what_is_under_test_is_told_with_both_values() -> None:
    """Versions may differ: they are what the figures may come from."""
    of = found(make_run(versions={"vllm": "2"}, git_commit="c" * 40))
    assert table(of, "against-versions").body == [
        ["commit of the checkout", "None", repr("c" * 40)],
        ["vllm", "'1'", "'2'"],
    ]
    assert of.exit_code == 0


def test_another_study_is_told() -> None:
    """Cells with the same prompts and settings may be compared all the same."""
    of = found(make_run(), make_run("base", study="other"))
    assert of.exit_code == 0
    assert "the baseline is of another study, 'other', this run of 's': only cells with" in of.notes[0]
    assert "Note: the baseline is of another study" in table(of, "against-moves").note


def test_a_study_of_other_cells_judges_none() -> None:
    other = make_snapshot("base", [make_series(NGRAM, workload="elsewhere")], study="other")
    of = found(make_run(), other)
    assert {row[0] for row in table(of, "against-unjudged").body} == {"NO_BASELINE"}
    assert "only in the baseline: t-ngram-elsewhere-b2" in table(of, "against-moves").note


# --- however the run is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "title"),
    [
        (said(), "Against before"),
        (said(base=[]), "Against a baseline"),
        (said(base=["a", "b", "c"]), "Against 3 earlier runs"),
        (said(same_run=True), "Against the other build"),
        (said(base=["r" * 200]), "Against " + "r" * 60 + "... (cut: 140 more characters)"),
        (said(notes=["no run of x to compare with"], base=[]), "Against a baseline"),
        (said(finding("INSUFFICIENT", why="1 prompt set in common; a gate needs 12")), "Against before"),
    ],
)
def test_renders(of: Compared, title: str) -> None:
    """Nothing compared, one cell, no baseline, two builds."""
    for results in (RUN, run(arms=[]), run(cell(), finished=False, partial="ended early")):
        shown = page(of, results)
        assert title in shown.text
        text = markdown_of(of, results)
        assert f"## {title}" in text.replace("\\", "")
        assert not {"html_inline", "html_block"} & markdown_tags(text)


def test_an_interval_without_end_is_told() -> None:
    row = dict(zip(MOVES_HEAD, against.move_row(finding("UNSTABLE", 0.1, low=-1.0, high=float("inf"))), strict=True))
    assert row["change [95 %]"] == "-15.0 % [-100.0, unbounded]"


@pytest.mark.parametrize("text", HOSTILE)
def test_untrusted_text_stays_text(text: str) -> None:
    of = said(
        finding("REGRESSED", 0.2, place=text, arm=text, why=text),
        finding("FAILED", why=text, place=text),
        base=[text],
        new=[text],
        notes=[text],
        unlike=[Apart(field=text, base=text, new=text, places=[text])],
        under_test=[Apart(field=text, base=text, new=text)],
    )
    harmless = msgspec.json.decode(msgspec.json.encode(said()), type=Compared)
    assert harmless == said()
    shown = page(of)
    assert "script" not in shown.tags
    assert not [char for char in shown.text if not (char.isprintable() or char in "\n\t")]
    markdown = markdown_of(of)
    markdown.encode()
    assert not {"html_inline", "html_block", "link_open", "image", "fence"} & markdown_tags(markdown)


def test_many_gates_stay_small() -> None:
    """15,000 gates: the most important are shown, the rest is counted."""
    gates = [finding("PASS", -0.01, place=f"t-v{n // 3}-w-b2") for n in range(14_990)]
    gates += [finding("REGRESSED", 0.01 * n, place=f"t-red{n}-w-b2") for n in range(10)]
    of = said(*gates)
    moves = table(of, "against-moves")
    assert len(moves.body) == against.MOVES_SHOWN
    assert [row[1] for row in moves.body[:10]] == [f"t-red{n}-w-b2" for n in reversed(range(10))]
    further = table(of, "against-further")
    assert len(further.body) == against.MOST_SHOWN
    assert f"The first {against.MOST_SHOWN} of 14,940; the rest is in summary.json." in further.note
    many = said(*[finding("REGRESSED", 0.1, place=f"t-red{n}-w-b2") for n in range(5000)])
    assert "t-red11-w-b2 (end to end) and 4,988 more" in headline(many)


# --- for machines -----------------------------------------------------------------------------------------------------


def test_the_summary_holds_the_comparison_and_reads_back() -> None:
    of = found(make_run(arm=slower(NGRAM, 1.3)))
    assert msgspec.json.decode(msgspec.json.encode(summary_of(RUN, of)), type=Summary).against == of
    without = msgspec.json.encode(summary_of(RUN))
    assert b'"against"' not in without
    assert msgspec.json.decode(without, type=RunResults) == RUN
