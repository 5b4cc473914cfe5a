"""What simulated processes held of their GPUs' memory, read from the files that they map (`native/torch/statistics.h`).

A process writes while it runs, and what it wrote last is there after any end of it. So a file is read again if it
changed meanwhile, and one that is damaged or of another version counts as absent.
"""

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from shoestring.base.reading import read_bytes
from shoestring.base.units import MIB

PHASES = ("loading", "training", "evaluation", "generation", "saving", "other")
"""The phases of a process, by the numbers of `simulator_set_phase`."""

_MAGIC, _VERSION = b"SHOESTAT", 1
_HEADER = struct.Struct("<8s6Iq3Q")
_DEVICE = struct.Struct("<9Q")
_PEAK = struct.Struct("<3Q")
_SAMPLE = struct.Struct("<3Q2q")
_LARGEST_FILE = 32 * MIB
"""64 devices have some 10 MiB."""
_MOST_PROCESSES = 1000
_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class PhasePeak:
    """The most that was held in a phase, also of what was there before it."""

    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The most that was held within some consecutive events of the allocator."""

    event: int
    """The number of the last of these events, from 1."""
    update: int
    phase: str
    """The update and phase in which the most was allocated."""
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class DeviceStatistics:
    """What PyTorch's allocator held of a GPU."""

    index: int
    """As the process numbers its devices."""
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    out_of_memory_events: int
    phases: Mapping[str, PhasePeak]
    """Those that the process was in while it used the device."""
    timeline: tuple[Sample, ...]


@dataclass(frozen=True, kw_only=True)
class ProcessStatistics:
    """What a process held of its GPUs."""

    pid: int
    devices: tuple[DeviceStatistics, ...]
    """Those that it used."""


def read_statistics(folder: Path) -> list[ProcessStatistics]:
    """Return the statistics of all processes of a rehearsal that used a device, by process id."""
    paths = []
    for path in folder.glob("statistics.*"):
        if match := re.fullmatch(r"statistics\.([1-9][0-9]{0,9})", path.name):
            paths.append((int(match[1]), path))
    processes = (_read_process(pid, path) for pid, path in sorted(paths)[:_MOST_PROCESSES])
    return [process for process in processes if process is not None]


def _read_process(pid: int, path: Path) -> ProcessStatistics | None:
    content = b""
    for _ in range(_ATTEMPTS):
        with suppress(OSError, ValueError):
            content = read_bytes(path, follow=False, max_bytes=_LARGEST_FILE)
        if not any(_is_changing(content, start) for start in _device_starts(content)):
            break  # else the process writes, or was killed while it did
    devices = (_read_device(content, index, start) for index, start in enumerate(_device_starts(content)))
    used = tuple(device for device in devices if device is not None)
    return ProcessStatistics(pid=pid, devices=used) if used else None


def _device_starts(content: bytes) -> range:
    """Return where the records of the devices begin; none if it is not a file of this version."""
    if len(content) < _HEADER.size:
        return range(0)
    magic, header_bytes, device_bytes, devices, phases, samples, version, *_ = _HEADER.unpack_from(content)
    expected = _DEVICE.size + phases * _PEAK.size + samples * _SAMPLE.size
    if (magic, version, header_bytes, phases) != (_MAGIC, _VERSION, _HEADER.size, len(PHASES)):
        return range(0)
    if device_bytes != expected or len(content) != header_bytes + devices * device_bytes:
        return range(0)
    return range(header_bytes, len(content), device_bytes) if devices else range(0)


def _is_changing(content: bytes, start: int) -> bool:
    return bool(_DEVICE.unpack_from(content, start)[0] % 2)


def _read_device(content: bytes, index: int, start: int) -> DeviceStatistics | None:
    _, events, allocated, reserved, *peaks, failures, _, count = _DEVICE.unpack_from(content, start)
    capacity = _HEADER.unpack_from(content)[5]
    if events == 0 or count > capacity:
        return None
    start += _DEVICE.size
    phases = {}
    for number, name in enumerate(PHASES):
        entered, phase_allocated, phase_reserved = _PEAK.unpack_from(content, start + number * _PEAK.size)
        if entered:
            phases[name] = PhasePeak(allocated_bytes=phase_allocated, reserved_bytes=phase_reserved)
    start += len(PHASES) * _PEAK.size
    samples = (_SAMPLE.unpack_from(content, start + number * _SAMPLE.size) for number in range(count))
    return DeviceStatistics(
        index=index,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        peak_allocated_bytes=peaks[0],
        peak_reserved_bytes=peaks[1],
        out_of_memory_events=failures,
        phases=MappingProxyType(phases),
        timeline=tuple(
            Sample(
                event=event,
                update=update,
                phase=PHASES[phase] if 0 <= phase < len(PHASES) else "other",
                allocated_bytes=sample_allocated,
                reserved_bytes=sample_reserved,
            )
            for event, sample_allocated, sample_reserved, update, phase in samples
        ),
    )
