"""Rules of the report's part on claims: every claim is shown with its verdicts, whatever ran."""

from __future__ import annotations

from draftproof.catalog import load_catalog
from draftproof.claims.judged import judge, lines
from draftproof.claims.load import load_claims
from draftproof.report.claims import section
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Page, Section, Table
from draftproof.results import RunResults
from tests.reporting import HOSTILE, arm, broken, cell, header, page, ratio, reference, run

CLAIMS = load_claims(load_catalog())


def shown(results: RunResults) -> Section:
    found = section(Page(results, header()))
    assert found is not None
    return found


def table(results: RunResults) -> Table:
    (found,) = shown(results).tables
    return found


def test_every_claim_is_shown_with_both_verdicts_and_its_source() -> None:
    """Those that the run has figures for in the summary too."""
    results = run(reference(), cell(speedup=ratio(0.9, 0.8, 0.95)))
    found = table(results)
    assert all(len(line) == len(found.head) for line in found.body)
    by_sentence = {line[0]: line for line in found.body}
    by_name = {claim.name: by_sentence[claim.sentence] for claim in CLAIMS if claim.sentence in by_sentence}
    assert set(by_name) == {"faster-at-small-batches", "faster-at-every-batch", "outputs-not-identical"}
    _, ours, papers, source = by_name["faster-at-every-batch"]
    assert ours == "is contradicted: 0 of 1 for it, 1 against: 0.90x [0.80, 0.95] (ngram, chat, B = 1)"
    assert papers.startswith("is contradicted: 209 of 212 for it, 3 against")
    assert "0.91x (qwen3-8b, draft_model, sharegpt, B = 128)" in papers
    assert source.startswith("arXiv 2601.11580, text on Figure 1")
    text = page(results).text
    assert all(text.count(claim.sentence) == 1 for claim in CLAIMS)
    assert "no stage times with an interval" in text
    summary = render_markdown(results, header())
    assert [claim.sentence in summary for claim in CLAIMS] == [claim.name in by_name for claim in CLAIMS]


def test_the_sentence_above_counts_verdicts() -> None:
    """Of this run two: it is faster, at a small batch size and so at every one that ran."""
    note = table(run(reference(), cell())).note
    assert f"On this run, of {len(CLAIMS)} claims: 2 hold, 0 contradicted, {len(CLAIMS) - 2} not tested" in note
    assert f"in the paper's own figures, of {len(CLAIMS)} claims: 21 hold" in note


def test_what_was_left_out_is_told() -> None:
    assert "Left out: 1 cell: they did not run to their end." in table(run(broken("ngram"))).note
    assert "Left out" not in table(run(cell())).note


def test_a_run_that_failed_or_was_ended_has_claims_too() -> None:
    for results in (run(broken()), run(cell(), finished=False, partial="ended by a signal"), run(reference())):
        found = page(results)
        assert all(claim.sentence in found.text for claim in CLAIMS)
        assert "## The paper's claims" in render_markdown(results, header())


def test_a_run_of_nothing_has_no_claims() -> None:
    assert section(Page(run(), header())) is None


def test_names_of_others_stay_text() -> None:
    for text in HOSTILE:
        results = run(cell(text, text), arms=[arm(text)])
        page(results)
        render_markdown(results, header())


def test_plain_lines_say_the_same() -> None:
    results = run(cell(speedup=ratio(0.9, 0.8, 0.95)), broken("eagle"), arms=[arm("ngram"), arm("eagle")])
    text = "\n".join(lines(*judge(results)))
    assert "faster-at-every-batch: Every variant is faster" in text
    assert "  on this run: is contradicted: 0 of 1 for it, 1 against: 0.90x [0.80, 0.95] (ngram, chat, B = 1)" in text
    assert "  in the paper's own figures: is contradicted: 209 of 212" in text
    assert text.endswith("left out, 1 cell: they did not run to their end")
    alone = "\n".join(lines(*judge(None)))
    assert "on this run" not in alone
    assert "in the paper's own figures: is contradicted: 209 of 212" in alone
