"""Rules of what a run says to the claims: which cells count, which never do, and what their intervals are."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from draftproof.analysis.along import Request
from draftproof.analysis.anatomy import Anatomy, anatomy_of, request_of
from draftproof.analysis.lengths import length_rows
from draftproof.analysis.overlap import EDGES, OverlapBin
from draftproof.analysis.rowsprice import Interval
from draftproof.analysis.stats import Ratio
from draftproof.anatomy import Anatomies, CellAnatomy, PairOverlap
from draftproof.catalog import Catalog, load_catalog
from draftproof.claims.facts import Fact
from draftproof.claims.load import load_claims
from draftproof.claims.ofrun import of_run, request_variation
from draftproof.claims.predicates import Verdict
from draftproof.determinism import LengthTable
from draftproof.records import Output
from draftproof.results import CellResult, RunResults
from tests.reporting import arm, broken, cell, ratio, reference, run, sameness

TARGET = "smollm2-135m"
MADE = "vLLM's random weights"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def ours(variant: str = "ngram", workload: str = "chat", batch_size: int = 1, **changes: Any) -> CellResult:
    return cell(variant, workload, batch_size, **{"target": TARGET, **changes})


def started(*variants: str, **changes: Any) -> list[Any]:
    """An arm for each variant, of the method that it has in the catalog."""
    methods = {variant.name: (variant.method, variant.k) for variant in load_catalog().variants.values()}
    return [
        arm(
            name,
            **{
                "target": TARGET,
                "speculative_config": {"method": methods[name][0], "num_speculative_tokens": methods[name][1]},
                **changes,
            },
        )
        for name in variants
    ]


def facts(results: RunResults, catalog: Catalog, quantity: str) -> list[Fact]:
    return [fact for fact in of_run(results, catalog).facts if fact.quantity == quantity]


def verdict(results: RunResults, catalog: Catalog, name: str) -> Verdict:
    (found,) = [claim for claim in load_claims(catalog) if claim.name == name]
    return found.judge(of_run(results, catalog))


def log_ratio(value: float, error: float = 0.01) -> Ratio:
    return Ratio(value=value, low=value * 0.95, high=value * 1.05, clusters=12, method="made", log_error=error)


# --- which cells count ------------------------------------------------------------------------------------------------


def test_a_cell_says_what_it_is_of(catalog: Catalog) -> None:
    (fact,) = facts(run(ours(workload="code_edit"), arms=started("ngram")), catalog, "speedup")
    assert fact.value == Interval(1.5, 1.4, 1.6)
    assert (fact.target, fact.variant, fact.kind, fact.workload, fact.batch_size) == (
        TARGET,
        "ngram",
        "ngram",
        "code_edit",
        1,
    )
    assert (fact.parameters, fact.workload_kind) == (catalog.targets[TARGET].parameters, "code editing")


@pytest.mark.parametrize("variant", ["oracle", "adversarial", "random_half", "self_draft", "oracle_k7"])
def test_a_control_is_no_variant(variant: str, catalog: Catalog) -> None:
    """Slower than no-SD by far, it contradicts nothing; a target that drafts for itself is one too."""
    slow = ours(variant, speedup=ratio(0.2, 0.1, 0.3))
    results = run(ours(), slow, arms=started("ngram", variant))
    assert {fact.variant for fact in of_run(results, catalog).facts} == {"ngram"}
    assert verdict(results, catalog, "faster-at-every-batch").word == "holds"


def test_a_control_that_no_catalog_knows_is_told_by_its_arm(catalog: Catalog) -> None:
    custom = {"method": "custom_class", "num_speculative_tokens": 3}
    theirs, control = (arm("theirs", target=TARGET, speculative_config=custom, control=kind) for kind in ("", "oracle"))
    assert len(facts(run(ours("theirs"), arms=[theirs]), catalog, "speedup")) == 1
    assert not of_run(run(ours("theirs"), arms=[control]), catalog).facts


def test_no_sd_is_no_variant(catalog: Catalog) -> None:
    stages = {"verify": Interval(0.99, 0.98, 1.0)}
    no_sd = msgspec.structs.replace(reference(), arm="no_sd", stage_shares=stages)
    assert not of_run(run(no_sd, arms=[arm("no_sd", target="tiny", speculative_config={})]), catalog).facts


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"verdict": "FAILED"}, "1 cell: they did not run to their end"),
        ({"verdict": "INCOMPARABLE"}, "1 cell: settings that must be held differ from no-SD's"),
        ({"problems": ["3 requests but 2 outputs"]}, "1 cell: their records are broken"),
    ],
)
def test_what_cannot_be_trusted_is_left_out_and_counted(changes: dict[str, Any], why: str, catalog: Catalog) -> None:
    found = of_run(run(ours(speedup=ratio(0.5, 0.4, 0.6), **changes), arms=started("ngram")), catalog)
    assert list(found.facts) == []
    assert list(found.left_out) == [why]


def test_seconds_of_a_busy_machine_do_not_count(catalog: Catalog) -> None:
    """Outputs do: other work changes no token."""
    stages = {"verify": Interval(0.8, 0.7, 0.9)}
    busy = ours(waiting=0.4, stage_shares=stages)
    found = of_run(run(busy, arms=started("ngram")), catalog)
    assert {fact.quantity for fact in found.facts} == {"identical_share"}
    assert list(found.left_out) == ["1 cell: the machine was busy (their seconds alone)"]
    quiet = of_run(run(ours(waiting=0.05, stage_shares=stages), arms=started("ngram")), catalog)
    assert {fact.quantity for fact in quiet.facts} == {"identical_share", "speedup", "stage_share"}


def test_ids_that_are_nobodys_answer_say_where_time_goes_and_how_it_falls(catalog: Catalog) -> None:
    """A speedup at a set acceptance is no drafter's own."""
    cells = [
        ours(batch_size=size, speedup=log_ratio(speed), stage_shares={"verify": Interval(0.8, 0.7, 0.9)})
        for size, speed in ((1, 2.0), (4, 1.5))
    ]
    found = of_run(run(*cells, arms=started("ngram", meaningless=MADE)), catalog)
    assert {fact.quantity for fact in found.facts} == {"stage_share", "per_doubling"}


def test_of_two_builds_the_one_under_test_is_judged(catalog: Catalog) -> None:
    base = msgspec.structs.replace(ours(speedup=ratio(0.5, 0.4, 0.6)), build="base")
    arms = [*started("ngram"), *started("ngram", build="base")]
    assert [fact.value.value for fact in facts(run(ours(), base, arms=arms), catalog, "speedup")] == [1.5]


def test_names_that_no_catalog_knows_are_of_no_kind_and_no_size(catalog: Catalog) -> None:
    """Then claims on kinds and sizes are not tested, and the others are."""
    results = run(cell("ngram", "theirs", 1), arms=[arm("no_sd", speculative_config={}), arm("ngram")])
    (fact,) = facts(results, catalog, "speedup")
    assert (fact.workload_kind, fact.parameters) == ("", None)
    assert verdict(results, catalog, "ngram-is-weakest").word == "was not tested"
    assert verdict(results, catalog, "faster-at-every-batch").word == "holds"


@pytest.mark.parametrize("results", [run(), run(broken(target=TARGET), arms=[]), run(reference(), arms=[])])
def test_a_run_without_figures_tests_nothing(results: RunResults, catalog: Catalog) -> None:
    words = {claim.judge(of_run(results, catalog)).word for claim in load_claims(catalog)}
    assert words == {"was not tested"}


# --- speedups over batch sizes ----------------------------------------------------------------------------------------


def curve(*speeds: float, variant: str = "ngram", tokens: int = 64) -> list[CellResult]:
    return [ours(variant, batch_size=4**at, speedup=log_ratio(speed)) for at, speed in enumerate(speeds)]


def test_a_falling_curve_and_a_rising_one(catalog: Catalog) -> None:
    falling, rising = curve(2.0, 1.6, 1.2), curve(1.2, 1.6, 2.0, variant="eagle3")
    results = run(*falling, *rising, arms=started("ngram", "eagle3"))
    assert [fact.value.value < 1 for fact in facts(results, catalog, "per_doubling")] == [True, False]
    found = verdict(results, catalog, "speedup-falls-with-batch")
    assert found.word == "is contradicted"
    assert "(eagle3, chat, B = 1, 4, 16)" in found.text
    assert verdict(run(*falling, arms=started("ngram")), catalog, "speedup-falls-with-batch").word == "holds"


def test_cells_of_another_output_length_are_in_no_curve(catalog: Catalog) -> None:
    """A short output has more of its prefill in it."""
    *usual, last = curve(2.0, 1.6, 3.9)
    short = msgspec.structs.replace(last, cell=msgspec.structs.replace(last.cell, output_tokens=8))
    (fact,) = facts(run(*usual, short, arms=started("ngram")), catalog, "per_doubling")
    assert fact.value.value == pytest.approx((1.6 / 2.0) ** 0.5)
    assert fact.detail == "B = 1, 4"


# --- acceptance -------------------------------------------------------------------------------------------------------


def requests(chances: list[float], drafts: int, seed: int = 0, copies: int = 1) -> list[Request]:
    """A prompt for each chance of a draft token; k = 3, each prompt run so many times with the same outcome."""
    rng = np.random.default_rng(seed)
    found = []
    for number, chance in enumerate(chances):
        accepted = [int(np.cumprod(rng.random(3) < chance).sum()) for _ in range(drafts)]
        tokens = list(range(1 + sum(count + 1 for count in accepted)))
        output = Output(tokens, "length", accepted=accepted, drafted=[3] * drafts)
        found += [request_of(f"p{number}", [], output, None)] * copies
    return found


def anatomy(chances: list[float], drafts: int, **changes: Any) -> Anatomy:
    found = anatomy_of(requests(chances, drafts, **changes))
    assert found is not None
    return found


def test_equal_chances_are_no_variation_between_requests() -> None:
    """At 95 % about one interval of forty lies above 1; runs of the same prompt again add nothing."""
    found = [request_variation(anatomy([0.6] * 16, 40, seed=seed, copies=1 + seed % 2)) for seed in range(40)]
    assert all(value is not None for value in found)
    assert sum(value is not None and value.low > 1 for value in found) <= 4
    assert np.median([value.value for value in found if value]) == pytest.approx(1.0, abs=0.35)


def test_unequal_chances_are_variation_between_requests() -> None:
    found = request_variation(anatomy([0.2, 0.9] * 8, 40))
    assert found is not None
    assert found.low > 2


def test_variation_needs_six_prompts_and_a_spread() -> None:
    assert request_variation(anatomy([0.2, 0.9] * 2 + [0.5], 10)) is None
    assert request_variation(anatomy([0.2, 0.9] * 3, 10)) is not None
    assert request_variation(anatomy([1.0] * 8, 10)) is None


def test_acceptance_by_position_request_and_data_set(catalog: Catalog) -> None:
    """Chances that differ between prompts and workloads, and not between the places of a draft."""
    varied, steady = anatomy([0.2, 0.9] * 8, 40), anatomy([0.3] * 16, 40)
    cells = [ours("eagle3"), ours("eagle3", "code_edit")]
    found = Anatomies(
        cells=[
            CellAnatomy(cell=one.cell.id, build="new", anatomy=what)
            for one, what in zip(cells, (varied, steady), strict=True)
        ]
    )
    results = run(*cells, arms=started("eagle3"), anatomies=found)
    assert {fact.part for fact in facts(results, catalog, "place_acceptance")} == {"1", "2", "3"}
    assert len(facts(results, catalog, "acceptance_length")) == 2
    assert verdict(results, catalog, "acceptance-by-data-set").word == "holds"
    assert verdict(results, catalog, "acceptance-by-request").text.startswith("not told, 1 of 2 for it")


# --- overlap ----------------------------------------------------------------------------------------------------------


def overlap(second: str, basis: Literal["seconds", "steps"], *advantages: float) -> PairOverlap:
    bins = [
        OverlapBin(low=low, high=high, prompts=12, few=False, advantage=log_ratio(value))
        for low, high, value in zip(EDGES, EDGES[1:], advantages, strict=False)
    ]
    first = ours(workload="code_edit").cell.id
    return PairOverlap(
        first=first,
        second=ours(second, "code_edit").cell.id,
        build="new",
        basis=basis,
        bins=bins,
    )


@pytest.mark.parametrize(
    ("advantages", "pays", "gains"),
    [
        ((0.7, 0.8, 1.0, 1.2, 1.5), "holds", "holds"),
        ((0.7, 0.8, 1.0, 0.82, 1.5), "is contradicted", "was not tested"),
        ((1.5, 1.4, 1.3, 1.2, 1.1), "holds", "is contradicted"),
    ],
)
def test_where_ngram_lookup_pays(advantages: tuple[float, ...], pays: str, gains: str, catalog: Catalog) -> None:
    cells = [ours(variant, "code_edit") for variant in ("ngram", "eagle3", "self_draft")]
    found = Anatomies(
        overlaps=[overlap("eagle3", "seconds", *advantages), overlap("self_draft", "seconds", *[0.1] * 5)]
    )
    results = run(*cells, arms=started("ngram", "eagle3", "self_draft"), anatomies=found)
    assert verdict(results, catalog, "ngram-pays-with-overlap").word == pays
    assert verdict(results, catalog, "ngram-gains-with-overlap").word == gains


def test_an_advantage_in_steps_is_none_in_time(catalog: Catalog) -> None:
    cells = [ours(variant, "code_edit") for variant in ("ngram", "eagle3")]
    found = Anatomies(overlaps=[overlap("eagle3", "steps", *[1.5] * 5)])
    assert not facts(run(*cells, arms=started("ngram", "eagle3"), anatomies=found), catalog, "overlap_advantage")


# --- outputs ----------------------------------------------------------------------------------------------------------


def lengths(*cells: tuple[str, int, list[int]]) -> LengthTable:
    made = {(variant, size): {f"p{at}": [one] for at, one in enumerate(tokens)} for variant, size, tokens in cells}
    return LengthTable(target=TARGET, workload="chat", limit=512, rows=length_rows(made, 512))


def test_lengths_are_compared_at_the_same_batch_size(catalog: Catalog) -> None:
    """No-SD's own answers are 10 tokens longer at 4: a variant that moves with it moves nothing."""
    own = [100, 120, 140, 160]
    moved = [tokens + 10 for tokens in own]
    table = lengths(
        ("no_sd", 1, own), ("no_sd", 4, moved), ("ngram", 1, own), ("ngram", 4, moved), ("oracle", 1, moved)
    )
    results = run(lengths=[table], arms=started("ngram", "oracle"))
    found = facts(results, catalog, "length_difference")
    assert [(fact.variant, fact.batch_size, fact.value.value) for fact in found] == [
        ("ngram", 1, 0.0),
        ("ngram", 4, 0.0),
    ]


def test_a_garbled_reference_says_nothing_of_outputs(catalog: Catalog) -> None:
    garbled = ours(sameness=sameness(garbage="one token over and over"))
    assert not facts(run(garbled, arms=started("ngram")), catalog, "identical_share")
