"""What an arm's process does to its surroundings before vLLM is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PARENT = """
import importlib.util, subprocess, sys
from draftproof.engines.surroundings import hide_broken_vision_packages
print(hide_broken_vision_packages(), importlib.util.find_spec("torchvision"), flush=True)
child = "import importlib.util as u; print(u.find_spec('torchvision'), __import__('sys').flags.no_user_site)"
subprocess.run([sys.executable, "-c", child], check=True)
"""


def run(*folders: Path) -> str:
    """Output of a process that hides what is broken, and then starts a child."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-c", PARENT], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def package(folder: Path, name: str, code: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)


def test_a_broken_torchvision_is_hidden_here_and_in_child_processes(tmp_path: Path) -> None:
    """vLLM looks at a model's architecture in a process of its own, which would fail on it again."""
    package(tmp_path, "torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    package(tmp_path, "torchaudio", "")
    here, child = run(tmp_path).splitlines()
    assert here.startswith("['torchvision'")
    assert here.endswith(" None")
    assert child.startswith("None")


def test_a_sound_one_is_left_alone(tmp_path: Path) -> None:
    for name in ("torchvision", "torchaudio", "torchcodec"):
        package(tmp_path, name, "")
    here, child = run(tmp_path).splitlines()
    assert here.startswith("[] ModuleSpec")
    assert child.startswith("ModuleSpec")


def test_an_environments_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    package(tmp_path, "torchvision", "raise RuntimeError('broken')")
    (tmp_path / "sitecustomize.py").write_text("print('own')")
    lines = run(tmp_path).splitlines()
    assert lines.count("own") == 2
    assert lines[-1].startswith("None")
