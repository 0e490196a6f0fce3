"""Rules of the claims: what speaks for one, what against it, and what the file of claims may not hold."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from draftproof.analysis.rowsprice import Interval
from draftproof.catalog import Catalog, load_catalog
from draftproof.claims.facts import KINDS, QUANTITIES, Evidence, Fact, Where, difference
from draftproof.claims.load import load_claims
from draftproof.claims.predicates import (
    PREDICATES,
    Claim,
    NoDirection,
    Of,
    Order,
    OutputsDiffer,
    Varies,
    Verdict,
    Within,
    says,
    widened,
)
from draftproof.errors import DraftproofError


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def fact(value: float = 1.5, reach: float = 0.1, **changes: Any) -> Fact:
    """A speedup of n-gram lookup on chat at a batch size of 1."""
    made = Fact(
        quantity="speedup",
        value=Interval(value, value - reach, value + reach),
        target="small",
        parameters=1_000,
        variant="ngram",
        kind="ngram",
        workload="chat",
        workload_kind="chat",
        batch_size=1,
    )
    return msgspec.structs.replace(made, **changes)


def learned(value: float = 1.5, reach: float = 0.1, **changes: Any) -> Fact:
    return fact(value, reach, **{"variant": "eagle3", "kind": "eagle3", **changes})


def seen(*facts: Fact, **changes: Any) -> Evidence:
    return Evidence(facts=facts, **changes)


def claim(kind: type[Claim], **parameters: Any) -> Any:
    name = next(name for name, known in PREDICATES.items() if known is kind)
    texts = {"name": "mine", "sentence": "Mine.", "source": "a test", "predicate": name}
    return msgspec.convert({**texts, **parameters}, type=kind)


FASTER = claim(Within, quantity="speedup", low=1.0)
WEAKEST = claim(Order, quantity="speedup", across=["variant"], first={"kinds": ["eagle3"]}, second={"kinds": ["ngram"]})
BY_PLACE = claim(Varies, quantity="place_acceptance", over="part", margin=0.05)
DIFFER = claim(OutputsDiffer, nearly_all=0.99, of="some")
UNDIRECTED = claim(NoDirection, quantity="length_difference", least=6)


def place(number: int, value: float, reach: float = 0.01) -> Fact:
    return fact(value, reach, quantity="place_acceptance", part=str(number))


def same(share: float, low: float, high: float = 1.0, **changes: Any) -> Fact:
    return msgspec.structs.replace(fact(quantity="identical_share", **changes), value=Interval(share, low, high))


def longer(tokens: float, reach: float = 1.0, **changes: Any) -> Fact:
    return fact(tokens, reach, quantity="length_difference", **changes)


# --- what holds, what is contradicted, what was not tested ------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "facts", "word", "told"),
    [
        (FASTER, [fact(1.5), learned(1.2)], "holds", "2 of 2 for it, 0 against"),
        (
            FASTER,
            [fact(1.5), learned(0.8)],
            "is contradicted",
            "Least for it: 0.80x [0.70, 0.90] (eagle3, chat, B = 1)",
        ),
        (FASTER, [fact(1.5), learned(1.05)], "was not tested", "not told, 1 of 2 for it, 0 against, 1 neither"),
        (FASTER, [], "was not tested", "no speedup with an interval"),
        (WEAKEST, [fact(1.2), learned(1.8)], "holds", "1.80x [1.70, 1.90] (eagle3) against 1.20x [1.10, 1.30] (ngram)"),
        (WEAKEST, [fact(1.8), learned(1.2)], "is contradicted", "0 of 1 for it, 1 against"),
        (WEAKEST, [fact(1.5), learned(1.55)], "was not tested", "not told, 0 of 1"),
        (WEAKEST, [fact(1.2), learned(1.8, batch_size=4)], "was not tested", "no two figures to compare"),
        (WEAKEST, [fact(1.2)], "was not tested", "variants of kind eagle3 beside variants of kind ngram"),
        (WEAKEST, [], "was not tested", "no speedup with an interval"),
        (
            BY_PLACE,
            [place(1, 0.9), place(2, 0.7), place(3, 0.4)],
            "holds",
            "0.90 [0.89, 0.91] (position 1) against 0.40",
        ),
        (BY_PLACE, [place(1, 0.9), place(2, 0.89), place(3, 0.9)], "is contradicted", "0 of 1 for it, 1 against"),
        (BY_PLACE, [place(1, 0.9, 0.2), place(2, 0.7, 0.2)], "was not tested", "1 neither"),
        (BY_PLACE, [place(1, 0.9)], "was not tested", "no variant with figures of two positions"),
        (BY_PLACE, [fact()], "was not tested", "no acceptance by draft position"),
        (DIFFER, [same(15 / 16, 0.7), same(1.0, 0.8)], "holds", "93.8 %"),
        (DIFFER, [same(1.0, 0.995)], "is contradicted", "100.0 %"),
        (DIFFER, [same(1.0, 0.8), same(1.0, 0.995, batch_size=4)], "was not tested", "not told, 0 of 2"),
        (DIFFER, [longer(9.0)], "holds", "+9.0 tokens"),
        (DIFFER, [longer(0.5)], "was not tested", "1 neither"),
        (DIFFER, [], "was not tested", "no outputs to compare"),
        (UNDIRECTED, [longer(9.0), longer(-9.0)], "holds", "1 of 2 above 0, 1 below. Least: -9.0 tokens"),
        (UNDIRECTED, [longer(9.0)] * 6, "is contradicted", "6 of 6 above 0"),
        (UNDIRECTED, [longer(-9.0)] * 6, "is contradicted", "6 below"),
        (UNDIRECTED, [longer(9.0)] * 5, "was not tested", "not told"),
        (UNDIRECTED, [longer(9.0)] * 3 + [longer(0.5)] * 3, "was not tested", "not told"),
        (UNDIRECTED, [longer(9.0)] * 5 + [longer(-0.1)], "was not tested", "not told"),
        (UNDIRECTED, [longer(0.5), longer(-0.5)], "was not tested", "2 neither"),
        (UNDIRECTED, [], "was not tested", "no output length with EOS on"),
    ],
)
def test_a_claim_holds_or_not_by_intervals_alone(claim: Claim, facts: list[Fact], word: str, told: str) -> None:
    found = claim.judge(seen(*facts))
    assert found.word == word, found
    assert told in found.text


@pytest.mark.parametrize(
    ("of", "for_it", "against", "neither", "word"),
    [
        ("every", 3, 0, 0, "holds"),
        ("every", 3, 1, 0, "is contradicted"),
        ("every", 3, 0, 1, "was not tested"),
        ("most", 3, 1, 1, "holds"),
        ("most", 2, 1, 1, "was not tested"),
        ("most", 1, 3, 1, "is contradicted"),
        ("some", 1, 3, 1, "holds"),
        ("some", 0, 3, 1, "was not tested"),
        ("some", 0, 3, 0, "is contradicted"),
    ],
)
def test_how_many_must_speak_for_it(of: Of, for_it: int, against: int, neither: int, word: str) -> None:
    facts = [fact(1.5)] * for_it + [fact(0.5)] * against + [fact(1.0)] * neither
    found = claim(Within, quantity="speedup", low=1.0, of=of).judge(seen(*facts))
    assert found.word == word
    assert found.figures == len(facts)
    assert f"{for_it} of {len(facts)} for it, {against} against" in found.text


def test_an_end_printed_with_few_digits_is_met_within_its_rounding() -> None:
    share = fact(0.955, 0.0005, quantity="stage_share", part="verify")
    strict, printed = (claim(Within, quantity="stage_share", low=0.42, high=0.95, rounding=by) for by in (0.0, 0.01))
    assert strict.judge(seen(share)).word == "is contradicted"
    assert printed.judge(seen(share)).word == "holds"


def test_one_figure_of_two_ends_is_against_where_it_lies_beyond_either() -> None:
    between = claim(Within, quantity="speedup", low=1.0, high=2.0)
    assert [between.judge(seen(fact(value))).word for value in (0.5, 1.5, 2.5)] == [
        "is contradicted",
        "holds",
        "is contradicted",
    ]


# --- which facts a claim is about -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "changes", "admitted"),
    [
        ({}, {}, True),
        ({"kinds": ["ngram"]}, {}, True),
        ({"kinds": ["eagle"]}, {}, False),
        ({"targets": ["large"]}, {}, False),
        ({"workload_kinds": ["chat"]}, {}, True),
        ({"workload_kinds": ["chat"]}, {"workload_kind": ""}, False),
        ({"other_workload_kinds": ["code editing"]}, {}, True),
        ({"other_workload_kinds": ["chat"]}, {}, False),
        ({"other_workload_kinds": ["code editing"]}, {"workload_kind": ""}, False),  # it may be just that
        ({"batch_to": 1}, {}, True),
        ({"batch_from": 2}, {}, False),
        ({"batch_from": 1}, {"batch_size": None}, False),
        ({"parameters_from": 1_000}, {}, True),
        ({"parameters_below": 999}, {}, False),
        ({"parameters_from": 1}, {"parameters": None}, False),
        ({"parts": ["verify"]}, {}, False),
    ],
)
def test_what_is_not_told_is_not_admitted(where: dict[str, Any], changes: dict[str, Any], admitted: bool) -> None:
    assert msgspec.convert(where, type=Where).admits(fact(**changes)) is admitted


def test_a_claim_that_finds_nothing_says_what_it_looked_for() -> None:
    about = {"kinds": ["eagle"], "parameters_from": 50_000_000_000, "batch_to": 8, "workload_kinds": ["chat"]}
    found = claim(Within, quantity="speedup", low=1.0, where=about).judge(seen(fact()))
    assert found.text == (
        "no speedup with an interval of what it is about: variants of kind eagle, workloads of kind chat, "
        "batch sizes up to 8, targets from 50,000,000,000 parameters"
    )


def test_only_a_larger_target_is_compared() -> None:
    """Of unknown size, or hardly larger: no pair."""
    steeper = claim(Order, quantity="per_doubling", across=["target"], second_larger_by=2.0)
    flat, steep = fact(0.95, 0.01, quantity="per_doubling"), fact(0.85, 0.01, quantity="per_doubling", target="large")
    sizes = {2_000: "holds", 1_999: "was not tested", None: "was not tested"}
    for size, word in sizes.items():
        assert steeper.judge(seen(flat, msgspec.structs.replace(steep, parameters=size))).word == word
    assert steeper.judge(seen(msgspec.structs.replace(steep, parameters=10), flat)).word == "is contradicted"


def test_places_are_told_with_the_target_only_where_there_are_several() -> None:
    assert FASTER.judge(seen(fact())).text.endswith("(ngram, chat, B = 1)")
    assert "(small, ngram, chat, B = 1)" in FASTER.judge(seen(fact(), fact(target="large"))).text


def test_drawn_figures_are_told_without_intervals() -> None:
    assert FASTER.judge(seen(fact(0.994, 0.002), intervals=False)).text.endswith("0.994x (ngram, chat, B = 1)")


# --- properties -------------------------------------------------------------------------------------------------------

ends = st.floats(0.1, 10)
intervals = st.tuples(ends, ends, ends).map(lambda found: Interval(*(sorted(found)[at] for at in (1, 0, 2))))


def speedups(values: list[Interval]) -> list[Fact]:
    return [msgspec.structs.replace(fact(workload=f"w{at}"), value=value) for at, value in enumerate(values)]


def sides(found: Verdict) -> tuple[str, int]:
    return found.word, found.figures


@given(st.lists(intervals, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_figures_does_not_matter(values: list[Interval], random: Any) -> None:
    facts = speedups(values)
    shuffled = random.sample(facts, len(facts))
    for one in (FASTER, claim(Varies, quantity="speedup", over="workload", margin=0.05)):
        assert sides(one.judge(seen(*facts))) == sides(one.judge(seen(*shuffled)))


@given(intervals, ends, st.floats(0, 1))
def test_a_narrower_interval_never_changes_sides(value: Interval, limit: float, by: float) -> None:
    middle = value.value
    narrow = Interval(middle, middle - by * (middle - value.low), middle + by * (value.high - middle))
    assume(not math.isclose(value.low, limit) and not math.isclose(value.high, limit))
    before, after = says(value, limit, None), says(narrow, limit, None)
    assert before == "neither" or before == after


@given(intervals, intervals)
def test_a_difference_turned_round_is_the_same_difference(first: Interval, second: Interval) -> None:
    one, other = difference(first, second), difference(second, first)
    assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low))
    assert one.low <= one.value <= one.high


@given(st.floats(1, 5), st.floats(1, 5), st.floats(0.01, 1), st.floats(0.01, 1))
def test_arms_of_independent_figures_add_as_squares(left: float, right: float, one: float, other: float) -> None:
    """As the standard error of a difference does."""
    found = difference(Interval(left, left - one, left + one), Interval(right, right - other, right + other))
    assert found.high - found.value == pytest.approx(math.hypot(one, other))
    assert found.value - found.low == pytest.approx(math.hypot(one, other))


def test_the_most_unlike_of_several_are_held_to_more() -> None:
    """Two need no more; three make three pairs, so that each may err a third as often (normal quantile 2.394)."""
    assert widened(2) == pytest.approx(1.0)
    assert widened(3) == pytest.approx(2.394 / 1.960, rel=1e-3)
    assert widened(10) > widened(3)


# --- the file ---------------------------------------------------------------------------------------------------------

ROW = """
[[claim]]
name = "mine"
sentence = "Mine."
source = "a test"
predicate = "within"
quantity = "speedup"
low = 1.0
"""


def read(text: str, tmp_path: Path, catalog: Catalog) -> list[Claim]:
    path = tmp_path / "claims.toml"
    path.write_text(text, encoding="utf-8")
    return load_claims(catalog, path)


def test_a_claim_is_a_row(tmp_path: Path, catalog: Catalog) -> None:
    (found,) = read(ROW, tmp_path, catalog)
    assert isinstance(found, Within)
    assert (found.name, found.low, found.of, found.where) == ("mine", 1.0, "every", Where())


ORDER = ROW.replace('"within"', '"order"').replace("low = 1.0", 'across = ["variant"]')
VARIES = ROW.replace('"within"', '"varies"').replace("low = 1.0", 'over = "part"\nmargin = 0.1')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[claim]", "claims.toml: not valid TOML"),
        ("[[claims]]\nname = 'x'", "unknown field `claims`; known: claim"),
        ("", "missing required field `claim`"),
        (
            ROW.replace('"within"', '"beats"'),
            "claim[0].predicate must be one of the known names (got 'beats'); known: no",
        ),
        (ROW.replace('predicate = "within"\n', ""), "claim[0].predicate must be one of the known names (got None)"),
        (ROW + "lwo = 1", "claim[0] (mine): Object contains unknown field `lwo`; known: high, low, name, of"),
        (ROW.replace("low = 1.0", ""), "claim[0] (mine): low must be given where high is not (got None)"),
        (ROW.replace("low = 1.0", "low = 2\nhigh = 1"), "low must be at most high (got 2.0)"),
        (ROW.replace("low = 1.0", 'low = "1"'), "Expected `float | null`, got `str` - at `$.low`"),
        (ROW.replace('"speedup"', '"speed"'), "quantity must be one of speedup, per_doubling"),
        (ROW.replace('source = "a test"', ""), "missing required field `source`"),
        (ROW.replace('"a test"', '" "'), "source must be a text (got ' ')"),
        (ROW + 'of = "all"', "Invalid enum value 'all' - at `$.of`"),
        (ROW + "rounding = -1", "rounding must be at least 0 (got -1.0)"),
        (ROW + 'where = { kind = ["ngram"] }', "unknown field `kind` - at `$.where`; known: batch_from"),
        (ROW + 'where = { kinds = ["n-gram"] }', "kinds must be among ngram, draft_model, eagle, eagle3, mtp"),
        (ROW + "where = { batch_from = 4, batch_to = 1 }", "batch_from must be at most batch_to = 1 (got 4)"),
        (ROW + 'where = { targets = ["gpt"] }', "claim[0].where.targets must be one of the known names (got 'gpt')"),
        (ROW + 'where = { workload_kinds = ["code"] }', "claim[0].where.workload_kinds must be one of the known names"),
        (ROW + 'where = { other_workload_kinds = ["code"] }', "claim[0].where.other_workload_kinds must be one of"),
        (ROW + ROW, "claim[1].name 'mine' is already taken"),
        (ORDER.replace('across = ["variant"]', ""), "missing required field `across`"),
        (ORDER.replace('["variant"]', "[]"), "across must be a non-empty list (got [])"),
        (ORDER.replace('["variant"]', '["k"]'), "Invalid enum value 'k' - at `$.across[0]`"),
        (ORDER + "second_larger_by = 2", "across must be one that holds 'target'"),
        (ORDER + 'first = { targets = ["gpt"] }', "claim[0].first.targets must be one of the known names"),
        (VARIES.replace("margin = 0.1", ""), "missing required field `margin`"),
        (VARIES.replace("0.1", "1.0"), "margin must be a fraction from 0 to below 1 (got 1.0)"),
        (VARIES.replace('"part"', '"k"'), "Invalid enum value 'k' - at `$.over`"),
    ],
)
def test_what_is_wrong_with_a_row_is_told_with_its_field(
    text: str, message: str, tmp_path: Path, catalog: Catalog
) -> None:
    with pytest.raises(DraftproofError) as caught:
        read(text, tmp_path, catalog)
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(DraftproofError, match="must be a file of claims"):
        load_claims(catalog, tmp_path / "claims.toml")


def test_our_claims_use_every_predicate_and_every_quantity(catalog: Catalog) -> None:
    claims = load_claims(catalog)
    assert {one.predicate for one in claims} == set(PREDICATES)
    named = {one.quantity for one in claims if hasattr(one, "quantity")}
    assert named | {"identical_share"} == set(QUANTITIES)
    assert all("2601.11580" in one.source for one in claims)
    assert Counter(one.sentence for one in claims).most_common(1)[0][1] == 1


def test_every_method_of_ours_can_be_named(catalog: Catalog) -> None:
    methods = {variant.method for variant in catalog.variants.values() if variant.speculative and not variant.control}
    assert methods == set(KINDS)
