"""Rows in JSON with their images in a folder: EvoChart's layout with one file, and ChartQA's with three parts.

A file has `[{"imgname": ..., "query": ..., "label": ...}, ...]`; a row may also have `chart_type`, `table`
({"columns": [...], "rows": [[...], ...]}) and `reasoning`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.reading import TEXT_BYTES, read_json, real_path
from shoestring_recipes.chart.presentation import Presentation
from shoestring_recipes.chart.rows import Chart, ImageFile, parse_row
from shoestring_recipes.images import verify_image

CHARTQA_PARTS = {"train": "train", "validation": "val", "test": "test"}
"""ChartQA's folders by our names of the parts."""
CHARTQA_ORIGINS = ("augmented", "human")
"""Of the questions: made from summaries, and asked by people. The guide reads them in this order."""


def chartqa_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of ChartQA's layout by part, without those that do not exist."""
    files = {
        part: [folder / name / f"{name}_{origin}.json" for origin in CHARTQA_ORIGINS]
        for part, name in CHARTQA_PARTS.items()
    }
    present = {part: [path for path in paths if path.exists()] for part, paths in files.items()}
    return {part: paths for part, paths in present.items() if paths}


_KAGGLE_FILE = "dataset-metadata.json"
"""Which Kaggle's client needs in a folder that is uploaded."""


def find_json_file(folder: Path) -> Path:
    """Return the one JSON file in a folder, beside that of Kaggle's client.

    Raises UsageError if there are none or several.
    """
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    files = [path for path in paths if path.name != _KAGGLE_FILE]
    if len(files) != 1:
        raise UsageError(
            f"{folder} has {len(files)} JSON files; exactly one is expected",
            hint="set data to a folder with one JSON file of rows and the images in png/; to ChartQA's folder, which "
            "has train/, val/ and test/; to what `save_to_disk` of Hugging Face's datasets has written; or to Parquet",
        )
    return files[0]


def read_json_rows(file: Path, presentation: Presentation) -> Iterator[Chart | str]:
    """Yield the chart of each row in a file, or the reason why it cannot be used.

    Raises OSError and ValueError where the file as a whole cannot be read.
    """
    values = read_json(file, follow=True, max_bytes=TEXT_BYTES, strict=False)
    if not isinstance(values, list):
        raise ValueError('it contains no JSON list [{"imgname": ..., "query": ..., "label": ...}, ...]')
    for value in values:
        yield _parse(value, file.parent / "png", presentation)


def _parse(row: object, images: Path, presentation: Presentation) -> Chart | str:
    if not isinstance(row, dict):
        return "is not a JSON object"
    name = row.get("imgname")
    if name is None or not str(name).strip():
        return "has no imgname"
    path = images / str(name)
    chart = parse_row(row, ImageFile(path))
    if isinstance(chart, str):
        return chart
    try:
        if real_path(path).parent != real_path(images):
            return f"its image {name!r} is not in {images}"
        presentation.check(verify_image(path))
    except (OSError, ValueError, RuntimeError) as error:  # also a null byte in the path, or a cycle of links
        return f"its image cannot be read: {error}"
    return chart
