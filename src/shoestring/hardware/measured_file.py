"""The JSON file that has measured rates."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shoestring.base.errors import RunError, UsageError
from shoestring.base.reading import read_json, reason
from shoestring.base.units import MIB
from shoestring.hardware.measured import CopyTiming, MeasuredDevice, MeasuredRates, OperatorTiming, Timing
from shoestring.hardware.measured_problems import rate_problems

SUFFIX = ".json"
"""The end of the name of such a file, by which `--on` and `--calibrate` tell it from a target or a run."""
FORMAT, VERSION = "shoestring rates", 1
MAX_BYTES = 4 * MIB
"""The largest file that is read."""
_USUAL_BYTES = 300_000
_MAX_PROBLEMS = 10
_HINT = "name a file that shoestring check --measure has written"


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
    for problem in rate_problems(values):
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


def _tuple(values: list[int] | None) -> tuple[int, int] | None:
    return (values[0], values[1]) if values else None
