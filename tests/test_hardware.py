"""Hardware: what is found, what is missing, and how it is said."""
# ruff: noqa: N802 (the fake speaks NVML's names)

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import hardware
from draftproof.catalog import load_catalog
from draftproof.hardware import Gpu, Machine, missing, visible_indices
from draftproof.spec import Detect, Hardware

H100 = Gpu("NVIDIA H100 80GB HBM3", 79.65)
L4 = Gpu("NVIDIA L4", 22.49)
LAPTOP = Machine("a CPU", cores=2, memory_gib=23.6)


def make_hardware(**changes: Any) -> Hardware:
    fields: dict[str, Any] = {
        "name": "h100",
        "title": "H100",
        "markers": ["gpu"],
        "device": "cuda",
        "max_live_arms": 2,
        "detect": Detect(gpu_name="H100", min_gpus=1, min_gpu_memory_gib=70),
        **changes,
    }
    return Hardware(**fields)


def with_gpus(*gpus: Gpu) -> Machine:
    return Machine("a CPU", cores=16, memory_gib=128.0, gpus=gpus, driver="570.1")


def test_a_machine_that_fits() -> None:
    """The GPU's name holds the wanted part in any case, and the memory suffices; other GPUs do not disturb."""
    assert missing(make_hardware(), with_gpus(H100)) is None
    assert missing(make_hardware(), with_gpus(L4, H100)) is None
    assert missing(make_hardware(detect=Detect(gpu_name="h100")), with_gpus(H100)) is None
    assert missing(make_hardware(detect=Detect()), with_gpus(L4)) is None


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        (LAPTOP, "no GPU (2 CPU cores, 24 GiB)"),
        (Machine("c", 1, 2.0, nvml_error="Driver Not Loaded"), "no GPU (1 CPU core, 2 GiB; NVML: Driver Not Loaded)"),
        (with_gpus(L4, L4), "2 x NVIDIA L4 with 22.49 GiB"),
        (with_gpus(Gpu("NVIDIA H100 NVL", 60.0), L4), "1 x NVIDIA H100 NVL with 60 GiB, 1 x NVIDIA L4 with 22.49 GiB"),
    ],
)
def test_what_is_missing_is_said(machine: Machine, found: str) -> None:
    """One form: needs X; found Y; enable with Z."""
    reason = missing(make_hardware(), machine)
    assert reason is not None
    needs, seen, enable = reason.split("; ", 1)[0], reason.split("; found ", 1)[1].rsplit("; enable", 1)[0], reason
    assert needs == "needs 1 x H100 with at least 70 GiB"
    assert seen == found
    assert "; enable with " in enable


def test_tensor_parallelism_needs_as_many_gpus() -> None:
    """One fitting GPU is not enough for two shards, whatever `min_gpus` says; and a CUDA device needs at least one."""
    reason = missing(make_hardware(tensor_parallel_size=2), with_gpus(H100, L4))
    assert reason is not None
    assert reason.startswith("needs 2 x H100")
    assert missing(make_hardware(tensor_parallel_size=2), with_gpus(H100, H100)) is None
    reason = missing(make_hardware(detect=Detect()), LAPTOP)
    assert reason is not None
    assert reason.startswith("needs 1 x any GPU; found")


def test_the_cpu_engine_needs_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = make_hardware(device="cpu", detect=Detect())
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert missing(cpu, LAPTOP) is None
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    reason = missing(cpu, LAPTOP)
    assert reason is not None
    assert reason.startswith("needs Linux for vLLM's CPU engine; found Darwin; enable with")


gpus = st.builds(Gpu, st.sampled_from(["NVIDIA H100", "NVIDIA L4"]), st.sampled_from([22.5, 79.6]))


@given(st.lists(gpus, max_size=5), st.sampled_from(["", "H100", "L4"]), st.integers(0, 3), st.sampled_from([0.0, 70.0]))
def test_missing_agrees_with_counting(found: list[Gpu], name: str, count: int, memory_gib: float) -> None:
    """A slow count over the GPUs gives the same answer."""
    detect = Detect(gpu_name=name, min_gpus=count, min_gpu_memory_gib=memory_gib)
    fitting = 0
    for gpu in found:
        if name in gpu.name and not gpu.memory_gib < memory_gib:
            fitting += 1
    assert (missing(make_hardware(detect=detect), with_gpus(*found)) is None) == (fitting >= max(count, 1))


@pytest.mark.parametrize(
    ("variable", "chosen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("GPU-b", [1]),
        ("GPU-c,GPU-a1", [2, 0]),
        ("GPU-", []),
        ("1,1", []),
        ("nonsense", []),
        ("²", []),
    ],
)
def test_visible_gpus_as_cuda_counts_them(variable: str | None, chosen: list[int]) -> None:
    """CUDA's rules: the first entry that names no one GPU ends the list, and a GPU named twice leaves none."""
    assert visible_indices(["GPU-a1", "GPU-b2", "GPU-c3"], variable) == chosen


@given(st.permutations(range(6)), st.integers(1, 6))
def test_visible_indices_keep_their_order(order: list[int], count: int) -> None:
    chosen = order[:count]
    uuids = [f"GPU-{index}" for index in range(6)]
    assert visible_indices(uuids, ",".join(map(str, chosen))) == chosen
    assert visible_indices(uuids, ",".join(uuids[index] for index in chosen)) == chosen


class FakeNvml(types.ModuleType):
    """Two GPUs behind NVML's interface; the second has no power meter."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open = 0
        self.init_error = ""
        self.count_error = ""

    def nvmlInit(self) -> None:
        if self.init_error:
            raise self.NVMLError(self.init_error)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.1"

    def nvmlDeviceGetCount(self) -> int:
        if self.count_error:
            raise self.NVMLError(self.count_error)
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return {"MIG-1": 1}[uuid]

    def nvmlDeviceGetUUID(self, gpu: int) -> str:
        return f"GPU-{gpu}"

    def nvmlDeviceGetName(self, gpu: int) -> str | bytes:
        return "NVIDIA L4" if gpu else b"NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return types.SimpleNamespace(total=[80, 24][gpu] << 30)

    def nvmlDeviceGetClockInfo(self, gpu: int, kind: int) -> int:
        return {1: 1980, 2: 2619}[kind] - gpu

    def nvmlDeviceGetMaxClockInfo(self, gpu: int, kind: int) -> int:
        return {1: 2000}[kind]

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:
        return 40 + gpu

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        if gpu == 1:
            raise self.NVMLError("Not Supported")
        return 123_456

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:
        return 700_000


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """NVML with two GPUs; whatever happens, it must be shut down as often as it was opened."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hardware.detect_machine.cache_clear()
    yield fake
    hardware.detect_machine.cache_clear()
    assert fake.open == 0


def test_detect_machine_with_gpus(nvml: FakeNvml) -> None:
    machine = hardware.detect_machine()
    assert machine.gpus == (Gpu("NVIDIA H100 80GB HBM3", 80.0), Gpu("NVIDIA L4", 24.0))
    assert machine.driver == "570.1"
    assert machine.nvml_error is None
    assert hardware.detect_machine() is machine


@pytest.mark.parametrize(("variable", "names"), [("1", ["NVIDIA L4"]), ("", []), ("MIG-1", ["NVIDIA L4"])])
def test_hidden_gpus_do_not_count(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert [gpu.name for gpu in hardware.detect_machine().gpus] == names
    assert [row["name"] for row in hardware.gpu_state()] == names


@pytest.mark.parametrize("error", ["init_error", "count_error"])
def test_a_failing_nvml_is_no_gpu(nvml: FakeNvml, error: str) -> None:
    """The reason is kept, so that a skip can say it."""
    setattr(nvml, error, "Driver Not Loaded")
    machine = hardware.detect_machine()
    assert (machine.gpus, machine.nvml_error) == ((), "Driver Not Loaded")
    assert hardware.gpu_state() == []


def test_without_nvidia_ml_py(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    machine = hardware.detect_machine()
    assert (machine.gpus, machine.driver) == ((), None)
    assert machine.nvml_error == "package nvidia-ml-py is not installed"
    assert hardware.gpu_state() == []


def test_gpu_state(nvml: FakeNvml) -> None:
    """Units are in the names; what a GPU does not tell is None."""
    first, second = hardware.gpu_state()
    assert first == {
        "name": "NVIDIA H100 80GB HBM3",
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 2000,
        "memory_clock_mhz": 2619,
        "temperature_c": 40,
        "power_w": 123.456,
        "power_limit_w": 700.0,
    }
    assert second["power_w"] is None
    assert second["power_limit_w"] == 700.0


def test_the_machine_itself(nvml: FakeNvml) -> None:
    """On whatever runs this test: a CPU with a name, the cores that may be used, and some memory."""
    machine = hardware.detect_machine()
    assert machine.cpu
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert machine.memory_gib > 0.1


def test_a_containers_memory_limit_counts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lower of the machine's memory and the container's; `max` is no limit."""
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(hardware, "CGROUP_MEMORY_LIMITS", (tmp_path / "absent", limit))
    limit.write_text("max\n", encoding="ascii")
    whole = hardware.memory_gib()
    limit.write_text(f"{1 << 28}\n", encoding="ascii")
    assert hardware.memory_gib() == 0.25
    limit.write_text(f"{1 << 60}\n", encoding="ascii")
    assert hardware.memory_gib() == whole


# -- bfloat16 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        (["fpu", "avx512_bf16"], True),
        (["fpu", "amx_bf16"], True),
        (["fp", "asimd", "bf16"], True),
        (["fpu", "avx2", "avx512f"], False),
        ([], True),
    ],
)
def test_bfloat16_is_known_by_the_kernels_words(flags: list[str], has: bool) -> None:
    assert hardware.multiplies_bfloat16(flags) == has


def test_a_cpu_without_bfloat16_runs_what_its_entry_says_and_no_other_hardware_does() -> None:
    without = Machine("a CPU", cores=2, memory_gib=8.0, bfloat16=False)
    settings: dict[str, Any] = {"engine": {"enforce_eager": True}, "engine_without_bfloat16": {"dtype": "float32"}}
    cpu, gpu = make_hardware(device="cpu", **settings), make_hardware(**settings)
    assert hardware.for_machine(cpu, without).engine == {"enforce_eager": True, "dtype": "float32"}
    assert hardware.for_machine(cpu, LAPTOP) == cpu
    assert hardware.for_machine(gpu, without) == gpu


def test_the_cpu_entry_runs_float32_there() -> None:
    settled = hardware.settle(load_catalog(), Machine("a CPU", cores=2, memory_gib=8.0, bfloat16=False))
    assert settled.hardware["cpu"].engine["dtype"] == "float32"
    assert "dtype" not in settled.hardware["h100"].engine
