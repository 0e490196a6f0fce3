"""Planted faults: they are where they say, nowhere else, and the packages that they are planted in stay as they are."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof.catalog import fixtures_folder, load_catalog
from draftproof.drafters.checks import check_shipped
from draftproof.drafters.weights import Stored, read_header
from draftproof.errors import DraftproofError

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "planted_faults.py"

# Laid out like vLLM: the methods that the faults wrap, and a subclass that calls the base's.
TOY: Mapping[str, str] = {
    "vllm/__init__.py": "",
    "vllm/v1/__init__.py": "",
    "vllm/v1/spec_decode/__init__.py": "",
    "vllm/v1/spec_decode/llm_base_proposer.py": """
class SpecDecodeBaseProposer:
    def propose(self, count, *, last=0):
        "Drafts."
        return [last + 1] * count
""",
    "vllm/v1/spec_decode/eagle.py": """
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
class EagleProposer(SpecDecodeBaseProposer):
    pass
""",
    "vllm/v1/spec_decode/ngram_proposer.py": """
class NgramProposer:
    def propose(self, count):
        return [7] * count
""",
    "vllm/v1/sample/__init__.py": "",
    "vllm/v1/sample/sampler.py": """
class Sampler:
    def forward(self, logits):
        return max(logits)
""",
    "vllm/v1/sample/rejection_sampler.py": """
class RejectionSampler:
    def __init__(self, sampler):
        self.sampler = sampler
    def forward(self, logits):
        return self.sampler.forward(logits)
""",
}
START = """
import inspect, time
slept = []
time.sleep = slept.append
from vllm.v1.spec_decode.eagle import EagleProposer
from vllm.v1.spec_decode.ngram_proposer import NgramProposer
from vllm.v1.sample.sampler import Sampler
from vllm.v1.sample.rejection_sampler import RejectionSampler
"""
DRAFT = """
assert EagleProposer().propose(2, last=4) == [5, 5]
print("eagle", slept)
assert NgramProposer().propose(2) == [7, 7]
print("ngram", slept)
"""
SAMPLE = """
assert Sampler().forward([1, 3]) == 3
print("no-SD", slept)
"""
REJECT = """
both = RejectionSampler(Sampler())
assert both.sampler.forward([1, 3]) == 3
print("sampler alone", slept)
assert both.forward([1, 3]) == 3
print("verified", slept)
"""


def run(*arguments: str | Path, python: str | Path = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def python_with(files: Mapping[str, str], folder: Path) -> Path:
    """An interpreter in `folder` that holds these files, ahead of the packages of this one."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    own = "\n".join(path for path in sys.path if path.endswith("-packages"))
    for name, content in {**files, "own.pth": own}.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(content, encoding="utf-8")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def toy_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that holds the toy vLLM, and a library to preload."""
    python = python_with(TOY, tmp_path_factory.mktemp("toy"))
    (python.parents[1] / "lib" / "libiomp5.so").write_bytes(b"")
    return python


def plant(toy_python: Path, out: Path, fault: str, ms: float = 250.0) -> Path:
    done = run(TOOL, "interpreter", "--fault", fault, "--ms", str(ms), out, python=toy_python)
    assert done.returncode == 0, done.stderr
    python = out / "bin" / "python"
    assert done.stdout.strip().endswith(f"--sd-python {python}")
    return python


def said(python: Path, *code: str) -> list[str]:
    done = run("-c", "\n".join([START, *code]), python=python)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# --- an interpreter ---------------------------------------------------------------------------------------------------


def test_a_slow_drafter_is_late_once_a_proposal(toy_python: Path, tmp_path: Path) -> None:
    """A head that inherits the method and the n-gram lookup sleep once each; nothing that samples does."""
    python = plant(toy_python, tmp_path / "out", "drafter_sleep")
    assert said(python, DRAFT, SAMPLE, REJECT) == [
        "eagle [0.25]",
        "ngram [0.25, 0.25]",
        *(f"{what} [0.25, 0.25]" for what in ("no-SD", "sampler alone", "verified")),
    ]


def test_a_slow_rejection_sampler_is_late_and_the_sampler_is_not(toy_python: Path, tmp_path: Path) -> None:
    """Proposals and arms without speculation are as fast as ever."""
    python = plant(toy_python, tmp_path / "out", "sampler_sleep")
    assert said(python, DRAFT, SAMPLE, REJECT) == [
        *(f"{what} []" for what in ("eagle", "ngram", "no-SD", "sampler alone")),
        "verified [0.25]",
    ]


def test_a_slow_baseline_is_late_where_nothing_speculates(toy_python: Path, tmp_path: Path) -> None:
    """An arm with a rejection sampler calls the same sampler and is not slowed."""
    python = plant(toy_python, tmp_path / "out", "base_sleep")
    assert said(python, SAMPLE) == ["no-SD [0.25]"]
    assert said(python, REJECT) == ["sampler alone []", "verified []"]


def test_a_planted_call_takes_the_planted_time_at_least(toy_python: Path, tmp_path: Path) -> None:
    """By the real clock, which can only be late."""
    python = plant(toy_python, tmp_path / "out", "drafter_sleep", ms=30)
    code = """
import time
from vllm.v1.spec_decode.ngram_proposer import NgramProposer
started = time.perf_counter()
NgramProposer().propose(1)
print(time.perf_counter() - started)
"""
    assert float(run("-c", code, python=python).stdout) >= 0.03


def test_without_a_fault_nothing_sleeps(toy_python: Path) -> None:
    """The toy itself: what the other tests see comes from what was planted."""
    assert all(line.endswith(" []") for line in said(toy_python, DRAFT, SAMPLE, REJECT))


def test_what_is_planted_is_told_and_hides_nothing(toy_python: Path, tmp_path: Path) -> None:
    """The arm's log names the fault; docstring, signature and source of what is wrapped are still found."""
    python = plant(toy_python, tmp_path / "out", "drafter_sleep")
    code = "print(inspect.signature(EagleProposer.propose), inspect.getsource(EagleProposer.propose), sep='|')"
    done = run("-c", START + code, python=python)
    assert done.stdout.startswith("(self, count, *, last=0)|    def propose(self, count, *, last=0):\n")
    assert done.stderr.splitlines() == [
        f"planted fault: drafter_sleep of 250 ms in vllm.v1.spec_decode.{place}.propose"
        for place in ("llm_base_proposer.SpecDecodeBaseProposer", "ngram_proposer.NgramProposer")
    ]


def test_the_vllm_under_the_fault_is_the_same(toy_python: Path, tmp_path: Path) -> None:
    """Same files, hash and packages, from another interpreter: only the sleep differs."""
    python = plant(toy_python, tmp_path / "out", "sampler_sleep")
    code = """
from draftproof.engines.surroundings import files_fingerprint
import vllm, pytest
print(vllm.__file__, pytest.__file__, files_fingerprint("vllm"))
"""
    planted, plain = (run("-c", code, python=python).stdout for python in (python, toy_python))
    assert planted == plain
    assert str(toy_python.parents[1]) in plain


def test_preloads_are_found_beside_the_planted_interpreter(toy_python: Path, tmp_path: Path) -> None:
    """Without them its arms would run with other libraries, and not be comparable."""
    python = plant(toy_python, tmp_path / "out", "base_sleep")
    code = "from draftproof.engines.surroundings import find_library; print(find_library('libiomp5.so'))"
    found = Path(run("-c", code, python=python).stdout.strip())
    assert found == tmp_path / "out" / "lib" / "libiomp5.so"
    assert found.resolve() == (toy_python.parents[1] / "lib" / "libiomp5.so").resolve()


def test_faults_add_up(toy_python: Path, tmp_path: Path) -> None:
    """An interpreter planted from a planted one has both faults, each once."""
    first = plant(toy_python, tmp_path / "first", "drafter_sleep")
    both = plant(first, tmp_path / "both", "drafter_sleep", ms=500)
    assert sorted(said(both, DRAFT)[0].removeprefix("eagle [").removesuffix("]").split(", ")) == ["0.25", "0.5"]


def test_a_sitecustomize_of_the_arms_own_has_its_turn(toy_python: Path, tmp_path: Path) -> None:
    """An arm puts one ahead of all others for its child processes; the fault is planted in them too."""
    python = plant(toy_python, tmp_path / "out", "drafter_sleep")
    children = ROOT / "src" / "draftproof" / "engines" / "children"
    environment = {**os.environ, "PYTHONPATH": str(children), "DRAFTPROOF_HIDE": "torchvision"}
    code = f"{START}{DRAFT}import importlib.util; print(importlib.util.find_spec('torchvision'))"
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["eagle [0.25]", "ngram [0.25, 0.25]", "None"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--fault", "drafer_sleep", "--ms", "5"),
            "--fault must be one of the known names (got 'drafer_sleep'); known: base_sleep, drafter_sleep, "
            "sampler_sleep",
        ),
        (("--fault", "drafter_sleep", "--ms", "-5"), "--ms must be a number above 0 (got -5.0)"),
        (("--fault", "drafter_sleep", "--ms", "0"), "--ms must be a number above 0 (got 0.0)"),
        (("--fault", "drafter_sleep", "--ms", "nan"), "--ms must be a number above 0 (got nan)"),
    ],
)
def test_a_fault_that_cannot_be_planted_is_refused(
    toy_python: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    """Nothing is made."""
    done = run(TOOL, "interpreter", *arguments, tmp_path / "out", python=toy_python)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command", [("interpreter", "--fault", "drafter_sleep", "--ms", "5"), ("weights", "--scale", "0.3")]
)
def test_what_is_there_is_not_overwritten(toy_python: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "mine").write_text("mine", encoding="utf-8")
    done = run(TOOL, *command, tmp_path, python=toy_python)
    assert done.returncode == 2
    assert "OUT must be a folder that does not exist yet (got " in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_vllm_without_the_method_is_refused(toy_python: Path, tmp_path: Path) -> None:
    """A fault that is planted nowhere would prove a blind gate right."""
    file = "vllm/v1/sample/rejection_sampler.py"
    python = python_with({**TOY, file: TOY[file].replace("def forward(", "def verify(")}, tmp_path / "other")
    arguments = ("interpreter", "--fault", "sampler_sleep", "--ms", "5", tmp_path / "out")
    done = run(TOOL, *arguments, python=python)
    assert done.returncode == 2
    assert (
        "vLLM must be one that defines vllm.v1.sample.rejection_sampler.RejectionSampler.forward (got " in done.stderr
    )
    assert not (tmp_path / "out").exists()


# --- a drafter's weights ----------------------------------------------------------------------------------------------

NAME, SCALE = "smollm2-135m-eagle3", 0.3
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch; found none; enable with the cpu extra"
)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "noisy"
    done = run(TOOL, "weights", "--scale", str(SCALE), folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"--sd-catalog {folder}")
    return folder


def config() -> dict[str, Any]:
    """Of the embedded target, whose folder is not needed."""
    return load_catalog().shapes["smollm2-135m-instruct"].config | {"dtype": "bfloat16"}


def values(tensor: Stored) -> np.ndarray[Any, np.dtype[np.float32]]:
    """bfloat16 as float32: its bits are the upper half."""
    assert tensor.dtype == "BF16"
    return (np.frombuffer(tensor.read(), dtype="<u2").astype("<u4") << 16).view("<f4")


@needs_torch
def test_a_noisy_drafter_takes_the_place_of_the_sound_one(noisy: Path) -> None:
    """Same name, so that the same variant drafts with it; the stated hash is that of its own file."""
    sound, found = load_catalog(), load_catalog(noisy)
    entry = found.drafters[NAME]
    assert found.drafter_weights(entry).parent == noisy / "drafters"
    assert entry.weights_sha256 == hashlib.sha256(found.drafter_weights(entry).read_bytes()).hexdigest()
    assert entry.weights_sha256 != sound.drafters[NAME].weights_sha256
    assert found.variants == sound.variants
    assert set(check_shipped(entry, found.drafter_weights(entry), config())) == set(
        read_header(sound.drafter_weights(sound.drafters[NAME]))
    )


@needs_torch
def test_noise_is_of_the_stated_scale_and_the_vocabulary_stays(noisy: Path) -> None:
    """The difference's standard deviation over the tensor's own; bfloat16 keeps 8 bits, 576 values suffice for 10 %."""
    sound = read_header(fixtures_folder() / "drafters" / f"{NAME}.safetensors")
    worse = read_header(noisy / "drafters" / f"{NAME}.safetensors")
    for name, tensor in sound.items():
        if tensor.dtype != "BF16":
            assert worse[name].read() == tensor.read(), name
            continue
        before, after = values(tensor), values(worse[name])
        assert float((after - before).std() / before.std()) == pytest.approx(SCALE, rel=0.1), name
        assert abs(float((after - before).mean())) < 0.1 * float(before.std()), name


@needs_torch
def test_noise_is_seeded(noisy: Path, tmp_path: Path) -> None:
    """The same seed gives the same file, another seed another one."""
    hashes = []
    for seed in (0, 1):
        out = tmp_path / str(seed)
        assert run(TOOL, "weights", "--scale", str(SCALE), "--seed", str(seed), out).returncode == 0
        hashes.append(load_catalog(out).drafters[NAME].weights_sha256)
    assert hashes[0] == load_catalog(noisy).drafters[NAME].weights_sha256
    assert hashes[0] != hashes[1]


@needs_torch
def test_a_noisy_drafter_that_was_tampered_with_is_refused(noisy: Path, tmp_path: Path) -> None:
    entry = load_catalog(noisy).drafters[NAME]
    content = bytearray((noisy / "drafters" / entry.weights).read_bytes())
    content[-1] ^= 1
    (tmp_path / entry.weights).write_bytes(content)
    with pytest.raises(DraftproofError, match="weights_sha256 must be the SHA-256 of "):
        check_shipped(entry, tmp_path / entry.weights, config())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scale", "-0.1"), "--scale must be a number above 0 (got -0.1)"),
        (("--scale", "0.3", "--drafter", "smollm"), "drafter must be one of the known names (got 'smollm'); known: "),
    ],
)
def test_noise_that_cannot_be_added_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(TOOL, "weights", *arguments, tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
