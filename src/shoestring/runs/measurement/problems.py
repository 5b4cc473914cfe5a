"""What shows that a file is no measurement: fields of a wrong form, and values that no device can have.

A careful person can invent a file that passes. What then remains are the digests of the run's events and plan: a
maintainer can ask for both, and `shoestring measured --check FILE --run DIR` compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from shoestring.base.reading import COUNT, OBJECT, TEXT, Kind, find_problems
from shoestring.base.units import MIB, bytes_text, seconds_text
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.runs.measurement.of_run import CPU
from shoestring.training.checkpoint.files import matches_digest

_FIRST_DAY = date(2026, 11, 1)
"""No released version wrote such files before."""
_SEGMENT_BYTES = 2 * MIB
"""What PyTorch's allocator reserves is a multiple of this, with default and with expandable segments
(`kSmallBuffer` and `kRoundLarge` in c10/core/AllocatorConfig.h)."""
_MEMORY_TOLERANCE = 0.1
"""How far the memory of a GPU is from that of the catalogue: drivers and error correction reserve a part."""
_MOST_TEXT = 200
_NUMBER = Kind(name="a number from 0 to 1e15", types=(int, float), low=0, high=1e15)
_OPTIONAL = Kind(name="null or a number", types=(int, float, type(None)))
_FLAG = Kind(name="true or false", types=(bool,))
_LIST = Kind(name="a list", types=(list,))
_RANGE = {"value": _OPTIONAL, "low": _OPTIONAL, "high": _OPTIONAL}
KINDS: Mapping[str, Mapping[str, Kind]] = {
    "": {
        "format": TEXT, "version": COUNT, "date": TEXT, "versions": OBJECT, "device": OBJECT, "recipe": OBJECT,
        "predicted": OBJECT, "measured": OBJECT, "record": OBJECT, "sha256": TEXT,
    },
    "device": {
        "name": TEXT, "memory_bytes": COUNT, "processes": COUNT, "driver": TEXT, "cpu": TEXT, "cores": COUNT,
        "ram_bytes": COUNT, "simulated": _FLAG,
    },
    "recipe": {"name": TEXT, "options": OBJECT, "settings": OBJECT, "parameters": OBJECT},
    "recipe.parameters": {"total": COUNT, "trainable": COUNT},
    "predicted": {"memory": OBJECT, "update": OBJECT, "memory_parts": OBJECT, "run": OBJECT, "probed": _FLAG},
    "predicted.memory": _RANGE,
    "predicted.update": _RANGE,
    "measured": {
        "memory_bytes": COUNT, "update": OBJECT, "updates": COUNT, "waiting_seconds": _NUMBER, "out_of_memory": COUNT,
        "starting_seconds": _LIST, "saving": OBJECT, "evaluating": OBJECT, "sessions": _LIST,
    },
    "measured.update": {"value": _NUMBER, "low": _NUMBER, "high": _NUMBER},
    "measured.saving": {"count": COUNT, "seconds": _NUMBER, "bytes": _NUMBER},
    "measured.evaluating": {"count": COUNT, "seconds": _NUMBER},
    "record": {"events": COUNT, "events_sha256": TEXT, "plan_sha256": TEXT},
}  # fmt: skip
"""The fields of each object, by its path: it has all of them, and no others."""
SESSION = {"seconds": _NUMBER, "updates": COUNT, "ended": TEXT}
_SHA256 = re.compile("[0-9a-f]{64}")


def problems_of(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the content of a file; values are looked at only if all fields have the right form."""
    wrong_fields = [*_field_problems(values)]
    if wrong_fields:
        yield from wrong_fields
        return
    if not matches_digest(values):
        yield "sha256: the digest does not match the content, so the file was changed after it was written"
    yield from _date_problems(values["date"])
    yield from _device_problems(values["device"])
    yield from _memory_problems(values)
    yield from _time_problems(values)
    yield from _record_problems(values)


def same_runs(measurements: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield which files, by name, are of the same run, or have the same numbers in spite of another run."""
    for problem, key in (
        ("are of the same run", lambda values: values["record"]["events_sha256"]),
        ("have the same measured values", lambda values: _fingerprint(values["measured"])),
    ):
        names: dict[object, str] = {}
        for name, values in measurements.items():
            first = names.setdefault(key(values), name)
            if first != name:
                yield f"{first} and {name} {problem}"


def _fingerprint(measured: Mapping[str, Any]) -> tuple[object, ...]:
    return measured["memory_bytes"], measured["update"]["value"], measured["update"]["low"], measured["update"]["high"]


def _field_problems(values: Mapping[str, Any]) -> Iterator[str]:
    for path, kinds in KINDS.items():
        value: Any = values
        for name in filter(None, path.split(".")):
            value = value.get(name) if isinstance(value, Mapping) else None
        prefix = f"{path}: " if path else ""
        if not isinstance(value, Mapping):
            yield f"{prefix}{str(value)[:40]!r} is not {OBJECT.name}"
            return
        missing = [name for name in kinds if name not in value]
        yield from (f"{prefix}{name} is missing" for name in missing)
        yield from (f"{prefix}{str(name)[:40]!r} is unknown" for name in value if name not in kinds)
        yield from (prefix + problem for problem in find_problems(value, kinds))
        if missing:
            return
    for number, session in enumerate(values["measured"]["sessions"], 1):
        if not isinstance(session, Mapping) or session.keys() != SESSION.keys() or find_problems(session, SESSION):
            yield f"measured: sessions: number {number} is not an object with {', '.join(SESSION)}"
    yield from (f"{text[:40]!r} is longer than {_MOST_TEXT} characters" for text in _long_texts(values))


def _long_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        yield value
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list):
        parts = value
    for part in parts:
        yield from _long_texts(part)


def _date_problems(text: str) -> Iterator[str]:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        yield f"date: {text[:20]!r} is not a day in ISO 8601"
        return
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    if not _FIRST_DAY <= day <= tomorrow:
        yield f"date: {day} is not between {_FIRST_DAY} and today"


def _device_problems(device: Mapping[str, Any]) -> Iterator[str]:
    if device["simulated"]:
        yield "device: the run was on a simulated GPU"
    if (known := _in_catalogue(device["name"])) is None:
        return
    if abs(device["memory_bytes"] / known.memory_bytes - 1) > _MEMORY_TOLERANCE:
        yield (
            f"device: memory_bytes: {bytes_text(device['memory_bytes'])} is not that of {known.title} "
            f"({bytes_text(known.memory_bytes)})"
        )


def _memory_problems(values: Mapping[str, Any]) -> Iterator[str]:
    device, recipe, measured = values["device"], values["recipe"], values["measured"]["memory_bytes"]
    if measured > device["memory_bytes"]:
        yield f"measured: memory_bytes: {bytes_text(measured)} is more than the device has"
    if device["name"] == CPU:
        return
    if measured % _SEGMENT_BYTES:
        yield f"measured: memory_bytes: {measured} is not a multiple of 2 MiB, which PyTorch reserves on a GPU"
    settings, parameters = recipe["settings"], recipe["parameters"]
    is_whole = settings.get("offload") != "parameters" and settings.get("sharding") != "zero3"
    if is_whole and measured < parameters["total"] / 2 + 2 * parameters["trainable"]:
        yield f"measured: memory_bytes: {bytes_text(measured)} is less than the weights in the smallest types"


def _time_problems(values: Mapping[str, Any]) -> Iterator[str]:
    measured, update = values["measured"], values["measured"]["update"]
    if not 0 < update["low"] <= update["value"] <= update["high"]:
        yield "measured: update: value is not between low and high"
    if update["value"] == values["predicted"]["update"]["value"]:
        yield "measured: update: value is the predicted one to the last digit"
    seconds = sum(session["seconds"] for session in measured["sessions"])
    training = measured["updates"] * update["low"]
    if training > seconds:
        yield (
            f"measured: update: {measured['updates']} updates take at least {seconds_text(training)}, and all sessions "
            f"{seconds_text(seconds)}"
        )
    if measured["updates"] > sum(session["updates"] for session in measured["sessions"]):
        yield "measured: updates: there are more than the sessions have made"
    known = _in_catalogue(values["device"]["name"])
    if known and known.bandwidth and values["recipe"]["settings"].get("offload") == "no":
        # The optimizer reads a weight and its gradient and writes the weight: three times 2 bytes in the smallest type.
        trainable = values["recipe"]["parameters"]["trainable"] / max(1, values["device"]["processes"])
        least = 6 * trainable / known.bandwidth
        if update["low"] < least:
            yield (
                f"measured: update: {seconds_text(update['low'])} is less than {known.title} needs to read and write "
                f"the trained weights ({seconds_text(least)})"
            )


def _record_problems(values: Mapping[str, Any]) -> Iterator[str]:
    record = values["record"]
    for name in ("events_sha256", "plan_sha256"):
        if not _SHA256.fullmatch(record[name]):
            yield f"record: {name}: {record[name][:20]!r} is not a SHA-256 digest"
    if record["events"] < 2 * len(values["measured"]["sessions"]):
        yield f"record: events: {record['events']} are fewer than the sessions have"


def _in_catalogue(title: str) -> Device | None:
    return next((device for device in DEVICES.values() if device.title == title), None)
