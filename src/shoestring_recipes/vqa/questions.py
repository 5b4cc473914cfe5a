"""Questions without answers: rows of a JSONL file, or of a list.

    {"id": "a", "image_path": "images/7.jpg", "question": "..."}

`image` is another name of `image_path`; in a list it may also be an image of Pillow. Other fields are ignored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from shoestring.base.errors import DataError
from shoestring.base.reading import LINE_BYTES, read_lines, real_path, reason
from shoestring.recipe.inputs import Input
from shoestring_recipes.images import open_image
from shoestring_recipes.rows import character_problem
from shoestring_recipes.vqa.dataset import encode_question
from shoestring_recipes.vqa.images import to_tensor
from shoestring_recipes.vqa.samples import Sample
from shoestring_recipes.vqa.teacher import NAME, own_identifier, parse_row, require_texts, resolve_inside
from shoestring_recipes.vqa.texts import normalize
from shoestring_recipes.vqa.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Makes inputs of rows."""

    images: Path | None
    """The folder that image paths are relative to and inside; None: the file's folder, or any file for a list."""
    tokenizer: Tokenizer
    q_len: int
    side: int

    def read(self, source: Path | Sequence[Any]) -> Iterator[Input]:
        """Return an input for each row of a file, of the file in a folder, or of a list.

        Raises DataError if there is no such file.
        """
        if not isinstance(source, Path):
            return self._parse_rows(source, self.images)
        file = _find_file(source)
        return self._parse_rows(_read_lines(file), self.images or file.parent)

    def _parse_rows(self, rows: Iterable[Any], folder: Path | None) -> Iterator[Input]:
        resolved = folder and real_path(folder)
        for item in rows:
            row: Any = {}
            try:
                row = parse_row(item) if isinstance(item, bytes) else item
                yield self._parse_row(row, resolved)
            except (OSError, ValueError) as error:
                identifier = own_identifier(row) if isinstance(row, Mapping) else None
                yield Input(id=identifier, error=reason(error))

    def _parse_row(self, row: Any, folder: Path | None) -> Input:
        """Return the input of a row, whose image is not opened yet. Raises ValueError if it cannot be used."""
        if isinstance(row, Exception):
            raise row
        if not isinstance(row, Mapping):
            raise ValueError(f"is no object with image_path and question, but {type(row).__name__}")
        image = row.get("image", row.get("image_path"))
        require_texts(row, ["question"])
        question = normalize(row["question"])
        if problem := character_problem(question):
            raise ValueError(f"question {problem}")
        if not isinstance(image, Image.Image):
            require_texts({"image_path": image}, ["image_path"])
            image = resolve_inside(folder, image) if folder else Path(image)
        name = None if isinstance(image, Image.Image) else str(row.get("image", row.get("image_path")))
        return Input(
            id=own_identifier(row),
            value={"image": name, "question": question},
            load=partial(self._load, image, question),
        )

    def _load(self, image: Path | Image.Image, question: str) -> tuple[object, ...]:
        """Return a sample with empty target texts. Raises ValueError if the image cannot be used."""
        pixels = to_tensor(open_image(image) if isinstance(image, Path) else image, self.side)
        empty = torch.empty(0, dtype=torch.int64)
        sample = Sample(image="", group="", question=question, answer="", reasoning="", kind="", weight=0.0)
        return pixels, encode_question(question, self.tokenizer)[: self.q_len], empty, empty, empty, 0.0, sample


def _find_file(source: Path) -> Path:
    """Return the file of rows: `source`, in a folder its `NAME` or its only file *.jsonl."""
    if not source.is_dir():
        if source.exists():
            return source
        raise DataError(f"the file or folder {source} does not exist", hint="set data to a JSONL file or its folder")
    files = [source / NAME] if (source / NAME).exists() else sorted(source.glob("*.jsonl"))
    if len(files) != 1:
        raise DataError(
            f"{source} has {len(files) or 'no'} files *.jsonl, and none is {NAME}", hint="set data to one of its files"
        )
    return files[0]


def _read_lines(file: Path) -> Iterator[bytes | Exception]:
    """Yield the lines that are not blank; an exception for one that cannot be read.

    Raises DataError if the file cannot be read.
    """
    try:
        for number, line in enumerate(read_lines(file, follow=True)):
            if line is None:
                yield ValueError(f"more than {LINE_BYTES:,} bytes")
            elif content := (line if number else line.removeprefix(b"\xef\xbb\xbf")).strip():
                yield content
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} cannot be read: {reason(error)}", hint="set data to a JSONL file or its folder"
        ) from error
