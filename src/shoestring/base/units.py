"""Numbers with units: bytes, seconds and counts as text, and durations and sizes parsed from text."""

import re
from datetime import date, datetime, time, timedelta

KIB, MIB, GIB = 2**10, 2**20, 2**30

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_MOST_SECONDS = 100 * 365 * 86400.0
_MOST_BYTES = 2**63 - 1
_BYTES = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40}


def bytes_text(count: float) -> str:
    """Format bytes in a binary unit: ``14.56 GiB``, ``234 MiB``, ``512 B``."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            value = count / unit
            return f"{value:.2f} {name}" if value < 100 else f"{value:.0f} {name}"
    return f"{count:.0f} B"


def count_text(count: int) -> str:
    """Format a count with thousands separators: ``625,726``."""
    return f"{count:,}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Format a count with its noun: ``1 session``, ``2 sessions``; `nouns` is the plural if it is irregular."""
    return f"{count_text(count)} {noun if count == 1 else nouns or noun + 's'}"


def parameters_text(total: int, trainable: int) -> str:
    """Format the number of a model's parameters, with those that are trained if that is not all:
    ``211,680 parameters, 20,992 of them trained (9.92%)``.
    """
    trained = "" if trainable == total else f", {count_text(trainable)} of them trained ({trainable / total:.2%})"
    return f"{plural(total, 'parameter')}{trained}"


def seconds_text(seconds: float) -> str:
    """Format seconds: ``3.2 ms``, ``4.1 s``, ``2 min 05 s``, ``1 h 04 min``."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, remainder = divmod(round(seconds), 60)
        return f"{minutes} min {remainder:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def parse_seconds(text: str) -> float:
    """Parse seconds from ``90``, ``90s``, ``20m``, ``20min`` or ``1.5h``.

    Raises ``ValueError`` for anything else, negative and zero durations and more than a century included.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(h|min|m|s|)\s*", text)
    if not match or not float(match[1]):
        raise ValueError(f"{text!r} is not a duration; write 90s, 20m or 1.5h")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _MOST_SECONDS:
        raise ValueError(f"{text!r} is longer than a century; leave it out for no limit")
    return seconds


_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def parse_until(text: str, start: datetime) -> float:
    """Parse the seconds from `start` until the end of a day, ``sunday`` or ``2026-12-01``, or a duration, ``3d`` or
    ``40h``.

    Raises ``ValueError`` for anything else, and for a day in the past.
    """
    word = text.strip().lower()
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*d", word):
        return parse_seconds(f"{float(match[1]) * 24:.6f}h")
    if word in _WEEKDAYS:
        day = start.date() + timedelta(days=(_WEEKDAYS.index(word) - start.weekday()) % 7)
    elif re.fullmatch(r"\d{4}-\d\d-\d\d", word):
        day = date.fromisoformat(word)
    else:
        try:
            return parse_seconds(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a time; write sunday, 2026-12-01, 3d or 40h") from None
    seconds = (datetime.combine(day + timedelta(days=1), time.min, start.tzinfo) - start).total_seconds()
    if seconds <= 0:
        raise ValueError(f"{text!r} is in the past")
    return seconds


def parse_bytes(text: str) -> int:
    """Parse bytes from ``15GB`` (decimal, as platforms count), ``500MB`` or ``1.5GiB``.

    Raises ``ValueError`` for anything else, zero and more than a file system can have included.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", text)
    if not match or match[2] not in _BYTES or not float(match[1]):
        raise ValueError(f"{text!r} is not a size; write 15GB, 500MB or 1.5GiB")
    count = float(match[1]) * _BYTES[match[2]]
    if count > _MOST_BYTES:
        raise ValueError(f"{text!r} is more than any disk has; leave it out for no limit")
    return int(count)
