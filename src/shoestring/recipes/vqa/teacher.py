"""What a teacher wrote: `teacher_outputs.jsonl`, one object in a line, and the images it was shown.

    {"img_id": 7, "image_path": "images/7.jpg", "question": "...", "reasoning_type": "CAUSAL", "teacher_answer": "...",
     "teacher_reasoning": "...", "teacher_raw": "...", "reasoning_weight": 5.0}

`teacher_raw` is not read: the answer and the reasoning are put into their tags anew, so the format is always whole.
"""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from shoestring.errors import DataError
from shoestring.hardware.probe import cores
from shoestring.recipes.rows import Rows
from shoestring.recipes.vqa.images import opened
from shoestring.recipes.vqa.samples import Sample
from shoestring.recipes.vqa.texts import KINDS, normal

NAME = "teacher_outputs.jsonl"
_TEXTS = ("image_path", "question", "teacher_answer", "teacher_reasoning")


def read(data: Path, images: Path | None, rows: Rows) -> list[Sample]:
    """The samples in `data`, a file or a folder with one called `NAME`, without those that `rows` are told of.

    Paths of images are relative to `images`, by default the file's folder, and may not leave it. Every image is
    decoded once here: a broken one is known before the first update, not in the third epoch.

    Raises DataError where the file cannot be read or has no rows, and for bad rows as `Rows` says.
    """
    file = data / NAME if data.is_dir() else data
    try:
        lines = file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror}", hint=f"give {NAME}, or the folder it is in"
        ) from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise DataError(f"{file} has no rows", hint="one JSON object in a line")
    folder = (images or file.parent).resolve()
    with ThreadPoolExecutor(cores()) as threads:
        found = list(threads.map(partial(_sample_or_why, folder=folder), (line for _, line in numbered)))
    for (number, _), result in zip(numbered, found, strict=True):
        if isinstance(result, str):
            rows.bad(file, number, result)
    rows.settle(len(numbered))
    return [result for result in found if isinstance(result, Sample)]


def picture(sample: Sample) -> Image.Image:
    """The image of a sample. Raises DataError where it has gone since it was read."""
    try:
        return opened(Path(sample.image))
    except ValueError as error:
        raise DataError(str(error), hint="it was there when the session began") from error


def _sample_or_why(line: bytes, folder: Path) -> Sample | str:
    """The sample in a line, or why there is none."""
    try:
        return _sample(line, folder)
    except ValueError as error:
        return str(error)


def _sample(line: bytes, folder: Path) -> Sample:
    try:
        row: Any = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError("no JSON object")
    wrong = [name for name in _TEXTS if not isinstance(row.get(name), str) or not row[name].strip()]
    if wrong:
        raise ValueError(f"no text in {', '.join(wrong)}")
    tagged = [name for name in _TEXTS[2:] if "<" in row[name]]
    if tagged:
        raise ValueError(f"a tag or a < in {', '.join(tagged)}")
    kind = row.get("reasoning_type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"reasoning_type {kind!r} is none of {', '.join(KINDS)}")
    weight = row.get("reasoning_weight", KINDS[kind])
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
        raise ValueError(f"reasoning_weight {weight!r} is no number above 0")
    path = _inside(folder, row["image_path"])
    opened(path)
    return Sample(
        image=str(path),
        group=str(row.get("img_id", row["image_path"])),
        question=normal(row["question"]),
        answer=normal(row["teacher_answer"]),
        reasoning=normal(row["teacher_reasoning"]),
        kind=kind,
        weight=float(weight),
    )


def _inside(folder: Path, name: str) -> Path:
    """The file of that name in `folder`, links followed. Raises ValueError where it lies elsewhere."""
    try:
        path = (folder / name).resolve()
    except (ValueError, OSError, RuntimeError) as error:  # a null byte; links in a circle
        raise ValueError(f"image_path {name!r} is no path: {error}") from error
    if not path.is_relative_to(folder):
        raise ValueError(f"image_path {name} lies outside {folder} (images=FOLDER says where images are)")
    return path
