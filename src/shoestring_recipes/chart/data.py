"""Charts with one question each: read from files, or synthetic.

`data` is a folder with one JSON file and `png/` or of ChartQA (`folders`), what `save_to_disk` has written
(`saved_datasets`), or Parquet: a folder or a file (`tables`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import DataError, UsageError
from shoestring.base.reading import reason
from shoestring_recipes.chart.folders import chartqa_files, find_json_file, read_json_rows
from shoestring_recipes.chart.presentation import Presentation
from shoestring_recipes.chart.rows import ANNOTATIONS, Chart, ImageSource, SyntheticImage
from shoestring_recipes.chart.saved_datasets import dataset_files, parquet_files
from shoestring_recipes.chart.shares import TEST, VALIDATION
from shoestring_recipes.chart.synthetic import make_chart
from shoestring_recipes.chart.tables import SUFFIXES, read_table_rows
from shoestring_recipes.rows import BadRows, OnBadRows

if TYPE_CHECKING:
    from PIL.Image import Image

SYNTHETIC_NUMBERS = {"train": range(512), "validation": range(512, 544), "test": range(544, 576)}
"""Numbers of the synthetic charts by part of the data."""


@dataclass(frozen=True)
class Charts:
    """Rows in TRL's format: `prompt` (messages), `image`, and one entry per annotation, None where it is absent."""

    rows: list[Chart]
    presentation: Presentation
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        annotations = {name: row.annotations.get(name) for name in ANNOTATIONS}
        image = _load_image(row.image, self.presentation).copy()
        return {"prompt": self.presentation.messages(row.query), "image": image, **annotations}

    def describe(self, index: int) -> dict[str, Any]:
        """Return the question, the image and the answer of a row."""
        row = self.rows[index]
        return {"query": row.query, "image": row.image.name, "label": str(row.annotations.get("label"))}


@functools.lru_cache(maxsize=64)
def _load_image(source: ImageSource, presentation: Presentation) -> Image:
    """Load or draw an image. It is cached because TRL requests a row once for each of its completions."""
    try:
        return source.load(presentation)
    except ValueError as error:
        raise DataError(str(error), hint="correct or remove its row; images are decoded when they are used") from error


def make_synthetic_parts(presentation: Presentation) -> dict[str, Charts]:
    """Return synthetic charts by part of the data."""
    note = "the data are synthetic charts, drawn from real prices (matplotlib's Stocks.csv); they are not EvoChart"
    parts = {}
    for name, numbers in SYNTHETIC_NUMBERS.items():
        charts = [(number, make_chart(number)) for number in numbers]
        rows = [
            Chart(query=chart.query, annotations=chart.annotations(), image=SyntheticImage(number), id=number)
            for number, chart in charts
        ]
        parts[name] = Charts(rows, presentation, [note])
    return parts


def read_parts(path: Path, presentation: Presentation, on_bad_rows: OnBadRows) -> dict[str, Charts]:
    """Read the rows of a folder or a file, by part of the data.

    Raises UsageError for another layout or files that cannot be read, DataError listing every unusable row.
    """
    read, files = _find_files(path)
    problems, position, unreadable = BadRows(on_bad_rows), 0, []
    parts: dict[str, list[Chart]] = {}
    for part, paths in files.items():
        rows = parts.setdefault(part, [])
        for file in paths:
            try:
                for number, chart in enumerate(read(file, presentation), start=1):
                    if isinstance(chart, str):
                        problems.report(file, number, chart)
                    else:
                        rows.append(chart if chart.id is not None else replace(chart, id=position))
                    position += 1
            except (OSError, ValueError) as error:
                unreadable.append(f"{file} cannot be read: {reason(error)}")
    if len(unreadable) == 1:
        raise UsageError(unreadable[0])
    if unreadable:
        raise UsageError(f"{len(unreadable)} files cannot be read", problems=unreadable)
    problems.finish(position)
    return {name: Charts(rows, presentation, problems.notes) for name, rows in _divide(parts).items() if rows}


def join_parts(parts: Mapping[str, Charts]) -> Charts:
    """Return the rows of all parts in their order."""
    first = parts["train"]
    return replace(first, rows=[row for part in parts.values() for row in part.rows])


ReadRows = Callable[[Path, Presentation], Iterator[Chart | str]]
"""Yields the chart of each row of a file, or the reason why it cannot be used."""


def _find_files(path: Path) -> tuple[ReadRows, dict[str, list[Path]]]:
    """Return the reader of `path`, and its files by part."""
    if path.is_file() and path.suffix in SUFFIXES:
        return read_table_rows, {"train": [path]}
    if files := dataset_files(path) or parquet_files(path):
        return read_table_rows, files
    if files := chartqa_files(path):
        if "train" not in files:
            raise UsageError(f"{path} has no rows to train on", hint="expected: train/train_human.json")
        return read_json_rows, files
    return read_json_rows, {"train": [find_json_file(path)]}


def _divide(parts: dict[str, list[Chart]]) -> dict[str, list[Chart]]:
    """Return the parts with a validation: if the data has none, the last rows of the training part.

    Of data without parts the last tenth tests, and the tenth before it validates. The rows keep their order, so that
    charts of one source, which are adjacent, are mostly in one part.
    """
    if "validation" in parts:
        return parts
    rows = parts["train"]
    if "test" in parts:
        end = round(len(rows) * (1 - VALIDATION))
        return {"train": rows[:end], "validation": rows[end:], "test": parts["test"]}
    first, second = round(len(rows) * (1 - VALIDATION - TEST)), round(len(rows) * (1 - TEST))
    return {"train": rows[:first], "validation": rows[first:second], "test": rows[second:]}
