"""What this process holds right now in memory, on the machine and on the GPU, and how busy the GPU is."""

import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Bytes held by this process. What is the GPU's is `None` as long as the process has not used one."""

    rss_bytes: int
    """Resident in the machine's memory, without data-loading workers (they are processes of their own)."""
    gpu_allocated_bytes: int | None = None
    """In live tensors on the current GPU."""
    gpu_reserved_bytes: int | None = None
    """Held by PyTorch's caching allocator, live tensors and its cache; the CUDA context comes on top."""
    gpu_peak_allocated_bytes: int | None = None
    """The most that was allocated since the process started or the peaks were last reset."""
    gpu_peak_reserved_bytes: int | None = None
    """The most that was reserved since then: what had to fit."""
    gpu_utilisation: float | None = None
    """Share of the driver's last sampling period (a sixth of a second to a second) in which some kernel ran."""
    gpu_watts: float | None = None
    """Power drawn by the board; some boards do not tell."""

    def gpu_facts(self) -> dict[str, float | None]:
        """What an event has of the GPU; nothing where there is none."""
        if self.gpu_allocated_bytes is None:
            return {}
        return {
            "gpu_allocated_bytes": self.gpu_allocated_bytes,
            "gpu_utilisation": self.gpu_utilisation,
            "gpu_watts": self.gpu_watts,
        }


def sample() -> Sample:
    """What this process holds now. Neither imports PyTorch nor starts CUDA."""
    rss = _rss_bytes()
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return Sample(rss_bytes=rss)
    utilisation, watts = busy(_board(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)))
    return Sample(
        rss_bytes=rss,
        gpu_allocated_bytes=torch.cuda.memory_allocated(),
        gpu_reserved_bytes=torch.cuda.memory_reserved(),
        gpu_peak_allocated_bytes=torch.cuda.max_memory_allocated(),
        gpu_peak_reserved_bytes=torch.cuda.max_memory_reserved(),
        gpu_utilisation=utilisation,
        gpu_watts=watts,
    )


def busy(board: Any) -> tuple[float | None, float | None]:
    """Utilisation (0 to 1) and power in watts of an NVML device; `None` for what it does not tell."""
    if board is None:
        return None, None
    import pynvml

    def told(read: Any) -> Any:
        try:
            return read()
        except pynvml.NVMLError:
            return None

    percent = told(lambda: pynvml.nvmlDeviceGetUtilizationRates(board).gpu)
    milliwatts = told(lambda: pynvml.nvmlDeviceGetPowerUsage(board))
    return None if percent is None else percent / 100, None if milliwatts is None else milliwatts / 1000


@lru_cache(maxsize=4)
def _board(uuid: str) -> Any:
    """The NVML device of a GPU, by its UUID: NVML does not know CUDA_VISIBLE_DEVICES. `None` without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None


@lru_cache(maxsize=1)
def _process(_pid: int) -> Any:
    import psutil

    return psutil.Process()


def _rss_bytes() -> int:
    return int(_process(os.getpid()).memory_info().rss)
