"""The rows of a file in JSON lines, JSON, CSV or Parquet.

Each reader yields places and rows, and raises OSError or ValueError where the file as a whole cannot be read.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from shoestring.base.packages import requirements
from shoestring.base.reading import (
    DATA_BYTES,
    LINE_BYTES,
    TEXT_BYTES,
    open_binary,
    open_table,
    parse_json,
    read_bytes,
    read_lines,
)
from shoestring.base.units import bytes_text, plural

PlacedRow: TypeAlias = tuple[str, dict[str, Any] | str]
"""A place, `line N` or `row N` from 1, and the row by column, or the reason why it cannot be read."""

Reader: TypeAlias = Callable[[Path, Collection[str]], Iterator[PlacedRow]]
"""Yields the rows of a file. The values of columns that are not wanted (the second argument) may be None."""

_PARQUET_ROWS = 64
_BOM = b"\xef\xbb\xbf"
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_SIGNATURES = {
    b"\x1f\x8b": "it is compressed with gzip",
    b"BZh": "it is compressed with bzip2",
    b"\xfd7zXZ": "it is compressed with xz",
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd",
    b"PK\x03\x04": "it is a ZIP archive",
    b"PAR1": "it is a Parquet file under another name",
    b"\xff\xfe": "it is text in UTF-16, not in UTF-8",
    b"\xfe\xff": "it is text in UTF-16, not in UTF-8",
}


def kind_of(value: object) -> str:
    """Return the kind of a JSON value, for messages: `a number`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    kinds = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), f"a value of the type {type(value).__name__}")


def _read_json_lines(path: Path, _: Collection[str]) -> Iterator[PlacedRow]:
    _require_text(path)
    for number, line in enumerate(read_lines(path, follow=True), start=1):
        if line is None:
            yield f"line {number}", f"has more than {bytes_text(LINE_BYTES)}"
            continue
        if number == 1:
            line = line.removeprefix(_BOM)
        line = line.rstrip(b"\r\n")
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            yield f"line {number}", json_problem(error)
        else:
            yield f"line {number}", _row(value)


def _read_json(path: Path, needed_columns: Collection[str]) -> Iterator[PlacedRow]:
    """Yield the rows of a list, of the one list in an object, or of JSON lines, which often have this name."""
    _require_text(path)
    content = read_bytes(path, follow=True, max_bytes=TEXT_BYTES).removeprefix(_BOM)
    if not content.strip():
        return
    try:
        value = parse_json(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8: {error.reason}") from error
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and content.lstrip().startswith(b"{"):
            yield from _read_json_lines(path, needed_columns)
            return
        message = error.msg.removesuffix(" at")
        raise ValueError(f"{message} in line {error.lineno}, character {error.colno}") from error
    if isinstance(value, dict) and not value.keys() & set(needed_columns):
        lists = [item for item in value.values() if isinstance(item, list)]
        if len(lists) != 1:
            raise ValueError("it is an object, but neither a row nor one list of rows under a name")
        (value,) = lists
    if not isinstance(value, list | dict):
        raise ValueError(f"it is {kind_of(value)}, not a list of rows")
    for number, row in enumerate(value if isinstance(value, list) else [value], start=1):
        yield f"row {number}", _row(row)


def _read_csv(path: Path, _: Collection[str]) -> Iterator[PlacedRow]:
    _require_text(path)
    with open_table(path) as text:
        # Bytes that are not UTF-8 become half characters, so that their row is known.
        text.reconfigure(errors="surrogateescape")  # type: ignore[attr-defined]
        reader = csv.reader(text, delimiter=_delimiter(path, text), strict=True)
        header: list[str] | None = None
        next_line = 1
        while (cells := _next_cells(reader, next_line)) is not None:
            line, next_line = next_line, reader.line_num + 1
            if not cells:
                continue
            is_text = not any(_NOT_UTF8.search(cell) for cell in cells)
            if header is None:
                header = [cell.strip() for cell in cells]
                if not is_text:
                    raise ValueError(f"its header, line {line}, is not UTF-8")
                _require_unique(header)
            elif len(cells) != len(header):
                yield f"line {line}", f"has {plural(len(cells), 'cell')}, but the header has {len(header)}"
            else:
                yield f"line {line}", dict(zip(header, cells, strict=True)) if is_text else "is not UTF-8"


def _delimiter(path: Path, text: TextIO) -> str:
    """Return the tab for .tsv, and for another name that of , ; and tab which the header has."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    header = text.readline(LINE_BYTES)
    text.seek(0)
    return next((delimiter for delimiter in (",", ";", "\t") if delimiter in header), ",")


def _next_cells(reader: Any, line: int) -> list[str] | None:
    """Return the next cells of a CSV file, which begin in `line`; None at its end."""
    limit = csv.field_size_limit(LINE_BYTES)  # of the whole process
    try:
        cells: list[str] | None = next(reader, None)
    except csv.Error as error:
        is_open = "unexpected end" in str(error) or "field limit" in str(error)
        problem = "a quote is never closed" if is_open else f"{error}; a quote inside a cell is written twice"
        raise ValueError(f"the row that begins in line {line} cannot be divided into cells: {problem}") from error
    finally:
        csv.field_size_limit(limit)
    return cells


def _read_parquet(path: Path, needed_columns: Collection[str]) -> Iterator[PlacedRow]:
    """Yield the rows of a Parquet file, of which a few are in memory, without keys that have no value in a row."""
    requirements.require("finetune", "pyarrow")
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    number = byte_count = 0
    try:
        with open_binary(path) as file:
            table = parquet.ParquetFile(file, pre_buffer=False)
            names = table.schema_arrow.names
            _require_unique(names)
            columns = [name for name in names if name in needed_columns]
            for batch in table.iter_batches(_PARQUET_ROWS, columns=columns, use_threads=False):
                byte_count += batch.nbytes
                if byte_count > DATA_BYTES:
                    raise ValueError(f"its rows have more than {bytes_text(DATA_BYTES)}")
                for index in range(batch.num_rows):
                    number += 1
                    yield f"row {number}", _parquet_row(batch, index, names)
    except arrow.ArrowException as error:
        raise ValueError(" ".join(str(error).split())) from error


def _parquet_row(batch: Any, index: int, names: list[str]) -> dict[str, Any] | str:
    try:
        (values,) = batch.slice(index, 1).to_pylist()
    except UnicodeDecodeError:
        return "is not UTF-8"
    return {**dict.fromkeys(names), **_without_none(values)}


def _without_none(value: Any) -> Any:
    """Return a value without the keys that only other rows have: Parquet gives every object the keys of all."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _require_text(path: Path) -> None:
    """Raise ValueError if the beginning of a file shows that it is no text in UTF-8."""
    with open_binary(path) as file:
        head = file.read(4096)
    for signature, problem in _SIGNATURES.items():
        if head.startswith(signature):
            raise ValueError(problem)
    if b"\0" in head:
        raise ValueError("it contains NUL characters, so it is no text in UTF-8")


def _require_unique(names: list[str]) -> None:
    if repeated := [name for number, name in enumerate(names) if name in names[:number]]:
        raise ValueError(f"it has two columns of the name {repeated[0]!r}")


def _row(value: Any) -> dict[str, Any] | str:
    return value if isinstance(value, dict) else f"is {kind_of(value)}, not an object with columns"


def json_problem(error: ValueError) -> str:
    """Return why a text is not JSON, with the position: `is not valid JSON: ... at character 7`."""
    if isinstance(error, json.JSONDecodeError):
        return f"is not valid JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8: {error.reason} at byte {error.start + 1}"
    return f"cannot be read: {error}"


READERS: Mapping[str, Reader] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
"""The readers by the ending of a file's name."""
