"""A row of the data: a question, its annotations and the source of its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shoestring.base.reading import parse_json
from shoestring_recipes.chart.synthetic import draw_chart, make_chart

if TYPE_CHECKING:
    from PIL.Image import Image

    from shoestring_recipes.chart.presentation import Presentation

ANNOTATIONS = ("label", "chart_type", "table", "reasoning")
COLUMNS = ("query", *ANNOTATIONS, "id")
"""What is read of a row besides its image."""


class ImageSource(Protocol):
    """Where the image of a row comes from."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...

    def load(self, presentation: Presentation) -> Image:
        """Return the image at the size of `presentation`. Raises ValueError where it cannot be read."""
        ...


@dataclass(frozen=True)
class ImageFile:
    """An image in a file of its own."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def load(self, presentation: Presentation) -> Image:
        from shoestring_recipes.images import open_image

        return presentation.fit(open_image(self.path))


@dataclass(frozen=True)
class SyntheticImage:
    """A synthetic chart, drawn when it is needed."""

    number: int

    @property
    def name(self) -> str:
        return f"synthetic chart {self.number}"

    def load(self, presentation: Presentation) -> Image:
        return draw_chart(make_chart(self.number), presentation.size)


@dataclass(frozen=True)
class Chart:
    """A question about an image, and its annotations."""

    query: str
    annotations: dict[str, Any]
    image: ImageSource
    id: str | int | None = None
    """Its own identifier; otherwise its position among all rows, from 0."""


def parse_row(row: Mapping[str, Any], image: ImageSource) -> Chart | str:
    """Return the chart of a row with its `image`, or the reason why the row cannot be used."""
    label = row.get("label")
    if isinstance(label, list) and len(label) == 1:  # as ChartQA is on the hub
        (label,) = label
    if isinstance(label, list | dict):
        return "its label is not one text or number"
    missing = [name for name, value in (("query", row.get("query")), ("label", label)) if _is_blank(value)]
    if missing:
        return f"has no {', '.join(missing)}"
    annotations = {name: row[name] for name in ANNOTATIONS if row.get(name) is not None}
    annotations["label"] = str(label)
    table = annotations.get("table")
    if (
        isinstance(table, dict) and table and all(value is None for value in table.values())
    ):  # a struct of Arrow without a value
        del annotations["table"]
    elif isinstance(table, str):
        try:
            annotations["table"] = parse_json(table)
        except ValueError as error:
            return f"its table is not JSON: {error}"
    if not _is_table(annotations.get("table")):
        return 'its table is not {"columns": [...], "rows": [[...], ...]}'
    identifier = row["id"] if isinstance(row.get("id"), str | int) else None
    return Chart(query=str(row["query"]), annotations=annotations, image=image, id=identifier)


def _is_blank(value: object) -> bool:
    return value is None or not str(value).strip()


def _is_table(value: object) -> bool:
    """Return whether `value` is a table's columns and rows, or None."""
    if value is None:
        return True
    columns, rows = (value.get(name) for name in ("columns", "rows")) if isinstance(value, dict) else (None, None)
    return isinstance(columns, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)
