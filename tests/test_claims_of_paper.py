"""What the paper's own figures say to its claims: several of its sentences fail there."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.catalog import Catalog, load_catalog
from draftproof.claims.facts import Evidence, Fact
from draftproof.claims.judged import judge
from draftproof.claims.load import load_claims
from draftproof.claims.ofpaper import of_paper
from draftproof.errors import DraftproofError


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture(scope="module")
def paper(catalog: Catalog) -> Evidence:
    return of_paper(catalog)


def named(paper: Evidence, quantity: str, **about: object) -> list[Fact]:
    return [
        fact
        for fact in paper.facts
        if fact.quantity == quantity and all(getattr(fact, field) == value for field, value in about.items())
    ]


# --- the figures ------------------------------------------------------------------------------------------------------


def test_figure_1_is_that_of_the_limits(paper: Evidence) -> None:
    """Three targets; k = 5 of n-gram lookup is drawn for InstructCoder alone."""
    drawn = [fact for fact in named(paper, "speedup") if fact.target in ("llama3.1-8b", "llama3-70b", "qwen3-8b")]
    assert len(drawn) == 156
    (one,) = named(paper, "speedup", target="llama3-70b", variant="eagle", workload="instructcoder", batch_size=1)
    assert (one.value.value, one.kind, one.workload_kind) == (2.494, "eagle", "code editing")
    assert one.parameters == 70_553_706_496


def test_figure_3_gives_speedups_over_its_own_no_sd(paper: Evidence) -> None:
    (one,) = named(paper, "speedup", target="glm-4.5-air", variant="mtp", workload="gpqa_main", batch_size=1)
    assert one.value.value == pytest.approx(255.7 / 140.7)
    assert not named(paper, "speedup", target="glm-4.5-air", batch_size=16)


def test_shares_of_a_bar_add_up_to_one(paper: Evidence) -> None:
    bars: dict[object, float] = {}
    for fact in named(paper, "stage_share"):
        bar = fact.target, fact.variant, fact.batch_size
        bars[bar] = bars.get(bar, 0.0) + fact.value.value
    assert len(bars) == 36
    assert list(bars.values()) == pytest.approx([1.0] * 36, abs=0.001)


def test_a_box_gives_its_median_and_its_spread(paper: Evidence) -> None:
    about = {"target": "llama3-70b", "variant": "ngram", "workload": "instructcoder"}
    (median,), (spread,) = named(paper, "acceptance_length", **about), named(paper, "request_variation", **about)
    assert median.value.value == 6.32
    assert spread.value.value == pytest.approx(14.95 / 1.14)


def test_lengths_are_those_of_table_1_less_no_sds(paper: Evidence) -> None:
    found = {(fact.variant, fact.batch_size): fact.value.value for fact in named(paper, "length_difference")}
    assert found == {("ngram", 1): 750 - 737, ("eagle", 64): 709 - 687, ("eagle3", 128): 709 - 714}


# --- the verdicts -----------------------------------------------------------------------------------------------------

VERDICTS = {
    "faster-at-small-batches": (
        "holds",
        "67 of 67 for it, 0 against. Least for it: 1.11x (qwen3-8b, ngram, gsm8k, B = 1)",
    ),
    "faster-at-every-batch": (
        "is contradicted",
        "209 of 212 for it, 3 against. Least for it: 0.91x (qwen3-8b, draft_mo",
    ),
    "speedup-falls-with-batch": (
        "is contradicted",
        "51 of 55 for it, 3 against, 1 neither. Least for it: 1.019x (qwen3",
    ),
    "falls-faster-on-larger-targets": ("is contradicted", "20 of 22 for it, 2 against"),
    "ngram-is-weakest": (
        "is contradicted",
        "0.97x (draft_model) against 1.25x (ngram): qwen3-8b, cnndailymail, B = 128",
    ),
    "ngram-wins-on-code-editing": ("is contradicted", "11 of 28 for it, 16 against, 1 neither"),
    "eagle-on-70b": ("is contradicted", "Least for it: 2.49x (llama3-70b, eagle, instructcoder, B = 1)"),
    "eagle3-on-reasoning": ("holds", "6 of 6"),
    "ngram-on-reasoning": ("holds", "6 of 6"),
    "mtp-on-reasoning": ("holds", "3 of 3"),
    "verification-dominates": ("is contradicted", "41.9 % (verify) against 47.1 % (draft): qwen3-8b, draft_model"),
    "verification-share": ("holds", "36 of 36"),
    "sampling-share": ("holds", "Least for it: 1.68 % (qwen3-8b, eagle3, cnndailymail, B = 1, sample)"),
    "overhead-share": ("is contradicted", "34 of 36 for it, 2 against. Least for it: 14.2 % (qwen3-8b, ngram"),
    "ngram-drafting-share": ("holds", "Least for it: 1.86 % (qwen3-8b, ngram, cnndailymail, B = 512, draft)"),
    "eagle-drafting-share-one-request": (
        "is contradicted",
        "1 of 4 for it, 3 against. Least for it: 24.7 % (llama3.1-8b",
    ),
    "eagle-drafting-share-large-batch": ("holds", "4 of 4"),
    "draft-model-drafting-share-70b": ("holds", "4 of 4"),
    "draft-model-drafting-share-8b": ("holds", "4 of 4"),
    "draft-model-drafting-is-dearest": ("is contradicted", "3.08 % (draft_model) against 3.22 % (eagle): llama3-70b"),
    "drafting-share-falls-with-batch": ("holds", "18 of 18"),
    "acceptance-by-draft-position": ("holds", "0.92 (position 1) against 0.38 (position 3): glm-4.5-air, mtp"),
    "acceptance-within-an-output": ("holds", "8 of 8"),
    "acceptance-by-request": ("holds", "36 of 36"),
    "acceptance-by-data-set": ("holds", "9 of 9"),
    "outputs-not-identical": ("holds", "3 of 3"),
    "lengths-without-direction": (
        "holds",
        "2 of 3 above 0, 1 below. Least: -5.0 tokens (llama3.1-8b, eagle3",
    ),
    "combination-beats-any-bound": (
        "holds",
        "Least for it: 1.58x (ngram and eagle3, combination) against 1.45x (eagle3",
    ),
    "bound-beats-fixed-k": ("holds", "144 of 144"),
    "longer-drafts-for-one-request": ("holds", "16 of 16"),
    "bound-on-code-editing": ("is contradicted", "0 of 2 for it, 2 against. Least for it: 2.73x"),
    "ngram-pays-with-overlap": (
        "is contradicted",
        "Least for it: -9 % (llama3-70b, ngram, instructcoder, B = 1, overlap",
    ),
    "ngram-gains-with-overlap": ("holds", "128 of 128"),
}


def test_every_claim_has_its_verdict_here(catalog: Catalog) -> None:
    assert [claim.name for claim in load_claims(catalog)] == list(VERDICTS)


@pytest.mark.parametrize("name", VERDICTS)
def test_a_claim_on_the_papers_own_figures(name: str, paper: Evidence, catalog: Catalog) -> None:
    (claim,) = [claim for claim in load_claims(catalog) if claim.name == name]
    found = claim.judge(paper)
    word, told = VERDICTS[name]
    assert found.word == word, found
    assert told in found.text


def test_three_drawn_cells_are_slower_than_no_sd(paper: Evidence) -> None:
    slower = {
        (fact.target, fact.variant, fact.workload, fact.batch_size): fact.value.value
        for fact in named(paper, "speedup")
        if fact.value.high < 1
    }
    assert slower == {
        ("qwen3-8b", "draft_model", "cnndailymail", 128): 0.970,
        ("qwen3-8b", "draft_model", "sharegpt", 128): 0.912,
        ("qwen3-8b", "ngram", "gsm8k", 128): 0.994,
    }


def test_on_code_editing_ngram_wins_throughout_on_one_target_alone(paper: Evidence) -> None:
    """On Llama-3.1-8B k = 3 loses at every batch size but, within the reading, to EAGLE at 128; k = 5 wins at 1."""
    ours = {
        (fact.target, fact.variant, fact.batch_size): fact.value.value
        for fact in named(paper, "speedup", workload="instructcoder")
    }
    for size in (1, 16, 64, 128):
        assert ours["qwen3-8b", "ngram", size] > ours["qwen3-8b", "eagle3", size]
        assert ours["llama3.1-8b", "ngram", size] < min(
            ours["llama3.1-8b", "eagle", size], ours["llama3.1-8b", "eagle3", size]
        )
    assert ours["llama3.1-8b", "ngram_k5", 1] > ours["llama3.1-8b", "eagle3", 1]
    assert ours["llama3.1-8b", "eagle", 16] < ours["llama3.1-8b", "ngram_k5", 16] < ours["llama3.1-8b", "eagle3", 16]


def test_without_a_run_only_the_paper_is_judged() -> None:
    found, run = judge(None)
    assert run is None
    assert {one.run for one in found} == {None}
    assert {one.claim.name: one.paper.word for one in found} == {name: word for name, (word, _) in VERDICTS.items()}


# --- a figure's file --------------------------------------------------------------------------------------------------

FIGURE = """
figure = "Figure 99"
source = "a test"
quantity = "speedup"
reading = 0.01
along = "batch_size"
at = [1, 16]
key = "detail"
[[row]]
target = "qwen3-8b"
variant = "ngram"
workload = "gsm8k"
[row.values]
here = [1.5, nan]
"""


def read(text: str, folder: Path, catalog: Catalog) -> list[Fact]:
    (folder / "fig99.toml").write_text(text, encoding="utf-8")
    return [fact for fact in of_paper(catalog, folder).facts if fact.detail == "here"]


def test_what_is_not_published_is_no_figure(tmp_path: Path, catalog: Catalog) -> None:
    (found,) = read(FIGURE, tmp_path, catalog)
    assert (found.value.value, found.value.low, found.batch_size) == (1.5, 1.49, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FIGURE.replace("[1.5, nan]", "[1.5]"), "row[0].values.here must be as many figures as at (2) (got 1)"),
        (FIGURE.replace('"speedup"', '"speed"'), "quantity must be one of speedup, per_doubling"),
        (FIGURE.replace('"a test"', '""'), "source must be where the figures come from (got '')"),
        (FIGURE.replace('"qwen3-8b"', '"gpt"'), "fig99.toml: target must be one of the known names (got 'gpt')"),
        (FIGURE.replace('"ngram"', '"lookup"'), "fig99.toml: variant must be one of the known names (got 'lookup')"),
        (FIGURE.replace('"gsm8k"', '"maths"'), "fig99.toml: workload must be one of the known names (got 'maths')"),
        (FIGURE.replace('along = "batch_size"', 'along = "B"'), "Invalid enum value 'B' - at `$.along`"),
        (FIGURE + "\n[[rows]]", "unknown field `rows`; known: along, at, figure, key"),
    ],
)
def test_what_is_wrong_with_a_figure_is_told(text: str, message: str, tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(DraftproofError) as caught:
        read(text, tmp_path, catalog)
    assert message in str(caught.value)
