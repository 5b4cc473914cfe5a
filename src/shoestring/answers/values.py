"""Lookup, validation and formatting of values from files that may lack them."""

import json
from datetime import UTC, datetime
from typing import Any

from shoestring.base.reading import number
from shoestring.base.units import bytes_text, count_text, seconds_text

UNKNOWN = "\N{EN DASH}"
_YEAR_10000 = 253_402_300_800
"""The first second, in unix time, that a datetime cannot represent."""


def lookup(data: object, *keys: str) -> Any:
    """Return the value under `keys` in nested JSON objects; `None` if a key is missing."""
    for key in keys:
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data


def numbers(data: object) -> dict[str, float]:
    """Return the entries of a JSON object that are finite numbers."""
    if not isinstance(data, dict):
        return {}
    return {name: parsed for name, value in data.items() if (parsed := number(value)) is not None}


def words(name: str) -> str:
    """Replace the underscores of a key: `macro_f1` becomes `macro f1`."""
    return name.replace("_", " ")


def label(name: str) -> str:
    """Format a key without its unit, which `value_text` adds to the value."""
    return words(name.removesuffix("_bytes").removesuffix("_seconds"))


def metric_text(value: object) -> str:
    parsed = number(value)
    if parsed is None:
        return UNKNOWN if value is None else str(value)
    return f"{parsed:.4g}" if abs(parsed) < 1e4 else f"{parsed:,.0f}"


def count(value: object) -> str:
    parsed = number(value)
    return UNKNOWN if parsed is None else count_text(round(parsed))


def size(value: object) -> str:
    parsed = number(value)
    return UNKNOWN if parsed is None else bytes_text(parsed)


def duration(value: object) -> str:
    parsed = number(value)
    return UNKNOWN if parsed is None else seconds_text(parsed)


def share(part: object, whole: object) -> str:
    """Format `part` as a percentage of `whole`."""
    numerator, denominator = number(part), number(whole)
    return UNKNOWN if numerator is None or not denominator else f"{numerator / denominator:.1%}"


def timestamp(value: object) -> str:
    """Format a time (unix seconds) in UTC, to the minute."""
    parsed = number(value)
    if parsed is None or not 0 <= parsed < _YEAR_10000:
        return UNKNOWN
    return datetime.fromtimestamp(parsed, UTC).strftime("%Y-%m-%d %H:%M UTC")


def value_text(name: str, value: object) -> str:
    """Format the value of a JSON key in the unit that the key's name ends with."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{label(key)} {value_text(key, part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(value_text(name, part) for part in value)
    if name.endswith("bytes"):
        return size(value)
    if name.endswith("seconds"):
        return duration(value)
    return str(value) if isinstance(value, str | int) else metric_text(value)


def pretty_json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)
