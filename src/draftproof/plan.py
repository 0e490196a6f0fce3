"""From cells to what is run: groups of live arms, and the (workload, batch size) units that they share. Pure."""

from __future__ import annotations

from itertools import chain
from typing import Any, Literal, NamedTuple

import msgspec

from draftproof.catalog import Catalog
from draftproof.errors import DraftproofError, rule
from draftproof.records import Role, UnitKey
from draftproof.spec import Cell, Entry, Forced, Hardware, Study, Target, Variant, digest

DEFAULT_MAX_MODEL_TOKENS = 4096
"""Context that is assumed where a target's entry sets no ``max_model_len``."""

CONTROL_CLASS = "draftproof_controls.Control"
"""What vLLM's ``custom_class`` method imports; the worker provides the module."""

Build = Literal["new", "base"]

AA = ".aa"
"""Ends the key of a second no-SD process."""

REFEREE = "referee"
"""Key of the arm that scores first differences."""


class ArmSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process to start: (interpreter, target, variant, engine arguments)."""

    key: str
    """Name within its target's group: ``ngram``, ``no_sd``, ``no_sd.aa``, ``base:ngram``, ... ."""
    target: str
    variant: str
    variant_sha256: str
    """Of the variant's entry and those that it is made from: an entry that changed is another plan."""
    role: Role = "run"
    build: Build = "new"
    engine: dict[str, Any]
    """vLLM engine arguments but for the model."""
    variables: dict[str, str]


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """The arms that run one workload at one batch size in the same rotations."""

    key: UnitKey
    arms: tuple[str, ...]
    """Arm keys; no-SD first, so that each pass of a rotation begins or ends with it."""
    cells: tuple[Cell, ...]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Arms that take turns: alive together, or one at a time."""

    index: int
    target: Target
    hardware: Hardware
    arms: tuple[ArmSpec, ...]
    units: tuple[Unit, ...]
    referee: ArmSpec
    """Scores first differences in float32, alone, after the others have ended."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    study: Study
    cells: tuple[Cell, ...]
    groups: tuple[Group, ...]

    def runs_first(self, unit: Unit) -> bool:
        """Whether no earlier group runs the same workload on the same target at the same batch size."""
        same = (other.key for group in self.groups for other in group.units if other.key[1:] == unit.key[1:])
        return next(same) == unit.key

    @property
    def sha256(self) -> str:
        """Two sessions may add to the same run only when this is equal."""
        return digest([self.study, list(self.cells), list(self.groups)])


class Place(NamedTuple):
    """Where arms run: what their engine settings come from."""

    study: Study
    hardware: Hardware
    target: Target
    catalog: Catalog

    @property
    def engine(self) -> dict[str, Any]:
        """vLLM engine arguments; the study's go over the target's, those over the hardware's."""
        return {
            "dtype": self.target.dtype,
            "tensor_parallel_size": self.hardware.tensor_parallel_size,
            "seed": self.study.seed,
            **self.hardware.engine,
            **self.target.engine,
            **self.study.engine,
        }

    def arm(
        self,
        key: str,
        variant: Variant,
        forces: Forced,
        *,
        build: Build,
        role: Role = "run",
    ) -> ArmSpec:
        engine, variables = self.engine, {**self.hardware.variables}
        if forces.async_scheduling is not None:
            engine["async_scheduling"] = forces.async_scheduling
        if forces.v1_runner and self.hardware.device == "cuda":
            variables["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        if forces.batch_invariant:
            variables["VLLM_BATCH_INVARIANT"] = "1"
        if role == "referee":
            engine["dtype"] = "float32"
        return ArmSpec(
            key=prefix(build) + key,
            target=self.target.name,
            variant=variant.name,
            variant_sha256=self.variant_sha256(variant),
            role=role,
            build=build,
            engine=engine,
            variables=variables,
        )

    def variant_sha256(self, variant: Variant) -> str:
        """Of the variant's entry, and of the entries that it and the target are made from."""
        drafter = variant.drafters.get(self.target.name)
        made: list[Entry | None] = []
        if drafter and drafter.source == "trained":
            made.append(self.catalog.drafters[drafter.model])
        if drafter and drafter.source == "dummy":
            made.append(self.catalog.shape_of(drafter.model))
        if self.target.source == "dummy":
            made.append(self.catalog.shape_of(self.target.model))
        return digest([variant, *made]) if made else digest(variant)

    def baseline_key(self, variant: Variant) -> str:
        """The no-SD arm that a variant is paired with: plain, or one with the settings that the variant forces."""
        parts = []
        forces = variant.forces
        if forces.async_scheduling is not None and self.engine.get("async_scheduling") != forces.async_scheduling:
            parts.append(f"async={'on' if forces.async_scheduling else 'off'}")
        if forces.v1_runner and self.hardware.device == "cuda":
            parts.append("v1")
        if forces.batch_invariant:
            parts.append("batch-invariant")
        return "no_sd" + (f"[{','.join(parts)}]" if parts else "")


def build_plan(catalog: Catalog, study: Study, cells: list[Cell], *, two_builds: bool = False) -> Plan:
    """Group the cells' arms by target and hardware, then by what fits the memory; each group has its own no-SD."""
    builds: tuple[Build, ...] = ("new", "base") if two_builds else ("new",)
    groups: list[Group] = []
    for target_name, hardware_name in dict.fromkeys((cell.target, cell.hardware) for cell in cells):
        place = Place(
            study, study.on(catalog.get("hardware", hardware_name)), catalog.get("targets", target_name), catalog
        )
        chosen = [cell for cell in cells if (cell.target, cell.hardware) == (target_name, hardware_name)]
        variants = [catalog.variants[name] for name in dict.fromkeys(cell.variant for cell in chosen)]
        no_sd = catalog.get("variants", "no_sd")
        for number, arms in enumerate(arm_groups(variants, no_sd, place, builds)):
            index = len(groups)
            found = tuple(units(index, arms, chosen, first=number == 0))
            used = tuple(arm for arm in arms if any(arm.key in unit.arms for unit in found))
            if used:  # an engine that no unit needs is not loaded
                referee = place.arm(REFEREE, no_sd, Forced(), build="new", role="referee")
                groups.append(
                    Group(
                        index=index,
                        target=place.target,
                        hardware=place.hardware,
                        arms=used,
                        units=found,
                        referee=referee,
                    )
                )
    plan = Plan(study=study, cells=tuple(cells), groups=tuple(groups))
    check_limits(plan)
    return plan


def arm_groups(variants: list[Variant], no_sd: Variant, place: Place, builds: tuple[Build, ...]) -> list[list[ArmSpec]]:
    """Arms with the same no-SD, in groups of at most ``max_live_arms`` where a group is alive together.

    With two builds each variant is there twice.
    """
    by_baseline: dict[str, list[Variant]] = {}
    for variant in variants:
        members = by_baseline.setdefault(place.baseline_key(variant) if variant.speculative else "no_sd", [])
        if variant.speculative:
            members.append(variant)
    groups: list[list[ArmSpec]] = []
    for baseline, members in by_baseline.items():
        forces = members[0].forces if baseline != "no_sd" else Forced()
        base_arms = [place.arm(baseline, no_sd, forces, build=build) for build in builds]
        bundles = [[place.arm(v.name, v, v.forces, build=build) for build in builds] for v in members]
        if place.study.aa and not groups:
            bundles.insert(0, [place.arm(baseline + AA, no_sd, forces, build="new", role="aa")])
        live = place.hardware.interleave == "live"
        chunks = fill(bundles, place.hardware.max_live_arms - len(base_arms)) if live else [list(chain(*bundles))]
        groups.extend([*base_arms, *chunk] for chunk in chunks)
    return groups


def fill(bundles: list[list[ArmSpec]], room: int) -> list[list[ArmSpec]]:
    """Bundles in order, as many to a chunk as fit `room` (one at least): both builds of a variant stay together."""
    chunks: list[list[ArmSpec]] = [[]]
    for bundle in bundles:
        if chunks[-1] and len(chunks[-1]) + len(bundle) > room:
            chunks.append([])
        chunks[-1].extend(bundle)
    return chunks


def prefix(build: Build) -> str:
    return "base:" if build == "base" else ""


def units(index: int, arms: list[ArmSpec], cells: list[Cell], *, first: bool) -> list[Unit]:
    """The units of one group; `first`: whether it is its target's first, which also runs what no-SD runs alone."""
    live = {spec.variant for spec in arms}
    result = []
    for workload, batch_size in dict.fromkeys((cell.workload, cell.batch_size) for cell in cells):
        members = tuple(
            cell
            for cell in cells
            if (cell.workload, cell.batch_size) == (workload, batch_size) and cell.variant in live
        )
        names = {cell.variant for cell in members}
        if not names or (names == {"no_sd"} and not first):
            continue
        keys = tuple(spec.key for spec in arms if spec.variant in names | {"no_sd"})
        result.append(Unit(key=UnitKey(index, cells[0].target, workload, batch_size), arms=keys, cells=members))
    return result


def check_limits(plan: Plan) -> None:
    """A batch must fit the engine: more requests than ``max_num_seqs`` would silently run one after the other."""
    for group in plan.groups:
        for spec in group.arms:
            limit = spec.engine.get("max_num_seqs")
            largest = max((unit.key.batch_size for unit in group.units if spec.key in unit.arms), default=0)
            if limit is not None and largest > limit:
                raise rule(
                    f"study {plan.study.name!r}: batch_sizes",
                    f"at most the engine's max_num_seqs = {limit}",
                    largest,
                    do=f"raise max_num_seqs in hardware/{group.hardware.name}.toml or lower the batch size",
                )


def max_model_tokens(group: Group) -> int:
    """Context length of the group's arms: prompt and output together, in tokens."""
    limits = [int(spec.engine.get("max_model_len", DEFAULT_MAX_MODEL_TOKENS)) for spec in group.arms]
    return min(limits)


def speculative_config(variant: Variant, target: str, drafter_model: str | None) -> dict[str, Any] | None:
    """vLLM's ``speculative_config`` for a variant on a target; None without speculation."""
    if not variant.speculative:
        return None
    options = variant.options_for(target)
    config: dict[str, Any] = {"method": variant.method, "num_speculative_tokens": variant.k, **options}
    if variant.control:
        config["model"] = CONTROL_CLASS
    if variant.drafters:
        drafter = variant.drafters.get(target)
        if drafter is None or drafter_model is None:
            raise DraftproofError(
                f"variant {variant.name!r} has no drafter for target {target!r}; "
                f"known: {', '.join(sorted(variant.drafters))}"
            )
        config["model"] = drafter_model
        if drafter.revision:
            config["revision"] = drafter.revision
    return config


def check_context(where: str, prompt_tokens: int, output_tokens: int, limit: int) -> None:
    if prompt_tokens + output_tokens > limit:
        raise rule(
            f"{where}: prompt + output tokens",
            f"at most the context of {limit}",
            prompt_tokens + output_tokens,
            do=f"the prompt has {prompt_tokens}; set max_prompt_tokens in the study or raise the target's "
            "max_model_len",
        )


def references(keys: tuple[str, ...]) -> list[tuple[str, str]]:
    """(no-SD arm, arm compared with it): each build's arms with that build's no-SD."""
    pairs = []
    for key in keys:
        base = next(k for k in keys if is_no_sd(k) and k.startswith("base:") == key.startswith("base:"))
        if key != base:
            pairs.append((base, key))
    return pairs


def is_no_sd(key: str) -> bool:
    """Whether an arm key is a no-SD reference (not its A/A twin)."""
    name = key.removeprefix("base:")
    return name == "no_sd" or (name.startswith("no_sd[") and not name.endswith(AA))
