"""What is wrong with the content of a file of measured rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from shoestring.base.reading import COUNT, OBJECT, TEXT, Kind, find_problems
from shoestring.base.settings import Precision
from shoestring.hardware.measured import COPIES, HOST

_MAX_ROWS = 20_000
_MAX_RATE = 1e16
"""FLOP/s; the fastest GPU of the catalogue has a tenth."""
REQUIRED = ("aten::mm", "aten::add.Tensor", "aten::_softmax", "aten::native_layer_norm")
"""Operators without whose timings, in fp32, there is no estimate."""
_WITH_SHAPE = ("aten::mm", "aten::bmm", "aten::convolution", "aten::convolution_backward")
_PRODUCT_LENGTH, _CONVOLUTION_LENGTH = 4, 11
"""Lengths of shapes in `planning/trace/products.py`; the last entry of a convolution's is 0 or 1, its layout."""
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
    "copy.kind": tuple(COPIES),
}


def rate_problems(values: Mapping[str, Any]) -> Iterator[str]:
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
