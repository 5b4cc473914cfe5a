"""Rows of predictions as files: JSON lines or CSV, written row by row, and counted again after a kill."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from shoestring.errors import RunError
from shoestring.reading import parse_json, read_lines

SUFFIXES = (".jsonl", ".csv")
"""The endings of a file of rows."""

_MAX_PENDING = 10_000
_FIRST_COLUMNS = ("id", "part", "input", "target", "prediction")


def is_row_file(path: Path) -> bool:
    """Return whether a path names a file of rows rather than a folder."""
    return path.suffix.lower() in SUFFIXES


def is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


class RowWriter:
    """Writes rows to an open text file.

    The columns of a CSV file are those of the first row without an error, and `error`. A value that is neither a text
    nor a number is JSON.
    """

    def __init__(self, file: TextIO, *, csv: bool, columns: Sequence[str] | None = None) -> None:
        """`columns` are those of a CSV file that already has rows."""
        self._file, self._csv, self._columns = file, csv, columns
        self._pending: list[Mapping[str, Any]] = []

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rows and flush the file. Raises OSError."""
        for row in rows:
            if not self._csv:
                self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            elif self._columns is None and "error" in row and len(self._pending) < _MAX_PENDING:
                self._pending.append(row)
            else:
                self._write_csv(row)
        self._file.flush()

    def finish(self) -> None:
        """Write the rows that wait for the first one without an error."""
        if self._pending and self._columns is None:
            self._write_columns(self._pending[0])
        self._file.flush()

    def _write_csv(self, row: Mapping[str, Any]) -> None:
        if self._columns is None:
            self._write_columns(row)
        assert self._columns is not None
        if unknown := row.keys() - set(self._columns):
            raise RunError(
                f"the row {row.get('id')} has the columns {', '.join(sorted(unknown))}, which the first row has not",
                hint="a CSV file has the same columns in every row: use a .jsonl file",
            )
        self._write_line([_cell(row.get(column)) for column in self._columns])

    def _write_columns(self, row: Mapping[str, Any]) -> None:
        first = [column for column in _FIRST_COLUMNS if column in row or column in ("id", "prediction")]
        recipe_columns = [column for column in row if column not in (*first, "error")]
        self._columns = [*first, *recipe_columns, "error"]
        self._write_line(self._columns)
        pending, self._pending = self._pending, []
        for waiting in pending:
            self._write_csv(waiting)

    def _write_line(self, cells: Sequence[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        self._file.write(text.getvalue())


@dataclass(frozen=True, kw_only=True)
class WrittenRows:
    """The complete rows of a file, whose last one a kill may have cut."""

    count: int
    errors: int
    bytes: int
    """The size of the complete rows, with the header."""
    columns: list[str] | None
    """The columns of a CSV file."""


def count_rows(path: Path) -> WrittenRows:
    """Return the complete rows of a file. Raises OSError and ValueError."""
    count = errors = size = position = 0
    columns: list[str] | None = None
    record = b""
    for line in read_lines(path, follow=True):
        if line is None:
            raise ValueError("it has a line that is too long")
        position += len(line)
        record += line
        if not line.endswith(b"\n") or (is_csv(path) and record.count(b'"') % 2):
            continue  # a line break within a cell, or an incomplete last row
        if is_csv(path) and columns is None:
            columns = next(csv.reader([record.decode()]))
        else:
            count += 1
            errors += _has_error(record, columns)
        size, record = position, b""
    return WrittenRows(count=count, errors=errors, bytes=size, columns=columns)


def _has_error(record: bytes, columns: list[str] | None) -> bool:
    if columns is None:
        return "error" in parse_json(record)
    cells = next(csv.reader(io.StringIO(record.decode(), newline="")))
    return bool(dict(zip(columns, cells, strict=False)).get("error"))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
