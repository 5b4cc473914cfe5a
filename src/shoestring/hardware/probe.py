"""What this machine is: its GPUs as the driver tells, its CPU as measured, and the limits a container sets.

Capacities are fixed ones, never what happens to be free: the same machine gives the same plan every day.
"""

import dataclasses
import os
import platform as system
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from shoestring.errors import RunError
from shoestring.hardware.catalog import CONTEXT, CONTEXT_SOURCE, DEVICES, PLATFORMS, Device, Platform, Target
from shoestring.units import MIB

_ROOT = Path("/")
_NVML = "the driver of this machine (NVML)"


@cache
def local() -> Target:
    """This machine: its GPUs of the first one's kind, or its CPU where there are none.

    Raises RunError where there is an NVIDIA driver that does not answer.
    """
    found = gpus()
    if not found:
        return dataclasses.replace(local_cpu(), name="local")
    alike = [gpu for gpu in found if gpu.name == found[0].name]
    return Target(
        name="local",
        device=min(alike, key=lambda gpu: gpu.memory_bytes),
        gpus=len(alike),
        platform=platform_here(),
    )


@cache
def local_cpu() -> Target:
    """This machine's CPU, whatever GPU it has. Its rates are measured, once per process, in some 0.2 s."""
    flops, bandwidth = _cpu_rates()
    device = Device(
        name="cpu",
        title=cpu_model(),
        kind="cpu",
        memory_bytes=ram_bytes(),
        compute_capability=None,
        fp32_flops=flops,
        tf32_flops=None,
        fp16_flops=None,
        bf16_flops=None,
        bandwidth=bandwidth,
        context_bytes=(0, 0, 0),
        sources={
            "memory_bytes": "RAM of this machine, or what its container may use",
            "fp32_flops": "measured on this machine: a product of two 1024 x 1024 matrices in NumPy",
            "bandwidth": "measured on this machine: a copy of 64 MiB in NumPy, read and write",
            "context_bytes": "a CPU has none",
        },
    )
    return Target(name="cpu", device=device, gpus=0, platform=platform_here())


@cache
def gpus() -> tuple[Device, ...]:
    """The GPUs that CUDA shows to this process, by bus; none where there is no NVIDIA driver.

    Raises RunError where there is a driver that does not answer.
    """
    with nvidia_driver() as nvml:
        if nvml is None:
            return ()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        shown = visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return tuple(_device(nvml, handles[index]) for index in shown)


def machine() -> dict[str, Any]:
    """The facts of this machine that a run writes down; nothing is measured. All JSON."""
    with nvidia_driver() as nvml:
        driver = None if nvml is None else nvml.nvmlSystemGetDriverVersion()
    return {
        "system": system.platform(),
        "python": system.python_version(),
        "cpu": cpu_model(),
        "cores": cores(),
        "ram_bytes": ram_bytes(),
        "driver": driver,
        "gpus": [{"name": gpu.title, "memory_bytes": gpu.memory_bytes} for gpu in gpus()],
    }


def cores(root: Path = _ROOT) -> int:
    """Hardware threads this process may use: its affinity, or less where its control group has a quota of time."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(int, _cpu_quotas(root))]))


def ram_bytes(root: Path = _ROOT) -> int:
    """RAM this process may use: the machine's, or less where its control group has a limit."""
    import psutil

    total: int = psutil.virtual_memory().total
    files = _control_files(root, "memory", "memory.max", "memory.limit_in_bytes")
    limits = (file.read_text().strip() for file in files)
    return min([total, *(int(limit) for limit in limits if limit != "max")])


def ram_free_bytes(root: Path = _ROOT) -> int:
    """RAM this process may still take at this moment: what the machine has left, or less where its control group has.

    Of what a group holds, pages of files that nobody uses are given back when memory is wanted.
    """
    import psutil

    left = [int(psutil.virtual_memory().available)]
    for file in _control_files(root, "memory", "memory.max", "memory.limit_in_bytes"):
        limit = file.read_text().strip()
        used = file.with_name("memory.current" if file.name == "memory.max" else "memory.usage_in_bytes")
        if limit != "max" and used.is_file():
            left.append(int(limit) - int(used.read_text()) + _unused_pages(file.with_name("memory.stat")))
    return max(0, min(left))


def cpu_model(root: Path = _ROOT) -> str:
    """The CPU as the kernel calls it."""
    file = root / "proc/cpuinfo"
    lines = file.read_text().splitlines() if file.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, system.machine())


def visible(uuids: Sequence[str], chosen: str | None) -> list[int]:
    """Which GPUs CUDA shows, as indices into `uuids`, when CUDA_VISIBLE_DEVICES is `chosen` (None: not set).

    It lists indices or beginnings of UUIDs; like CUDA, what stands behind the first wrong one does not count.
    """
    if chosen is None:
        return list(range(len(uuids)))
    shown: list[int] = []
    for word in map(str.strip, chosen.split(",")):
        meant = [
            index
            for index, uuid in enumerate(uuids)
            if word == str(index) or (word.startswith("GPU-") and uuid.startswith(word))
        ]
        if len(meant) != 1:
            break
        shown += meant
    return shown


@contextmanager
def nvidia_driver() -> Iterator[Any]:
    """NVML, ready to be asked; None where there is no NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield None
        return
    except pynvml.NVMLError as error:
        raise _unanswered(error) from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise _unanswered(error) from error
    finally:
        pynvml.nvmlShutdown()


def _unanswered(error: Exception) -> RunError:
    return RunError(
        f"the NVIDIA driver of this machine does not answer: {error}",
        hint="nvidia-smi should fail likewise; after an update of the driver the machine needs a restart",
    )


def _device(nvml: Any, handle: Any) -> Device:
    """A GPU as the catalogue has it, with the memory this driver leaves; from NVML alone where it is not there."""
    title = str(nvml.nvmlDeviceGetName(handle))
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    usable = int(memory.total - memory.reserved)
    source = {"memory_bytes": f"{_NVML}: total minus reserved"}
    for device in DEVICES.values():
        # One name may stand for several cards: there is an RTX 3060 of 8 GB, and it is slower.
        same_size = abs(usable - device.memory_bytes) < 0.1 * device.memory_bytes
        if title.removeprefix("NVIDIA ") in device.nvml_names and same_size:
            return dataclasses.replace(device, memory_bytes=usable, sources={**device.sources, **source})
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Device(
        name="-".join(title.lower().split()),
        title=title,
        memory_bytes=usable,
        compute_capability=(major, minor),
        fp32_flops=None,
        tf32_flops=None,
        fp16_flops=None,
        bf16_flops=None,
        bandwidth=None,
        context_bytes=CONTEXT,
        notes=("not in the catalogue: its rates are not known, so no time can be estimated",),
        sources={**source, "compute_capability": _NVML, "context_bytes": CONTEXT_SOURCE},
    )


def platform_here() -> Platform:
    """The platform this process runs on, with the capacities of this very machine."""
    here = Platform(name="local", title="this machine")
    here = next((known for known in PLATFORMS.values() if known.sign and os.getenv(known.sign)), here)
    measured = {"ram_bytes": "this machine", "cores": "this machine"}
    return dataclasses.replace(here, ram_bytes=ram_bytes(), cores=cores(), sources={**here.sources, **measured})


def _cpu_rates() -> tuple[float, float]:
    """FP32 matrix products in FLOP/s and copies in bytes/s read and written, the best of three each."""
    import numpy as np

    side, count = 1024, 64 * MIB
    matrix = np.ones((side, side), np.float32)
    product = np.empty_like(matrix)
    bytes_from = np.ones(count, np.uint8)
    bytes_to = np.ones(count, np.uint8)
    multiply, copy = [], []
    for _ in range(3):
        start = perf_counter()
        np.matmul(matrix, matrix, out=product)
        multiply.append(perf_counter() - start)
        start = perf_counter()
        np.copyto(bytes_to, bytes_from)
        copy.append(perf_counter() - start)
    return 2 * side**3 / min(multiply), 2 * count / min(copy)


def _cpu_quotas(root: Path) -> Iterator[float]:
    """How many threads' time each control group above this process may spend."""
    for file in _control_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        if file.name == "cpu.max":
            quota, period = file.read_text().split()
            if quota != "max":
                yield int(quota) / int(period)
        elif (spent := int(file.read_text())) > 0:
            yield spent / int(file.with_name("cpu.cfs_period_us").read_text())


def _unused_pages(stat: Path) -> int:
    """Bytes of files' pages in a control group that were not used lately."""
    lines = stat.read_text().splitlines() if stat.is_file() else []
    found = dict(line.split()[:2] for line in lines if len(line.split()) >= 2)
    return int(found.get("total_inactive_file", found.get("inactive_file", 0)))


def _control_files(root: Path, controller: str, version_2: str, version_1: str) -> Iterator[Path]:
    """The files of a limit, from this process's control group up to the root: the least of them holds.

    In a container the group's path may be the host's, of which only the root is there.
    """
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, controllers, path = line.split(":", 2)
        base, name = root / "sys/fs/cgroup", version_2
        if controllers:
            if controller not in controllers.split(","):
                continue
            base, name = base / controller, version_1
        group = base / path.lstrip("/")
        for place in (group, *group.parents):
            if place.is_relative_to(base) and (place / name).is_file():
                yield place / name
