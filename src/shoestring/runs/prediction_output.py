"""Where rows of predictions are written: to standard output, a file, or a folder with further files.

Beside a file `predictions.jsonl`, `predictions.jsonl.meta.json` describes its origin: the recipe, the weights and the
inputs with their digests, and the options. A file that a kill or a limit has left incomplete is completed only by a
command with the same origin.
"""

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from shoestring import streams
from shoestring.checkpoint.files import replace, sync, write_file, write_json
from shoestring.errors import RunError, UsageError
from shoestring.reading import read_json
from shoestring.runs.predictions import FILES, without_files
from shoestring.runs.predictor import Row
from shoestring.runs.rows import RowWriter, WrittenRows, count_rows, is_csv, is_row_file
from shoestring.system_errors import explain, explaining

ROWS = "predictions.jsonl"
"""The name of the rows in a folder."""


class Output(Protocol):
    """Where rows are written."""

    rows: int
    """The number of rows, with those that earlier commands have written."""
    errors: int
    """The number of these rows that have an error."""
    is_complete: bool
    """Whether an earlier command has written all rows."""
    batch: int
    """The number of inputs that are read at a time, as in earlier commands."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows. Raises ShoestringError."""

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Record that all rows are written, with further facts."""


def meta_file(path: Path) -> Path:
    """Return the file that describes the origin of the rows in `path`."""
    return path.with_name(f"{path.name}.meta.json")


@contextmanager
def open_output(
    out: Path | None, origin: Mapping[str, Any], facts: Mapping[str, Any], *, batch: int
) -> Iterator[Output]:
    """Open the output for the rows of a prediction, and lock it.

    `origin` decides whether existing rows are completed; `facts` are only recorded.

    Raises UsageError if there are rows of another origin or of unknown origin, or if another process writes them.
    """
    if out is None:
        yield StandardOutput(batch)
        return
    path = out if is_row_file(out) else out / ROWS
    with explaining(f"{path} could not be written"):
        _require_usable(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    with os.fdopen(descriptor, "r+", encoding="utf-8", newline="") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{path} is being written by another process", hint="wait until it has ended") from error
        except OSError:
            pass  # a filesystem without locks
        with explaining(f"{path} could not be written"):
            meta = _meta(path, origin, facts, batch)
            written = _continue(path, file)
            yield RowsOnDisk(path, None if is_row_file(out) else out, file, meta, written)


class StandardOutput:
    """Rows as JSON lines on standard output."""

    is_complete = False

    def __init__(self, batch: int) -> None:
        self.rows = self.errors = 0
        self.batch = batch
        self._writer = RowWriter(sys.stdout, csv=False)

    def write(self, rows: Sequence[Row]) -> None:
        self._writer.write([without_files(row) for row in rows])
        if error := streams.lost_output():
            raise RunError(f"standard output could not be written: {error}")
        self.rows += len(rows)
        self.errors += sum("error" in row for row in rows)

    def finish(self, facts: Mapping[str, Any]) -> None:
        pass


class RowsOnDisk:
    """Rows in a file, in a folder if the recipe's predictions have files."""

    def __init__(self, path: Path, folder: Path | None, file: Any, meta: dict[str, Any], written: WrittenRows) -> None:
        self.rows, self.errors = written.count, written.errors
        self.is_complete, self.batch = meta["complete"] and meta["rows"] == written.count, meta["batch"]
        self._path, self._folder, self._file, self._meta = path, folder, file, meta
        self._writer = RowWriter(file, csv=is_csv(path), columns=written.columns)

    def write(self, rows: Sequence[Row]) -> None:
        try:
            self._writer.write([self._write_contents(row) for row in rows])
        except OSError as error:
            raise explain(f"{self._path} could not be written", error, ", then repeat the command") from error
        self.rows += len(rows)
        self.errors += sum("error" in row for row in rows)

    def finish(self, facts: Mapping[str, Any]) -> None:
        with explaining(f"{self._path} could not be written", ", then repeat the command"):
            self._writer.finish()
            os.fsync(self._file.fileno())
            write_json(
                meta_file(self._path),
                {**self._meta, **facts, "rows": self.rows, "errors": self.errors, "complete": True},
            )

    def _write_contents(self, row: Row) -> Row:
        """Write the files of a row, before the row itself, and return the row with their names."""
        contents = row.get(FILES)
        if not contents or self._folder is None:
            return without_files(row)
        for name, content in contents.items():
            path = self._folder / _safe_name(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, lambda temporary: write_file(temporary, [content() if callable(content) else content]))  # noqa: B023
        return {**row, FILES: list(contents)}


def _safe_name(name: str) -> str:
    """Return a file's relative name. Raises RunError if it leads out of the folder, or replaces the rows."""
    path = PurePosixPath(name)
    is_own = path.parts[:1] in ((), (ROWS,), (meta_file(Path(ROWS)).name,))
    if path.is_absolute() or ".." in path.parts or "\0" in name or is_own:
        raise RunError(f"a prediction has a file named {name!r}: not a name for a file in the output folder")
    return name


def _require_usable(out: Path) -> None:
    """Raise UsageError if the path is a folder with other files, or a folder instead of a file or the reverse."""
    if is_row_file(out):
        if out.is_dir():
            raise UsageError(f"{out} is a folder", hint="choose another name for the file of rows")
    elif out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", hint="--out ends in .jsonl or .csv for a file; anything else is a folder")
    elif out.is_dir() and any(out.iterdir()) and not meta_file(out / ROWS).exists():
        raise UsageError(f"{out} is not empty and has no {ROWS} of an earlier command", hint="choose an empty folder")


def _meta(path: Path, origin: Mapping[str, Any], facts: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Return the stored description of the rows, or write a new one."""
    file = meta_file(path)
    meta = {"format": 1, **origin, **facts, "batch": batch, "rows": 0, "errors": 0, "complete": False}
    try:
        stored = read_json(file)
    except FileNotFoundError:
        if path.stat().st_size:
            raise UsageError(
                f"{path} exists, and there is no {file.name} that tells where its rows are from",
                hint="choose another --out, or remove the file",
            ) from None
        write_json(file, meta)
        return meta
    except ValueError as error:
        raise UsageError(f"{file} cannot be read: {error}", hint="choose another --out") from error
    stored = stored if isinstance(stored, dict) else {}
    differences = [
        f"{name}: {_short(stored.get(name))}, now {_short(value)}"
        for name, value in origin.items()
        if stored.get(name) != value
    ]
    if differences:
        raise UsageError(
            f"{path} has rows of another run, other data or other options",
            problems=differences,
            hint="choose another --out, or repeat the command that has begun the file",
        )
    kinds = {"batch": int, "rows": int, "complete": bool}
    if any(type(stored.get(name)) is not kind for name, kind in kinds.items()) or stored["batch"] < 1:
        raise UsageError(f"{file} is damaged", hint="choose another --out")
    return stored


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _continue(path: Path, file: Any) -> WrittenRows:
    """Remove an incomplete last row, and return the complete ones. The file is at their end."""
    try:
        written = count_rows(path)
    except ValueError as error:
        raise UsageError(f"{path} cannot be continued: {error}", hint="choose another --out") from error
    if written.bytes < path.stat().st_size:
        file.truncate(written.bytes)
    file.seek(0, os.SEEK_END)
    sync(path.parent)
    return written
