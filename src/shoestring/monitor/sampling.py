"""How much memory this process holds right now, on the machine and on the GPU."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Bytes held by this process. The GPU's are `None` as long as the process has not used one."""

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


def sample() -> Sample:
    """The memory of this process now. Neither imports PyTorch nor starts CUDA."""
    import psutil

    rss = int(psutil.Process().memory_info().rss)
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return Sample(rss_bytes=rss)
    return Sample(
        rss_bytes=rss,
        gpu_allocated_bytes=torch.cuda.memory_allocated(),
        gpu_reserved_bytes=torch.cuda.memory_reserved(),
        gpu_peak_allocated_bytes=torch.cuda.max_memory_allocated(),
        gpu_peak_reserved_bytes=torch.cuda.max_memory_reserved(),
    )
