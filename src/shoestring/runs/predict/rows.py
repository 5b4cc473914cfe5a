"""Rows of predictions as files: JSON lines or CSV, written row by row, and read again after a kill."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.base.errors import RunError
from shoestring.base.reading import parse_json, read_blocks

SUFFIXES = (".jsonl", ".csv")
"""The endings of a file of rows."""

_FIRST_COLUMNS = ("id", "part", "input", "target", "prediction")
_LONGEST_CELL = 2**31 - 1


def is_row_file(path: Path) -> bool:
    """Return whether a path names a file of rows rather than a folder."""
    return path.suffix.lower() in SUFFIXES


def is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


class RowWriter:
    """Formats rows and passes their text on.

    The columns of a CSV file are those of the first row without an error, and `error`. A value that is neither a text
    nor a number is JSON.
    """

    def __init__(self, write: Callable[[str], object], *, csv: bool, columns: Sequence[str] | None = None) -> None:
        """`columns` are those of a CSV file that already has rows."""
        self._write, self._csv, self._columns = write, csv, columns
        self._pending: list[Mapping[str, Any]] = []  # rows with an error, before the columns are known

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rows. Raises OSError."""
        texts = (self._csv_text(row) if self._csv else _json_line(row) for row in rows)
        if text := "".join(texts):
            self._write(text)

    def finish(self) -> None:
        """Write the rows that wait for the first one without an error."""
        if self._pending and self._columns is None:
            self._write(self._header(self._pending[0]))

    def _csv_text(self, row: Mapping[str, Any]) -> str:
        header = ""
        if self._columns is None:
            if "error" in row:
                self._pending.append(row)
                return ""
            header = self._header(row)
        assert self._columns is not None
        if unknown := row.keys() - set(self._columns):
            raise RunError(
                f"the row {row.get('id')} has the columns {', '.join(sorted(unknown))}, which the first row has not",
                hint="a CSV file has the same columns in every row: use a .jsonl file",
            )
        return header + _csv_line([_cell(row.get(column)) for column in self._columns])

    def _header(self, row: Mapping[str, Any]) -> str:
        """Return the line of the columns, and the rows that have waited for it."""
        first = [column for column in _FIRST_COLUMNS if column in row or column in ("id", "prediction")]
        recipe_columns = [column for column in row if column not in (*first, "error")]
        self._columns = [*first, *recipe_columns, "error"]
        pending, self._pending = self._pending, []
        return _csv_line(self._columns) + "".join(map(self._csv_text, pending))


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
    """Return the complete rows of a file. Raises OSError, and ValueError if it is not a file of rows."""
    count = errors = 0
    records = _Records(path)
    for row in records:
        count += 1
        errors += bool(row.get("error"))
    return WrittenRows(count=count, errors=errors, bytes=records.bytes, columns=records.columns)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete rows of a file; those of CSV have texts. Raises as `count_rows` does."""
    return iter(_Records(path))


def read_ids(path: Path) -> Iterator[str]:
    """Yield the identifier of each complete row as text. Raises as `count_rows` does."""
    return (identifier_text(row.get("id")) for row in _Records(path))


def identifier_text(identifier: Any) -> str:
    """Return the text of an identifier, which is the same for a row of JSON and of CSV."""
    return _cell(identifier).encode(errors="replace").decode()


class _Records:
    """The complete rows of a file; for CSV texts by column."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.bytes = 0
        self.columns: list[str] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for record in _split(self._path):
            row = self._parse(record)
            self.bytes += len(record)
            if row is not None:
                yield row

    def _parse(self, record: bytes) -> dict[str, Any] | None:
        """Return a row; None for the header of a CSV file."""
        if not is_csv(self._path):
            row = parse_json(record)
            if not isinstance(row, dict):
                raise ValueError("it has a line that is no row")
            return row
        with _any_length():
            cells = next(csv.reader(io.StringIO(record.decode(), newline="")), [])
        if self.columns is None:
            self.columns = cells
            return None
        if len(cells) != len(self.columns):
            raise ValueError(f"it has a row of {len(cells)} cells, but {len(self.columns)} columns")
        return dict(zip(self.columns, cells, strict=True))


def _split(path: Path) -> Iterator[bytes]:
    """Yield the complete records of a file: lines, for CSV with the line breaks within quotes."""
    record, in_csv = b"", is_csv(path)
    for block in read_blocks(path, follow=True):
        *lines, remainder = block.split(b"\n")
        for line in lines:
            record += line + b"\n"
            if not (in_csv and record.count(b'"') % 2):
                yield record
                record = b""
        record += remainder


def _json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    # Python 3.11 does not quote a carriage return, which readers take for the end of a row.
    has_return = any("\r" in cell for cell in cells)
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if has_return else csv.QUOTE_MINIMAL).writerow(cells)
    return text.getvalue()


@contextmanager
def _any_length() -> Iterator[None]:
    """Let the module csv read cells of any length: they were written by this module."""
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)


def write_text(descriptor: int, text: str) -> None:
    """Write all of a text to an open file. Half characters, which UTF-8 does not have, become question marks.

    Raises OSError.
    """
    content = memoryview(text.encode(errors="replace"))
    while content:
        content = content[os.write(descriptor, content) :]
