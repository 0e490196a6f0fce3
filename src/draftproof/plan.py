"""From cells to what is run: groups of live arms, and the (workload, batch size) units that they share. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from draftproof.catalog import Catalog
from draftproof.errors import DraftproofError, rule
from draftproof.records import UnitKey
from draftproof.spec import Cell, Forced, Hardware, Study, Target, Variant, digest

DEFAULT_MAX_MODEL_TOKENS = 4096
"""Context that is assumed where a target's entry sets no ``max_model_len``."""

Build = Literal["new", "base"]


class ArmSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process to start: (interpreter, target, variant, engine arguments)."""

    key: str
    """Name within its target's group: ``ngram``, ``no_sd``, ``no_sd.aa``, ``base:ngram``, ... ."""
    target: str
    variant: str
    role: Literal["run", "aa"] = "run"
    build: Build = "new"
    engine: dict[str, Any]
    """vLLM engine arguments but for the model."""
    variables: dict[str, str]
    forces: Forced


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """The arms that run one workload at one batch size in the same rotations."""

    key: UnitKey
    arms: tuple[str, ...]
    """Arm keys; no-SD first, so that each pass of a rotation begins or ends with it."""
    cells: tuple[Cell, ...]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Arms that are alive together."""

    index: int
    target: Target
    hardware: Hardware
    arms: tuple[ArmSpec, ...]
    units: tuple[Unit, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    study: Study
    cells: tuple[Cell, ...]
    groups: tuple[Group, ...]

    @property
    def sha256(self) -> str:
        """Two sessions may add to the same run only when this is equal."""
        return digest([self.study, list(self.cells), list(self.groups)])


def baseline_key(variant: Variant, hardware: Hardware) -> str:
    """The no-SD arm that a variant is paired with: plain, or one with the settings that the variant forces."""
    parts = []
    forces = variant.forces
    if forces.async_scheduling is not None and hardware.engine.get("async_scheduling") != forces.async_scheduling:
        parts.append(f"async={'on' if forces.async_scheduling else 'off'}")
    if forces.v1_runner and hardware.device == "cuda":
        parts.append("v1")
    return "no_sd" + (f"[{','.join(parts)}]" if parts else "")


def build_plan(catalog: Catalog, study: Study, cells: list[Cell], *, two_builds: bool = False) -> Plan:
    """Group the cells' arms by target and hardware, then by what fits the memory; each group has its own no-SD."""
    groups: list[Group] = []
    for target_name, hardware_name in dict.fromkeys((cell.target, cell.hardware) for cell in cells):
        target: Target = catalog.get("targets", target_name)
        hardware: Hardware = catalog.get("hardware", hardware_name)
        chosen = [cell for cell in cells if (cell.target, cell.hardware) == (target_name, hardware_name)]
        variants = [catalog.variants[name] for name in dict.fromkeys(cell.variant for cell in chosen)]
        for arms in arm_groups(variants, study, hardware, target, two_builds=two_builds):
            index = len(groups)
            groups.append(
                Group(
                    index=index,
                    target=target,
                    hardware=hardware,
                    arms=tuple(arms),
                    units=tuple(units(index, arms, chosen, catalog, hardware)),
                )
            )
    plan = Plan(study=study, cells=tuple(cells), groups=tuple(groups))
    check_limits(plan)
    return plan


def arm_groups(
    variants: list[Variant], study: Study, hardware: Hardware, target: Target, *, two_builds: bool
) -> list[list[ArmSpec]]:
    """Arms in groups of at most ``max_live_arms`` (with two builds each variant is there twice)."""
    builds: tuple[Build, ...] = ("new", "base") if two_builds else ("new",)
    by_baseline: dict[str, list[Variant]] = {}
    for variant in variants:
        if variant.speculative:
            by_baseline.setdefault(baseline_key(variant, hardware), []).append(variant)
        else:
            by_baseline.setdefault("no_sd", [])
    groups: list[list[ArmSpec]] = []
    for baseline, members in by_baseline.items():
        forces = members[0].forces if members and baseline != "no_sd" else Forced()
        no_sd = [
            arm(f"{prefix(build)}{baseline}", "no_sd", forces, study, hardware, target, build=build) for build in builds
        ]
        bundles = [
            [
                arm(f"{prefix(build)}{member.name}", member.name, member.forces, study, hardware, target, build=build)
                for build in builds
            ]
            for member in members
        ]
        if study.aa and baseline == next(iter(by_baseline)):
            bundles.insert(0, [arm(f"{baseline}.aa", "no_sd", forces, study, hardware, target, role="aa")])
        groups.extend([*no_sd, *chunk] for chunk in fill(bundles, hardware.max_live_arms - len(no_sd)))
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


def arm(
    key: str,
    variant: str,
    forces: Forced,
    study: Study,
    hardware: Hardware,
    target: Target,
    *,
    role: Literal["run", "aa"] = "run",
    build: Build = "new",
) -> ArmSpec:
    engine: dict[str, Any] = {
        "dtype": target.dtype,
        "tensor_parallel_size": hardware.tensor_parallel_size,
        "seed": study.seed,
        **hardware.engine,
        **target.engine,
        **study.engine,
    }
    variables = {**hardware.variables}
    if forces.async_scheduling is not None:
        engine["async_scheduling"] = forces.async_scheduling
    if forces.v1_runner and hardware.device == "cuda":
        variables["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    return ArmSpec(
        key=key,
        target=target.name,
        variant=variant,
        role=role,
        build=build,
        engine=engine,
        variables=variables,
        forces=forces,
    )


def units(index: int, arms: list[ArmSpec], cells: list[Cell], catalog: Catalog, hardware: Hardware) -> list[Unit]:
    live = {spec.variant for spec in arms}
    result = []
    for workload, batch_size in dict.fromkeys((cell.workload, cell.batch_size) for cell in cells):
        members = tuple(
            cell
            for cell in cells
            if (cell.workload, cell.batch_size) == (workload, batch_size) and cell.variant in live
        )
        names = {cell.variant for cell in members}
        # no-SD alone is worth running once, in the first group that has the unit.
        if not names or (names == {"no_sd"} and (index > 0 and live != {"no_sd"})):
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
    config: dict[str, Any] = {"method": variant.method, "num_speculative_tokens": variant.k, **variant.options}
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
        config.update(drafter.options)
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
