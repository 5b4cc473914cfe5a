"""Rates of a device that were measured on it, and the JSON file that has them (`shoestring check --measure FILE`).

The file has timings as they were measured: of operators by name and shape, of the host, of copies. What they mean for a
prediction is decided when they are read (`planning/estimate/measured_rates.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, get_args

from shoestring.base.errors import RunError, UsageError
from shoestring.base.reading import COUNT, OBJECT, TEXT, Kind, find_problems, read_json, reason
from shoestring.base.settings import Precision
from shoestring.base.units import MIB

SUFFIX = ".json"
"""The end of the name of such a file, by which `--on` and `--calibrate` tell it from a target or a run."""
FORMAT, VERSION = "shoestring rates", 1
MAX_BYTES = 4 * MIB
"""The largest file that is read."""
_USUAL_BYTES = 300_000
_MAX_ROWS = 20_000
_MAX_PROBLEMS = 10
_HINT = "name a file that shoestring check --measure has written"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The seconds of something that was measured several times."""

    seconds: float
    """The median."""
    low: float
    high: float
    """The fastest and the slowest."""


@dataclass(frozen=True, kw_only=True)
class OperatorTiming(Timing):
    """The seconds of one call of an operator, with the properties that the trace of a recipe gives it."""

    operator: str
    """Such as `aten::mm`."""
    precision: Precision
    layout: str = ""
    """The memory format of a convolution's input and weight: `channels_first` or `channels_last`."""
    flops: int
    bytes: int
    """Bytes read and written if every operand is moved once."""
    launches: int = 1
    shape: tuple[int, ...] = ()
    """As in `planning/trace/products.py`; empty for operators that are neither products nor convolutions."""


@dataclass(frozen=True, kw_only=True)
class CopyTiming(Timing):
    """The seconds to move so many bytes."""

    kind: str
    """`host to device`, `device to host`, or `all-reduce` (between all GPUs)."""
    bytes: int


@dataclass(frozen=True, kw_only=True)
class MeasuredDevice:
    """The device that was measured."""

    name: str
    """Its name in the catalogue, or `cpu`."""
    title: str
    """Its name for people, such as "NVIDIA T4"."""
    kind: str
    """`cuda` or `cpu`."""
    memory_bytes: int
    """The device's memory; the RAM for a CPU."""
    compute_capability: tuple[int, int] | None = None
    """CUDA's (major, minor) version of the device's features; None for a CPU."""
    gpus: int
    """The number of GPUs of this model; 0 for a CPU."""
    cores: int
    """The hardware threads of the process."""
    threads: int
    """The threads with which torch computes on the CPU."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRates:
    """The content of a file."""

    file: str = ""
    """The path of the file, as the user gave it."""
    date: str
    """When it was measured, in ISO 8601."""
    device: MeasuredDevice
    """The device that was measured."""
    versions: Mapping[str, str] = field(hash=False)
    """By name: python, torch, cuda, cudnn, driver, shoestring."""
    warnings: tuple[str, ...] = ()
    """Why the timings may be wrong, such as other processes on the device."""
    operators: tuple[OperatorTiming, ...] = field(hash=False, repr=False)
    host: Mapping[str, Timing] = field(hash=False, repr=False)
    """The host's seconds for one operator, by what it does: see `HOST`."""
    copies: tuple[CopyTiming, ...] = ()

    @property
    def source(self) -> str:
        """The sentence part that names the file and its date."""
        return f"kernels measured on {self.device.title} on {self.date[:10]} ({self.file})"

    def summary(self) -> dict[str, str]:
        """Return the highest rates and the host's times, for people."""
        rates: dict[str, float] = {}
        for row in self.operators:
            layout = f" {row.layout.replace('_', ' ')}" if row.layout == "channels_last" else ""
            kind = _SUMMARIZED.get(row.operator)
            if kind:
                name = f"{kind}, {row.precision}{layout}"
                rates[name] = max(rates.get(name, 0.0), (row.flops or row.bytes) / row.seconds)
        units = {name: "GB/s" if name.startswith("memory") else "GFLOP/s" for name in rates}
        texts = {name: f"{rate / 1e9:,.0f} {units[name]}" for name, rate in rates.items()}
        hosts = {f"host, {name}": f"{timing.seconds * 1e6:.1f} us per operator" for name, timing in self.host.items()}
        largest = {copy.kind: copy for copy in sorted(self.copies, key=lambda copy: copy.bytes)}
        copies = {kind: f"{copy.bytes / copy.seconds / 1e9:.1f} GB/s" for kind, copy in largest.items()}
        return {**texts, **copies, **hosts}

    def json(self) -> dict[str, Any]:
        """Return the device, the versions and the summary: what `shoestring check --measure --json` prints.

        Keys:
            operators (integer): the number of operators and sizes that were measured
            summary (object of texts by name): the highest rates and the host's times, for people
        """
        return {
            "file": self.file, "date": self.date, "device": asdict(self.device), "versions": dict(self.versions),
            "warnings": list(self.warnings), "operators": len(self.operators), "summary": self.summary(),
        }  # fmt: skip

    @property
    def noise(self) -> tuple[float, float]:
        """Medians over all timings of the fastest and of the slowest, as shares of the typical one."""
        timings = (*self.operators, *self.host.values())
        fastest = median(timing.low / timing.seconds for timing in timings)
        return fastest, median(timing.high / timing.seconds for timing in timings)


_MAX_RATE = 1e16
"""FLOP/s; the fastest GPU of the catalogue has a tenth."""

REQUIRED = ("aten::mm", "aten::add.Tensor", "aten::_softmax", "aten::native_layer_norm")
"""Operators without whose timings, in fp32, there is no estimate."""
_WITH_SHAPE = ("aten::mm", "aten::bmm", "aten::convolution", "aten::convolution_backward")
_PRODUCT_LENGTH, _CONVOLUTION_LENGTH = 4, 11
"""Lengths of shapes in `planning/trace/products.py`; the last entry of a convolution's is 0 or 1, its layout."""

_SUMMARIZED: Mapping[str, str] = {
    "aten::mm": "products",
    "aten::convolution": "convolutions",
    "aten::add.Tensor": "memory, add",
    "aten::_softmax": "memory, softmax",
    "aten::native_layer_norm": "memory, norm",
}
"""The operators of `MeasuredRates.summary`."""

HOST: Mapping[str, str] = {
    "call": "an operator without gradients, with a kernel of a few values",
    "view": "an operator without a kernel",
    "forward": "an operator with a kernel in a forward pass of modules, which autograd records",
    "backward": "an operator with a kernel in a backward pass",
    "optimizer": "an operator with a kernel in a step of AdamW",
    "kernel": "the smallest kernel, from one to the next without the host",
}
"""What is measured of the host. On a CPU `kernel` is left out: the host runs the kernels."""

_SECONDS = Kind(name="a number of seconds from 1e-9 to 1e4", types=(int, float), low=1e-9, high=1e4)
_COUNTS = Kind(name=f"a list of at most {_CONVOLUTION_LENGTH} integers", types=(list,))
_TEXTS = Kind(name="a list of at most 20 texts", types=(list,))
_ROWS = Kind(name=f"a list of at most {_MAX_ROWS} objects", types=(list,))
_OPTIONAL_LIST = Kind(name="null or a list of two integers", types=(list, type(None)))
_TIMING = {"seconds": _SECONDS, "low": _SECONDS, "high": _SECONDS}
_KINDS: Mapping[str, Mapping[str, Kind]] = {
    "file": {
        "format": TEXT, "version": COUNT, "date": TEXT, "device": OBJECT, "versions": OBJECT, "warnings": _TEXTS,
        "operators": _ROWS, "host": OBJECT, "copies": _ROWS,
    },
    "device": {
        "name": TEXT, "title": TEXT, "kind": TEXT, "memory_bytes": COUNT, "compute_capability": _OPTIONAL_LIST,
        "gpus": COUNT, "cores": COUNT, "threads": COUNT,
    },
    "operator": {
        "operator": TEXT, "precision": TEXT, "layout": TEXT, "flops": COUNT, "bytes": COUNT, "launches": COUNT,
        "shape": _COUNTS, **_TIMING,
    },
    "timing": _TIMING,
    "copy": {"kind": TEXT, "bytes": COUNT, **_TIMING},
}  # fmt: skip
"""The keys of each object of the file, all of which it has, and no others."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "device.kind": ("cuda", "cpu"),
    "operator.precision": get_args(Precision),
    "operator.layout": ("", "channels_first", "channels_last"),
    "copy.kind": ("host to device", "device to host", "all-reduce"),
}


def content(measured: MeasuredRates) -> dict[str, Any]:
    """Return the content of the file as JSON."""
    fields = asdict(measured)
    del fields["file"]
    return {"format": FORMAT, "version": VERSION, **fields}


def write_measured(path: Path, measured: MeasuredRates) -> None:
    """Write the file, at once or not at all. Raises RunError if that is not possible."""
    # A row of a table on each line, for people who compare files.
    text = json.dumps(content(measured), allow_nan=False).replace('{"seconds"', '\n{"seconds"')
    write_at_once(path, f"{text}\n")


def write_at_once(path: Path, text: str) -> None:
    """Write a file, at once or not at all. Raises RunError if that is not possible."""
    with _temporary(path, text) as temporary:
        temporary.replace(path)


def require_space(path: Path) -> None:
    """Raise RunError if a file of the usual size cannot be written to `path`."""
    with _temporary(path, " " * _USUAL_BYTES):
        pass


@contextmanager
def _temporary(path: Path, text: str) -> Iterator[Path]:
    """Write a file beside `path`, which is removed at the end. Raises RunError if it cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            temporary.write_text(text, encoding="utf-8")
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {reason(error)}", hint="choose another file") from error


def has_rates(path: Path) -> bool:
    """Return whether a file is one of measured rates, also if they are damaged or of another version."""
    try:
        values = read_json(path, follow=True, max_bytes=MAX_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


def read_measured(path: Path) -> MeasuredRates:
    """Return the content of the file that the user names.

    Raises UsageError with the path and every problem (up to ten) if it is not one that `write_measured` has written.
    """
    try:
        values = read_json(path, follow=True, max_bytes=MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}", hint=_HINT) from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise UsageError(f"{path} has no measured rates", hint=_HINT)
    if values.get("version") != VERSION:
        raise UsageError(
            f"{path} has version {str(values.get('version'))[:20]!r} of the format, and this program reads {VERSION}",
            hint=_HINT,
        )
    problems = []
    for problem in _problems(values):
        problems.append(problem)
        if len(problems) == _MAX_PROBLEMS:
            break
    if problems:
        raise UsageError(f"{path} has damaged rates", problems=problems, hint=_HINT)
    device = {**values["device"], "compute_capability": _tuple(values["device"]["compute_capability"])}
    return MeasuredRates(
        file=str(path),
        date=values["date"],
        device=MeasuredDevice(**device),
        versions=values["versions"],
        warnings=tuple(values["warnings"]),
        operators=tuple(OperatorTiming(**{**row, "shape": tuple(row["shape"])}) for row in values["operators"]),
        host={name: Timing(**row) for name, row in values["host"].items()},
        copies=tuple(CopyTiming(**row) for row in values["copies"]),
    )


def _problems(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the file, the outer objects first: without them the inner ones are not looked at."""
    outer = [*_object_problems("file", values, "")]
    yield from outer
    if outer:
        return
    yield from _object_problems("device", values["device"], "device: ")
    if len(values["versions"]) > 20:
        yield "versions: there are more than 20"
    yield from _text_problems("versions", [*values["versions"], *values["versions"].values()])
    yield from _text_problems("warnings", values["warnings"])
    yield from _text_problems("date", [values["date"]])
    if not values["date"]:
        yield "date: is empty"
    yield from (f"host: {name[:40]!r} is unknown" for name in values["host"] if name not in HOST)
    yield from (f"host: {name} is missing" for name in HOST if name not in values["host"] and name != "kernel")
    for name, row in values["host"].items():
        yield from _object_problems("timing", row, f"host: {name[:40]}: ")
    for table, kind in (("operators", "operator"), ("copies", "copy")):
        for number, row in enumerate(values[table], 1):
            yield from _object_problems(kind, row, f"{table}: number {number}: ")
    names = [
        row.get("operator") for row in values["operators"] if isinstance(row, dict) and row.get("precision") == "fp32"
    ]
    yield from (f"operators: there is no {name} in fp32" for name in REQUIRED if name not in names)


def _object_problems(kind: str, values: Any, prefix: str) -> Iterator[str]:
    if not isinstance(values, dict):
        yield f"{prefix}{str(values)[:40]!r} is not {OBJECT.name}"
        return
    kinds = _KINDS[kind]
    yield from (f"{prefix}{name[:40]!r} is unknown" for name in values if name not in kinds)
    yield from (f"{prefix}{name} is missing" for name in kinds if name not in values)
    wrong = find_problems(values, kinds)
    yield from (prefix + problem for problem in wrong)
    if wrong or kinds.keys() != values.keys():
        return
    inner = [*_value_problems(kind, values, prefix)]
    yield from inner
    if inner:
        return
    if "seconds" in values and not values["low"] <= values["seconds"] <= values["high"]:
        yield f"{prefix}seconds: {values['seconds']:g} is not between low and high"
    if kind == "device":
        yield from _device_problems(values, prefix)
    if kind == "operator":
        yield from _operator_problems(values, prefix)


def _value_problems(kind: str, values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield which values of the right types are none of those that the keys may have."""
    kinds = _KINDS[kind]
    for name, value in values.items():
        choices = _CHOICES.get(f"{kind}.{name}")
        if choices is not None and value not in choices:
            yield f"{prefix}{name}: {value[:40]!r} is not one of {', '.join(filter(None, choices))}"
        elif isinstance(value, str):
            yield from (prefix + problem for problem in _text_problems(name, [value]))
        elif kinds[name] in (_COUNTS, _OPTIONAL_LIST) and value is not None:
            length_fits = len(value) <= _CONVOLUTION_LENGTH if kinds[name] is _COUNTS else len(value) == 2
            if not length_fits or not all(COUNT.matches(entry) and entry < 2**40 for entry in value):
                yield f"{prefix}{name}: {str(value)[:40]!r} is not {kinds[name].name}"
        elif (kinds[name] is _ROWS and len(value) > _MAX_ROWS) or (kinds[name] is _TEXTS and len(value) > 20):
            yield f"{prefix}{name}: {len(value)} are not {kinds[name].name}"


def _operator_problems(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    if not (values["bytes"] and values["launches"]):
        yield f"{prefix}bytes and launches have to be at least 1"
    sizes = values["shape"][: _CONVOLUTION_LENGTH - 1]
    layout = values["shape"][_CONVOLUTION_LENGTH - 1 :]
    if len(values["shape"]) not in (0, _PRODUCT_LENGTH, _CONVOLUTION_LENGTH) or not all(sizes) or layout > [1]:
        yield f"{prefix}shape: {str(values['shape'])[:60]} is not empty, and neither of a product nor of a convolution"
    has_products = values["shape"] or values["operator"].startswith("shoestring::recurrent")
    if has_products and not values["flops"]:
        yield f"{prefix}flops has to be at least 1 for {values['operator'][:40]!r}"
    if values["operator"] in _WITH_SHAPE and not values["shape"]:
        yield f"{prefix}shape is empty"
    if values["flops"] / values["seconds"] > _MAX_RATE:
        yield f"{prefix}flops: {values['flops']:g} in {values['seconds']:g} s are more than any device computes"


def _device_problems(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield what no device has: a GPU without a capability, no memory, or more GPUs than a machine takes."""
    is_gpu = values["kind"] == "cuda"
    if is_gpu != (values["compute_capability"] is not None) or is_gpu != bool(values["gpus"]):
        yield f"{prefix}compute_capability and gpus are those of a GPU, and of a CPU null and 0"
    if values["gpus"] > 64:
        yield f"{prefix}gpus: {values['gpus']} are more than 64"
    if not 2**20 <= values["memory_bytes"] <= 2**50:
        yield f"{prefix}memory_bytes: {values['memory_bytes']} is not between 1 MiB and 1 PiB"


def _text_problems(name: str, values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if not isinstance(value, str):
            yield f"{name}: {str(value)[:40]!r} is not text"
        elif len(value) > 400 or not value.isprintable():
            yield f"{name}: {value[:40]!r} is not a line of at most 400 characters"


def _tuple(values: list[int] | None) -> tuple[int, int] | None:
    return (values[0], values[1]) if values else None
