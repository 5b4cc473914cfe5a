"""Detection of this machine: its GPUs from the driver, its CPU by measurement, and the limits set by a container.

Capacities are totals, never the memory that is free at the moment, so that the same machine always gives the same plan.
"""

import dataclasses
import os
import platform as system
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from shoestring.base.errors import RunError
from shoestring.hardware.catalog import DEVICES, PLATFORMS, Device, Platform, Target
from shoestring.hardware.cpu_rates import cpu_rates
from shoestring.hardware.gpus import CONTEXT, CONTEXT_SOURCE

_ROOT = Path("/")
SIMULATOR_PREFIX = "SHOESTRING_SIMULATOR_"
"""The beginning of the environment variables of processes on simulated GPUs, which `native/configuration.h` and
`inside` in `planning/simulator` read."""
_NVML = "the driver of this machine (NVML)"


@cache
def local() -> Target:
    """Return this machine as a target: the GPUs of the same model as the first one, or the CPU if there are none.

    Raises RunError if there is an NVIDIA driver that does not respond.
    """
    all_gpus = gpus()
    if not all_gpus:
        return dataclasses.replace(local_cpu(), name="local")
    same_model = [gpu for gpu in all_gpus if gpu.name == all_gpus[0].name]
    return Target(
        name="local",
        device=min(same_model, key=lambda gpu: gpu.memory_bytes),
        gpus=len(same_model),
        platform=platform_here(),
    )


@cache
def local_cpu() -> Target:
    """Return the CPU of this machine as a target, with rates that are measured once and kept (`cpu_rates.py`)."""
    model = cpu_model()
    rates = cpu_rates(model, cores())
    device = Device(
        name="cpu",
        title=model,
        kind="cpu",
        memory_bytes=ram_bytes(),
        compute_capability=None,
        fp32_flops=rates.fp32_flops,
        tf32_flops=None,
        fp16_flops=None,
        bf16_flops=None,
        bandwidth=rates.bandwidth,
        context_bytes=(0, 0, 0),
        sources={
            "memory_bytes": "RAM of this machine, or the limit of its container",
            "fp32_flops": "measured on this machine: a product of two 1024 x 1024 matrices in NumPy",
            "bandwidth": "measured on this machine: a copy of 64 MiB in NumPy, read and write",
            "context_bytes": "a CPU has no CUDA context",
        },
    )
    return Target(name="cpu", device=device, gpus=0, platform=platform_here())


@cache
def gpus() -> tuple[Device, ...]:
    """Return the GPUs that are visible to this process, in bus order; none without an NVIDIA driver.

    Raises RunError if there is a driver that does not respond.
    """
    with nvidia_driver() as nvml:
        if nvml is None:
            return ()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        visible_indices = visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return tuple(_make_device(nvml, handles[index]) for index in visible_indices)


def machine() -> dict[str, Any]:
    """Return the facts about this machine that a run records, as JSON; nothing is measured."""
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
        "simulated": any(name.startswith(SIMULATOR_PREFIX) for name in os.environ),
    }


def cores(root: Path = _ROOT) -> int:
    """Return the number of hardware threads of this process: its affinity, or less under a CPU quota of its cgroup."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(int, _cpu_quotas(root))]))


def ram_bytes(root: Path = _ROOT) -> int:
    """Return the RAM that this process may use: that of the machine, or less under a limit of its cgroup."""
    import psutil

    total: int = psutil.virtual_memory().total
    files = control_files(root, "memory", "memory.max", "memory.limit_in_bytes")
    limits = (file.read_text().strip() for file in files)
    return min([total, *(int(limit) for limit in limits if limit != "max")])


def ram_free_bytes(root: Path = _ROOT) -> int:
    """Return the RAM that this process can still allocate: that available on the machine, or less under a cgroup limit.

    Inactive file pages count as available, because the system reclaims them when memory is needed.
    """
    import psutil

    available = [int(psutil.virtual_memory().available)]
    for file in control_files(root, "memory", "memory.max", "memory.limit_in_bytes"):
        limit = file.read_text().strip()
        used = file.with_name("memory.current" if file.name == "memory.max" else "memory.usage_in_bytes")
        if limit != "max" and used.is_file():
            available.append(int(limit) - int(used.read_text()) + file_bytes(file.with_name("memory.stat"), "inactive"))
    return max(0, min(available))


def cpu_model(root: Path = _ROOT) -> str:
    """Return the model name of the CPU from the kernel."""
    file = root / "proc/cpuinfo"
    lines = file.read_text().splitlines() if file.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, system.machine())


def visible(uuids: Sequence[str], visible_devices: str | None) -> list[int]:
    """Return the GPUs that CUDA shows, as indices into `uuids`, for a value of CUDA_VISIBLE_DEVICES (None: not set).

    The value lists indices or prefixes of UUIDs; as in CUDA, the first invalid one and all after it are ignored.
    """
    if visible_devices is None:
        return list(range(len(uuids)))
    visible_indices: list[int] = []
    for word in map(str.strip, visible_devices.split(",")):
        matches = [
            index
            for index, uuid in enumerate(uuids)
            if word == str(index) or (word.startswith("GPU-") and uuid.startswith(word))
        ]
        if len(matches) != 1:
            break
        visible_indices += matches
    return visible_indices


@contextmanager
def nvidia_driver() -> Iterator[Any]:
    """Open NVML for queries; the value is None without an NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield None
        return
    except pynvml.NVMLError as error:
        raise _driver_error(error) from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise _driver_error(error) from error
    finally:
        pynvml.nvmlShutdown()


def _driver_error(error: Exception) -> RunError:
    return RunError(
        f"the NVIDIA driver of this machine does not respond: {error}",
        hint="check that nvidia-smi fails too; after a driver update the machine has to be restarted",
    )


def _make_device(nvml: Any, handle: Any) -> Device:
    """Return a GPU with its facts from the catalogue and its memory from NVML; from NVML only if it is not listed."""
    title = str(nvml.nvmlDeviceGetName(handle))
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    usable = int(memory.total - memory.reserved)
    source = {"memory_bytes": f"{_NVML}: total minus reserved"}
    for device in DEVICES.values():
        # Several cards can share a name: there is also an RTX 3060 with 8 GB, which is slower.
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
        notes=("not in the catalogue: its rates are unknown, so times cannot be estimated",),
        sources={**source, "compute_capability": _NVML, "context_bytes": CONTEXT_SOURCE},
    )


def platform_here() -> Platform:
    """Return the platform of this process with the capacities of this machine."""
    platform = Platform(name="local", title="this machine")
    platforms = (candidate for candidate in PLATFORMS.values() if candidate.sign and os.getenv(candidate.sign))
    platform = next(platforms, platform)
    measured = {"ram_bytes": "this machine", "cores": "this machine"}
    return dataclasses.replace(platform, ram_bytes=ram_bytes(), cores=cores(), sources={**platform.sources, **measured})


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quota, in threads, of the control group of this process and of each group above it."""
    for file in control_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        if file.name == "cpu.max":
            quota, period = file.read_text().split()
            if quota != "max":
                yield int(quota) / int(period)
        elif (quota_us := int(file.read_text())) > 0:
            yield quota_us / int(file.with_name("cpu.cfs_period_us").read_text())


def file_bytes(stat: Path, kind: str) -> int:
    """Return the bytes of `active` or `inactive` file pages of a control group."""
    lines = stat.read_text().splitlines() if stat.is_file() else []
    statistics = dict(line.split()[:2] for line in lines if len(line.split()) >= 2)
    return int(statistics.get(f"total_{kind}_file", statistics.get(f"{kind}_file", 0)))


def control_files(root: Path, controller: str, version_2: str, version_1: str) -> Iterator[Path]:
    """Yield the files of a limit, from the control group of this process up to the root; the lowest limit applies.

    In a container the path of the group may be that on the host, of which only the root exists.
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
        for folder in (group, *group.parents):
            if folder.is_relative_to(base) and (folder / name).is_file():
                yield folder / name
