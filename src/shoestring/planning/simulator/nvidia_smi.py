"""`nvidia-smi` of a simulated machine, for scripts that call it: its table, its lists, and its queries as CSV.

It runs as a program in the rehearsed environment and answers from the simulated NVML, so it needs no package.
"""

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

NVML = "libnvidia-ml.so.1"
_MOST_PROCESSES = 256
_USAGE = """nvidia-smi of a simulated machine, with these options of the genuine one:
    -L, --list-gpus              the GPUs
    -i, --id=GPU                 of this GPU only: its number, UUID or bus id
    -q, --query                  what is known of each GPU
    --query-gpu=FIELD,...        fields of each GPU, as CSV
    --query-compute-apps=FIELD,..fields of each process on a GPU, as CSV
    --format=csv[,noheader][,nounits]
    -l, --loop=SECONDS, -lms, --loop-ms=MILLISECONDS
    topo -m                      how the GPUs are connected"""
_WITH_VALUE = {
    "-i": "--id",
    "-l": "--loop",
    "-lms": "--loop-ms",
    "-f": "--filename",
    "-d": "--display",
    "--id": "--id",
    "--loop": "--loop",
    "--loop-ms": "--loop-ms",
    "--filename": "--filename",
    "--display": "--display",
    "--format": "--format",
    "--query-gpu": "--query-gpu",
    "--query-compute-apps": "--query-compute-apps",
}
_WITHOUT_VALUE = {
    "-L": "--list-gpus",
    "-q": "--query",
    "-h": "--help",
    "--list-gpus": "--list-gpus",
    "--query": "--query",
    "--help": "--help",
    "--version": "--version",
}


class _Memory(ctypes.Structure):
    """`nvmlMemory_t` of nvml.h."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t`."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Gpu:
    """One simulated GPU, as NVML answers for it."""

    def __init__(self, library: ctypes.CDLL, index: int) -> None:
        self.index = index
        self.bus_id = f"00000000:{index + 4:02X}:00.0"
        handle = ctypes.c_void_p()
        library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        self.name = _text(library.nvmlDeviceGetName, handle)
        self.uuid = _text(library.nvmlDeviceGetUUID, handle)
        self.driver = _text(library.nvmlSystemGetDriverVersion)
        memory, utilization, degrees = _Memory(), _Utilization(), ctypes.c_uint()
        library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        self.total, self.free, self.used = (value >> 20 for value in (memory.total, memory.free, memory.used))
        library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization))
        self.utilization, self.memory_utilization = utilization.gpu, utilization.memory
        library.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(degrees))
        self.temperature = degrees.value
        milliwatts = ctypes.c_uint()
        library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts))
        self.watts = milliwatts.value / 1000
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
        self.capability = f"{major.value}.{minor.value}"
        count, processes = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
        self.processes = [
            App(self, process.pid, process.bytes >> 20) for process in processes[: min(count.value, _MOST_PROCESSES)]
        ]


class App:
    """A process on a GPU."""

    def __init__(self, gpu: Gpu, pid: int, used: int) -> None:
        self.gpu = gpu
        self.pid = pid
        self.used = used

    @property
    def name(self) -> str:
        try:
            with open(f"/proc/{self.pid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                return file.read().strip()
        except OSError:
            return "[Not Found]"


Fields = dict[str, tuple[Callable[[Any], object], str]]

FIELDS: Fields = {
    "timestamp": (lambda _: time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
    "index": (lambda gpu: gpu.index, ""),
    "name": (lambda gpu: gpu.name, ""),
    "gpu_name": (lambda gpu: gpu.name, ""),
    "uuid": (lambda gpu: gpu.uuid, ""),
    "gpu_uuid": (lambda gpu: gpu.uuid, ""),
    "pci.bus_id": (lambda gpu: gpu.bus_id, ""),
    "gpu_bus_id": (lambda gpu: gpu.bus_id, ""),
    "memory.total": (lambda gpu: gpu.total, "MiB"),
    "memory.used": (lambda gpu: gpu.used, "MiB"),
    "memory.free": (lambda gpu: gpu.free, "MiB"),
    "memory.reserved": (lambda _: 0, "MiB"),
    "utilization.gpu": (lambda gpu: gpu.utilization, "%"),
    "utilization.memory": (lambda gpu: gpu.memory_utilization, "%"),
    "temperature.gpu": (lambda gpu: gpu.temperature, ""),
    "power.draw": (lambda gpu: f"{gpu.watts:.2f}", "W"),
    "power.limit": (lambda gpu: f"{gpu.watts:.2f}", "W"),
    "pstate": (lambda _: "P0", ""),
    "driver_version": (lambda gpu: gpu.driver, ""),
    "compute_cap": (lambda gpu: gpu.capability, ""),
    "compute_mode": (lambda _: "Default", ""),
    "persistence_mode": (lambda _: "Enabled", ""),
    "display_active": (lambda _: "Disabled", ""),
    "display_mode": (lambda _: "Disabled", ""),
}
"""What `--query-gpu` asks for, with its unit."""

APP_FIELDS: Fields = {
    "pid": (lambda app: app.pid, ""),
    "name": (lambda app: app.name, ""),
    "process_name": (lambda app: app.name, ""),
    "used_memory": (lambda app: app.used, "MiB"),
    "used_gpu_memory": (lambda app: app.used, "MiB"),
    "gpu_uuid": (lambda app: app.gpu.uuid, ""),
    "gpu_name": (lambda app: app.gpu.name, ""),
    "gpu_bus_id": (lambda app: app.gpu.bus_id, ""),
    "timestamp": FIELDS["timestamp"],
}
"""What `--query-compute-apps` asks for, with its unit."""

_UNKNOWN = ("gpu_serial", "serial", "vbios_version", "fan.speed")
_UNKNOWN_KINDS = (
    "clocks.",
    "power.",
    "ecc.",
    "pci.",
    "pcie.",
    "temperature.",
    "encoder.",
    "mig.",
    "clocks_",
    "inforom.",
)
"""Fields of the genuine program that a simulated GPU has no value of."""


def main(arguments: Sequence[str]) -> int:
    """Print the answer and return the exit status."""
    library = ctypes.CDLL(NVML)
    library.nvmlInit_v2()
    if list(arguments) == ["topo", "-m"]:
        return _print_topology(_count(library))
    options, wrong = _parse(arguments)
    if wrong:
        print(f"Option {wrong} is not recognized, or not simulated. See nvidia-smi -h.", file=sys.stderr)
        return 6
    if "--filename" in options:
        sys.stdout = open(options["--filename"], "a", encoding="utf-8")  # noqa: PTH123, SIM115
    pause = float(options.get("--loop") or 0) or float(options.get("--loop-ms") or 0) / 1000
    while True:
        status = _answer(library, options)
        sys.stdout.flush()
        if status or not pause:
            return status
        time.sleep(pause)


def _parse(arguments: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return the options with their values, and the first one that is not known."""
    options = {}
    words = list(arguments)
    while words:
        name, is_joined, value = words.pop(0).partition("=")
        if name in _WITHOUT_VALUE and not is_joined:
            options[_WITHOUT_VALUE[name]] = ""
        elif name in _WITH_VALUE and (is_joined or words):
            options[_WITH_VALUE[name]] = value if is_joined else words.pop(0)
        else:
            return {}, name
    return options, ""


def _answer(library: ctypes.CDLL, options: dict[str, str]) -> int:
    """Print what is asked for once."""
    gpus = [Gpu(library, index) for index in range(_count(library))]
    if "--id" in options:
        identifiers = [word.strip() for word in options["--id"].split(",")]
        gpus = [gpu for gpu in gpus if {str(gpu.index), gpu.uuid, gpu.bus_id} & set(identifiers)]
        if not gpus:
            print("No devices were found")
            return 6
    output_format = [word.strip() for word in options.get("--format", "csv").split(",")]
    if "--help" in options:
        print(_USAGE)
    elif "--version" in options:
        print(f"NVIDIA-SMI version  : {gpus[0].driver}\nCUDA Version        : {_cuda(library)}")
    elif "--query-gpu" in options:
        return _print_query(gpus, FIELDS, options["--query-gpu"], output_format)
    elif "--query-compute-apps" in options:
        apps = [app for gpu in gpus for app in gpu.processes]
        return _print_query(apps, APP_FIELDS, options["--query-compute-apps"], output_format)
    elif "--list-gpus" in options:
        for gpu in gpus:
            print(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
    elif "--query" in options:
        _print_all(gpus, _cuda(library))
    else:
        _print_table(gpus, _cuda(library))
    return 0


def _print_query(rows: Sequence[object], fields: Fields, names: str, output_format: Sequence[str]) -> int:
    columns = []
    for name in (word.strip() for word in names.split(",")):
        if name in fields:
            columns.append((name, *fields[name]))
        elif fields is FIELDS and (name in _UNKNOWN or name.startswith(_UNKNOWN_KINDS)):
            columns.append((name, lambda _: "[N/A]", ""))
        else:
            print(f'Field "{name}" is not a valid field to query.', file=sys.stderr)
            return 2
    has_units = "nounits" not in output_format
    if "noheader" not in output_format:
        print(", ".join(f"{name} [{unit}]" if unit else name for name, _, unit in columns))
    for row in rows:
        print(
            ", ".join(f"{value(row)} {unit}" if unit and has_units else str(value(row)) for _, value, unit in columns)
        )
    return 0


def _print_all(gpus: Sequence[Gpu], cuda: str) -> None:
    print(f"\n==============NVSMI LOG==============\n\nDriver Version : {gpus[0].driver}\nCUDA Version   : {cuda}")
    print(f"Attached GPUs  : {len(gpus)}")
    for gpu in gpus:
        print(f"GPU {gpu.bus_id}\n    Product Name      : {gpu.name}\n    GPU UUID          : {gpu.uuid}")
        print(f"    FB Memory Usage\n        Total         : {gpu.total} MiB\n        Reserved      : 0 MiB")
        print(f"        Used          : {gpu.used} MiB\n        Free          : {gpu.free} MiB")
        print(f"    Utilization\n        GPU           : {gpu.utilization} %")
        print(f"        Memory        : {gpu.memory_utilization} %")
        for app in gpu.processes:
            print(f"    Process ID        : {app.pid}\n        Used GPU Memory : {app.used} MiB")


def _print_table(gpus: Sequence[Gpu], cuda: str) -> None:
    line = "+" + "-" * 77 + "+"
    version = f"NVIDIA-SMI {gpus[0].driver}    Driver Version: {gpus[0].driver}    CUDA Version: {cuda}"
    rows = [line, f"| {version:<75} |", line]
    for gpu in gpus:
        memory = f"{gpu.used}MiB / {gpu.total}MiB"
        rows += [f"| {f'{gpu.index}  {gpu.name:<40} {memory:>20} {gpu.utilization:>5}%':<75} |", line]
    rows += [
        f"| {f'{app.gpu.index}  {app.pid:>9}   {app.name:<40} {app.used}MiB':<75} |"
        for gpu in gpus
        for app in gpu.processes
    ]
    print("\n".join([*rows, line]))


def _print_topology(count: int) -> int:
    names = [f"GPU{index}" for index in range(count)]
    print("\t".join(["", *names]))
    for index, name in enumerate(names):
        print("\t".join([name, *("X" if index == other else "PHB" for other in range(count))]))
    return 0


def _count(library: ctypes.CDLL) -> int:
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return count.value


def _cuda(library: ctypes.CDLL) -> str:
    version = ctypes.c_int()
    library.nvmlSystemGetCudaDriverVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _text(function: Callable[..., int], *handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(96)
    function(*handle, buffer, ctypes.c_uint(len(buffer)))
    return buffer.value.decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
