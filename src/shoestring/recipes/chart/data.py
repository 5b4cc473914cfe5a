"""Charts with a question each: read from a folder, or drawn.

A folder has one JSON file, `[{"imgname": ..., "query": ..., "label": ...}, ...]`, and the images in `png/`; a row may
also have `chart_type`, `table` ({"columns": [...], "rows": [[...], ...]}) and `reasoning`, which rewards then use.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.errors import UsageError
from shoestring.recipes.chart.drawn import drawn, image
from shoestring.recipes.rows import OnBadRows, Rows

if TYPE_CHECKING:
    from PIL.Image import Image

INSTRUCTION = (
    "Answer the question about the chart. First think: name the type of chart, write its data as JSON with columns and"
    " rows, and reason in short steps, one a line. Then give the answer alone, as a number or a few words:\n"
    '<think>\n<type>bar</type>\n<table>{"columns": [...], "rows": [[...]]}</table>\nfirst step\nsecond step\n</think>\n'
    "<answer>...</answer>"
)
KNOWN = ("label", "chart_type", "table", "reasoning")
DRAWN = {"train": range(512), "validation": range(512, 544), "test": range(544, 576)}
"""Numbers of the charts in each part."""
VALIDATION, TEST = 0.1, 0.1


@dataclass(frozen=True)
class Chart:
    """A row: where its image comes from, the question, and what is known."""

    query: str
    known: dict[str, Any]
    path: Path | None = None
    number: int | None = None
    """Of a chart to draw."""


@dataclass(frozen=True)
class Charts:
    """Rows as TRL takes them: `prompt` (messages), `image` and one entry for each thing that may be known."""

    rows: list[Chart]
    size: tuple[int, int]
    """Width and height in pixels of every image."""
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": row.query}]
        return {"prompt": messages, "image": self._image(row), **{name: row.known.get(name) for name in KNOWN}}

    def _image(self, row: Chart) -> Image:
        return _pixels(row.path, row.number, self.size).copy()


@functools.lru_cache(maxsize=64)
def _pixels(path: Path | None, number: int | None, size: tuple[int, int]) -> Image:
    """Kept a while: TRL asks for a row once for each of its completions."""
    from PIL import Image as Pillow

    if path is None:
        assert number is not None
        return image(drawn(number), size)
    with Pillow.open(path) as found:
        return found.convert("RGB").resize(size)


def drawn_parts(size: tuple[int, int]) -> dict[str, Charts]:
    """Charts of our own, by part."""
    note = "the charts are drawn from real prices (matplotlib's Stocks.csv) and no one else's: not EvoChart"
    parts = {}
    for name, numbers in DRAWN.items():
        charts = [(number, drawn(number)) for number in numbers]
        rows = [Chart(query=chart.query, known=chart.known(), number=number) for number, chart in charts]
        parts[name] = Charts(rows, size, [note])
    return parts


def read_parts(folder: Path, size: tuple[int, int], on_bad_rows: OnBadRows) -> dict[str, Charts]:
    """The rows of a folder: the last tenth to test, the one before to validate, so that charts of one source, which
    stand together, are mostly in one part.

    Raises UsageError for a folder of another layout, DataError naming every bad row.
    """
    file = _only_json(folder)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, list):
        raise UsageError(f"{file} holds no list", hint='it should: [{"imgname": ..., "query": ..., "label": ...}]')
    problems = Rows(on_bad_rows)
    rows = []
    for place, row in enumerate(found, start=1):
        chart, why = _row(row, folder / "png")
        if chart:
            rows.append(chart)
        else:
            problems.bad(file, place, why)
    problems.settle(len(found))
    first, second = round(len(rows) * (1 - VALIDATION - TEST)), round(len(rows) * (1 - TEST))
    parts = {"train": rows[:first], "validation": rows[first:second], "test": rows[second:]}
    return {name: Charts(some, size, problems.notes) for name, some in parts.items() if some}


def _only_json(folder: Path) -> Path:
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if len(files) != 1:
        raise UsageError(
            f"{folder} has {len(files)} JSON files",
            hint="data is a folder with one JSON file of rows and the images in png/",
        )
    return files[0]


def _row(row: Any, images: Path) -> tuple[Chart | None, str]:
    """A row, or why it cannot be used."""
    from PIL import Image as Pillow

    if not isinstance(row, dict):
        return None, "is no object"
    lacking = [name for name in ("imgname", "query", "label") if not str(row.get(name) or "").strip()]
    if lacking:
        return None, f"has no {', '.join(lacking)}"
    path = images / str(row["imgname"])
    if path.resolve().parent != images.resolve():
        return None, f"its image {row['imgname']!r} is not in {images}"
    try:
        with Pillow.open(path) as found:
            found.verify()
    except (OSError, SyntaxError, ValueError) as error:
        return None, f"its image cannot be read: {error}"
    known = {name: row[name] for name in KNOWN if row.get(name) is not None}
    return Chart(query=str(row["query"]), known={**known, "label": str(row["label"])}, path=path), ""
