"""The current memory use of this process, on the host and on the GPU, and the load of the GPU."""

import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The memory use of this process in bytes. GPU fields are `None` until the process has used a GPU."""

    rss_bytes: int | None
    """Resident set size in host memory, without data-loading workers (they are separate processes), if it is known."""
    gpu_allocated_bytes: int | None = None
    """Bytes of live tensors on the current GPU."""
    gpu_reserved_bytes: int | None = None
    """Bytes reserved by PyTorch's caching allocator: live tensors and its cache, without the CUDA context."""
    gpu_peak_allocated_bytes: int | None = None
    """The maximum of allocated bytes since the process started or the peaks were last reset."""
    gpu_peak_reserved_bytes: int | None = None
    """The maximum of reserved bytes over the same period, which is the amount that had to fit."""
    gpu_total_bytes: int | None = None
    """The memory of the GPU."""
    gpu_utilisation: float | None = None
    """Share of the driver's last sampling period (a sixth of a second to a second) in which some kernel ran."""
    gpu_watts: float | None = None
    """Power drawn by the board; some boards do not report it."""

    def gpu_facts(self) -> dict[str, float | None]:
        """Return the GPU fields of an event; empty when no GPU is in use."""
        if self.gpu_allocated_bytes is None:
            return {}
        return {
            "gpu_allocated_bytes": self.gpu_allocated_bytes,
            "gpu_utilisation": self.gpu_utilisation,
            "gpu_watts": self.gpu_watts,
        }


def sample() -> Sample:
    """Measure the memory use and GPU load now, without importing PyTorch or initializing CUDA.

    A value that cannot be measured is None: training does not depend on what is reported of it.
    """
    rss = _rss_bytes()
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return Sample(rss_bytes=rss)
    utilisation, watts = read_load(_nvml_device(_uuid(torch)))
    # Of two GPUs between which a model is divided, the one whose memory was filled more.
    fullest = max(range(torch.cuda.device_count()), key=torch.cuda.max_memory_reserved)
    return Sample(
        rss_bytes=rss,
        gpu_allocated_bytes=torch.cuda.memory_allocated(fullest),
        gpu_reserved_bytes=torch.cuda.memory_reserved(fullest),
        gpu_peak_allocated_bytes=torch.cuda.max_memory_allocated(fullest),
        gpu_peak_reserved_bytes=torch.cuda.max_memory_reserved(fullest),
        gpu_total_bytes=torch.cuda.get_device_properties(fullest).total_memory,
        gpu_utilisation=utilisation,
        gpu_watts=watts,
    )


def read_load(device: Any) -> tuple[float | None, float | None]:
    """Return the utilisation (0 to 1) and the power in watts of an NVML device; `None` for values it lacks."""
    if device is None:
        return None, None
    import pynvml

    def read_or_none(read: Any) -> Any:
        try:
            return read()
        except Exception:  # noqa: BLE001  (NVMLError, and errors of the bindings with another driver)
            return None

    percent = read_or_none(lambda: pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
    milliwatts = read_or_none(lambda: pynvml.nvmlDeviceGetPowerUsage(device))
    return None if percent is None else percent / 100, None if milliwatts is None else milliwatts / 1000


@lru_cache(maxsize=4)
def _nvml_device(uuid: str) -> Any:
    """Return the NVML device of a GPU, or `None` without a driver.

    It is looked up by UUID because NVML ignores CUDA_VISIBLE_DEVICES.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # noqa: BLE001  (NVMLError, and errors of the bindings with another driver)
        return None


@lru_cache(maxsize=1)
def _process(_pid: int) -> Any:
    import psutil

    return psutil.Process()


def _uuid(torch: Any) -> str:
    """Return the UUID of the GPU in use; empty if torch does not know it."""
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


def _rss_bytes() -> int | None:
    import psutil

    try:
        return int(_process(os.getpid()).memory_info().rss)
    except (psutil.Error, OSError):
        return None
