"""Where models lie: the folder or id that vLLM gets for a target and for its drafter, built first where it must be."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from draftproof import building, dummies
from draftproof.building import Recipe, Say
from draftproof.catalog import Catalog
from draftproof.drafters import checks
from draftproof.drafters.assembly import derived_recipe, drafter_recipe
from draftproof.embedded import embedded_recipe
from draftproof.errors import DraftproofError, rule
from draftproof.spec import Target, TrainedDrafter, Variant

WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
BUILT = ("embedded", "derived", "dummy")
"""Sources of targets whose folder is built."""

# --- which folder or id -----------------------------------------------------------------------------------------------


def resolve_target(target: Target, catalog: Catalog | None, *, say: Say) -> str:
    """What vLLM's ``model=`` gets for `target`; one that is built is built first if it must be.

    A relative ``path`` begins at the folder of the entry's own file; without a catalog where we run.
    """
    if target.source in BUILT:
        return str(build_target(target, catalog, say=say))
    if target.source == "path":
        return str(local_folder("model", target.model, entry_folder("targets", target.name, catalog)))
    return hub_id(target.model, target.revision, gated=target.gated)


def resolve_drafter(variant: Variant, target: Target, target_path: str, catalog: Catalog, *, say: Say) -> str | None:
    """What ``speculative_config["model"]`` gets for `variant` on `target`; None where the method needs no drafter.

    `target_path` is what `resolve_target` gave. A drafter that does not fit its target is refused here.
    """
    drafter = variant.drafters.get(target.name)
    if drafter is None:
        return None
    if drafter.source == "self":
        return target_path
    if drafter.source == "trained":
        return resolve_trained(catalog.get("drafters", drafter.model), variant, target, target_path, catalog, say)
    if drafter.source == "dummy":
        return str(building.build(dummies.drafter_recipe(catalog.needed_shape(drafter.model)), say=say))
    if drafter.source == "path":
        folder = local_folder("drafter.model", drafter.model, entry_folder("variants", variant.name, catalog))
        checks.check_folder(
            variant.method, folder, target_folder(target, target_path), variant.options_for(target.name)
        )
        return str(folder)
    return hub_id(drafter.model, drafter.revision, gated=drafter.gated)


def resolve_trained(
    entry: TrainedDrafter, variant: Variant, target: Target, target_path: str, catalog: Catalog, say: Say
) -> str:
    """The folder of a trained drafter: that of the target itself where the target is derived from it."""
    checks.check_k(entry, variant.k)
    if entry.kind == "mtp":
        return target_path
    folder = target_folder(target, target_path)
    if folder is None:
        raise DraftproofError(
            f"needs {target.model} in the Hugging Face cache to check drafter {entry.name!r} against it; "
            f"found no whole snapshot; enable with `hf download {target.model}`"
        )
    checks.check_target(entry, target, folder)
    checks.check_shipped(entry, catalog.drafter_weights(entry), checks.read_json(folder / checks.CONFIG))
    return str(build_drafter(entry, catalog, say=say))


def target_folder(target: Target, target_path: str) -> Path | None:
    """The target's files on this machine; None where vLLM has yet to fetch them."""
    return Path(target_path) if Path(target_path).is_dir() else hub_snapshot(target.model, target.revision)


def entry_folder(kind: str, name: str, catalog: Catalog | None) -> Path | None:
    return catalog.folders.get(f"{kind}/{name}") if catalog else None


def absolute_folder(model: str, catalog_folder: Path | None) -> Path:
    return ((catalog_folder or Path.cwd()) / Path(model).expanduser()).resolve()


def local_folder(field: str, model: str, catalog_folder: Path | None) -> Path:
    folder = absolute_folder(model, catalog_folder)
    if not (folder / "config.json").is_file():
        found = "a folder without it" if folder.is_dir() else "a file" if folder.exists() else "nothing"
        raise rule(
            field,
            "a folder that holds config.json",
            model,
            do=f"found {found} at {folder}; correct the path (relative ones begin at the entry's own folder)",
        )
    return folder


def hub_id(model: str, revision: str | None, *, gated: bool) -> str:
    """The id itself, unless the hub is switched off and the local cache lacks the model."""
    offline = next((name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if is_true(os.environ.get(name))), None)
    if offline is None or hub_snapshot(model, revision) is not None:
        return model
    has_hub = importlib.util.find_spec("huggingface_hub") is not None
    found = f"no whole snapshot and {offline} set" if has_hub else f"no huggingface_hub to look with and {offline} set"
    command = f"hf download {model}" + (f" --revision {revision}" if revision else "")
    licence = " (gated: accept its licence on the hub and run `hf auth login` first)" if gated else ""
    raise DraftproofError(f"needs {model} in the Hugging Face cache; found {found}; enable with `{command}`{licence}")


def is_true(value: str | None) -> bool:
    """How Hugging Face reads its switches."""
    return (value or "").upper() in {"1", "ON", "YES", "TRUE"}


def hub_snapshot(model: str, revision: str | None) -> Path | None:
    """The model's folder in the local Hugging Face cache when its configuration and all its weights are there."""
    try:
        hub = importlib.import_module("huggingface_hub")
        config = hub.try_to_load_from_cache(model, "config.json", revision=revision)
    except (ImportError, ValueError):  # no library, or no valid id
        return None
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if has_all_weights(folder) else None


def has_all_weights(folder: Path) -> bool:
    """An interrupted download leaves a snapshot with some shards only: an index names all of them."""
    for index in folder.glob("*.index.json"):
        shards = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        if shards:
            return all((folder / shard).exists() for shard in shards)
    return any(path.exists() for pattern in WEIGHT_PATTERNS for path in folder.glob(pattern))


# --- what is built ----------------------------------------------------------------------------------------------------


def target_recipe(target: Target, catalog: Catalog | None) -> Recipe | None:
    """How a target is built; None where it is found and not built."""
    if target.embedded:
        return embedded_recipe(target.name, target.embedded)
    if not (target.derived or target.dummy):
        return None
    if catalog is None:
        must_be = f"given for a {target.source} target"
        raise rule("catalog", must_be, None, do=f"target {target.name!r} is made of its entries")
    if target.dummy:
        tokenizer: Target = catalog.get("targets", target.dummy.tokenizer)
        take_from = functools.partial(tokenizer_folder, tokenizer, catalog)
        shape = catalog.needed_shape(target.model)
        return dummies.target_recipe(target.name, target.dummy, shape, take_from)
    assert target.derived is not None
    entry: TrainedDrafter = catalog.get("drafters", target.derived.drafter)
    base: Target = catalog.get("targets", target.derived.target)
    find = functools.partial(trained_on, entry, base, catalog)
    return derived_recipe(target.name, target.derived, entry, catalog.drafter_weights(entry), find)


def trained_on(entry: TrainedDrafter, target: Target, catalog: Catalog, say: Say) -> Path:
    """The folder of the target that a drafter was trained on; another one is refused."""
    path = resolve_target(target, catalog, say=say)
    folder = target_folder(target, path)
    if folder is None:
        raise rule("target", "a model on this machine", path, do=f"fetch it with `hf download {path}`")
    checks.check_target(entry, target, folder)
    return folder


def tokenizer_folder(target: Target, catalog: Catalog, say: Say) -> Path:
    """The folder of the target whose tokenizer a dummy one takes."""
    path = resolve_target(target, catalog, say=say)
    folder = target_folder(target, path)
    if folder is None:
        raise rule("dummy.tokenizer", "a target on this machine", target.name, do=f"fetch it with `hf download {path}`")
    return folder


def build_target(target: Target, catalog: Catalog | None, *, say: Say, verify: bool = False) -> Path:
    """The finished folder of a target that is built, see `building.build`."""
    recipe = target_recipe(target, catalog)
    if recipe is None:
        do = f"target {target.name!r} needs no build"
        raise rule("source", f"one of {', '.join(map(repr, BUILT))} to be built", target.source, do=do)
    if target.derived and catalog:
        base: Target = catalog.get("targets", target.derived.target)
        if base.weights_sha256:  # else the files are hashed when it is built
            checks.check_stated(catalog.get("drafters", target.derived.drafter), base.name, base.weights_sha256)
    return building.build(recipe, say=say, verify=verify)


def trained_recipe(entry: TrainedDrafter, catalog: Catalog) -> Recipe | None:
    """How a trained drafter is built; None for an ``mtp`` one, which is part of a derived target."""
    if entry.kind == "mtp":
        return None
    find = functools.partial(trained_on, entry, catalog.get("targets", entry.target), catalog)
    return drafter_recipe(entry, catalog.drafter_weights(entry), find)


def build_drafter(entry: TrainedDrafter, catalog: Catalog, *, say: Say, verify: bool = False) -> Path:
    """The finished folder of a trained drafter, see `building.build`."""
    recipe = trained_recipe(entry, catalog)
    if recipe is None:
        raise rule("kind", "another than 'mtp' to be built", entry.kind, do="build the target that is derived from it")
    return building.build(recipe, say=say, verify=verify)


# --- what there is ----------------------------------------------------------------------------------------------------


def describe(target: Target, catalog: Catalog | None = None) -> dict[str, Any]:
    """One row of ``models list``: name, source, state, and the bytes that it takes on this disk."""
    state: str
    folder: Path | None
    recipe = target_recipe(target, catalog)
    if recipe:
        folder, state = recipe.folder, building.build_state(recipe)
    elif target.source == "path":
        folder = absolute_folder(target.model, entry_folder("targets", target.name, catalog))
        state = "present" if (folder / "config.json").is_file() else "missing"
    else:
        folder = hub_snapshot(target.model, target.revision)
        state = "not in hub cache" if folder is None else "in hub cache"
    return {"name": target.name, "source": target.source, "state": state, "size_bytes": folder_size_bytes(folder)}


def describe_drafter(entry: TrainedDrafter, catalog: Catalog) -> dict[str, Any]:
    """The same for a trained drafter; an ``mtp`` one is a file only, whose bytes lie in a target as well."""
    recipe = trained_recipe(entry, catalog)
    row: dict[str, Any] = {"name": entry.name, "source": "trained"}
    if recipe:
        return {**row, "state": building.build_state(recipe), "size_bytes": folder_size_bytes(recipe.folder)}
    weights = catalog.drafter_weights(entry)
    there = weights.is_file()
    return {**row, "state": "in a target" if there else "missing", "size_bytes": weights.stat().st_size if there else 0}


def folder_size_bytes(folder: Path | None) -> int:
    if folder is None or not folder.is_dir():
        return 0
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
