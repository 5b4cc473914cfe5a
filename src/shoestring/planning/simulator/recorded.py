"""Read the operators that simulated processes recorded (`native/torch/operator_log.h` has the format)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shoestring.base.errors import RunError
from shoestring.base.reading import parse_json, read_bytes, reason

TRAINING, EVALUATION, GENERATION = 1, 2, 3
"""The phases whose operators are recorded, by the numbers of `simulator_set_phase`."""

FORWARD, BACKWARD, OPTIMIZER, RECOMPUTATION = range(4)
"""The steps of a call."""

_MAGIC: Final = b"SHOEOPER"
_VERSION = 1
_HEADER = struct.Struct("<8sIIIIQ")
_PHASE = struct.Struct("<QQQQ")
_PHASES_AT, _PHASES, _WEIGHTS_AT = 64, 8, 4096
_RECORD = struct.Struct("<II")
_CALL = struct.Struct("<IHBBBxxx")
_UNIT = struct.Struct("<IIq")
_OPERATOR_RECORD, _SIGNATURE_RECORD, _CALL_RECORD, _SEGMENT_RECORD, _UNIT_RECORD = range(1, 6)

_LARGEST_FILE = 128 * 2**20
"""The simulator stops at 24 MiB; one unit may go beyond that."""

_ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("Bool", "Byte", "Char", "Float8_e4m3fn", "Float8_e5m2", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""The bytes of a value, by torch's name of its type; others count as one byte."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the dispatcher."""

    name: str
    """With its overload, such as `aten::add_.Tensor`."""
    arguments: tuple[str, ...]
    """The names of its arguments."""
    written: frozenset[int]
    """The indices of the arguments that it writes to."""
    aliases: frozenset[int]
    """The indices of the results that are its arguments, or views of them."""


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """A tensor that an operator read or wrote."""

    type: str
    """Torch's C++ name of the type of its values, such as `Half`."""
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    """Only of images that are not channels first."""
    on_gpu: bool = True

    @property
    def bytes(self) -> int:
        """The bytes of its values on a GPU; 0 on the host."""
        return math.prod(self.sizes) * _ITEM_BYTES.get(self.type, 1) if self.on_gpu else 0


@dataclass(frozen=True, slots=True)
class RecordedList:
    """A list of tensors: the first ones with the number of consecutive equal ones, and the size of the rest."""

    tensors: tuple[tuple[RecordedTensor | None, int], ...]
    left_out_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.left_out_bytes + sum(tensor.bytes * count for tensor, count in self.tensors if tensor)


Value = RecordedTensor | RecordedList | tuple[int, ...] | bool | int | None
"""An argument or a result; None also stands for those that do not matter for the time."""


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator with the shapes of its operands."""

    operator: Operator
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]

    def argument(self, name: str) -> Value:
        """Return an argument by its name; None if the operator has none of that name."""
        names = self.operator.arguments
        index = names.index(name) if name in names else len(self.arguments)
        return self.arguments[index] if index < len(self.arguments) else None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator with kernels."""

    signature: int
    """The index of its `Signature`."""
    views: int
    """Operators without a kernel that the thread called since the previous call."""
    step: int
    """`FORWARD`, `BACKWARD`, `OPTIMIZER` or `RECOMPUTATION`."""
    device: int
    is_other_thread: bool
    """Whether another thread than the process's first one called it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """An update, or elsewhere what the host queued until it waited for the device. Equal ones are stored once."""

    phase: int
    update: int
    """The number of the update under way when it ran first."""
    weight: int
    """How many units it stands for."""
    segments: tuple[int, ...]
    """The indices of sequences of calls: the microbatches of an update, then its optimizer's step."""


@dataclass(frozen=True, slots=True)
class PhaseTotal:
    """What a process did in a phase, also where it was only counted."""

    units: int
    sampled_units: int
    calls: int
    sampled_calls: int


@dataclass(frozen=True, kw_only=True)
class RecordedOperators:
    """The operators that one process called, in a file that is read as far as it is complete."""

    process: int
    is_full: bool
    """Whether later units were only counted, since the file had reached its limit."""
    signatures: tuple[Signature, ...]
    calls: tuple[Call, ...]
    segments: tuple[tuple[int, ...], ...]
    """Sequences of indices of `calls`."""
    units: tuple[Unit, ...]
    totals: Mapping[int, PhaseTotal] = field(default_factory=dict)
    """By phase."""

    def units_of(self, phase: int) -> tuple[Unit, ...]:
        """Return the stored units of a phase."""
        return tuple(unit for unit in self.units if unit.phase == phase)

    def calls_of(self, segment: int) -> Iterator[Call]:
        """Return the calls of a segment, in order."""
        return (self.calls[index] for index in self.segments[segment])


def read_folder(folder: Path) -> tuple[RecordedOperators, ...]:
    """Read the records of all processes in the folder of a rehearsal, in the order of their numbers.

    Raises RunError for a file that no simulator has written.
    """
    paths = [path for path in folder.glob("operators.*") if path.suffix[1:].isdecimal()]
    records = (read_operators(path) for path in sorted(paths, key=lambda path: int(path.suffix[1:])))
    return tuple(record for record in records if record is not None)


def read_operators(path: Path) -> RecordedOperators | None:
    """Read the record of one process; None if the process ended before it had written the header.

    Raises RunError if no simulator has written the file.
    """
    try:
        content = read_bytes(path, follow=False, max_bytes=_LARGEST_FILE)
    except (OSError, ValueError) as error:
        raise RunError(f"the operators in {path.name} cannot be read: {reason(error)}") from error
    if not content.strip(b"\0"):
        return None
    try:
        return _parse(content)
    except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
        raise RunError(f"{path.name} has no operators as the simulator records them: {error}") from error


def _parse(content: bytes) -> RecordedOperators:
    magic, version, process, header_bytes, capacity, is_full = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise ValueError("it does not begin with the mark of such files")
    if version != _VERSION:
        raise ValueError(f"its format has version {version}, not {_VERSION}")
    weights = struct.unpack_from(f"<{capacity}Q", content, _WEIGHTS_AT)
    reader = _Reader(weights)
    for kind, payload in _records(content, header_bytes):
        reader.add(kind, payload)
    totals = {
        phase: PhaseTotal(*_PHASE.unpack_from(content, _PHASES_AT + phase * _PHASE.size)) for phase in range(_PHASES)
    }
    return RecordedOperators(
        process=process,
        is_full=bool(is_full),
        signatures=tuple(reader.signatures),
        calls=tuple(reader.calls),
        segments=tuple(reader.segments),
        # The weight of a unit is counted after its record is written.
        units=tuple(unit for unit in reader.units if unit.weight),
        totals=totals,
    )


def _records(content: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the payload of each record, without a last one that is incomplete."""
    while start + _RECORD.size <= len(content):
        kind, size = _RECORD.unpack_from(content, start)
        start += _RECORD.size
        if start + size > len(content):
            return
        yield kind, content[start : start + size]
        start += size


class _Reader:
    """Collects records, and raises ValueError if one refers to another that is not there."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self.operators: list[Operator] = []
        self.signatures: list[Signature] = []
        self.calls: list[Call] = []
        self.segments: list[tuple[int, ...]] = []
        self.units: list[Unit] = []

    def add(self, kind: int, payload: bytes) -> None:
        if kind == _OPERATOR_RECORD:
            self.operators.append(_operator(parse_json(payload, strict=False)))
        elif kind == _SIGNATURE_RECORD:
            number, arguments, results = parse_json(payload, strict=False)
            operator = self.operators[_index(number, self.operators)]
            self.signatures.append(Signature(operator, tuple(map(_value, arguments)), tuple(map(_value, results))))
        elif kind == _CALL_RECORD:
            signature, views, step, device, is_other_thread = _CALL.unpack(payload)
            if step > RECOMPUTATION:
                raise ValueError(f"a call in step {step}")
            index = _index(signature, self.signatures)
            self.calls.append(Call(index, views, step, device, bool(is_other_thread)))
        elif kind == _SEGMENT_RECORD:
            self.segments.append(_indices(payload, self.calls))
        elif kind == _UNIT_RECORD:
            phase, _, update = _UNIT.unpack_from(payload)
            segments = _indices(payload[_UNIT.size :], self.segments)
            self.units.append(Unit(phase, update, self._weights[len(self.units)], segments))
        else:
            raise ValueError(f"a record of kind {kind}")


def _index(number: Any, rows: Sequence[Any]) -> int:
    if type(number) is not int or not 0 <= number < len(rows):
        raise ValueError(f"a reference to number {number} of {len(rows)}")
    return number


def _indices(payload: bytes, rows: Sequence[Any]) -> tuple[int, ...]:
    numbers = struct.unpack(f"<{len(payload) // 4}I", payload)
    if numbers:
        _index(max(numbers), rows)
    return numbers


def _operator(values: Mapping[str, Any]) -> Operator:
    return Operator(
        str(values["name"]),
        tuple(map(str, values["arguments"])),
        frozenset(map(int, values["written"])),
        frozenset(map(int, values["aliases"])),
    )


def _value(value: Any) -> Value:
    if isinstance(value, list):
        return _tensor(value)
    if isinstance(value, dict):
        if "list" in value:
            tensors = tuple((_tensor(tensor) if tensor else None, int(count)) for tensor, count in value["list"])
            return RecordedList(tensors, int(value.get("bytes", 0)))
        return tuple(map(int, value["ints"] if "ints" in value else value["bools"]))
    if value is None or isinstance(value, bool | int):
        return value
    raise ValueError(f"a value {value!r}")


def _tensor(values: list[Any]) -> RecordedTensor:
    name, sizes, *remainder = values
    strides = tuple(map(int, remainder[0])) if remainder and remainder[0] else None
    return RecordedTensor(str(name), tuple(map(int, sizes)), strides, on_gpu=len(remainder) < 2)
