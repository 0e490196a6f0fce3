"""Whose change a ratio's change is: a planted truth for each answer, on moves made by hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import movers
from draftproof.analysis.moves import Between, Move
from draftproof.movers import Mover, Own, mean_place, whose
from draftproof.quantities import SPECULATIVE
from draftproof.snapshot import Series
from draftproof.spec import Threshold

SYSTEM = next(quantity for quantity in SPECULATIVE if quantity.gate == "system")
ROW = Threshold(metric="m", limit=0.1, estimator="e", gating=True, source="s")
MACHINE_SD = 0.03


def ratio(
    variant: str, arm: float, no_sd: float, *, mean: bool = False, machine_sd: float = MACHINE_SD
) -> movers.Tested:
    """A ratio to no-SD; `arm`, `no_sd`: how much better either became (log)."""
    return movers.Tested(
        place=mean_place("t", variant) if mean else f"t-{variant}-w-b1",
        series=Series(
            target="t",
            variant=variant,
            workload="w",
            batch_size=1,
            held={},
            sets=[],
            throughput="PASS",
            determinism="PASS",
        ),
        quantity=SYSTEM,
        limit=ROW,
        own_limit=ROW,
        between=Between(sd=0.01),
        means=[0.0],
        noise=0.0,
        machine=2 * machine_sd**2,
        runs=(1, 1),
        found=Move(worse=no_sd - arm, error=0.01, df=20, sets=12, within=1e-6),
        base=1.0,
        new=1.0,
        own=Own(arm=arm, no_sd=no_sd),
    )


@pytest.mark.parametrize(
    ("arm", "no_sd", "mover"),
    [
        (-0.3, 0.0, "variant"),
        (0.0, 0.3, "no_sd"),
        (0.3, 0.0, "variant"),
        (0.0, -0.3, "no_sd"),
        (-0.07, 0.07, "either"),
        (0.07, -0.07, "either"),
    ],
)
def test_alone_beside_no_sd_the_arm_that_moved_further_is_named(arm: float, no_sd: float, mover: Mover) -> None:
    """In both directions; where both moved as far, the machine may have."""
    tested = ratio("ngram", arm, no_sd)
    assert whose(tested, [tested]) == mover


@pytest.mark.parametrize("machine", [-0.15, -0.07, 0.0, 0.07, 0.15])
def test_a_variant_that_moved_alone_is_named_whatever_the_machine_did(machine: float) -> None:
    others = [ratio(name, machine, machine) for name in ("eagle3", "mtp")]
    tested = ratio("ngram", machine - 0.14, machine)
    assert whose(tested, [tested, *others]) == "variant"


@pytest.mark.parametrize("machine", [-0.02, 0.0, 0.02])
def test_where_all_ratios_moved_alike_their_own_figures_tell(machine: float) -> None:
    """No-SD became faster, or all variants slower."""
    faster_no_sd = [ratio(name, machine, machine + 0.25) for name in ("ngram", "eagle3", "mtp")]
    slower_variants = [ratio(name, machine - 0.25, machine) for name in ("ngram", "eagle3", "mtp")]
    assert {whose(tested, faster_no_sd) for tested in faster_no_sd} == {"no_sd"}
    assert {whose(tested, slower_variants) for tested in slower_variants} == {"variant"}


def test_one_cell_is_told_by_the_geometric_mean_where_that_moved_alike() -> None:
    """A cell's own noise would say otherwise. The machine is one for all cells."""
    cell, mean = ratio("ngram", -0.15, 0.02), ratio("ngram", 0.0, 0.2, mean=True)
    assert whose(cell, [cell]) == "variant"
    assert whose(cell, [cell, mean]) == "no_sd"


def test_in_one_run_of_two_builds_nothing_is_hidden_by_the_machine() -> None:
    tested = ratio("ngram", -0.06, 0.05, machine_sd=0.0)
    assert whose(tested, [tested]) == "variant"


def test_an_arm_that_became_much_worse_is_excused_by_nothing() -> None:
    tested = ratio("ngram", -0.2, 0.5)
    assert whose(tested, [tested]) == "variant"


def test_acceptance_is_nobodys_but_the_variants() -> None:
    tested = msgspec.structs.replace(ratio("ngram", 0.0, 0.3), own=None)
    assert whose(tested, [tested]) == "variant"


def slow_beside(tested: movers.Tested, everything: list[movers.Tested]) -> list[movers.Tested]:
    """What stands beside a figure, by a look at all of them."""

    def is_mean(one: movers.Tested) -> bool:
        return one.place == mean_place(one.series.target, one.series.variant)

    def cell(one: movers.Tested) -> tuple[str, int]:
        return one.series.workload, one.series.batch_size

    return [
        other
        for other in everything
        if other.series.speculative
        and (other.quantity.gate, other.series.target) == (tested.quantity.gate, tested.series.target)
        and other.series.variant != tested.series.variant
        and is_mean(other) == is_mean(tested)
        and (is_mean(tested) or cell(other) == cell(tested))
    ]


@st.composite
def figures(draw: st.DrawFn) -> movers.Tested:
    variant = draw(st.sampled_from(["ngram", "eagle3", "mtp", "no_sd"]))
    one = ratio(variant, 0.0, 0.0, mean=draw(st.booleans()))
    places = {"target": st.sampled_from("tu"), "workload": st.sampled_from("wx"), "batch_size": st.integers(1, 2)}
    series = msgspec.structs.replace(one.series, **{name: draw(of) for name, of in places.items()})
    place = mean_place(series.target, variant) if one.place == mean_place("t", variant) else series.id
    return msgspec.structs.replace(one, series=series, place=place, quantity=draw(st.sampled_from(SPECULATIVE)))


@given(st.lists(figures(), max_size=30))
def test_what_stands_beside_a_figure_is_found_without_a_look_at_all(everything: list[movers.Tested]) -> None:
    peers = movers.Peers(everything)
    for tested in everything:
        assert peers.beside(tested) == slow_beside(tested, everything)
        mean = peers.mean_of(tested)
        of_variant = mean_place(tested.series.target, tested.series.variant)
        means = [
            one
            for one in everything
            if one.place == of_variant != tested.place
            and one.series.speculative
            and one.quantity.gate == tested.quantity.gate
        ]
        assert mean == (means[0] if means else None)
