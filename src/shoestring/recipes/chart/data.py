"""Charts with one question each: read from a folder, or synthetic.

A folder has one JSON file, `[{"imgname": ..., "query": ..., "label": ...}, ...]`, and the images in `png/`; a row may
also have `chart_type`, `table` ({"columns": [...], "rows": [[...], ...]}) and `reasoning`, which the rewards then use.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.errors import DataError, UsageError
from shoestring.reading import TEXT_BYTES, read_json, reason
from shoestring.recipes.chart.synthetic import draw_chart, make_chart
from shoestring.recipes.rows import BadRows, OnBadRows

if TYPE_CHECKING:
    from PIL.Image import Image

INSTRUCTION = (
    "Answer the question about the chart. First think: name the type of chart, write its data as JSON with columns and"
    " rows, and reason in short steps, one a line. Then give the answer alone, as a number or a few words:\n"
    '<think>\n<type>bar</type>\n<table>{"columns": [...], "rows": [[...]]}</table>\nfirst step\nsecond step\n</think>\n'
    "<answer>...</answer>"
)
ANNOTATIONS = ("label", "chart_type", "table", "reasoning")
SYNTHETIC_NUMBERS = {"train": range(512), "validation": range(512, 544), "test": range(544, 576)}
"""Numbers of the synthetic charts by part of the data."""
VALIDATION, TEST = 0.1, 0.1


@dataclass(frozen=True)
class Chart:
    """A row: a question, its annotations, and the image as a file's path or a synthetic chart's number."""

    query: str
    annotations: dict[str, Any]
    path: Path | None = None
    number: int | None = None
    """Number of a synthetic chart."""
    id: str | int | None = None
    """Its own identifier; otherwise its position among all rows, from 0."""


@dataclass(frozen=True)
class Charts:
    """Rows in TRL's format: `prompt` (messages), `image`, and one entry per annotation, None where it is absent."""

    rows: list[Chart]
    size: tuple[int, int]
    """Width and height in pixels of every image."""
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": row.query}]
        annotations = {name: row.annotations.get(name) for name in ANNOTATIONS}
        return {"prompt": messages, "image": self._image(row), **annotations}

    def _image(self, row: Chart) -> Image:
        return _load_image(row.path, row.number, self.size).copy()


@functools.lru_cache(maxsize=64)
def _load_image(path: Path | None, number: int | None, size: tuple[int, int]) -> Image:
    """Load or draw an image. It is cached because TRL requests a row once for each of its completions."""
    from shoestring.recipes.images import open_image

    if path is None:
        assert number is not None
        return draw_chart(make_chart(number), size)
    try:
        return open_image(path).resize(size)
    except ValueError as error:
        raise DataError(str(error), hint="correct or remove its row; images are decoded when they are used") from error


def make_synthetic_parts(size: tuple[int, int]) -> dict[str, Charts]:
    """Return synthetic charts by part of the data."""
    note = "the data are synthetic charts, drawn from real prices (matplotlib's Stocks.csv); they are not EvoChart"
    parts = {}
    for name, numbers in SYNTHETIC_NUMBERS.items():
        charts = [(number, make_chart(number)) for number in numbers]
        rows = [
            Chart(query=chart.query, annotations=chart.annotations(), number=number, id=number)
            for number, chart in charts
        ]
        parts[name] = Charts(rows, size, [note])
    return parts


def read_parts(folder: Path, size: tuple[int, int], on_bad_rows: OnBadRows) -> dict[str, Charts]:
    """Read the rows of a folder, and split them: the last tenth tests, the tenth before it validates.

    The rows keep their order, so that charts of one source, which are adjacent, are mostly in one part.

    Raises UsageError for a folder of another layout, DataError listing every unusable row.
    """
    file = find_json_file(folder)
    try:
        values = read_json(file, follow=True, max_bytes=TEXT_BYTES, strict=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {reason(error)}") from error
    if not isinstance(values, list):
        raise UsageError(
            f"{file} contains no JSON list", hint='expected: [{"imgname": ..., "query": ..., "label": ...}, ...]'
        )
    problems = BadRows(on_bad_rows)
    rows = []
    for number, value in enumerate(values, start=1):
        chart, problem = _parse_row(value, folder / "png")
        if chart:
            rows.append(chart if chart.id is not None else replace(chart, id=number - 1))
        else:
            problems.report(file, number, problem)
    problems.finish(len(values))
    first, second = round(len(rows) * (1 - VALIDATION - TEST)), round(len(rows) * (1 - TEST))
    parts = {"train": rows[:first], "validation": rows[first:second], "test": rows[second:]}
    return {name: Charts(part, size, problems.notes) for name, part in parts.items() if part}


def find_json_file(folder: Path) -> Path:
    """Return the one JSON file in a folder. Raises UsageError if there are none or several."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if len(files) != 1:
        raise UsageError(
            f"{folder} has {len(files)} JSON files; exactly one is expected",
            hint="set data to a folder with one JSON file of rows and the images in png/",
        )
    return files[0]


def join_parts(parts: Mapping[str, Charts]) -> Charts:
    """Return the rows of all parts in their order."""
    first = parts["train"]
    return replace(first, rows=[row for part in parts.values() for row in part.rows])


def _parse_row(row: Any, images: Path) -> tuple[Chart | None, str]:
    """Return the chart of a row and "", or None and the reason why the row cannot be used."""
    from shoestring.recipes.images import verify_image

    if not isinstance(row, dict):
        return None, "is not a JSON object"
    missing = [name for name in ("imgname", "query", "label") if row.get(name) is None or not str(row[name]).strip()]
    if missing:
        return None, f"has no {', '.join(missing)}"
    if not _is_table(row.get("table")):
        return None, 'its table is not {"columns": [...], "rows": [[...], ...]}'
    path = images / str(row["imgname"])
    try:
        if path.resolve().parent != images.resolve():
            return None, f"its image {row['imgname']!r} is not in {images}"
        verify_image(path)
    except (OSError, ValueError, RuntimeError) as error:  # also a null byte in the path, or a cycle of links
        return None, f"its image cannot be read: {error}"
    annotations = {name: row[name] for name in ANNOTATIONS if row.get(name) is not None}
    identifier = row["id"] if isinstance(row.get("id"), str | int) else None
    annotations["label"] = str(row["label"])
    return Chart(query=str(row["query"]), annotations=annotations, path=path, id=identifier), ""


def _is_table(value: object) -> bool:
    """Return whether `value` is a table's columns and rows, or None."""
    if value is None:
        return True
    columns, rows = (value.get(name) for name in ("columns", "rows")) if isinstance(value, dict) else (None, None)
    return isinstance(columns, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)
