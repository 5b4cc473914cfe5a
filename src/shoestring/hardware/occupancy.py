"""The current state of the GPUs as reported by the driver: visible to CUDA or not, and the processes that use memory.

Capacities for planning are in `probe`; this momentary state must not enter a plan.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shoestring.hardware.probe import nvidia_driver, visible


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process with memory on a GPU."""

    pid: int
    """The process id as the driver reports it, which in a container may be the id on the host."""
    name: str
    """Empty if no process with that id is visible here."""
    bytes: int | None
    """None if the driver does not report it."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """The current state of one GPU."""

    title: str
    uuid: str
    capability: tuple[int, int]
    usable_bytes: int
    """The total memory minus the part reserved by the driver."""
    used_bytes: int
    holders: tuple[Holder, ...]
    is_visible: bool
    """Whether CUDA_VISIBLE_DEVICES lets this process use the GPU."""

    @property
    def free_bytes(self) -> int:
        return max(0, self.usable_bytes - self.used_bytes)


@dataclass(frozen=True, kw_only=True)
class Driver:
    """An NVIDIA driver."""

    version: str
    cuda: tuple[int, int]
    """The newest CUDA version that it supports."""
    cards: tuple[Card, ...]
    """All GPUs in bus order, including hidden ones."""


def occupancy() -> Driver | None:
    """Return the driver and the current state of its GPUs; None without an NVIDIA driver.

    Raises RunError if there is a driver that does not respond.
    """
    with nvidia_driver() as nvml:
        if nvml is None:
            return None
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        visible_indices = visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
        version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())  # 12080 is 12.8
        return Driver(
            version=str(nvml.nvmlSystemGetDriverVersion()),
            cuda=(version // 1000, version % 1000 // 10),
            cards=tuple(
                _card(nvml, handle, uuid, index in visible_indices)
                for index, (handle, uuid) in enumerate(zip(handles, uuids, strict=True))
            ),
        )


def _card(nvml: Any, handle: Any, uuid: str, is_visible: bool) -> Card:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return Card(
        title=str(nvml.nvmlDeviceGetName(handle)),
        uuid=uuid,
        capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        usable_bytes=int(memory.total - memory.reserved),
        used_bytes=int(memory.used),
        holders=tuple(_holders(nvml, handle)),
        is_visible=is_visible,
    )


def _holders(nvml: Any, handle: Any) -> Iterator[Holder]:
    """Yield the compute and graphics processes on a GPU, each once."""
    memory: dict[int, int | None] = {}
    for query in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            memory |= {int(process.pid): process.usedGpuMemory for process in query(handle)}
        except nvml.NVMLError:  # not supported by some boards and containers
            continue
    for pid, used_bytes in sorted(memory.items()):
        yield Holder(pid=pid, name=_process_name(pid), bytes=None if used_bytes is None else int(used_bytes))


def _process_name(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""
