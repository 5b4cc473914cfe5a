"""Values from files that may lack them: found, checked, and said as a person says them."""

import json
import math
from datetime import UTC, datetime
from typing import Any

from shoestring.units import bytes_text, count_text, seconds_text

UNKNOWN = "\N{EN DASH}"


def dig(data: object, *keys: str) -> Any:
    """What lies under `keys` in nested JSON objects; `None` where the way there ends."""
    for key in keys:
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data


def number(value: object) -> float | None:
    """`value` if it can be drawn: a number, finite, no truth value."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def numbers(data: object) -> dict[str, float]:
    """Those entries of a JSON object that are numbers."""
    if not isinstance(data, dict):
        return {}
    return {name: found for name, value in data.items() if (found := number(value)) is not None}


def words(name: str) -> str:
    """A key as words: `macro_f1` is `macro f1`."""
    return name.replace("_", " ")


def label(name: str) -> str:
    """A key as words without its unit, which `named` writes with the value."""
    return words(name.removesuffix("_bytes").removesuffix("_seconds"))


def metric_text(value: object) -> str:
    found = number(value)
    if found is None:
        return UNKNOWN if value is None else str(value)
    return f"{found:.4g}" if abs(found) < 1e4 else f"{found:,.0f}"


def count(value: object) -> str:
    found = number(value)
    return UNKNOWN if found is None else count_text(round(found))


def plural(amount: int, word: str) -> str:
    return f"{count(amount)} {word}" if amount == 1 else f"{count(amount)} {word}s"


def size(value: object) -> str:
    found = number(value)
    return UNKNOWN if found is None else bytes_text(found)


def duration(value: object) -> str:
    found = number(value)
    return UNKNOWN if found is None else seconds_text(found)


def share(part: object, whole: object) -> str:
    """`part` of `whole` in percent."""
    some, all_of_it = number(part), number(whole)
    return UNKNOWN if some is None or not all_of_it else f"{some / all_of_it:.1%}"


def moment(value: object) -> str:
    """A time (unix seconds) in UTC, to the minute."""
    found = number(value)
    return UNKNOWN if found is None else datetime.fromtimestamp(found, UTC).strftime("%Y-%m-%d %H:%M UTC")


def named(name: str, value: object) -> str:
    """The value of a JSON key, in the unit that the key's name ends with."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{label(key)} {named(key, part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(named(name, part) for part in value)
    if name.endswith("bytes"):
        return size(value)
    if name.endswith("seconds"):
        return duration(value)
    return str(value) if isinstance(value, str | int) else metric_text(value)


def pretty_json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)
