"""Questions about charts without labels, and the policy's answers to them.

A row is `{"imgname": ..., "query": ...}` with the image in the folder png/ beside the file of rows, as for training, or
`{"image": ..., "query": ...}` with a path below the folder of that file; `question` may stand for `query`. In a list,
which is in Python, an image is any path or an object of Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError
from shoestring.base.reading import LINE_BYTES, TEXT_BYTES, parse_json, read_json, read_lines, real_path, reason
from shoestring.base.units import bytes_text
from shoestring.recipe.inputs import Input
from shoestring_recipes.chart.answers import parse_tag
from shoestring_recipes.chart.data import Charts, make_synthetic_parts
from shoestring_recipes.chart.folders import find_json_file
from shoestring_recipes.chart.presentation import Presentation
from shoestring_recipes.images import open_image

if TYPE_CHECKING:
    from PIL.Image import Image

Locate = Callable[[Any, str], Path]
"""Returns the path of an image, from its name in a row and the name of the row's field."""


@dataclass(frozen=True)
class Questions:
    """The inputs of rows that are in memory; images are read when they are used."""

    rows: Sequence[Any]
    parse: Callable[[Any], Input]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Input]:
        return map(self.parse, self.rows)


def read_inputs(source: Any, presentation: Presentation) -> Iterable[Input]:
    """Return the questions of a folder, a JSON or JSONL file, or a list; those of the synthetic charts for None.

    A row that cannot be used is an input with an error.

    Raises UsageError for a file that cannot be read.
    """
    if source is None:
        samples = [(part, index) for part in make_synthetic_parts(presentation).values() for index in range(len(part))]
        return Questions(samples, lambda place: _synthetic_input(*place))
    if not isinstance(source, str | Path):
        return Questions(
            list(source), partial(_parse_row, locate=lambda name, _: Path(name), presentation=presentation)
        )
    path = Path(source)
    file = find_json_file(path) if path.is_dir() else path
    parse = partial(_parse_row, locate=partial(_locate_inside, file.parent), presentation=presentation)
    if file.suffix == ".jsonl":
        return map(parse, _read_lines(file))
    try:
        rows = read_json(file, follow=True, max_bytes=TEXT_BYTES, strict=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file} cannot be read: {reason(error)}", hint="give a JSON list, or lines in .jsonl"
        ) from error
    if not isinstance(rows, list):
        raise UsageError(f"{file} contains no JSON list", hint='expected: [{"imgname": ..., "query": ...}, ...]')
    return Questions(rows, parse)


def answer(text: str) -> dict[str, Any]:
    """Return the columns of a completion: answer and reasoning (None if it is not tagged), and the text itself."""
    return {"prediction": parse_tag(text, "answer"), "reasoning": parse_tag(text, "think"), "text": text}


def _read_lines(file: Path) -> Iterator[Any]:
    """Yield the row of each line, a ValueError for one that is not JSON. Raises UsageError for an unreadable file."""
    try:
        for line in read_lines(file, follow=True, max_bytes=TEXT_BYTES):
            if line is not None and not line.strip():
                continue
            try:
                if line is None:
                    raise ValueError(f"it is longer than {bytes_text(LINE_BYTES)}")
                yield parse_json(line, strict=False)
            except ValueError as error:
                yield ValueError(f"is not JSON: {error}")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {reason(error)}") from error


def _parse_row(row: Any, *, locate: Locate, presentation: Presentation) -> Input:
    if isinstance(row, ValueError):
        return Input(error=str(row))
    if not isinstance(row, dict):
        return Input(value=str(row)[:200], error="is not a JSON object")
    fields = [name for name in ("image", "imgname") if row.get(name) is not None]
    image = row[fields[0]] if fields else None
    query = next((row[name] for name in ("query", "question") if row.get(name) is not None), None)
    identifier = row.get("id") if isinstance(row.get("id"), str | int) else None
    value = {name: row[name] for name in ("id", "query", "question") if isinstance(row.get(name), str | int)}
    if isinstance(image, str | Path):
        value[fields[0]] = str(image)
    known = partial(Input, id=identifier, value=value)
    missing = [*([] if fields else ["image"]), *([] if str(query or "").strip() else ["query"])]
    if missing:
        return known(error=f"has no {' and no '.join(missing)}")
    if not isinstance(image, str | Path):
        picture: Any = image
        if not hasattr(picture, "convert"):
            return known(error=f"its image is {type(image).__name__}, not a path or an image")
        return known(load=lambda: _sample(picture.convert("RGB"), str(query), presentation))
    try:
        path = locate(image, fields[0])
    except (OSError, ValueError, RuntimeError) as error:  # a null byte in the path, or a cycle of links
        return known(error=str(error))
    return known(load=lambda: _sample(open_image(path), str(query), presentation))


def _locate_inside(folder: Path, name: Any, field: str) -> Path:
    """Return the path of an image of a file in `folder`. Raises ValueError if it is elsewhere."""
    images = folder / "png" if field == "imgname" and (folder / "png").is_dir() else folder
    path = real_path(images / str(name))
    if not path.is_relative_to(real_path(images)):
        raise ValueError(f"its image {name!r} is not in {images}")
    return path


def _sample(image: Image, query: str, presentation: Presentation) -> dict[str, Any]:
    """Return a sample like those of `Charts`, without annotations. Raises ValueError for an image of a wrong shape."""
    presentation.check(image.size)
    return {"prompt": presentation.messages(query), "image": presentation.fit(image)}


def _synthetic_input(charts: Charts, index: int) -> Input:
    row = charts.rows[index]
    return Input(id=row.id, value={"query": row.query}, load=lambda: charts[index])
