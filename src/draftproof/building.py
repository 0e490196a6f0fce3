"""Folders of models that are built once a machine: under a lock, checked file by file, never half there.

A `Recipe` says what a folder is made from and how; `build` makes it in the user's cache when it is missing or damaged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import filelock
import msgspec
import platformdirs

from draftproof.errors import rule

CACHE_VARIABLE = "DRAFTPROOF_CACHE"
MANIFEST = "draftproof.json"
STAMPS = "draftproof.stamps.json"
"""Size and modification time of each file when it was last hashed: what lets the next check skip the hashing."""
WEIGHTS = "model.safetensors"
SCHEMA_VERSION = 1

BuildState = Literal["built", "not built", "damaged"]
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to make one folder."""

    name: str
    """Of the catalog's entry."""
    key_sha256: str
    """Its first digits end the folder's name: two catalogs that disagree do not overwrite each other's builds."""
    origin: str
    """For the message that a build begins."""
    inputs: dict[str, str]
    """What it is made from: a folder made from anything else is damaged. They lie in the manifest under these names."""
    make: Callable[[Path, Path, Say], None]
    """Gets the folder to fill, a folder for what is thrown away, and what is told of the steps."""
    holds: str = WEIGHTS
    """The file without which the folder is none."""
    weights_sha256: str | None = None
    """What that file must be, where the entry states it."""
    weights_field: str = "weights_sha256"
    weights_advice: str = "correct the entry"
    packages: tuple[str, ...] = ()
    """Packages whose versions the result depends on."""

    @property
    def folder(self) -> Path:
        return models_folder() / f"{self.name}-{self.key_sha256[:12]}"


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file of a built folder must be."""

    sha256: str
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``draftproof.json`` of a built folder: what made it, and all its files. The recipe's inputs lie beside these."""

    schema_version: int
    versions: dict[str, str | None]
    """Versions of the packages that made it."""
    files: dict[str, FileFacts]
    """File name inside the folder -> its facts; the manifest and the stamps are not in it."""

    def made_from(self, recipe: Recipe, inputs: dict[str, Any]) -> bool:
        """Whether this is the build that `recipe` asks for, by this version of the format."""
        held = self.files.get(recipe.holds)
        return (
            self.schema_version == SCHEMA_VERSION
            and inputs == recipe.inputs
            and held is not None
            and recipe.weights_sha256 in (None, held.sha256)
        )


Stamps = dict[str, tuple[int, int]]
"""File name -> (size in bytes, modification time in ns)."""


def models_folder() -> Path:
    """The folder of built models: ``$DRAFTPROOF_CACHE/models``, else ``models`` in draftproof's user cache."""
    override = os.environ.get(CACHE_VARIABLE)
    cache = Path(override).expanduser().absolute() if override else platformdirs.user_cache_path("draftproof")
    return cache / "models"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build(recipe: Recipe, *, say: Say, verify: bool = False) -> Path:
    """The finished folder of a recipe; it is made when it is missing or damaged.

    `say` gets one line per step that takes time. `verify` hashes every file even when sizes and modification times are
    those of the last check. Processes that ask at once build once: the others wait at a lock.
    """
    folder = recipe.folder
    if build_state(recipe, verify=verify) == "built":
        return folder
    with build_lock(folder, say):
        state = build_state(recipe, verify=verify)
        if state != "built":
            say(f"{recipe.name} is {state}: building it from {recipe.origin}")
            make(recipe, say)
    return folder


def build_state(recipe: Recipe, *, verify: bool = False) -> BuildState:
    """Whether the recipe's folder is what its manifest and the recipe say.

    Files are hashed where their stamps give reason to, or with `verify`. A file too many is damage as well: vLLM loads
    every ``*.safetensors`` of a folder.
    """
    folder = recipe.folder
    if not folder.is_dir():
        return "not built"
    try:
        manifest, inputs = read_manifest(folder)
        if not manifest.made_from(recipe, inputs):
            return "damaged"
        stamps = stamp_files(folder)
        if {name: size for name, (size, _) in stamps.items()} != {
            name: facts.size_bytes for name, facts in manifest.files.items()
        }:
            return "damaged"
        if not verify and stamps == read_stamps(folder):
            return "built"
        if any(file_sha256(folder / name) != facts.sha256 for name, facts in manifest.files.items()):
            return "damaged"
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return "damaged"
    with contextlib.suppress(OSError):  # a cache that may only be read is hashed each time
        write_stamps(folder, stamps)
    return "built"


def read_manifest(folder: Path) -> tuple[Manifest, dict[str, Any]]:
    """The manifest, and the inputs of the recipe that made the folder."""
    content = (folder / MANIFEST).read_bytes()
    manifest = msgspec.json.decode(content, type=Manifest)
    table = msgspec.json.decode(content, type=dict[str, Any])
    return manifest, {name: value for name, value in table.items() if name not in Manifest.__struct_fields__}


def stamp_files(folder: Path) -> Stamps:
    """Stamps of all files of the folder but our own two."""
    stamps: Stamps = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not is_own(name):
            facts = path.stat()
            stamps[name] = (facts.st_size, facts.st_mtime_ns)
    return stamps


def is_own(name: str) -> bool:
    """Whether a file of a built folder is ours and not the model's."""
    return name == MANIFEST or name.startswith(STAMPS)


def read_stamps(folder: Path) -> Stamps | None:
    try:
        return msgspec.json.decode((folder / STAMPS).read_bytes(), type=Stamps)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_stamps(folder: Path, stamps: Stamps) -> None:
    """In one move: checks run without the lock, and two may write at once."""
    temporary = folder / f"{STAMPS}.{os.getpid()}-{threading.get_ident()}"
    temporary.write_bytes(msgspec.json.encode(stamps))
    temporary.replace(folder / STAMPS)


@contextlib.contextmanager
def build_lock(folder: Path, say: Say) -> Iterator[None]:
    """Only one process at a time builds `folder`. The system frees the lock when its holder is killed."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder.parent / f".{folder.name}.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            say(f"waiting for another process that builds {folder.name}")
            lock.acquire()
    except OSError as error:
        raise rule(
            CACHE_VARIABLE,
            "a folder that can be written to",
            str(folder.parent.parent),
            do=f"{error.strerror or error}; set {CACHE_VARIABLE} to another folder",
        ) from error
    try:
        yield
    finally:
        lock.release()


def make(recipe: Recipe, say: Say) -> None:
    """Make, check, and move into place. The caller holds the lock.

    All of it happens in a temporary folder beside the final one (the same file system, so that the last step is a
    rename): a build that is killed leaves no half model, and the next one removes its remains.
    """
    folder = recipe.folder
    prefix = f".{folder.name}.building-"
    for remains in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(remains, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        model = temporary / "model"
        model.mkdir()
        recipe.make(model, temporary, say)
        write_manifest(model, recipe)
        if folder.exists():
            # A process that still reads the damaged folder keeps its open files.
            folder.rename(temporary / "damaged")
        model.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_manifest(model: Path, recipe: Recipe) -> None:
    """Check the weights, then record every file; the build is finished by this."""
    from draftproof.engines.surroundings import package_version

    stamps = stamp_files(model)
    files = {name: FileFacts(file_sha256(model / name), size_bytes) for name, (size_bytes, _) in stamps.items()}
    versions = {name: package_version(name) for name in recipe.packages}
    found = files[recipe.holds].sha256
    if recipe.weights_sha256 not in (None, found):
        made_by = ", ".join(f"{name} {version}" for name, version in versions.items())
        raise rule(
            recipe.weights_field,
            f"the SHA-256 of {recipe.holds}, {recipe.weights_sha256!r} in the entry",
            found,
            do=(f"converted by {made_by}; " if made_by else "") + recipe.weights_advice,
        )
    manifest = Manifest(schema_version=SCHEMA_VERSION, versions=versions, files=files)
    table = msgspec.to_builtins(manifest)
    head = {"schema_version": table.pop("schema_version")}
    content = msgspec.json.encode({**head, **recipe.inputs, **table})
    (model / MANIFEST).write_bytes(msgspec.json.format(content, indent=2) + b"\n")
    write_stamps(model, stamps)
