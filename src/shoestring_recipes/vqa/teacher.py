"""Reading the texts of a teacher: `teacher_outputs.jsonl`, one object per line, and the images.

    {"img_id": 7, "image_path": "images/7.jpg", "question": "...", "reasoning_type": "CAUSAL", "teacher_answer": "...",
     "teacher_reasoning": "...", "teacher_raw": "...", "reasoning_weight": 5.0}

`teacher_raw` is ignored: the target texts are built from the answer and the reasoning, so their format is always valid.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from shoestring.base.errors import DataError
from shoestring.base.reading import LINE_BYTES, TEXT_BYTES, number, parse_json, read_bytes, real_path, reason
from shoestring.base.units import count_text
from shoestring.hardware.probe import cores
from shoestring_recipes.images import open_image
from shoestring_recipes.rows import BadRows
from shoestring_recipes.vqa.samples import Sample
from shoestring_recipes.vqa.texts import KINDS, NEUTRAL, NEUTRAL_WEIGHT, normalize

NAME = "teacher_outputs.jsonl"
MAX_WEIGHT = 1_000_000
"""The largest weight of a sample; the mean of such weights is finite."""
_TEXTS = ("image_path", "question", "teacher_answer", "teacher_reasoning")


def read(data: Path, images: Path | None, bad_rows: BadRows, *, takes_incomplete: bool = False) -> list[Sample]:
    """Read the samples in `data`, a file or a folder with a file `NAME`, and record unusable rows in `rows`.

    Paths of images are relative to `images`, by default the file's folder, and must be inside it. Every image is
    decoded once here, so that a broken image is reported before the first update. With `takes_incomplete`, a row needs
    neither a kind nor a reasoning, and such rows are counted in a note.

    Raises DataError where the file cannot be read or has no rows, and for bad rows (see `BadRows`).
    """
    file = data / NAME if data.is_dir() else data
    try:
        content = read_bytes(file, follow=True, max_bytes=TEXT_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {reason(error)}", hint=f"set data to {NAME} or its folder") from error
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    numbered = [(position, line) for position, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise DataError(f"{file} has no rows", hint="each line must be a JSON object")
    folder = real_path(images or file.parent)
    with ThreadPoolExecutor(cores()) as threads:
        results = list(
            threads.map(
                partial(_parse_line, folder=folder, takes_incomplete=takes_incomplete), (line for _, line in numbered)
            )
        )
    for (position, _), result in zip(numbered, results, strict=True):
        if isinstance(result, str):
            bad_rows.report(file, position, result)
    completed = [
        isinstance(_parse_line(line, folder, takes_incomplete=True), Sample)
        for (_, line), result in zip(numbered, results, strict=True)
        if isinstance(result, str) and not takes_incomplete
    ]
    alternative = f"; {count_text(sum(completed))} of them can be used with --set incomplete_rows=neutral"
    bad_rows.finish(len(numbered), alternative=alternative if any(completed) else "")
    incomplete = [r for r in results if isinstance(r, Sample) and (r.kind == NEUTRAL or not r.reasoning)]
    if incomplete:
        bad_rows.notes.append(
            f"{count_text(len(incomplete))} of {count_text(len(numbered))} rows have no type but {NEUTRAL}, or no "
            "reasoning (incomplete_rows=neutral)"
        )
    return [
        replace(result, id=position if result.id is None else result.id)
        for position, result in enumerate(results)
        if isinstance(result, Sample)
    ]


def load_image(sample: Sample) -> Image.Image:
    """Return the image of a sample. Raises DataError where it has become unreadable."""
    try:
        return open_image(Path(sample.image))
    except ValueError as error:
        raise DataError(str(error), hint="it was readable when the session started; restore the file") from error


def _parse_line(line: bytes, folder: Path, *, takes_incomplete: bool) -> Sample | str:
    """Return the sample in a line, or the reason why it cannot be used."""
    try:
        return _parse_sample(line, folder, takes_incomplete=takes_incomplete)
    except ValueError as error:
        return str(error)


def parse_row(line: bytes) -> dict[str, Any]:
    """Return the object in a line. Raises ValueError with the reason if there is none."""
    if len(line) > LINE_BYTES:
        raise ValueError(f"{len(line):,} bytes, more than {LINE_BYTES:,}")
    try:
        row: Any = parse_json(line, strict=False)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError("no JSON object")
    return row


def require_texts(row: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise ValueError that names the fields without a text."""
    missing = [name for name in names if not isinstance(row.get(name), str) or not row[name].strip()]
    if missing:
        raise ValueError(f"no text in {', '.join(missing)}")


def own_identifier(row: Mapping[str, Any]) -> str | int | None:
    """Return the `id` of a row; None if it has none that is a text or an integer."""
    identifier = row.get("id")
    return identifier if isinstance(identifier, str) or type(identifier) is int else None


def _complete(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with what the published loader takes for a missing kind and a missing reasoning."""
    defaults = {"reasoning_type": NEUTRAL, "teacher_reasoning": ""}
    return {**row, **{name: value for name, value in defaults.items() if not str(row.get(name) or "").strip()}}


def _parse_sample(line: bytes, folder: Path, *, takes_incomplete: bool) -> Sample:
    row, kinds, texts = parse_row(line), KINDS, list(_TEXTS)
    if takes_incomplete:
        row, kinds = _complete(row), {**KINDS, NEUTRAL: NEUTRAL_WEIGHT}
        texts = [name for name in _TEXTS if name != "teacher_reasoning" or row[name]]
    require_texts(row, texts)
    tagged = [name for name in _TEXTS[2:] if "<" in row[name]]
    if tagged:
        raise ValueError(f"a tag or a < in {', '.join(tagged)}")
    kind = row.get("reasoning_type")
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"reasoning_type {kind!r} is none of {', '.join(kinds)}")
    weight = number(row.get("reasoning_weight", kinds[kind]))
    if weight is None or not 0 < weight <= MAX_WEIGHT:
        value = repr(row["reasoning_weight"])[:40]
        raise ValueError(f"reasoning_weight {value} is no finite number above 0 and at most {MAX_WEIGHT:,}")
    path = resolve_inside(folder, row["image_path"])
    open_image(path)
    return Sample(
        image=str(path),
        group=str(row.get("img_id", row["image_path"])),
        question=normalize(row["question"]),
        answer=normalize(row["teacher_answer"]),
        reasoning=normalize(row["teacher_reasoning"]),
        kind=kind,
        weight=weight,
        id=own_identifier(row),
    )


def resolve_inside(folder: Path, name: str) -> Path:
    """Return the path of a file in `folder` with links resolved. Raises ValueError where it is outside the folder."""
    try:
        path = real_path(folder / name)
    except (ValueError, OSError, RuntimeError) as error:  # a null byte, or a cycle of links
        raise ValueError(f"image_path {name!r} is no path: {error}") from error
    if not path.is_relative_to(folder):
        raise ValueError(f"image_path {name} lies outside {folder} (set images=FOLDER to the folder of the images)")
    return path
