"""Rules of the plan: which arms live together, and what shares their rotations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.catalog import Catalog
from draftproof.errors import DraftproofError
from draftproof.plan import (
    ArmSpec,
    Group,
    Plan,
    build_plan,
    check_context,
    max_model_tokens,
    speculative_config,
)
from draftproof.spec import Cell, Drafter, Forced, Hardware, Interleave, Target, Variant
from tests.factories import make_cell, make_study

LOOKUP = Forced(async_scheduling=False, v1_runner=True)


def make_variant(name: str, **fields: Any) -> Variant:
    given_: dict[str, Any] = {"title": name, "method": name, "k": 3}
    return Variant(name=name, **(given_ | fields))


NO_SD = make_variant("no_sd", method="none", k=None)
VARIANTS = (
    NO_SD,
    make_variant("ngram", forces=LOOKUP),
    make_variant("ngram_k5", method="ngram", k=5, forces=LOOKUP),
    make_variant("eagle"),
    make_variant("eagle3"),
    make_variant("mtp", forces=Forced(async_scheduling=True)),
    make_variant("eagle_invariant", method="eagle", plain="eagle", forces=Forced(batch_invariant=True)),
)
NAMES = tuple(variant.name for variant in VARIANTS)


def make_hardware(**fields: Any) -> Hardware:
    given_: dict[str, Any] = {
        "name": "cpu",
        "title": "CPU",
        "markers": ["cpu"],
        "device": "cpu",
        "max_live_arms": 6,
        "engine": {"async_scheduling": False, "max_num_seqs": 64},
    }
    return Hardware(**(given_ | fields))


CPU = make_hardware()
CUDA = make_hardware(name="cuda", device="cuda", max_live_arms=2, engine={}, variables={"SOME": "1"})


def make_target(name: str = "t", **fields: Any) -> Target:
    given_: dict[str, Any] = {"title": name, "source": "path", "model": name}
    return Target(name=name, **(given_ | fields))


def make_catalog(*hardware: Hardware, variants: Sequence[Variant] = VARIANTS, **target: Any) -> Catalog:
    return Catalog(
        variants={variant.name: variant for variant in variants},
        targets={name: make_target(name, **target) for name in ("t", "u")},
        workloads={},
        hardware={entry.name: entry for entry in hardware or (CPU, CUDA)},
        studies={},
        thresholds={},
        folders={},
    )


def plan_of(
    *variants: str, hardware: Hardware = CPU, two_builds: bool = False, cells: list[Cell] | None = None, **study: Any
) -> Plan:
    chosen = cells or [make_cell(name, hardware=hardware.name) for name in variants]
    return build_plan(make_catalog(hardware), make_study(**study), chosen, two_builds=two_builds)


def keys(group: Group) -> list[str]:
    return [spec.key for spec in group.arms]


def lost(plan: Plan) -> list[str]:
    """Cells that no unit runs on an arm of their variant."""
    run = {
        (cell, spec.variant)
        for group in plan.groups
        for unit in group.units
        for cell in unit.cells
        for spec in group.arms
        if spec.key in unit.arms
    }
    return [cell.id for cell in plan.cells if (cell, cell.variant) not in run]


def reference(group: Group, build: str = "new") -> ArmSpec:
    return next(s for s in group.arms if (s.variant, s.role, s.build) == ("no_sd", "run", build))


# -- groups and units ------------------------------------------------------------------------------------------------


def test_no_sd_is_first_in_each_unit() -> None:
    """Each pass of a rotation begins or ends with it, wherever the study lists it."""
    plan = plan_of("eagle", "ngram", "no_sd", aa=True)
    assert [unit.arms for group in plan.groups for unit in group.units] == [("no_sd", "no_sd.aa", "eagle", "ngram")]


def test_no_sd_comes_with_its_variants_though_no_cell_asks_for_it() -> None:
    plan = plan_of("eagle")
    assert [unit.arms for group in plan.groups for unit in group.units] == [("no_sd", "eagle")]
    assert plan.groups[0].units[0].cells == plan.cells


@pytest.mark.parametrize("aa", [False, True])
@pytest.mark.parametrize("hardware", [CPU, CUDA], ids=["cpu", "cuda"])
def test_a_second_no_sd_only_where_the_study_asks(aa: bool, hardware: Hardware) -> None:
    """One A/A twin a target, with the settings of the no-SD beside it; it is no arm of its own for cells."""
    plan = plan_of("no_sd", "ngram", "eagle", hardware=hardware, aa=aa)
    twins = [(group, spec) for group in plan.groups for spec in group.arms if spec.role == "aa"]
    assert len(twins) == (1 if aa else 0)
    for group, twin in twins:
        base = reference(group)
        assert twin.key == f"{base.key}.aa"
        assert (twin.variant, twin.engine, twin.variables) == ("no_sd", base.engine, base.variables)


def test_units_are_the_workloads_and_batch_sizes_in_order() -> None:
    cells = [make_cell(v, b, workload=w) for w in ("x", "y") for b in (1, 4) for v in ("no_sd", "eagle")]
    (group,) = plan_of(cells=cells).groups
    assert [(u.key.workload, u.key.batch_size) for u in group.units] == [("x", 1), ("x", 4), ("y", 1), ("y", 4)]
    assert all(u.key.group == group.index and u.key.target == "t" for u in group.units)


def test_a_unit_runs_only_the_variants_that_have_a_cell_there() -> None:
    """k = 5 on one workload alone, as in the paper."""
    cells = [make_cell("eagle"), make_cell("eagle", workload="v"), make_cell("eagle3", workload="v")]
    (group,) = plan_of(cells=cells).groups
    assert {unit.key.workload: unit.arms for unit in group.units} == {
        "w": ("no_sd", "eagle"),
        "v": ("no_sd", "eagle", "eagle3"),
    }


@pytest.mark.parametrize("room", [2, 3, 4, 6])
@pytest.mark.parametrize("aa", [False, True])
def test_each_group_fits_has_its_no_sd_and_no_cell_is_lost(room: int, aa: bool) -> None:
    plan = plan_of(*NAMES, hardware=make_hardware(max_live_arms=room), aa=aa)
    for group in plan.groups:
        assert len(group.arms) <= room
        assert len(keys(group)) == len(set(keys(group)))
        assert reference(group).key == keys(group)[0]
    assert lost(plan) == []
    arms = [spec.variant for group in plan.groups for spec in group.arms if spec.variant != "no_sd"]
    assert sorted(arms) == sorted(set(NAMES) - {"no_sd"}), "each variant is loaded once"


def test_groups_are_numbered_over_all_targets() -> None:
    """A group's number names its parts and logs, so it must be its own."""
    cells = [make_cell(v, target=t, hardware="cuda") for t in ("t", "u") for v in ("no_sd", "eagle", "eagle3")]
    plan = plan_of(hardware=CUDA, cells=cells)
    assert [(group.index, group.target.name) for group in plan.groups] == [(0, "t"), (1, "t"), (2, "u"), (3, "u")]


def test_each_target_and_hardware_has_groups_of_its_own() -> None:
    cells = [make_cell(v, target=t, hardware=h) for t, h in (("t", "cpu"), ("u", "cuda")) for v in ("no_sd", "eagle")]
    plan = build_plan(make_catalog(), make_study(), cells)
    assert [(group.target.name, group.hardware.name) for group in plan.groups] == [("t", "cpu"), ("u", "cuda")]


def test_no_sd_alone_is_a_study() -> None:
    """Its throughput is worth having without any variant."""
    plan = plan_of("no_sd")
    assert [keys(group) for group in plan.groups] == [["no_sd"]]
    assert lost(plan) == []


def test_a_no_sd_cell_without_a_variant_is_run_for_every_target() -> None:
    """Also for a target that is not the first, beside variants of other workloads."""
    cells = [make_cell(v, workload=w, target=t) for t in ("t", "u") for v, w in (("no_sd", "w"), ("eagle", "v"))]
    assert lost(plan_of(cells=cells)) == []


def test_a_no_sd_cell_without_a_variant_is_run_once() -> None:
    """The first group that can runs it; in every other it would only cost time."""
    cells = [make_cell("no_sd", workload="alone", hardware="cuda")]
    cells += [make_cell(v, hardware="cuda") for v in ("no_sd", "eagle", "eagle3")]
    plan = plan_of(hardware=CUDA, cells=cells)
    assert len(plan.groups) == 2
    assert [u.key.group for group in plan.groups for u in group.units if u.key.workload == "alone"] == [0]


CELLS = st.builds(
    make_cell,
    variant=st.sampled_from(NAMES),
    batch_size=st.sampled_from([2, 4]),
    workload=st.sampled_from(["w", "v"]),
    target=st.sampled_from(["t", "u"]),
    hardware=st.sampled_from(["cpu", "cuda"]),
)


@given(
    cells=st.lists(CELLS, min_size=1, max_size=12, unique_by=lambda c: (c.hardware, c.id)),
    room=st.integers(2, 5),
    aa=st.booleans(),
)
def test_whatever_the_study_no_cell_is_lost_and_pairs_have_equal_settings(
    cells: list[Cell], room: int, aa: bool
) -> None:
    """Each group: at most `room` arms, no-SD first in each unit, and every arm with the settings of its no-SD."""
    hardware = [msgspec.structs.replace(entry, max_live_arms=room) for entry in (CPU, CUDA)]
    plan = build_plan(make_catalog(*hardware), make_study(aa=aa), cells)
    assert lost(plan) == []
    for group in plan.groups:
        base = reference(group)
        assert len(group.arms) <= room
        assert all(unit.arms[0] == base.key and len(unit.arms) == len(set(unit.arms)) for unit in group.units)
        for spec in group.arms:
            assert (spec.engine, spec.variables) == (base.engine, base.variables), spec.key


@pytest.mark.parametrize("mode", ["restart", "block"])
@pytest.mark.parametrize("two_builds", [False, True])
def test_arms_one_at_a_time_are_one_group_a_no_sd(mode: Interleave, two_builds: bool) -> None:
    """The memory bounds nothing then, so that no-SD is run once for all variants that are paired with it."""
    small = msgspec.structs.replace(CUDA, interleave=mode)
    plan = plan_of("no_sd", "ngram", "eagle", "eagle3", hardware=small, two_builds=two_builds, aa=True)
    builds = 2 if two_builds else 1
    bases = [group.arms[0].key for group in plan.groups]
    assert len(bases) == len(set(bases)) == len({reference(group).key for group in plan.groups})
    assert lost(plan) == []
    arms = [spec.key for group in plan.groups for spec in group.arms]
    assert len(arms) == builds * (3 + len(bases)) + 1, "each variant and no-SD under each build, and the twin"
    assert len(plan_of("no_sd", "eagle", "eagle3", hardware=CUDA).groups) == 2
    assert len(plan_of("no_sd", "eagle", "eagle3", hardware=small).groups) == 1


def test_a_study_may_let_arms_take_turns_otherwise_than_its_hardware() -> None:
    """And a run may only go on in the way that it began: turns are part of the plan."""
    plans = [plan_of("no_sd", "eagle", hardware=CUDA, interleave=mode) for mode in (None, "live", "restart", "block")]
    assert [plan.groups[0].hardware.interleave for plan in plans] == ["live", "live", "restart", "block"]
    own = plan_of("no_sd", "eagle", hardware=msgspec.structs.replace(CUDA, interleave="restart"))
    assert own.groups[0].hardware.interleave == "restart"
    assert len({plan.sha256 for plan in (*plans[1:], own)}) == 4


# -- two builds ------------------------------------------------------------------------------------------------------


def test_two_builds_double_the_arms() -> None:
    """Every run arm once under each interpreter; the base build's keys begin with `base:`."""
    (group,) = plan_of("no_sd", "eagle", two_builds=True).groups
    assert keys(group) == ["no_sd", "base:no_sd", "eagle", "base:eagle"]
    assert [spec.build for spec in group.arms] == ["new", "base", "new", "base"]
    assert [unit.arms for unit in group.units] == [("no_sd", "base:no_sd", "eagle", "base:eagle")]


def test_two_builds_have_equal_settings() -> None:
    (group,) = plan_of("no_sd", "ngram", two_builds=True).groups
    for spec in group.arms:
        twin = next(s for s in group.arms if s.key == f"base:{spec.key.removeprefix('base:')}")
        assert (spec.variant, spec.engine, spec.variables) == (twin.variant, twin.engine, twin.variables)


@pytest.mark.parametrize("room", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("aa", [False, True])
def test_both_builds_of_a_variant_live_in_one_group(room: int, aa: bool) -> None:
    """They are compared pair by pair, in the same rotations: in two groups they could not be."""
    hardware = make_hardware(max_live_arms=room)
    plan = plan_of("no_sd", "ngram", "eagle", "eagle3", hardware=hardware, two_builds=True, aa=aa)
    assert lost(plan) == []
    for group in plan.groups:
        new = {key for key in keys(group) if not key.startswith("base:") and not key.endswith(".aa")}
        assert {key.removeprefix("base:") for key in keys(group) if key.startswith("base:")} == new


@pytest.mark.parametrize("room", [4, 5, 6])
@pytest.mark.parametrize("aa", [False, True])
def test_two_builds_fit_the_memory_too(room: int, aa: bool) -> None:
    """From four arms on there is room for no-SD and a variant under both interpreters."""
    hardware = make_hardware(max_live_arms=room)
    plan = plan_of("no_sd", "ngram", "eagle", "eagle3", hardware=hardware, two_builds=True, aa=aa)
    assert [len(group.arms) for group in plan.groups if len(group.arms) > room] == []


@pytest.mark.parametrize("two_builds", [False, True])
@pytest.mark.parametrize("room", [2, 3, 4])
@pytest.mark.parametrize("aa", [False, True])
def test_no_group_is_loaded_for_no_sd_alone(two_builds: bool, room: int, aa: bool) -> None:
    """Where there are variants or a twin to pair it with, also where both builds of a variant are too many."""
    plan = plan_of("no_sd", "eagle", "eagle3", hardware=make_hardware(max_live_arms=room), two_builds=two_builds, aa=aa)
    assert all(any(spec.variant != "no_sd" or spec.role == "aa" for spec in group.arms) for group in plan.groups)


# -- what a variant forces -------------------------------------------------------------------------------------------


def test_forced_settings_get_a_baseline_of_their_own_on_cuda() -> None:
    """n-gram turns async scheduling off and needs the V1 runner: so does the no-SD that it is paired with."""
    plan = plan_of("no_sd", "eagle", "ngram", hardware=CUDA)
    assert [keys(group) for group in plan.groups] == [["no_sd", "eagle"], ["no_sd[async=off,v1]", "ngram"]]
    plain, forced = plan.groups
    for spec in forced.arms:
        assert spec.engine["async_scheduling"] is False
        assert spec.variables == {"SOME": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    for spec in plain.arms:
        assert "async_scheduling" not in spec.engine
        assert spec.variables == {"SOME": "1"}


def test_variants_that_force_the_same_share_a_baseline() -> None:
    (group,) = plan_of("ngram", "ngram_k5", hardware=msgspec.structs.replace(CUDA, max_live_arms=6)).groups
    assert keys(group) == ["no_sd[async=off,v1]", "ngram", "ngram_k5"]


def test_forced_settings_share_the_plain_baseline_on_cpu() -> None:
    """CPU studies turn async scheduling off everywhere, and have one runner: one no-SD arm serves all."""
    (group,) = plan_of("no_sd", "eagle", "ngram").groups
    assert keys(group) == ["no_sd", "eagle", "ngram"]
    assert {spec.engine["async_scheduling"] for spec in group.arms} == {False}
    assert {"VLLM_USE_V2_MODEL_RUNNER"} & {name for spec in group.arms for name in spec.variables} == set()


def test_batch_invariance_is_forced_on_both_arms() -> None:
    """The claim is about outputs with and without speculation, on the same kernels."""
    plain, invariant = plan_of("eagle", "eagle_invariant", hardware=CUDA).groups
    assert keys(invariant) == ["no_sd[batch-invariant]", "eagle_invariant"]
    assert {spec.variables.get("VLLM_BATCH_INVARIANT") for spec in invariant.arms} == {"1"}
    assert all("VLLM_BATCH_INVARIANT" not in spec.variables for spec in plain.arms)


def test_each_group_has_a_float32_referee_that_is_none_of_its_arms() -> None:
    """It runs after them, with the target's other settings."""
    for group in plan_of("eagle", "ngram", hardware=CUDA).groups:
        assert group.referee.role == "referee"
        assert group.referee.key not in keys(group)
        assert group.referee.engine == {**plan_of("eagle", hardware=CUDA).groups[0].arms[0].engine, "dtype": "float32"}


@pytest.mark.parametrize("hardware", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_baseline_matches_though_the_study_sets_async_itself(hardware: Hardware, asynchronous: bool) -> None:
    """The study's engine arguments go before the hardware's; what a variant forces goes before both, on both arms."""
    plan = plan_of("no_sd", "eagle", "ngram", hardware=hardware, engine={"async_scheduling": asynchronous})
    for group in plan.groups:
        for spec in group.arms:
            assert spec.engine["async_scheduling"] == reference(group).engine["async_scheduling"], spec.key


def test_engine_arguments_are_laid_over_each_other() -> None:
    """Ours, then the hardware's, the target's and the study's."""
    hardware = make_hardware(engine={"a": "hardware", "b": "hardware", "c": "hardware"}, tensor_parallel_size=4)
    catalog = make_catalog(hardware, engine={"b": "target", "c": "target"}, dtype="float32")
    plan = build_plan(catalog, make_study(engine={"c": "study"}, seed=7), [make_cell("no_sd")])
    assert plan.groups[0].arms[0].engine == {
        "dtype": "float32",
        "tensor_parallel_size": 4,
        "seed": 7,
        "a": "hardware",
        "b": "target",
        "c": "study",
    }


# -- limits ----------------------------------------------------------------------------------------------------------


def test_a_batch_that_the_engine_would_split_is_an_error() -> None:
    """65 requests on an engine of 64 would run one after the other, in silence."""
    assert plan_of(cells=[make_cell("eagle", 64)])
    with pytest.raises(DraftproofError, match=r"max_num_seqs = 64 \(got 65\).*hardware/cpu\.toml"):
        plan_of(cells=[make_cell("eagle", 65)])


def test_the_study_may_raise_the_engines_limit() -> None:
    assert plan_of(cells=[make_cell("eagle", 512)], engine={"max_num_seqs": 512})


def test_prompt_and_output_must_fit_the_context() -> None:
    check_context("here", 100, 28, 128)
    with pytest.raises(DraftproofError, match=r"here: prompt \+ output tokens .* context of 128 \(got 129\)") as caught:
        check_context("here", 101, 28, 128)
    assert "the prompt has 101" in str(caught.value)
    assert "max_prompt_tokens" in str(caught.value)


def test_the_context_is_the_targets_or_the_assumed_one() -> None:
    cells = [make_cell("no_sd")]
    assert max_model_tokens(plan_of(cells=cells).groups[0]) == 4096
    small = build_plan(make_catalog(engine={"max_model_len": 1024}), make_study(), cells)
    assert max_model_tokens(small.groups[0]) == 1024


def test_unknown_entries_are_named() -> None:
    with pytest.raises(DraftproofError, match=r"target .*'x'.*known: t, u"):
        plan_of(cells=[make_cell("no_sd", target="x")])
    with pytest.raises(DraftproofError, match=r"hardware .*'x'.*known: cpu, cuda"):
        build_plan(make_catalog(), make_study(), [make_cell("no_sd", hardware="x")])


# -- speculative_config ----------------------------------------------------------------------------------------------


def test_no_sd_has_no_speculative_config() -> None:
    assert speculative_config(NO_SD, "t", None) is None


def test_a_lookup_has_its_options_and_no_model() -> None:
    ngram = make_variant("ngram", options={"prompt_lookup_min": 3})
    assert speculative_config(ngram, "t", None) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 3,
    }


def test_a_drafter_brings_its_model_revision_and_options() -> None:
    """The drafter's own options go before the variant's."""
    drafter = Drafter(model="org/head", revision="abc", options={"quantization": None, "max_model_len": 8})
    eagle = make_variant("eagle", k=2, options={"max_model_len": 4}, drafters={"t": drafter})
    assert speculative_config(eagle, "t", "/models/head") == {
        "method": "eagle",
        "num_speculative_tokens": 2,
        "max_model_len": 8,
        "model": "/models/head",
        "revision": "abc",
        "quantization": None,
    }


def test_a_drafter_without_a_revision_sets_none() -> None:
    eagle = make_variant("eagle", drafters={"t": Drafter(model="org/head")})
    config = speculative_config(eagle, "t", "org/head")
    assert config == {"method": "eagle", "num_speculative_tokens": 3, "model": "org/head"}


def test_a_missing_drafter_is_an_error() -> None:
    eagle = make_variant("eagle", drafters={"t": Drafter(model="org/head")})
    with pytest.raises(DraftproofError, match=r"'eagle' has no drafter for target 'u'; known: t"):
        speculative_config(eagle, "u", "org/head")


# -- the plan's hash -------------------------------------------------------------------------------------------------


def test_equal_plans_have_equal_hashes() -> None:
    """Built twice, from equal entries: a later session goes on with the run."""
    assert plan_of("no_sd", "ngram", aa=True).sha256 == plan_of("no_sd", "ngram", aa=True).sha256


def test_the_order_of_keys_does_not_matter() -> None:
    one = plan_of("no_sd", engine={"a": 1, "b": 2})
    other = plan_of("no_sd", engine={"b": 2, "a": 1})
    assert one.sha256 == other.sha256


@pytest.mark.parametrize(
    "change",
    [
        {"rotations": 3, "max_rotations": 4},
        {"output_tokens": 9},
        {"seed": 1},
        {"ignore_eos": False},
        {"batching": "identical"},
        {"engine": {"enforce_eager": True}},
        {"aa": True},
        {"max_prompt_tokens": 5},
    ],
    ids=str,
)
def test_another_study_is_another_plan(change: dict[str, Any]) -> None:
    assert plan_of("no_sd", "ngram", **change).sha256 != plan_of("no_sd", "ngram").sha256


def test_other_cells_builds_or_settings_are_another_plan() -> None:
    found = {
        plan_of("no_sd", "ngram").sha256,
        plan_of("no_sd", "eagle").sha256,
        plan_of("no_sd").sha256,
        plan_of("no_sd", "ngram", two_builds=True).sha256,
        plan_of("no_sd", "ngram", hardware=make_hardware(variables={"X": "1"})).sha256,
        plan_of("no_sd", "ngram", hardware=make_hardware(engine={"async_scheduling": False})).sha256,
    }
    assert len(found) == 6


@pytest.mark.parametrize(
    "change", [{"k": 5}, {"options": {"prompt_lookup_max": 9}}, {"drafters": {"t": Drafter(model="other")}}], ids=str
)
def test_another_variant_of_the_same_name_is_another_plan(change: dict[str, Any]) -> None:
    """An edited entry or an overlay must not add its blocks to a run of the former one."""
    before, after = make_variant("mine"), make_variant("mine", **change)
    cells = [make_cell("no_sd"), make_cell("mine")]
    plans = [build_plan(make_catalog(variants=(NO_SD, v)), make_study(), cells) for v in (before, after)]
    assert plans[0].sha256 != plans[1].sha256
