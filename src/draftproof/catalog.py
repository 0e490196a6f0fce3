"""The strict loader of ``fixtures/**/*.toml``, and overlays of the user's own entries."""

from __future__ import annotations

import contextlib
import importlib.resources
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, get_args

import msgspec

from draftproof.dummies import config_of
from draftproof.errors import DraftproofError, rule, unknown
from draftproof.spec import Cell, Entry, Hardware, Shape, Study, Target, Threshold, TrainedDrafter, Variant, Workload

EntryType = TypeVar("EntryType", bound=Entry)

KINDS: dict[str, type[Entry]] = {
    "variants": Variant,
    "targets": Target,
    "workloads": Workload,
    "hardware": Hardware,
    "studies": Study,
    "drafters": TrainedDrafter,
    "shapes": Shape,
}


class ThresholdFile(Entry, frozen=True, kw_only=True):
    """``thresholds/<hardware>.toml``."""

    threshold: list[Threshold] = msgspec.field(default_factory=list)


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """All entries by name, after overlays."""

    variants: dict[str, Variant]
    targets: dict[str, Target]
    workloads: dict[str, Workload]
    hardware: dict[str, Hardware]
    studies: dict[str, Study]
    thresholds: dict[str, list[Threshold]]
    """Hardware name -> its limits."""
    folders: dict[str, Path]
    """``workloads/<name>`` -> folder of the file that defines it, for relative paths."""
    drafters: dict[str, TrainedDrafter] = {}
    shapes: dict[str, Shape] = {}

    def get(self, kind: str, name: str) -> Any:
        """The entry of that kind and name, or an error that lists the known ones."""
        entries: dict[str, Any] = getattr(self, kind)
        if name not in entries:
            raise unknown(singular(kind), name, entries, "add one with --sd-catalog DIR")
        return entries[name]

    def workload_path(self, workload: Workload) -> Path:
        """The prompts' file, or the entry's folder for a workload of the hub."""
        return self.folders[f"workloads/{workload.name}"] / workload.path

    def drafter_weights(self, drafter: TrainedDrafter) -> Path:
        """The shipped file of a trained drafter."""
        return self.folders[f"drafters/{drafter.name}"] / drafter.weights

    def shape_of(self, model: str) -> Shape | None:
        """The committed shape of a model, by the id that targets and drafters name."""
        return next((shape for shape in self.shapes.values() if shape.model == model), None)

    def needed_shape(self, model: str) -> Shape:
        """The same where there must be one."""
        shape = self.shape_of(model)
        if shape is None:
            known = [entry.model for entry in self.shapes.values()]
            raise rule(
                "model", "one whose shape is known", model, known, "add shapes/<name>.toml with --sd-catalog DIR"
            )
        return shape

    def is_control(self, variant: str, target: str) -> bool:
        """Whether a variant is there to be measured against, not to be deployed: a control proposer, or the target
        drafting for itself."""
        entry = self.variants.get(variant)
        drafter = entry.drafters.get(target) if entry else None
        return bool(entry and (entry.control or (drafter and drafter.source == "self")))

    def study_cells(self, name: str) -> list[Cell]:
        """The cells of a study, in the order of its rows, each once."""
        study: Study = self.get("studies", name)
        return study.cells()


def singular(kind: str) -> str:
    return {"studies": "study", "hardware": "hardware"}.get(kind, kind.removesuffix("s"))


def fixtures_folder() -> Path:
    """The data folder: in a wheel inside the package, in a checkout beside ``src``."""
    inside = Path(str(importlib.resources.files("draftproof"))) / "fixtures"
    if inside.is_dir():
        return inside
    beside = Path(__file__).resolve().parents[2] / "fixtures"
    if beside.is_dir():
        return beside
    raise DraftproofError("draftproof's fixtures folder is missing; install draftproof again")


def load_catalog(*overlays: Path) -> Catalog:
    """Our entries with the user's laid over them: a later layer replaces an entry of the same name."""
    merged: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    thresholds: dict[str, list[Threshold]] = {}
    rows_at: dict[str, list[str]] = {}
    folders: dict[str, Path] = {}
    origins: dict[tuple[str, str], Path] = {}
    for layer in (fixtures_folder(), *overlays):
        if not layer.is_dir():
            raise DraftproofError(f"--sd-catalog must be a folder of TOML entries (got {str(layer)!r})")
        check_layer(layer)
        for kind, entry_type in KINDS.items():
            in_layer: dict[str, Path] = {}
            for path in sorted((layer / kind).glob("*.toml")):
                entry: Any = read_entry(path, entry_type)
                if entry.name in in_layer:
                    raise DraftproofError(
                        f"{short(path)}: name {entry.name!r} is already taken by {short(in_layer[entry.name])}"
                    )
                if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", entry.name):
                    raise DraftproofError(
                        f"{short(path)}: name must be of a-z, 0-9, '.', '_' and '-' (got {entry.name!r})"
                    )
                in_layer[entry.name] = path
                merged[kind][entry.name] = entry
                folders[f"{kind}/{entry.name}"] = path.parent
                origins[kind, entry.name] = path
        for path in sorted((layer / "thresholds").glob("*.toml")):
            rows = read_entry(path, ThresholdFile).threshold
            thresholds.setdefault(path.stem, []).extend(rows)
            rows_at.setdefault(path.stem, []).extend(
                f"{short(path)}: threshold[{number}]." for number in range(len(rows))
            )
    merged["variants"] = {
        name: invariant(entry, merged["variants"], origins["variants", name])
        for name, entry in merged["variants"].items()
    }
    catalog = Catalog(**merged, thresholds=thresholds, folders=folders)
    check_references(catalog, origins)
    check_thresholds(catalog, rows_at)
    return catalog


def invariant(variant: Variant, variants: dict[str, Variant], origin: Path) -> Variant:
    """A variant that forces batch invariance takes all else from the plain one that it names."""
    if not variant.plain:
        return variant
    if variant.plain not in variants:
        raise DraftproofError(f"{short(origin)}: {unknown('plain', variant.plain, variants)}")
    plain = variants[variant.plain]
    if plain.plain:
        raise DraftproofError(f"{short(origin)}: {rule('plain', 'a variant that is not one itself', plain.name)}")
    return variant.as_invariant_of(plain)


def check_layer(layer: Path) -> None:
    """A layer must hold at least one known folder with entries: a mistyped path would be silent otherwise."""
    known = [*KINDS, "thresholds"]
    if not any(any((layer / kind).glob("*.toml")) for kind in known):
        raise DraftproofError(f"--sd-catalog folder {layer.name!r} holds no entries; known folders: {', '.join(known)}")


def read_entry(path: Path, entry_type: type[EntryType]) -> EntryType:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DraftproofError(f"{short(path)}: not valid TOML: {error}") from error
    try:
        return msgspec.convert(table, type=entry_type)
    except msgspec.ValidationError as error:
        raise DraftproofError(f"{short(path)}: {error}{known_keys(str(error), entry_type)}") from error


def known_keys(message: str, entry_type: type[Entry]) -> str:
    """For an unknown key: the keys known at that place of the document."""
    if "unknown field" not in message:
        return ""
    place = re.search(r"at `\$(.*)`", message)
    for step in re.findall(r"\.(\w+)", place.group(1)) if place else []:
        field = next((f for f in msgspec.structs.fields(entry_type) if f.name == step), None)
        inner = next(struct_types(field.type), None) if field else None
        if inner is None:
            break
        entry_type = inner
    return "; known: " + ", ".join(sorted(field.name for field in msgspec.structs.fields(entry_type)))


def struct_types(annotation: Any) -> Iterator[type[Entry]]:
    if isinstance(annotation, type) and issubclass(annotation, Entry):
        yield annotation
    for argument in get_args(annotation):
        yield from struct_types(argument)


class References(NamedTuple):
    """A catalog whose entries refer to each other, and the file of each."""

    catalog: Catalog
    origins: dict[tuple[str, str], Path]

    def check(self, owner: tuple[str, str], field: str, kind: str, name: str) -> None:
        """`name`, which `field` of `owner` holds, must be an entry of that kind."""
        entries: dict[str, Any] = getattr(self.catalog, kind)
        if name not in entries:
            raise DraftproofError(f"{short(self.origins[owner])}: {unknown(field, name, entries)}")

    @contextlib.contextmanager
    def told_by(self, owner: tuple[str, str]) -> Iterator[None]:
        """What is wrong with another entry that `owner` needs is told with the owner's file."""
        try:
            yield
        except DraftproofError as error:
            raise DraftproofError(f"{short(self.origins[owner])}: {error}") from error

    def refuse(self, owner: tuple[str, str], field: str, must_be: str, value: str) -> NoReturn:
        raise DraftproofError(f"{short(self.origins[owner])}: {rule(field, must_be, value)}")


def check_derived(references: References, target: Target) -> None:
    """A derived target is made of another target's tensors and of an ``mtp`` drafter trained on that target."""
    if target.derived is None:
        return
    owner, catalog = ("targets", target.name), references.catalog
    references.check(owner, "derived.target", "targets", target.derived.target)
    references.check(owner, "derived.drafter", "drafters", target.derived.drafter)
    base, module = catalog.targets[target.derived.target], catalog.drafters[target.derived.drafter]
    if base.source not in ("embedded", "path"):
        references.refuse(owner, "derived.target", "an embedded target or one in a folder", base.name)
    if (module.kind, module.target) != ("mtp", base.name):
        references.refuse(owner, "derived.drafter", f"of kind 'mtp' and for target {base.name!r}", module.name)


def check_dummy(references: References, target: Target) -> None:
    """A dummy target needs a whole shape, layers that it has, and another target's tokenizer."""
    if target.dummy is None:
        return
    owner, catalog = ("targets", target.name), references.catalog
    references.check(owner, "dummy.tokenizer", "targets", target.dummy.tokenizer)
    if catalog.targets[target.dummy.tokenizer].source == "dummy":
        references.refuse(owner, "dummy.tokenizer", "a target with a tokenizer of its own", target.dummy.tokenizer)
    with references.told_by(owner):
        config_of(catalog.needed_shape(target.model), target.dummy.layers)


def check_dummy_drafter(references: References, variant: Variant, target: str, model: str) -> None:
    """vLLM loads a drafter as it loads its target: random weights for both, or for none."""
    owner, catalog = ("variants", variant.name), references.catalog
    if catalog.targets[target].source != "dummy":
        field = f'drafters."{target}".source'
        references.refuse(owner, field, f"another than 'dummy' for a target with weights ({target!r})", "dummy")
    with references.told_by(owner):
        config_of(catalog.needed_shape(model))


def check_drafter(references: References, variant: Variant, target: str, name: str) -> None:
    """A trained drafter must be of the variant's method, and made for the target that the variant gives it to."""
    owner, field, catalog = ("variants", variant.name), f'drafters."{target}".model', references.catalog
    references.check(owner, field, "drafters", name)
    trained, derived = catalog.drafters[name], catalog.targets[target].derived
    if trained.kind != variant.method:
        references.refuse(owner, field, f"a drafter of kind {variant.method!r}", f"{name}: {trained.kind}")
    if trained.kind == "mtp":
        if derived is None or derived.drafter != name:
            references.refuse(owner, field, f"the drafter that target {target!r} is derived from", name)
    elif trained.target != target:
        references.refuse(owner, field, f"a drafter for target {target!r}", f"{name}: {trained.target}")


def check_references(catalog: Catalog, origins: dict[tuple[str, str], Path]) -> None:
    """Every name that an entry refers to must exist."""
    references = References(catalog, origins)
    check = references.check
    for trained in catalog.drafters.values():
        check(("drafters", trained.name), "target", "targets", trained.target)
    for made in catalog.targets.values():
        check_derived(references, made)
        check_dummy(references, made)
    for shape in catalog.shapes.values():
        first = catalog.shape_of(shape.model)
        if first is not None and first.name != shape.name:
            references.refuse(("shapes", shape.name), "model", f"of one shape ({first.name!r} has it)", shape.model)
    for variant in catalog.variants.values():
        for target, drafter in variant.drafters.items():
            check(("variants", variant.name), "drafters", "targets", target)
            if drafter.source == "trained":
                check_drafter(references, variant, target, drafter.model)
            if drafter.source == "dummy":
                check_dummy_drafter(references, variant, target, drafter.model)
    for study in catalog.studies.values():
        owner = ("studies", study.name)
        check(owner, "hardware", "hardware", study.hardware)
        for number, row in enumerate(study.matrix):
            place = f"matrix[{number}]."
            check(owner, place + "target", "targets", row.target)
            if row.hardware:
                check(owner, place + "hardware", "hardware", row.hardware)
            for workload in row.workloads:
                check(owner, place + "workloads", "workloads", workload)
            for name in row.variants:
                check(owner, place + "variants", "variants", name)
                control, drafters = catalog.variants[name].control, catalog.variants[name].drafters
                if control is not None and control.kind == "scripted":
                    must_be = "variants that draft in a rotation (a scripted one runs with live_examples)"
                    references.refuse(owner, place + "variants", must_be, name)
                if drafters and row.target not in drafters:
                    raise DraftproofError(
                        f"{short(origins[owner])}: {place}variants: {name!r} has no drafter for target {row.target!r}; "
                        f'known: {", ".join(sorted(drafters))}; add [drafters."{row.target}"] to variants/{name}.toml'
                    )


def check_thresholds(catalog: Catalog, rows_at: dict[str, list[str]]) -> None:
    """Every name that a limit selects by must exist; `rows_at`: file and place of each hardware's rows."""
    for hardware, rows in catalog.thresholds.items():
        if hardware not in catalog.hardware:
            raise DraftproofError(f"thresholds/{hardware}.toml: {unknown('file name', hardware, catalog.hardware)}")
        for row, place in zip(rows, rows_at[hardware], strict=True):
            for kind in ("studies", "targets", "variants", "workloads"):
                known = getattr(catalog, kind)
                for name in getattr(row, kind):
                    if name not in known:
                        raise DraftproofError(f"{place}{unknown(kind, name, known)}")


def short(path: Path) -> str:
    """The last parts of a path: enough to find the file, no home folder."""
    return "/".join(path.parts[-2:])
