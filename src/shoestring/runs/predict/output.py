"""Where rows of predictions are written: to standard output, a file, or a folder with further files.

Beside a file `predictions.jsonl`, `predictions.jsonl.meta.json` describes its origin: the recipe, the weights and the
inputs with their digests, and the options. A file that a kill or a limit has left incomplete is completed only by a
command with the same origin.
"""

import fcntl
import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from shoestring.base import streams
from shoestring.base.errors import RunError, UsageError
from shoestring.base.reading import read_json
from shoestring.base.system_errors import explain, explaining
from shoestring.runs.predict.predictions import FILES, without_files
from shoestring.runs.predict.predictor import Row
from shoestring.runs.predict.rows import (
    RowWriter,
    WrittenRows,
    count_rows,
    identifier_text,
    is_csv,
    is_row_file,
    read_ids,
    write_text,
)
from shoestring.training.checkpoint.files import remove_file, replace, sha256, sync, write_file, write_json

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
    size: int
    """The number of inputs to predict at once: less than `batch` after out-of-memory."""

    def check(self, identifiers: Sequence[Any]) -> None:
        """Compare the identifiers of inputs with those of the next rows that earlier commands have written.

        Raises UsageError if they differ.
        """

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows. Raises ShoestringError."""

    def reduce(self, size: int, message: str) -> None:
        """Record that only `size` inputs are predicted at once, because more did not fit into memory."""

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
    try:
        with explaining(f"{path} could not be written"):
            _lock(descriptor, path)
            written = _count(path)
            meta = _meta(path, origin, facts, batch, is_new=not written.bytes)
            _remove_incomplete_row(descriptor, path, written)
        yield RowsOnDisk(path, None if is_row_file(out) else out, descriptor, meta, written)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"{path} is being written by another process", hint="wait until it has ended") from error
    except OSError:
        return  # a filesystem without locks


class StandardOutput:
    """Rows as JSON lines on standard output."""

    is_complete = False

    def __init__(self, batch: int) -> None:
        self.rows = self.errors = 0
        self.batch = self.size = batch
        self._writer = RowWriter(streams.answer_stream().write, csv=False)

    def check(self, identifiers: Sequence[Any]) -> None:
        pass

    def write(self, rows: Sequence[Row]) -> None:
        self._writer.write(map(without_files, rows))
        streams.answer_stream().flush()
        if error := streams.lost_output():
            raise RunError(f"standard output could not be written: {error}")
        self.rows += len(rows)
        self.errors += sum("error" in row for row in rows)

    def reduce(self, size: int, message: str) -> None:
        pass

    def finish(self, facts: Mapping[str, Any]) -> None:
        pass


class RowsOnDisk:
    """Rows in a file, in a folder if the recipe's predictions have files."""

    def __init__(
        self, path: Path, folder: Path | None, descriptor: int, meta: dict[str, Any], written: WrittenRows
    ) -> None:
        self.rows, self.errors = written.count, written.errors
        self.batch, self.size = meta["batch"], min(meta["batch"], meta["size"])
        self.is_complete = meta["complete"] and meta["rows_sha256"] == sha256(path, follow=True)
        self._path, self._folder, self._descriptor, self._meta = path, folder, descriptor, meta
        self._ids = read_ids(path)
        self._file_names: set[str] = set()
        self._writer = RowWriter(partial(write_text, descriptor), csv=is_csv(path), columns=written.columns)

    def check(self, identifiers: Sequence[Any]) -> None:
        for identifier in identifiers:
            written = next(self._ids, None)
            if written != identifier_text(identifier):
                raise UsageError(
                    f"{self._path} cannot be continued: it has the row {written} where that of the input {identifier} "
                    "belongs, so it has changed since it was written",
                    hint="choose another --out, or remove the file",
                )

    def write(self, rows: Sequence[Row]) -> None:
        try:
            self._writer.write([self._write_contents(row) for row in rows])
        except OSError as error:
            raise explain(f"{self._path} could not be written", error, ", then repeat the command") from error
        self.rows += len(rows)
        self.errors += sum("error" in row for row in rows)

    def reduce(self, size: int, message: str) -> None:
        self._write_meta({"size": size, "out_of_memory": [*self._meta["out_of_memory"], message]})

    def finish(self, facts: Mapping[str, Any]) -> None:
        with explaining(f"{self._path} could not be written", ", then repeat the command"):
            self._writer.finish()
            os.fsync(self._descriptor)
            digest = sha256(self._path, follow=True)
        counts = {"rows": self.rows, "errors": self.errors, "complete": True, "rows_sha256": digest}
        self._write_meta({**facts, **counts})

    def _write_meta(self, changes: Mapping[str, Any]) -> None:
        self._meta = {**self._meta, **changes}
        with explaining(f"{meta_file(self._path)} could not be written", ", then repeat the command"):
            write_json(meta_file(self._path), self._meta)

    def _write_contents(self, row: Row) -> Row:
        """Write the files of a row, before the row itself, and return the row with their names."""
        contents = row.get(FILES)
        if not contents or self._folder is None:
            return without_files(row)
        for name, content in contents.items():
            path = self._folder / _safe_name(name)
            if name in self._file_names:
                raise RunError(
                    f"the predictions of two inputs have a file of the same name, {name!r}",
                    hint="the recipe's predict has to choose names that differ",
                )
            self._file_names.add(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, partial(write_file, chunks=[content() if callable(content) else content]))
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
    elif out.is_dir() and not meta_file(out / ROWS).exists():
        # A command that was killed at its start has left no more than an empty file, and hidden temporary ones.
        names = [path.name for path in out.iterdir() if not path.name.startswith(f".{ROWS}")]
        if names and (names != [ROWS] or (out / ROWS).stat().st_size):
            raise UsageError(
                f"{out} is not empty and has no {ROWS} of an earlier command", hint="choose an empty folder"
            )


def _meta(
    path: Path, origin: Mapping[str, Any], facts: Mapping[str, Any], batch: int, *, is_new: bool
) -> dict[str, Any]:
    """Return the stored description of the rows, or write a new one if there are no rows yet."""
    file = meta_file(path)
    for leftover in path.parent.glob(f".{glob.escape(file.name)}.*"):
        if leftover.name.rpartition(".")[2].isdecimal():  # the id of the process that was writing it
            remove_file(leftover)
    if is_new and (file.exists() or not path.stat().st_size):
        counts = {"batch": batch, "size": batch, "rows": 0, "errors": 0, "complete": False, "rows_sha256": None}
        meta = {"format": 1, **origin, **facts, **counts, "out_of_memory": []}
        write_json(file, meta)
        return meta
    try:
        stored = read_json(file)
    except FileNotFoundError:
        raise UsageError(
            f"{path} exists, and there is no {file.name} that tells where its rows are from",
            hint="choose another --out, or remove the file",
        ) from None
    except ValueError as error:
        raise UsageError(f"{file} cannot be read: {error}", hint="choose another --out") from error
    stored = stored if isinstance(stored, dict) else {}
    differences = [
        f"{name}: {_short(old)}, now {_short(new)}" for name, (old, new) in _pairs(stored, origin).items() if old != new
    ]
    if differences:
        raise UsageError(
            f"{path} has rows of another run, other data or other options",
            problems=differences,
            hint="choose another --out, or repeat the command that has begun the file",
        )
    kinds = {"batch": int, "size": int, "complete": bool, "out_of_memory": list}
    is_valid = all(type(stored.get(name)) is kind for name, kind in kinds.items())
    if not is_valid or "rows_sha256" not in stored or min(stored["batch"], stored["size"]) < 1:
        raise UsageError(f"{file} is damaged", hint="choose another --out")
    return stored


def _pairs(stored: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return each fact of the origin as it is stored and as it is now, the options one by one."""
    options, stored_options = origin["options"], stored.get("options")
    stored_options = stored_options if isinstance(stored_options, dict) else {}
    facts = {name: (stored.get(name), value) for name, value in origin.items() if name != "options"}
    names = sorted(options.keys() | stored_options.keys())
    return {**facts, **{name: (stored_options.get(name), options.get(name)) for name in names}}


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _count(path: Path) -> WrittenRows:
    try:
        return count_rows(path)
    except ValueError as error:
        raise UsageError(f"{path} cannot be continued: {error}", hint="choose another --out") from error


def _remove_incomplete_row(descriptor: int, path: Path, written: WrittenRows) -> None:
    """Remove what a kill has left of the last row. The file is at its end then."""
    if written.bytes < path.stat().st_size:
        os.ftruncate(descriptor, written.bytes)
    os.lseek(descriptor, 0, os.SEEK_END)
    sync(path.parent)
