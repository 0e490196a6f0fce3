"""Rules of the reports: all cells are there, nothing foreign is loaded, untrusted text stays text."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from draftproof.analysis.acceptance import Acceptance
from draftproof.gate import Verdict
from draftproof.metrics import METRICS
from draftproof.records import NoiseLine
from draftproof.report import parts, view
from draftproof.report.html import render_html
from draftproof.report.markdown import DIFFERENCE_HEAD, cell_text, render_markdown
from draftproof.report.sections import sections
from draftproof.report.surroundings import engines
from draftproof.report.templates import VERDICTS, note_parts, render
from draftproof.report.untrusted import token, visible
from draftproof.results import AaResult, RunResults
from tests.reporting import (
    HOSTILE,
    Page,
    arm,
    broken,
    cell,
    difference,
    failure,
    header,
    hostile_run,
    markdown_tags,
    page,
    ratio,
    reference,
    run,
    sameness,
    unfolded,
)

FULL = run(
    reference(),
    cell(
        sameness=sameness(difference()),
        informing=["speedup 1.500 beside 1.284 (paper; ratio of means)"],
        problems=["ngram, chat b1, rotation 0, pass 1: 5 tokens accepted of 4 drafted"],
    ),
    cell("eagle", "code_edit", 16, verdict="REGRESSED", speedup=ratio(0.6, 0.5, 0.7)),
    broken(),
    aa=[AaResult(target="tiny", workload="chat", batch_size=1, ratio=ratio(1.0, 0.98, 1.02))],
    noise=[
        NoiseLine(
            session=0,
            group=0,
            target="tiny",
            workload="chat",
            batch_size=1,
            rotation=0,
            arm="no_sd",
            positions=640,
            width_nats=0.031,
            largest_nats=[0.031],
            rows_nats=0.012,
            unscored=3,
        )
    ],
    skipped={"tiny-mtp-chat-b1": "needs a target with an MTP head"},
    notes=["chat: 2 prompts were left out"],
)


def test_everything_that_the_records_hold_is_on_the_page() -> None:
    found = page(FULL)
    for what in [
        view.headline(FULL),
        view.environment_line(FULL),
        view.noise_line(FULL),
        "1.50x [1.40, 1.60]",
        "90.0",
        "2.50",
        "2.10",
        *[metric.text(FULL.cells[1]) for metric in METRICS],
        "REGRESSED",
        "FAILED",
        "within the limit",
        "5 tokens accepted of 4 drafted",
        "A first difference within 0.05 nats",
        "libtcmalloc_minimal.so.4",
        "speedup 1.500 beside 1.284",
        "arm 'ngram' ended during 'load'",
        "ValueError: x",
        "chat b1: 1.00x [0.98, 1.02]",
        "60.0 %",
        "0.80, 0.50, 0.20",
        "150 of 300",
        "near tie",
        "tiny-mtp-chat-b1",
        "needs a target with an MTP head",
        "chat: 2 prompts were left out",
        "VLLM_CPU_KVCACHE_SPACE",
        "max_model_len",
        "num_speculative_tokens",
        "speedup over no-SD (x)",
        "jackknife over prompt sets",
    ]:
        assert what in found.text, what
    assert view.noise_line(FULL)[1:] in render_markdown(FULL, header())
    assert "PARTIAL" not in found.text
    assert "New build against base build" not in found.text


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_every_cell_is_named(render: Any) -> None:
    text = render(FULL, header()).replace("\\_", "_")
    for result in FULL.cells:
        assert result.arm == result.base_arm or result.cell.id in text
    assert render is render_markdown or all(result.cell.id in text for result in FULL.cells)


NEVER_DRAFTED = Acceptance(
    num_drafts=0,
    num_draft_tokens=0,
    num_accepted_tokens=0,
    length=None,
    rate=None,
    per_position=[],
    tokens_per_step=None,
)


@pytest.mark.parametrize(
    "results",
    [
        pytest.param(run(arms=[]), id="no cells"),
        pytest.param(run(arms=[], finished=False, partial="the budget was spent"), id="no cells, unfinished"),
        pytest.param(run(cell()), id="one cell"),
        pytest.param(run(reference()), id="no-SD alone"),
        pytest.param(run(broken(), arms=[]), id="failed before anything started"),
        pytest.param(run(cell(speedup=None, verdict="INSUFFICIENT"), finished=False), id="no interval yet"),
        pytest.param(run(cell(acceptance=NEVER_DRAFTED)), id="never drafted"),
        pytest.param(run(cell(sameness=sameness(difference(gap_nats=None, texts=None)))), id="not scored"),
        pytest.param(run(cell(), cell(target="other")), id="two targets"),
        pytest.param(FULL, id="full"),
    ],
)
def test_renders(results: RunResults) -> None:
    found = page(results)
    assert ("PARTIAL run" in found.text) == (not results.finished)
    assert results.partial in found.text
    assert results.cells or "No cell was run" in found.text
    text = render_markdown(results, header())
    assert ("Partial run" in text) == (not results.finished)
    assert not {"html_inline", "html_block"} & markdown_tags(text)


def test_the_width_of_a_tie_is_told_against_the_referee() -> None:
    told = view.noise_line(FULL)
    assert "up to 0.031 nats from that of the float32 referee, over 640 positions" in told
    assert "the number of rows alone moves it by up to 0.012 nats" in told
    assert "within 0.050 nats of the referee's best token is a near tie" in told
    assert "3 further positions have a token that was not scored" in told
    assert "finite" not in told
    assert view.noise_line(run(cell())) == ""


def test_a_partial_run_says_so_and_why() -> None:
    found = page(run(cell(), finished=False, partial="the budget of 330 s was spent"))
    assert "PARTIAL run: the budget of 330 s was spent" in found.text


@pytest.mark.parametrize("text", HOSTILE)
def test_untrusted_text_stays_text(text: str) -> None:
    plain, found = (unfolded(hostile_run(given)) for given in ("harmless", text))
    known = {"span", "i", "code", "wbr"}  # named characters and an empty text of tokens; where names may break
    assert [tag for tag in found.tags if tag not in known] == [tag for tag in plain.tags if tag not in known]
    odd = [char for char in found.text if not (char.isprintable() or char in "\n\t")]
    assert not odd
    render_html(hostile_run(text), header()).encode()


@pytest.mark.parametrize("text", HOSTILE)
def test_untrusted_text_stays_text_in_markdown(text: str) -> None:
    shown = render_markdown(hostile_run(text), header())
    shown.encode()
    assert not {"html_inline", "html_block", "link_open", "image", "fence"} & markdown_tags(shown)
    assert all(char.isprintable() or char == "\n" for char in shown)
    table = [line for line in shown.splitlines() if line.startswith("| 1 |")]
    assert len(table) == 1
    assert len(re.findall(r"(?<!\\)\|", table[0])) == len(DIFFERENCE_HEAD) + 1


@pytest.mark.parametrize("text", ["@someone", "https://evil.example", "www.evil.example", "a@b.example", "#1", "$x$"])
def test_a_token_pings_nobody_and_links_nowhere_in_markdown(text: str) -> None:
    """Mentions and bare addresses become links on forges, unless they stand in a code span."""
    shown = render_markdown(run(cell(sameness=sameness(difference(text, "`" + text)))), header())
    row = next(line for line in shown.splitlines() if line.startswith("| 1 |"))
    tokens = MarkdownIt("commonmark").parseInline(row)[0].children or []
    assert not [t for t in tokens if t.type != "code_inline" and text in t.content]
    assert [t.content for t in tokens if t.type == "code_inline"] == [repr(text), repr("`" + text)]


def test_a_token_shows_what_cannot_be_seen() -> None:
    found = page(run(cell(sameness=sameness(difference("a\N{RIGHT-TO-LEFT OVERRIDE}b", "\n")))))
    assert "aU+202Eb" in found.text
    assert "U+000A" in found.text
    assert "RIGHT-TO-LEFT OVERRIDE" in found.values("title")
    assert visible("x\N{RIGHT-TO-LEFT OVERRIDE}\x1b") == "x[U+202E][U+001B]"
    assert "nothing" in token("")
    piled = "e" + "\N{COMBINING ACUTE ACCENT}" * 3
    assert visible(piled) == piled[:3] + "[U+0301]"
    assert visible("\N{COMBINING ACUTE ACCENT}") == "[U+0301]"


def test_long_texts_are_cut_with_a_note() -> None:
    long = "<" * 100_000
    text = render_html(hostile_run(long), header())
    assert "99,880 more characters" in text
    assert len(text) < 1_000_000
    table = render_markdown(run(cell(sameness=sameness(difference(long, "a")))), header())
    assert "cut: 99940 more characters" in table
    assert len(table) < 14_000


@given(st.text(st.characters(codec=None), max_size=40))
def test_any_token_is_harmless(text: str) -> None:
    """Escaped, printable, nothing but the named characters' own tags; no ordinary character is lost."""
    found = Page(str(token(text)))
    assert set(found.tags) <= {"code", "span", "i"}
    assert all(char.isprintable() for char in found.text)
    if text and text.isascii() and text.isprintable():
        assert found.text == text


def test_a_log_keeps_its_end_and_one_log_is_shown_once() -> None:
    log = "first line\n" + "x" * 20_000 + "\nlast line"
    shared = failure(arm="no_sd", log_tail=log)
    found = page(run(*[broken(name, failures=[shared]) for name in ("a", "b", "c")]))
    assert found.text.count("last line") == 1
    assert "first line" not in found.text
    assert "tiny-a-chat-b1, tiny-b-chat-b1, tiny-c-chat-b1" in found.text


def test_no_host_name_and_no_home_path() -> None:
    """Records hold none; a report does not pass on what slipped in all the same."""
    where = arm(environment={"vllm": "0.32.0", "hostname": "secret-host", "user": "alice"})
    log = "File /home/alice/vllm/x.py\n/Users/alice/y.py\n/root/z.py"
    text = render_html(run(broken(failures=[failure(log_tail=log)]), arms=[where]), header())
    for secret in ("secret-host", "alice", "/root"):
        assert secret not in text
    assert "~/vllm/x.py" in text


def test_two_builds_are_told_apart_and_their_ratio_is_shown() -> None:
    cells = [cell(build_ratio=ratio(1.02, 1.01, 1.03)), cell(build="base", arm="base:ngram", base_arm="base:no_sd")]
    found = page(run(*cells, arms=[arm(), arm("base:ngram", build="base")]), header(builds=["new", "base"]))
    assert "1.02x [1.01, 1.03]" in found.text
    for table in (found.text, render_markdown(run(*cells), header())):
        assert table.count("ngram (base build)") >= 3  # closing table, stages, positions


def test_verdicts_are_words_and_all_have_a_meaning() -> None:
    assert set(VERDICTS) == set(get_args(Verdict))
    found = page(run(*[cell(f"v{index}", verdict=word) for index, word in enumerate(VERDICTS)]))
    for word, (_, _, meaning) in VERDICTS.items():
        assert found.text.count(word) >= 2
        assert meaning in found.text


def test_three_hundred_cells_stay_small() -> None:
    log = "x" * 4000
    cells = [
        cell(
            f"variant_{index % 10}",
            f"workload_{index // 10}",
            2 ** (index % 8),
            reason="r" * 300,
            problems=["p" * 300] * 50,
            failures=[failure(log_tail=log)] if index % 2 else [],
            sameness=sameness(*[difference(f"left {index}", "\x00" * 40) for _ in range(12)]),
        )
        for index in range(300)
    ]
    results = run(*cells, arms=[arm(f"variant_{index}", load_s=float(index)) for index in range(100)])
    text = render_html(results, header())
    assert len(text.encode()) < 3_000_000
    found = Page(text)
    assert all(result.cell.id in found.text for result in cells)
    assert "10 of 300, divergent ones first" in found.text
    assert "(3600 in all, each in summary.json)" in found.text
    assert "6 more variants in 180" in found.text


# -- arms --------------------------------------------------------------------------------------------------------------


def test_what_arms_share_is_said_once() -> None:
    other = arm("no_sd", resolved={"dtype": "bfloat16", "async_scheduling": True})
    shared, arms = engines([other, arm(), arm(load_s=20.0)])
    assert dict(shared)["dtype"] == "bfloat16"
    assert "async_scheduling" not in dict(shared)
    assert [(one.title.split(":")[0], one.loads) for one in arms] == [("no_sd", [12.34]), ("ngram", [12.34, 20.0])]
    assert dict(arms[1].facts)["async_scheduling"] == "false"


@pytest.mark.parametrize(
    ("note", "shown"),
    [
        ("", ""),
        ("One sentence.", "One sentence."),
        ("a" * 400 + ". " + "B" * 99, "a" * 400 + ". " + "B" * 99),
        ("a" * 400 + ". " + "B" * 100, "a" * 400 + "."),
        ("What. " + "How. " * 100, " ".join(["What.", *["How."] * 55])),
        ("no end " * 100, "no end " * 100),
    ],
)
def test_a_long_note_is_shown_to_the_end_of_a_sentence(note: str, shown: str) -> None:
    told, rest = note_parts(note)
    assert told == shown.strip()
    assert f"{told} {rest}".strip() == note.strip()


def test_a_folded_note_is_on_the_page_and_its_table_has_it_in_markdown() -> None:
    results = run(reference(), cell())
    section = next(one for one in sections(parts.Page(results, header())) if one.id == "claims")
    told, rest = note_parts(section.tables[0].note)
    assert rest
    shown = page(results).text
    assert told in shown
    assert rest in shown
    assert cell_text(section.tables[0].note) in render_markdown(results, header())


def test_a_claim_begins_with_a_marked_word() -> None:
    table = parts.Table(
        name="t", title="t", note="", head=["a"], body=[["holds: all"], ["holds"], ["it holds: all"]], names=1
    )
    text = str(render("tables.html.j2", tables=[table]))
    assert text.count('class="verdict good"') == 2
    assert "holds</span>: all" in text
