"""The peak of memory of this process, and of its GPU."""

import gc
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any


def reset_peak(device: Any) -> int:
    """Reset the peak of memory in use, and return the bytes to subtract from it."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return 0
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of resident memory (proc(5))
    return read_status("VmRSS")


def peak_bytes(device: Any) -> int:
    """Return the peak of memory in use: of torch's allocator on a GPU, of the whole process on a CPU."""
    import torch

    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else read_status("VmHWM")


def read_status(name: str) -> int:
    """Read a line of /proc/self/status as bytes; without that file, return the peak since the process started."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
