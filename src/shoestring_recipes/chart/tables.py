"""Rows with their images in Arrow files, as `save_to_disk` of Hugging Face's datasets writes them, or in Parquet.

The columns are those of `sanchit97/chart-rvr-grpo-train`: `image` (the struct of `bytes` and `path` that the feature
Image writes, or bytes), `query`, `label` and optionally `chart_type`, `table`, `reasoning`; others, such as its
`prompt`, are not read. The path in a row is never opened. Files are mapped, so that images are read when they are used.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shoestring.base.packages.requirements import require
from shoestring.base.reading import DATA_BYTES, open_binary
from shoestring.base.units import bytes_text
from shoestring_recipes.chart.rows import COLUMNS, Chart, parse_row
from shoestring_recipes.images import MAX_BYTES, decode_image, verify_content

if TYPE_CHECKING:
    from PIL.Image import Image

    from shoestring_recipes.chart.presentation import Presentation

SUFFIXES = (".arrow", ".parquet")
_IMAGE = "image"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_ROWS_AT_ONCE = 256


class Table(Protocol):
    """A file whose rows are divided into groups."""

    schema: Any
    group_count: int

    def columns(self, group: int, names: list[str]) -> Any:
        """Return these columns of a group as a table of pyarrow."""
        ...


@dataclass(frozen=True, eq=False)
class EmbeddedImage:
    """An image in a cell."""

    table: Table
    group: int
    index: int
    name: str

    def load(self, presentation: Presentation) -> Image:
        cell = self.table.columns(self.group, [_IMAGE]).column(_IMAGE)[self.index].as_py()
        return presentation.fit(decode_image(_content(cell), f"the image of {self.name}"))


def read_table_rows(file: Path, presentation: Presentation) -> Iterator[Chart | str]:
    """Yield the chart of each row in an Arrow or Parquet file, or the reason why it cannot be used.

    Raises OSError and ValueError where the file as a whole cannot be read.
    """
    require("chart", "pyarrow")
    arrow: Any = import_module("pyarrow")
    try:
        table = _ParquetFile(file) if file.suffix == ".parquet" else _ArrowFile(file)
        _require_columns(arrow, table.schema)
        number = 0
        for group in range(table.group_count):
            for chart in _parse_group(table, group, presentation, file.name, number):
                number += 1
                yield chart
    except arrow.ArrowException as error:
        raise ValueError(f"it is damaged, or no file of this format: {' '.join(str(error).split())}") from error


def _parse_group(table: Table, group: int, presentation: Presentation, file: str, start: int) -> Iterator[Chart | str]:
    names = [name for name in table.schema.names if name in COLUMNS]
    rows = table.columns(group, [_IMAGE, *names])
    for first in range(0, rows.num_rows, _ROWS_AT_ONCE):
        for offset, row in enumerate(rows.slice(first, _ROWS_AT_ONCE).to_pylist()):
            index = first + offset
            image = EmbeddedImage(table, group, index, f"{file}, row {start + index + 1}")
            chart = parse_row(row, image)
            if isinstance(chart, str):
                yield chart
                continue
            try:
                presentation.check(verify_content(_content(row[_IMAGE]), "it"))
            except ValueError as error:
                yield f"its image cannot be used: {error}"
            else:
                yield chart


def _content(cell: Any) -> bytes:
    """Return the bytes of an image's cell. Raises ValueError if it has none."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if not content:
        path = cell.get("path") if isinstance(cell, dict) else None
        raise ValueError(f"it has no bytes, only the path {path!r}, which is not opened" if path else "it is missing")
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has {bytes_text(len(content))}, more than {bytes_text(MAX_BYTES)}")
    return bytes(content)


def _require_columns(arrow: Any, schema: Any) -> None:
    """Raise ValueError if a table lacks a column, or a column cannot have what it should."""
    names = schema.names
    missing = [name for name in (_IMAGE, "query", "label") if names.count(name) != 1]
    if missing:
        raise ValueError(
            f"it has no column {', '.join(missing)} (or several of a name); its columns are {', '.join(names)}"
        )
    types = arrow.types
    kind = schema.field(_IMAGE).type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise ValueError(f"its column image has the type {kind}, not an image with its bytes")
    kind = schema.field("query").type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise ValueError(f"its column query has the type {kind}, not text")


def _map(file: Path) -> Any:
    """Return the content of a file as a buffer of pyarrow that is not read before it is used."""
    arrow: Any = import_module("pyarrow")
    with open_binary(file, max_bytes=None) as opened_file:
        content = mmap.mmap(opened_file.fileno(), 0, access=mmap.ACCESS_READ)
    return arrow.py_buffer(content)


class _ArrowFile:
    """A stream of record batches: each is a group."""

    def __init__(self, file: Path) -> None:
        arrow: Any = import_module("pyarrow")
        ipc: Any = import_module("pyarrow.ipc")
        content = _map(file)
        if content.slice(max(content.size - 8, 0)).to_pybytes() != _END_OF_STREAM:
            raise ValueError("it is cut off, or no stream of Arrow as datasets writes it")
        reader = ipc.open_stream(content)
        self.schema = reader.schema
        self._batches, byte_count = [], 0
        for batch in reader:
            batch.validate(full=True)  # before anything else: pyarrow trusts the offsets of a batch
            byte_count += batch.nbytes
            if byte_count > max(content.size, DATA_BYTES):
                raise ValueError(f"its rows have more than {bytes_text(DATA_BYTES)} without their compression")
            self._batches.append(arrow.Table.from_batches([batch]))
        self.group_count = len(self._batches)

    def columns(self, group: int, names: list[str]) -> Any:
        return self._batches[group].select(names)


class _ParquetFile:
    """A Parquet file with its row groups, each of which is read as a whole."""

    def __init__(self, file: Path) -> None:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
        # Not the file itself: worker processes would share its position.
        self._file = parquet.ParquetFile(arrow.BufferReader(_map(file)), pre_buffer=False)
        self.schema = self._file.schema_arrow
        self.group_count = self._file.num_row_groups
        for group in range(self.group_count):
            size = self._file.metadata.row_group(group).total_byte_size
            if size > DATA_BYTES:
                raise ValueError(f"a row group has {bytes_text(size)}, more than {bytes_text(DATA_BYTES)}")

    def columns(self, group: int, names: list[str]) -> Any:
        table = self._file.read_row_group(group, columns=names, use_threads=False)
        table.validate(full=True)
        return table
