"""Handmade files of recorded operators, in the format of `native/torch/operator_log.h`."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoestring.planning.simulator.recorded import TRAINING

HEADER_BYTES = 36864


class Writer:
    """Collects records, and gives each the number that the simulator would give it."""

    def __init__(self) -> None:
        self.content = bytearray(HEADER_BYTES)
        struct.pack_into("<8sIIIIQ", self.content, 0, b"SHOEOPER", 1, 77, HEADER_BYTES, 4096, 0)
        self._numbers: Counter[int] = Counter()

    def record(self, kind: int, payload: bytes) -> int:
        """Append a record and return its number."""
        self.content += struct.pack("<II", kind, len(payload)) + payload
        self._numbers[kind] += 1
        return self._numbers[kind] - 1

    def operator(
        self, name: str, arguments: Sequence[str], written: Sequence[int] = (), aliases: Sequence[int] = ()
    ) -> int:
        values = {"name": name, "arguments": list(arguments), "written": list(written), "aliases": list(aliases)}
        return self.record(1, json.dumps(values).encode())

    def signature(self, operator: int, arguments: Sequence[Any], results: Sequence[Any] = ()) -> int:
        return self.record(2, json.dumps([operator, list(arguments), list(results)]).encode())

    def call(
        self, signature: int, *, step: int = 0, views: int = 0, device: int = 0, is_other_thread: bool = False
    ) -> int:
        return self.record(3, struct.pack("<IHBBBxxx", signature, views, step, device, is_other_thread))

    def segment(self, calls: Sequence[int]) -> int:
        return self.record(4, struct.pack(f"<{len(calls)}I", *calls))

    def unit(self, segments: Sequence[int], *, weight: int = 1, phase: int = TRAINING, update: int = 0) -> int:
        number = self.record(5, struct.pack(f"<IIq{len(segments)}I", phase, 0, update, *segments))
        struct.pack_into("<Q", self.content, 4096 + 8 * number, weight)
        return number

    def totals(self, phase: int, units: int, sampled_units: int, calls: int, sampled_calls: int) -> None:
        struct.pack_into("<QQQQ", self.content, 64 + 32 * phase, units, sampled_units, calls, sampled_calls)

    def fill(self) -> None:
        """Mark the file as one that has reached its limit."""
        struct.pack_into("<Q", self.content, 24, 1)

    def write(self, folder: Path, process: int = 77) -> Path:
        path = folder / f"operators.{process}"
        path.write_bytes(self.content)
        return path


def tensor(*sizes: int, kind: str = "Float") -> list[Any]:
    """Return a tensor on a GPU as a signature has it."""
    return [kind, list(sizes)]
