"""Which processes use how much of the simulated GPUs, read from the file that they share (`native/cuda/ledger.h`)."""

import struct
from contextlib import suppress
from pathlib import Path

from shoestring.base.reading import read_bytes
from shoestring.base.units import MIB

_HEADER = struct.Struct("<8s4IQ4Q16Q")
_SLOT = struct.Struct("<iI3Q16Q16Q16b")
_MAGIC, _VERSION = b"SHOELEDG", 2


def device_arenas(folder: Path) -> dict[int, tuple[int, int]]:
    """Return the addresses of each process's simulated device memory, as begin and end, by process id.

    Empty before a process has used a device, and for a file that is not a ledger.
    """
    arenas = {}
    for pid, _, _, begin, end, *_ in _slots(folder):
        if pid > 0 and begin < end:
            arenas[pid] = begin, end
    return arenas


def visible_gpus(folder: Path) -> dict[int, tuple[int, ...]]:
    """Return which GPU each device of a process is, by process id, as CUDA_VISIBLE_DEVICES numbers the devices."""
    return {slot[0]: tuple(gpu for gpu in slot[-16:] if gpu >= 0) for slot in _slots(folder) if slot[0] > 0}


def peak_bytes(folder: Path) -> list[int]:
    """Return the most that all processes together used of each GPU, with what lies outside of PyTorch's allocator."""
    header = _header(_content(folder))
    return list(header[10 : 10 + header[3]]) if header else []


def _slots(folder: Path) -> list[tuple[int, ...]]:
    content = _content(folder)
    header = _header(content)
    if header is None:
        return []
    count = min(header[2], (len(content) - _HEADER.size) // _SLOT.size)
    return [_SLOT.unpack_from(content, _HEADER.size + index * _SLOT.size) for index in range(count)]


def _content(folder: Path) -> bytes:
    with suppress(OSError, ValueError):
        return read_bytes(folder / "ledger", follow=False, max_bytes=MIB)
    return b""


def _header(content: bytes) -> tuple[int, ...] | None:
    """Return the fields of the header; None if it is not that of this version."""
    if len(content) < _HEADER.size:
        return None
    header = _HEADER.unpack_from(content)
    return header if header[0] == _MAGIC and header[1] == _VERSION and header[4] == _SLOT.size else None
