"""`nvidia-smi` of a simulated machine, for scripts that call it: its table, its list of GPUs, and its queries as CSV.

It runs as a program in the rehearsed environment and answers from the simulated NVML, so it needs no package.
"""

import ctypes
import sys
from collections.abc import Callable, Sequence

NVML = "libnvidia-ml.so.1"
_DRIVER, _CUDA = "580.82.07", "13.0"
"""The versions of a driver for which PyTorch's builds for CUDA 12 and 13 run."""


class _Memory(ctypes.Structure):
    """`nvmlMemory_t` of nvml.h."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpu:
    """One simulated GPU, as NVML answers for it."""

    def __init__(self, library: ctypes.CDLL, index: int) -> None:
        self.index = index
        handle = ctypes.c_void_p()
        library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        self.name = _text(library.nvmlDeviceGetName, handle)
        self.uuid = _text(library.nvmlDeviceGetUUID, handle)
        memory = _Memory()
        library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        self.total, self.free, self.used = (value >> 20 for value in (memory.total, memory.free, memory.used))
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
        self.capability = f"{major.value}.{minor.value}"


FIELDS: dict[str, tuple[Callable[[Gpu], object], str]] = {
    "index": (lambda gpu: gpu.index, ""),
    "name": (lambda gpu: gpu.name, ""),
    "gpu_name": (lambda gpu: gpu.name, ""),
    "uuid": (lambda gpu: gpu.uuid, ""),
    "gpu_uuid": (lambda gpu: gpu.uuid, ""),
    "memory.total": (lambda gpu: gpu.total, "MiB"),
    "memory.used": (lambda gpu: gpu.used, "MiB"),
    "memory.free": (lambda gpu: gpu.free, "MiB"),
    "utilization.gpu": (lambda gpu: 0, "%"),  # noqa: ARG005
    "utilization.memory": (lambda gpu: 0, "%"),  # noqa: ARG005
    "temperature.gpu": (lambda gpu: 40, ""),  # noqa: ARG005
    "driver_version": (lambda gpu: _DRIVER, ""),  # noqa: ARG005
    "compute_cap": (lambda gpu: gpu.capability, ""),
    "count": (lambda gpu: 1, ""),  # noqa: ARG005
}
"""What `--query-gpu` asks for, with its unit."""


def main(arguments: Sequence[str]) -> int:
    """Print the answer and return the exit status."""
    library = ctypes.CDLL(NVML)
    library.nvmlInit_v2()
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    gpus = [Gpu(library, index) for index in range(count.value)]
    query = next((item.partition("=")[2] for item in arguments if item.startswith("--query-gpu=")), None)
    output_format = next((item.partition("=")[2] for item in arguments if item.startswith("--format=")), "csv")
    if query is not None:
        return _print_query(gpus, query.split(","), output_format.split(","))
    if list(arguments) in (["-L"], ["--list-gpus"]):
        for gpu in gpus:
            print(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
        return 0
    if arguments:
        print(f"Option {arguments[0]} is not recognized.", file=sys.stderr)
        return 6
    _print_table(gpus)
    return 0


def _print_query(gpus: Sequence[Gpu], names: Sequence[str], output_format: Sequence[str]) -> int:
    units = {name: f" [{FIELDS[name][1]}]" if name in FIELDS and FIELDS[name][1] else "" for name in names}
    for name in names:
        if name not in FIELDS:
            print(f'Field "{name}" is not a valid field to query.', file=sys.stderr)
            return 2
    if "noheader" not in output_format:
        print(", ".join(name + units[name] for name in names))
    for gpu in gpus:
        values = [(FIELDS[name][0](gpu), FIELDS[name][1]) for name in names]
        cells = [f"{value} {unit}" if unit and "nounits" not in output_format else str(value) for value, unit in values]
        print(", ".join(cells))
    return 0


def _print_table(gpus: Sequence[Gpu]) -> None:
    line = "+" + "-" * 77 + "+"
    rows = [line, f"| {f'NVIDIA-SMI {_DRIVER}    Driver Version: {_DRIVER}    CUDA Version: {_CUDA}':<75} |", line]
    for gpu in gpus:
        rows += [f"| {f'{gpu.index}  {gpu.name:<40} {gpu.used}MiB / {gpu.total}MiB      0%':<75} |", line]
    print("\n".join(rows))


def _text(function: Callable[..., int], handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(96)
    function(handle, buffer, ctypes.c_uint(len(buffer)))
    return buffer.value.decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
