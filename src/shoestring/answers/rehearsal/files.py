"""A rehearsal as files: its JSON, a page, and the time line of memory as a table."""

import csv
import json
from io import StringIO
from pathlib import Path

from shoestring.answers.rehearsal.document import document
from shoestring.answers.renderers.page.document import render
from shoestring.base.errors import UsageError
from shoestring.base.system_errors import explaining
from shoestring.runs.rehearse.rehearsal import Rehearsal

ANSWER, PAGE, MEMORY = "rehearsal.json", "rehearsal.html", "memory.csv"
_COLUMNS = ("device", "update", "phase", "allocated_bytes", "reserved_bytes")


def require_folder(folder: Path) -> None:
    """Raise UsageError if the files must not be written to `folder`: it has files, or is none."""
    with explaining(f"{folder} could not be written"):
        if folder.is_dir() and not any(folder.iterdir()):
            return
        if folder.is_symlink() or folder.exists():
            raise UsageError(f"{folder} exists", hint="choose another folder with --out, or remove it")


def write(rehearsal: Rehearsal, folder: Path) -> None:
    """Write `rehearsal.json`, `rehearsal.html` and `memory.csv`. Raises UsageError or RunError if that fails."""
    require_folder(folder)
    texts = {
        ANSWER: json.dumps(rehearsal.json(), indent=1, allow_nan=False) + "\n",
        PAGE: render(document(rehearsal)),
        MEMORY: _memory(rehearsal),
    }
    with explaining(f"{folder} could not be written"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # A path that is not UTF-8 contains characters that UTF-8 does not have.
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")


def _memory(rehearsal: Rehearsal) -> str:
    """Return the time line, with the capacity of a GPU in each row, so that a program can draw it."""
    capacity = rehearsal.target.device.memory_bytes
    stream = StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*_COLUMNS, "capacity_bytes"))
    writer.writerows((*(getattr(point, name) for name in _COLUMNS), capacity) for point in rehearsal.timeline)
    return stream.getvalue()
