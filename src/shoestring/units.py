"""Numbers with units: how the project writes bytes and seconds, and how it reads them from a person."""

import re

KIB, MIB, GIB = 2**10, 2**20, 2**30

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": MIB, "GiB": GIB, "TiB": 2**40}


def bytes_text(count: float) -> str:
    """Bytes in the binary unit a person would choose: ``14.56 GiB``, ``234 MiB``, ``512 B``."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            value = count / unit
            return f"{value:.2f} {name}" if value < 100 else f"{value:.0f} {name}"
    return f"{count:.0f} B"


def count_text(count: int) -> str:
    """A count with thousands set apart: ``625,726``."""
    return f"{count:,}"


def seconds_text(seconds: float) -> str:
    """Seconds as a person says them: ``3.2 ms``, ``4.1 s``, ``2 min 05 s``, ``1 h 04 min``."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def parse_seconds(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``20m``, ``20min`` or ``1.5h``.

    Raises ``ValueError`` for anything else, negative and zero durations included.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(h|min|m|s|)\s*", text)
    if not found or not float(found[1]):
        raise ValueError(f"{text!r} is no duration; write 90s, 20m or 1.5h")
    return float(found[1]) * _SECONDS[found[2]]


def parse_bytes(text: str) -> int:
    """Bytes from ``15GB`` (decimal, as platforms count), ``500MB`` or ``1.5GiB``.

    Raises ``ValueError`` for anything else, zero included.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", text)
    if not found or found[2] not in _BYTES or not float(found[1]):
        raise ValueError(f"{text!r} is no size; write 15GB, 500MB or 1.5GiB")
    return int(float(found[1]) * _BYTES[found[2]])
