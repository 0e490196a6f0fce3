"""What an arm's process runs in: preloads, packages, settings, processor. Part of the worker: standard library only."""

from __future__ import annotations

import contextlib
import ctypes.util
import glob
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys

PRELOAD_VARIABLE = "DRAFTPROOF_PRELOAD"
"""File names of the libraries to preload, for `start_again_with_preloads`; separated by commas."""


def find_library(name: str) -> str | None:
    """Path of the shared library `name` (a file name): this interpreter's ``lib`` first, then the system's folders."""
    folders = [os.path.join(sys.prefix, "lib"), *glob.glob("/usr/lib/*-linux-gnu"), "/usr/lib64", "/usr/local/lib"]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    found = ctypes.util.find_library(name.removeprefix("lib").split(".so")[0])
    return found if found and os.path.isabs(found) else None


def start_again_with_preloads() -> None:
    """Set LD_PRELOAD and execute this process anew: the loader reads the variable only at the start."""
    wanted = os.environ.pop(PRELOAD_VARIABLE, "")
    paths = [path for path in map(find_library, filter(None, wanted.split(","))) if path]
    if not paths:
        return
    already = os.environ.get("LD_PRELOAD", "")
    os.environ["LD_PRELOAD"] = ":".join([*paths, *filter(None, [already])])
    os.execv(  # noqa: S606  (this very program, no shell)
        sys.executable, [sys.executable, *sys.orig_argv[1:]]
    )


def hide_broken_vision_packages() -> list[str]:
    """Make torchvision and its kin look absent where they do not match torch; transformers cannot import with them.

    Here and in the processes that are started from here. Returns the names that were hidden. Text models need none.
    """
    hidden = []
    for name in ("torchvision", "torchaudio", "torchcodec"):
        if importlib.util.find_spec(name) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception:
            for loaded in [module for module in sys.modules if module.split(".")[0] == name]:
                del sys.modules[loaded]
            sys.modules[name] = None  # type: ignore[assignment]
            hidden.append(name)
    if hidden:
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "children")
        paths = filter(None, [folder, os.environ.get("PYTHONPATH")])
        os.environ.update(DRAFTPROOF_HIDE=",".join(hidden), PYTHONPATH=os.pathsep.join(paths))
    return hidden


def package_version(*names: str) -> str | None:
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def files_fingerprint(package: str) -> str | None:
    """SHA-256 over path, size and modification time of a package's code: a rebuilt or edited vLLM is another one."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    rows = []
    for root in spec.submodule_search_locations:
        for folder, _, names in os.walk(root):
            for name in names:
                if name.endswith((".py", ".so")):
                    path = os.path.join(folder, name)
                    facts = os.stat(path)
                    rows.append((os.path.relpath(path, root), facts.st_size, facts.st_mtime_ns))
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()


def is_setting(name: str, value: str) -> bool:
    """Whether an environment variable is a setting of the engine, not an identifier, path or key of this process."""
    identifies = name.endswith(("_IDENT", "_BUFFER_NAME", "_KEY", "_TOKEN", "_ID"))
    return name.startswith(("VLLM_", "KMP_", "OMP_")) and not identifies and "/" not in value


def cpu_model() -> str:
    return cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_flags() -> list[str]:
    """The kernel's words for what the CPU can do; [] where it does not tell."""
    return cpuinfo("flags", "Features").split()


def cpuinfo(*names: str) -> str:
    """What the kernel says of the first processor under one of these names; empty where it does not."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(names):
                return line.split(":", 1)[1].strip()
    return ""
