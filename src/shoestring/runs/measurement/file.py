"""The file of a measurement: written from a run, read from anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_json, reason
from shoestring.base.units import KIB
from shoestring.hardware.measured_file import write_at_once
from shoestring.runs.measurement.of_run import FORMAT, VERSION, measurement_of
from shoestring.runs.measurement.problems import problems_of

MAX_BYTES = 64 * KIB
"""The largest file that is read; a usual one has 5 KB."""
_MAX_PROBLEMS = 10
_HINT = "write it from the run: shoestring measured DIR --out FILE"


def text_of(measurement: dict[str, Any]) -> str:
    """Return the content of the file: JSON with one field in a line, for people who read it before they publish it."""
    return json.dumps(measurement, indent=1, allow_nan=False) + "\n"


def write(path: Path, measurement: dict[str, Any]) -> None:
    """Write the file, at once or not at all. Raises UsageError if another file is there, RunError if it cannot be."""
    if path.exists():
        raise UsageError(f"--out {path}: the file exists", hint="choose a new file")
    write_at_once(path, text_of(measurement))


def read(path: Path) -> dict[str, Any]:
    """Return the content of a file that may be damaged or invented.

    Raises UsageError with every problem (up to ten) if it is no measurement, or if no device can have its values.
    """
    try:
        values = read_json(path, follow=True, max_bytes=MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}", hint=_HINT) from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise UsageError(f"{path} is not a measurement", hint=_HINT)
    if values.get("version") != VERSION:
        raise UsageError(
            f"{path} has version {str(values.get('version'))[:20]!r} of the format, and this program reads {VERSION}",
            hint="use the version of Shoestring that has written it, or a newer one",
        )
    problems = list(problems_of(values))
    if problems:
        omitted = [f"and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else []
        raise UsageError(
            f"{path} is not credible as a measurement", problems=[*problems[:_MAX_PROBLEMS], *omitted], hint=_HINT
        )
    return values


def require_of_run(path: Path, run: Path) -> dict[str, Any]:
    """Return the content of a file after comparing it with the run that it is said to be of.

    Raises UsageError as `read` does, and if the run has another content.
    """
    values, expected = read(path), measurement_of(run)
    names = [name for name in expected if values.get(name) != expected[name] and name != "sha256"]
    if names:
        raise UsageError(
            f"{path} is not the measurement of the run in {run}",
            problems=[f"{name}: the run has other values" for name in names],
            hint="measured again after more updates, a run has another measurement",
        )
    return values
