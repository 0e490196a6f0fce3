"""Rules of the first screen: one true sentence, every cell in the matrix with a way to its detail, what is missing."""

from __future__ import annotations

import importlib.resources
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.stats import Ratio
from draftproof.gate import Judgement
from draftproof.report import partial, view
from draftproof.report.ci import job_summary
from draftproof.report.html import render_html
from draftproof.report.markdown import cell_text, render_markdown
from draftproof.report.matrix import STEPS, legend, matrix, tone
from draftproof.report.parts import Page as Asked
from draftproof.report.terminal import summary_lines
from draftproof.results import AaResult, CellResult, RunResults
from draftproof.spec import MatrixRow, Study
from tests.reporting import (
    Page,
    arm,
    broken,
    cell,
    difference,
    failure,
    header,
    page,
    ratio,
    reference,
    run,
    sameness,
)


def spread() -> RunResults:
    """Two workloads, two batch sizes, one of everything."""
    cells = [
        reference(),
        cell("ngram", speedup=ratio(1.87, 1.40, 2.49)),
        cell("eagle3", speedup=ratio(1.21, 1.05, 1.40)),
        cell("eagle3", "code", 4, speedup=ratio(1.54, 1.32, 1.80)),
        cell("eagle", speedup=ratio(0.55, 0.37, 0.81), verdict="NO_BASELINE"),
        cell("eagle", "code", 4, speedup=ratio(1.02, 0.9, 1.15), sameness=sameness(difference())),
        cell("oracle", speedup=ratio(3.56, 3.43, 3.71)),
        broken("draft_model"),
    ]
    started = [arm(name) for name in ("no_sd", "ngram", "eagle3", "eagle", "draft_model")]
    noise = [AaResult(target="tiny", workload="chat", batch_size=1, ratio=ratio(1.01, 0.97, 1.05))]
    return run(*cells, arms=[*started, arm("oracle", control="oracle")], aa=noise)


# -- the sentence ------------------------------------------------------------------------------------------------------


def test_the_sentence_counts_and_gives_the_extremes_with_their_intervals() -> None:
    assert view.headline(spread()) == (
        "Faster than no speculation in 3 of 6 cells (eagle3 in 2, ngram in 1: 1.87x [1.40, 2.49], ngram on chat b1 to "
        "1.21x [1.05, 1.40], eagle3 on chat b1), slower in 1 (eagle on chat b1, 0.55x [0.37, 0.81]), not told apart "
        "from 1.0 in 1, not counted in 1 (FAILED), by 95 % intervals over 3 prompt sets each; no divergent outputs in "
        "6 cells compared, differences by ties alone in 1; no speedup regressed, of 5 held against a limit; failed: "
        "draft_model on chat b1; controls apart (oracle on chat b1, 3.56x [3.43, 3.71])."
    )


def test_the_sentence_is_the_same_everywhere() -> None:
    results = spread()
    told = view.headline(results)
    assert told in page(results).text
    assert cell_text(told) in render_markdown(results, header())
    assert cell_text(told) in job_summary(results, [], str)
    assert summary_lines(results, 140)[-1] == told


def test_what_regressed_and_what_is_not_the_same_are_named() -> None:
    told = view.headline(
        run(
            cell("a", sameness=sameness(difference(cause="divergent"))),
            cell("b", sameness=sameness(difference(cause="inconclusive"))),
            cell("c", sameness=sameness(garbage="one token over and over")),
            cell("d", verdict="REGRESSED", speedup=ratio(0.6, 0.5, 0.7)),
            cell("e", determinism=Judgement(verdict="REGRESSED", reason="more ties")),
        )
    )
    assert "divergent outputs in 1 of 5 cells compared (a on chat b1)" in told
    assert "inconclusive ones in 1 (b on chat b1)" in told
    assert "no-SD's own output is garbage beside c on chat b1" in told
    assert "regressed speedups in 1 of 5 judged: d on chat b1" in told
    assert "regressed outputs in 1 of 5 judged: e on chat b1" in told


def test_nothing_is_said_to_hold_that_nobody_looked_at() -> None:
    told = view.headline(run(cell(verdict="NO_BASELINE", sameness=None, meaningless="random weights")))
    assert "divergent" not in told
    assert "outputs of 1 cell not compared: random weights" in told
    assert "no speedup was held against a limit" in told
    assert view.headline(run(reference())) == "No speculative variant ran."
    assert view.headline(run(partial="the budget was spent")) == "Nothing ran: the budget was spent."


@pytest.mark.parametrize("verdict", ["UNSTABLE", "INCOMPARABLE", "FAILED"])
def test_a_figure_without_a_meaning_is_no_gain(verdict: Any) -> None:
    """A speedup from a busy machine, or over an arm with other settings, is neither faster nor slower."""
    told = view.headline(run(cell(verdict=verdict, speedup=ratio(3.0, 2.9, 3.1))))
    assert "faster than no speculation in 0 of 1 cell" in told.lower()
    assert f"not counted in 1 ({verdict}" in told
    assert "3.00x" not in told


def test_many_variants_are_counted_and_chance_is_told() -> None:
    cells = [
        cell(f"v{index % 10}", f"w{index // 10}", speedup=ratio(1.01 + index / 100, 1.0001, 2)) for index in range(40)
    ]
    told = view.headline(run(*cells))
    assert "6 more variants in 24" in told
    assert "of which about 2 in 40 misses by chance" in told
    assert len(told) < 700


positive = st.floats(min_value=0.01, max_value=100)
RATIOS = st.tuples(positive, positive, positive).map(sorted).map(lambda x: ratio(x[1], x[0], x[2]))
ENDLESS = st.just(Ratio(value=1.0, low=0.5, high=float("inf"), clusters=2, method=""))


@given(st.lists(st.one_of(st.none(), RATIOS, ENDLESS), min_size=1, max_size=8))
def test_the_sentence_leaves_no_cell_out(ratios: list[Ratio | None]) -> None:
    """Faster, slower, not told apart and without a figure are all cells, however odd the intervals."""
    told = view.headline(run(*[cell(f"v{index}", speedup=one) for index, one in enumerate(ratios)]))
    first = told.split(";")[0]
    counts = [
        int(found) for found in re.findall(r"(?:speculation in|slower in|from 1\.0 in|not counted in) (\d+)", first)
    ]
    assert sum(counts) == len(ratios)
    assert f"of {len(ratios)} cell" in first


# -- the matrix --------------------------------------------------------------------------------------------------------


def test_every_cell_is_in_the_matrix_and_leads_to_its_detail() -> None:
    results = spread()
    found = matrix(Asked(results, header()))
    assert found is not None
    assert found.workloads == [("chat", [1]), ("code", [4])]
    assert [(group.title, [row.name for row in group.rows]) for group in found.groups] == [
        ("", ["ngram", "eagle3", "eagle", "draft_model"]),
        ("controls, not to be deployed", ["oracle"]),
        ("no speculation, and what is noise", ["no_sd", "no_sd against itself"]),
    ]
    links = [one.link for group in found.groups for row in group.rows for one in row.cells if one and one.link]
    assert len(links) == len(set(links)) == len(results.cells)
    text = render_html(results, header())
    for result in results.cells:
        anchor = re.search(rf'<a class="opener" href="#(cell-\d+)">{result.cell.id}', text)
        assert anchor is not None
        assert anchor[1] in links
        assert f'id="{anchor[1]}"' in text
    assert page(results).text.count("k = 3") >= 4


def test_a_detail_is_shown_when_it_is_the_target_and_in_print_without_any_script() -> None:
    text = render_html(spread(), header())
    assert '<div class="more" hidden="until-found">' in text
    assert "tr:target .more { display: block; content-visibility: visible; }" in text
    assert text.count("content-visibility: visible") >= 2
    assert "<script" not in text


def test_targets_and_builds_have_rows_of_their_own() -> None:
    cells = [cell(), cell(target="other"), cell(build="base", arm="base:ngram", base_arm="base:no_sd")]
    found = matrix(Asked(run(*cells, arms=[arm()]), header()))
    assert found is not None
    assert [group.title for group in found.groups] == ["tiny, new build", "other, new build", "tiny, base build"]


def test_a_cell_says_its_verdict_in_a_word_and_its_outputs_where_they_did_not_pass() -> None:
    text = page(
        run(
            cell("a", verdict="REGRESSED"),
            cell("b", determinism=Judgement(verdict="FAILED", reason="divergent outputs")),
            cell("c", speedup=None, verdict="INSUFFICIENT"),
        )
    ).text
    table = " ".join(text[text.index("B = 1") : text.index("Speedup over no speculation with")].split())
    assert "a k = 3" not in table  # that arm is not in the records
    assert "1.50x [1.40, 1.60] ▼ REGRESSED" in table
    assert "1.50x [1.40, 1.60] ✓ PASS outputs ✕ FAILED" in table
    assert "no figure … INSUFFICIENT" in table


def test_what_was_not_run_is_not_a_blank() -> None:
    """A blank is no part of the study; a cell of it that was not run says so."""
    row = MatrixRow(target="tiny", variants=["ngram", "eagle"], workloads=["chat"], batch_sizes=[1, 4])
    study = Study(name="default", title="", hardware="cpu", output_tokens=64, matrix=[row])
    results = run(cell("ngram"), cell("eagle"), cell("eagle", batch_size=4), cell("other", "code"))
    found = matrix(Asked(results, header(study=study)))
    assert found is not None
    shown = {
        row.name: [one.value if one else None for one in row.cells] for group in found.groups for row in group.rows
    }
    assert shown == {
        "ngram": ["1.50x", "not run", None],
        "eagle": ["1.50x", "1.50x", None],
        "other": [None, None, "1.50x"],
    }


def test_tones_repeat_what_the_text_says() -> None:
    assert tone(ratio(1.0, 0.9, 1.1)) == tone(ratio(3.0, 0.9, 9.0)) == "t-n"
    assert [tone(ratio(value, 1.001, 9)) for value in (1.05, *STEPS)] == [f"t-f{step}" for step in range(1, 6)]
    assert [tone(ratio(1 / value, 0.1, 0.999)) for value in (1.05, *STEPS)] == [f"t-l{step}" for step in range(1, 6)]
    names = [name for name, _ in legend()]
    assert len(names) == len(set(names)) == 11


@given(RATIOS)
def test_faster_and_slower_are_mirror_images(found: Ratio) -> None:
    mirrored = ratio(1 / found.value, 1 / found.high, 1 / found.low)
    assert tone(found)[-1] == tone(mirrored)[-1] or abs(found.value - 1) > 1e-9


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_stays_readable_on_every_tone(scheme: int) -> None:
    """WCAG's contrast of 4.5 at least, in light (0) and in dark (1)."""
    folder = importlib.resources.files("draftproof.report")
    colours: dict[str, str] = {}
    for name in ("style.css", "first.css"):
        block = re.findall(r":root \{([^}]*)\}", (folder / name).read_text(encoding="utf-8"))[scheme]
        colours |= dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6})", block))
    text = colours["fg"]
    tones = {name: colour for name, colour in colours.items() if re.fullmatch(r"[fl][1-5]", name)}
    assert len(tones) == 10
    for name, colour in tones.items():
        bright, dark = sorted((luminance(text), luminance(colour)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, name


def test_untrusted_names_stay_text_in_the_matrix() -> None:
    evil = '"><script>alert(1)</script>'
    found = page(run(cell(evil, evil, target=evil), cell("b", target="c"), arms=[arm(evil)]))
    assert evil in found.text


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_reasons_are_told_once_with_the_cells_that_they_kept_out() -> None:
    why = "needs a data set; found none; enable with a network"
    skipped = {f"tiny-ngram-gsm8k-b{size}": why for size in range(1, 31)}
    found = page(run(cell(), skipped=skipped | {"tiny-mtp-chat-b1": "needs a module"}))
    assert found.text.count(why) == 1
    assert "tiny-ngram-gsm8k-b12 and 18 more" in found.text
    assert "tiny-mtp-chat-b1" in found.text


def test_the_rest_of_the_study_is_not_passed_over() -> None:
    """Where a command chose some cells, the others are named all the same."""
    row = MatrixRow(target="tiny", variants=["ngram", "eagle"], workloads=["chat"], batch_sizes=[1])
    study = Study(name="default", title="", hardware="cpu", output_tokens=64, matrix=[row])
    results = run(cell("ngram"))
    found = page(results, header(study=study))
    assert "Partial results: 1 cell of the study not run" in found.text
    assert partial.NOT_CHOSEN in found.text
    assert "tiny-eagle-chat-b1" in found.text
    assert "tiny-eagle-chat-b1" in render_markdown(results, header(study=study)).replace("\\", "")
    whole = page(run(cell("ngram"), cell("eagle")), header(study=study))
    assert "Partial results" not in whole.text
    assert partial.TITLE not in whole.text


def test_a_killed_run_names_what_it_did_not_come_to() -> None:
    late: dict[str, Any] = {
        "speedup": None,
        "tokens_per_s": None,
        "base_tokens_per_s": None,
        "stages": None,
        "pairs": 0,
    }
    results = run(cell(), cell("eagle", verdict="INSUFFICIENT", sameness=None, acceptance=None, **late), finished=False)
    found = page(results)
    assert "PARTIAL run: ended early" in found.text
    assert partial.NOT_REACHED in found.text
    assert "no interval and so no speedup in 1 of 2 cells (1 with 0 pairs)" in found.text
    assert "not run" in found.text[found.text.index("B = 1") :]
    done = msgspec.structs.replace(results, finished=True)
    assert partial.NOT_REACHED not in page(done).text


ODD: dict[str, tuple[RunResults, str]] = {
    "zero cells": (run(arms=[]), "Nothing ran: no cells were selected."),
    "zero cells, killed": (run(arms=[], finished=False, partial="out of memory"), "PARTIAL run: out of memory"),
    "failed cells": (run(cell(), broken(), broken("eagle")), "2 of 3 cells failed, or a part of each did"),
    "everything failed": (run(broken(), arms=[]), "1 of 1 cell failed"),
    "a part failed": (run(cell(failures=[failure(purpose="stages")])), "1 of 1 cell failed, or a part of each did"),
    "one variant only": (run(cell()), "in 1 of 1 cell (ngram on chat b1, 1.50x [1.40, 1.60])"),
    "one request": (
        run(cell(speedup=None, pairs=1, verdict="INSUFFICIENT", sameness=sameness(requests=1))),
        "no interval and so no speedup in 1 of 1 cell (1 with 1 pair)",
    ),
    "no-SD alone": (run(reference()), "No speculative variant ran."),
    "controls alone": (run(cell("oracle"), arms=[arm("oracle", control="oracle")]), "Controls alone ran"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_runs_render_and_say_what_they_are(name: str) -> None:
    results, what = ODD[name]
    assert what in page(results).text
    assert render_markdown(results, header())
    assert summary_lines(results, 140)
    assert job_summary(results, [], str)


def test_a_text_of_a_page_is_read_in_this_order() -> None:
    """Sentence, environment, matrix, what is missing, advice, then the cells one by one."""
    results = msgspec.structs.replace(spread(), skipped={"tiny-mtp-chat-b1": "needs a module"})
    text = page(results).text
    marks = [view.headline(results), view.environment_line(results), "B = 1", "needs a module", "What to deploy, and"]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def links_of(text: str) -> list[str]:
    return [value for name, value in Page(text).attributes if name == "href"]


def test_the_page_has_no_way_out() -> None:
    assert {link[0] for link in links_of(render_html(spread(), header()))} <= {"#", "d"}


def named(*cells: CellResult) -> str:
    return view.headline(run(*cells))


def test_several_targets_are_named_in_the_sentence() -> None:
    assert "ngram (other) on chat b1" in named(cell(speedup=ratio(0.9, 0.8, 0.99)), cell(target="other"))
