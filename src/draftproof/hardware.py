"""What this machine has, and what it lacks for a kind of hardware. GPUs are read through NVML, never through torch."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from draftproof.spec import Hardware

if TYPE_CHECKING:
    from draftproof.catalog import Catalog

GIB = 1 << 30
BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
CGROUP_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Gpu(msgspec.Struct, frozen=True):
    """One GPU that a process started here may use."""

    name: str
    memory_gib: float
    """Total memory; a little under the advertised size (79.6 for an 80 GB H100)."""


class Machine(msgspec.Struct, frozen=True):
    """What counts for choosing hardware; no host name, no serial numbers."""

    cpu: str
    cores: int
    """Logical CPUs that this process may run on."""
    memory_gib: float
    """Main memory, or the container's limit where that is lower."""
    bfloat16: bool = True
    """Whether the CPU has instructions for bfloat16; without them it is several times as slow as float32."""
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    """The GPU driver's version."""
    nvml_error: str | None = None
    """Why GPUs could not be looked for."""


@functools.cache
def detect_machine() -> Machine:
    """The machine that we run on, looked at once per process."""
    from draftproof.engines.surroundings import (  # not above: the engines package imports much of draftproof
        cpu_flags,
        cpu_model,
    )

    gpus: tuple[Gpu, ...] = ()
    driver = error = None
    try:
        with nvml() as library:
            driver = text(library.nvmlSystemGetDriverVersion())
            gpus = tuple(
                Gpu(text(library.nvmlDeviceGetName(gpu)), library.nvmlDeviceGetMemoryInfo(gpu).total / GIB)
                for gpu in visible_gpus(library)
            )
    except NvmlError as reason:
        error = str(reason)
    return Machine(
        cpu=cpu_model(),
        cores=usable_cores(),
        memory_gib=memory_gib(),
        bfloat16=multiplies_bfloat16(cpu_flags()),
        gpus=gpus,
        driver=driver,
        nvml_error=error,
    )


def multiplies_bfloat16(flags: Collection[str]) -> bool:
    """By the kernel's words for it (x86: AMX or AVX-512; Arm: bf16); not known to lack it where none are told."""
    return not flags or not BFLOAT16_FLAGS.isdisjoint(flags)


def for_machine(hardware: Hardware, machine: Machine) -> Hardware:
    """The hardware with the engine settings that this machine wants."""
    if hardware.device != "cpu" or machine.bfloat16:
        return hardware
    return msgspec.structs.replace(hardware, engine={**hardware.engine, **hardware.engine_without_bfloat16})


def settle(catalog: Catalog, machine: Machine) -> Catalog:
    """The same catalog, its hardware as it is on this machine."""
    catalog.hardware.update({name: for_machine(entry, machine) for name, entry in catalog.hardware.items()})
    return catalog


def missing(hardware: Hardware, machine: Machine) -> str | None:
    """None when `machine` is this `hardware`; else the skip reason ``needs X; found Y; enable with Z``."""
    if hardware.device == "cpu":
        system = platform.system()
        if system == "Linux":
            return None
        return f"needs Linux for vLLM's CPU engine; found {system}; enable with a Linux machine, container or WSL 2"
    detect = hardware.detect
    wanted = max(detect.min_gpus, hardware.tensor_parallel_size, 1)
    fitting = [
        gpu
        for gpu in machine.gpus
        if detect.gpu_name.lower() in gpu.name.lower() and gpu.memory_gib >= detect.min_gpu_memory_gib
    ]
    if len(fitting) >= wanted:
        return None
    needs = f"{wanted} x {detect.gpu_name or 'any GPU'}"
    if detect.min_gpu_memory_gib:
        needs += f" with at least {detect.min_gpu_memory_gib:g} GiB"
    enable = "such a machine, or choose a study for this one (--sd-study)"
    return f"needs {needs}; found {found_gpus(machine)}; enable with {enable}"


def found_gpus(machine: Machine) -> str:
    """``2 x NVIDIA L4 with 22.5 GiB``, or that there is no GPU, what there is instead, and why if NVML failed."""
    if machine.gpus:
        groups = Counter((gpu.name, f"{gpu.memory_gib:.4g}") for gpu in machine.gpus)
        return ", ".join(f"{count} x {name} with {memory} GiB" for (name, memory), count in groups.items())
    cores = f"{machine.cores} CPU core{'' if machine.cores == 1 else 's'}"
    reason = f"; NVML: {machine.nvml_error}" if machine.nvml_error else ""
    return f"no GPU ({cores}, {machine.memory_gib:.0f} GiB{reason})"


def gpu_state() -> list[dict[str, Any]]:
    """Clocks, temperature and power of each visible GPU at this moment, for the records; [] where there is none.

    A value that the GPU or the driver does not tell is None.
    """
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(NvmlError), nvml() as library:
        for gpu in visible_gpus(library):
            ask = functools.partial(answer, library)
            power_mw = ask(library.nvmlDeviceGetPowerUsage, gpu)
            limit_mw = ask(library.nvmlDeviceGetEnforcedPowerLimit, gpu)
            rows.append(
                {
                    "name": text(library.nvmlDeviceGetName(gpu)),
                    "sm_clock_mhz": ask(library.nvmlDeviceGetClockInfo, gpu, library.NVML_CLOCK_SM),
                    "sm_clock_max_mhz": ask(library.nvmlDeviceGetMaxClockInfo, gpu, library.NVML_CLOCK_SM),
                    "memory_clock_mhz": ask(library.nvmlDeviceGetClockInfo, gpu, library.NVML_CLOCK_MEM),
                    "temperature_c": ask(library.nvmlDeviceGetTemperature, gpu, library.NVML_TEMPERATURE_GPU),
                    "power_w": None if power_mw is None else power_mw / 1000,
                    "power_limit_w": None if limit_mw is None else limit_mw / 1000,
                }
            )
    return rows


class NvmlError(Exception):
    """NVML is absent or failed; the text says which."""


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """The ``pynvml`` module, initialised inside the block. Every failure of NVML leaves it as NvmlError."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlError("package nvidia-ml-py is not installed") from error
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise NvmlError(str(error)) from error
    try:
        yield library
    except library.NVMLError as error:
        raise NvmlError(str(error)) from error
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


def visible_gpus(library: Any) -> list[Any]:
    """NVML handles of the GPUs that CUDA would show to a process started here."""
    handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is not None and variable.strip().startswith("MIG-"):
        return [library.nvmlDeviceGetHandleByUUID(name.strip()) for name in variable.split(",") if name.strip()]
    indices = visible_indices([text(library.nvmlDeviceGetUUID(gpu)) for gpu in handles], variable)
    return [handles[index] for index in indices]


def visible_indices(uuids: Sequence[str], variable: str | None) -> list[int]:
    """Which GPUs ``CUDA_VISIBLE_DEVICES`` leaves, in its order.

    Its entries are indices or beginnings of UUIDs; the first that is neither ends the list, as in CUDA. CUDA's own
    numbering may differ on machines with unlike GPUs unless CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    if variable is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in map(str.strip, variable.split(",")):
        if entry.isascii() and entry.isdigit():
            found = [int(entry)] if int(entry) < len(uuids) else []
        else:
            found = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(found) != 1:
            break
        if found[0] in chosen:  # CUDA shows no GPU at all when one is named twice
            return []
        chosen += found
    return chosen


def answer(library: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """What NVML answers, None where this GPU has no such value."""
    try:
        return question(*arguments)
    except library.NVMLError:
        return None


def text(value: str | bytes) -> str:
    """Older nvidia-ml-py returns bytes."""
    return value.decode() if isinstance(value, bytes) else value


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float:
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            limits.append(int(path.read_text(encoding="ascii")))
    return min(limits) / GIB
