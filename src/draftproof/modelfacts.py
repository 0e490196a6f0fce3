"""What is known of a target or drafter without loading it: from files on this machine, else from committed shapes.

Configurations and the headers of safetensors files are read, nothing else: neither weights nor the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from draftproof import building, dummies, models
from draftproof.analysis.memory import METHODS, Expected, Sized
from draftproof.catalog import Catalog
from draftproof.drafters.assembly import RELABELLED, biases
from draftproof.drafters.checks import CONFIG, read_json
from draftproof.drafters.layout import EMBEDDING, dimensions
from draftproof.drafters.weights import place, read_folder, read_header
from draftproof.errors import rule, unknown
from draftproof.spec import Drafter, Target, TrainedDrafter, Variant

Basis = Literal["file headers", "configuration"]


class Model(NamedTuple):
    """What is known of a model without loading it."""

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Sized] | None
    """From the headers of its files; None where there are none."""

    @property
    def basis(self) -> Basis:
        return "configuration" if self.tensors is None else "file headers"


# --- what is on this machine ------------------------------------------------------------------------------------------


def read_model(name: str, folder: Path) -> Model:
    return Model(name, read_json(folder / CONFIG), read_folder(folder) or None)


def hub_model(model: str, revision: str | None, catalog: Catalog) -> Model:
    """A model of the hub: its files in the local cache, else its committed shape."""
    folder = models.hub_snapshot(model, revision)
    return read_model(model, folder) if folder else shape_model(model, catalog, f"fetch it with `hf download {model}`")


def shape_model(model: str, catalog: Catalog, do: str) -> Model:
    shape = catalog.shape_of(model)
    if shape is None:
        known = [entry.model for entry in catalog.shapes.values()]
        do += ", or describe it in shapes/<name>.toml of a folder for --sd-catalog"
        raise rule("model", "on this machine, or one whose shape is known", model, known, do)
    return Model(model, shape.config, None)


def catalog_model(target: Target, catalog: Catalog) -> Model:
    """A target of the catalog; one that is built is read where it is built, and not built for this."""
    if target.source == "hub":
        return hub_model(target.model, target.revision, catalog)
    if target.source == "path":
        base = models.entry_folder("targets", target.name, catalog)
        return read_model(target.model, models.local_folder("model", target.model, base))
    if target.dummy:
        return Model(target.model, dummies.config_of(catalog.needed_shape(target.model), target.dummy.layers), None)
    recipe = models.target_recipe(target, catalog)
    if recipe and building.build_state(recipe) == "built":
        return read_model(target.model, recipe.folder)
    if target.derived is None:
        return shape_model(target.model, catalog, f"build it with `draftproof models build {target.name}`")
    base_model = catalog_model(catalog.get("targets", target.derived.target), catalog)
    own = catalog.get("drafters", target.derived.drafter).config
    return Model(target.model, {**base_model.config, **RELABELLED, **own}, None)


def find_target(name: str, catalog: Catalog) -> tuple[Target, Model]:
    """A target of the catalog by name, or a folder; the latter as an entry of its own."""
    if name in catalog.targets:
        entry = catalog.targets[name]
        return entry, catalog_model(entry, catalog)
    if not looks_like_folder(name):
        raise unknown("target", name, catalog.targets, "or name a folder that holds config.json")
    folder = models.local_folder("target", name, None)
    return Target(name=name, title="", source="path", model=str(folder), dtype="auto"), read_model(name, folder)


def looks_like_folder(name: str) -> bool:
    return "/" in name or Path(name).expanduser().is_dir()


# --- which drafter ----------------------------------------------------------------------------------------------------


def find_drafter(
    name: str, target: Target, model: Model, catalog: Catalog, method: str | None
) -> tuple[str, Model] | None:
    """vLLM's method and the drafter of a variant, an entry or a folder; None where the method needs no drafter."""
    if method is not None and (name in catalog.variants or name in catalog.drafters):
        raise rule(
            "method", "absent where the catalog knows it", method, do=f"{name!r} has its own; leave --method out"
        )
    if name in catalog.variants:
        return variant_drafter(catalog.variants[name], target, model, catalog)
    if name in catalog.drafters:
        entry = catalog.drafters[name]
        homes = [t.name for t in catalog.targets.values() if t.derived and t.derived.drafter == name]
        homes = homes if entry.kind == "mtp" else [entry.target]
        if target.name not in homes:
            raise rule("target", f"one that drafter {name!r} is for", target.name, homes, "name another drafter")
        return entry.kind, trained_model(entry, model, catalog)
    if not looks_like_folder(name):
        known = [*catalog.variants, *catalog.drafters]
        raise unknown("drafter", name, known, "or name a folder that holds config.json")
    if method not in METHODS:
        raise rule("method", "vLLM's for a drafter in a folder", method, METHODS, "give it with --method")
    return method, read_model(name, models.local_folder("drafter", name, None))


def variant_drafter(variant: Variant, target: Target, model: Model, catalog: Catalog) -> tuple[str, Model] | None:
    if not variant.drafters:
        return None
    drafter = variant.drafters.get(target.name)
    if drafter is None:
        do = f'add [drafters."{target.name}"] to the variant, or name a drafter\'s folder and its --method'
        raise rule("target", f"one that variant {variant.name!r} has a drafter for", target.name, variant.drafters, do)
    if variant.method not in METHODS:
        raise rule("method", "one whose drafter can be counted", variant.method, METHODS)
    return variant.method, drafter_model(drafter, variant, model, catalog)


def drafter_model(drafter: Drafter, variant: Variant, target: Model, catalog: Catalog) -> Model:
    if drafter.source == "self":
        return target
    if drafter.source == "trained":
        return trained_model(catalog.get("drafters", drafter.model), target, catalog)
    if drafter.source == "dummy":
        return Model(drafter.model, catalog.needed_shape(drafter.model).config, None)
    if drafter.source == "path":
        base = models.entry_folder("variants", variant.name, catalog)
        return read_model(drafter.model, models.local_folder("drafter.model", drafter.model, base))
    return hub_model(drafter.model, drafter.revision, catalog)


def trained_model(entry: TrainedDrafter, target: Model, catalog: Catalog) -> Model:
    """A trained drafter: the file beside its entry, and what its folder gets beside that (see `assembly`)."""
    path = catalog.drafter_weights(entry)
    if not path.is_file():
        raise rule("weights", "a file beside the drafter's entry", place(path), do="restore it, or train again")
    config = {**target.config, **entry.config}
    tensors: dict[str, Sized] = dict(read_header(path))
    sizes = dimensions(config, f"drafter {entry.name!r}", floats=("BF16",))
    if entry.kind == "mtp":
        tensors |= biases("model.mtp_layers.0.", sizes)
    if entry.kind == "draft_model":
        tensors[EMBEDDING] = Expected("BF16", (sizes.vocabulary, sizes.hidden))
    return Model(entry.name, config, tensors)
