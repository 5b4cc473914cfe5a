"""What the driver tells of this moment: the GPUs there are, shown to CUDA or not, and who holds their memory.

Capacities for planning are in `probe`; nothing of this may enter a plan.
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
    """As the driver counts, which in a container may be the host's number."""
    name: str
    """Empty where no process of that number is seen from here."""
    bytes: int | None
    """None where the driver does not tell."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One GPU as it is now."""

    title: str
    uuid: str
    capability: tuple[int, int]
    usable_bytes: int
    """Total minus what the driver keeps."""
    used_bytes: int
    holders: tuple[Holder, ...]
    shown: bool
    """Whether CUDA_VISIBLE_DEVICES lets this process use it."""

    @property
    def free_bytes(self) -> int:
        return max(0, self.usable_bytes - self.used_bytes)


@dataclass(frozen=True, kw_only=True)
class Driver:
    """An NVIDIA driver."""

    version: str
    cuda: tuple[int, int]
    """The newest CUDA it was made for."""
    cards: tuple[Card, ...]
    """By bus, the hidden ones among them."""


def occupancy() -> Driver | None:
    """The driver and its GPUs at this moment; None where there is no NVIDIA driver.

    Raises RunError where there is one that does not answer.
    """
    with nvidia_driver() as nvml:
        if nvml is None:
            return None
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        shown = visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
        version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())  # 12080 is 12.8
        return Driver(
            version=str(nvml.nvmlSystemGetDriverVersion()),
            cuda=(version // 1000, version % 1000 // 10),
            cards=tuple(
                _card(nvml, handle, uuid, index in shown)
                for index, (handle, uuid) in enumerate(zip(handles, uuids, strict=True))
            ),
        )


def _card(nvml: Any, handle: Any, uuid: str, shown: bool) -> Card:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return Card(
        title=str(nvml.nvmlDeviceGetName(handle)),
        uuid=uuid,
        capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        usable_bytes=int(memory.total - memory.reserved),
        used_bytes=int(memory.used),
        holders=tuple(_holders(nvml, handle)),
        shown=shown,
    )


def _holders(nvml: Any, handle: Any) -> Iterator[Holder]:
    """The processes that compute on a GPU or draw on it, each once."""
    found: dict[int, int | None] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            found |= {int(process.pid): process.usedGpuMemory for process in ask(handle)}
        except nvml.NVMLError:  # some boards and containers do not tell
            continue
    for pid, held in sorted(found.items()):
        yield Holder(pid=pid, name=_name(pid), bytes=None if held is None else int(held))


def _name(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""
