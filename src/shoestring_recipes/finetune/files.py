"""The files of training data.

In a folder, names select the parts as for users of the library `datasets`: a word of a file's name, or else of the name
of a folder around it, as in `train-00000-of-00002.parquet` or `validation/chats.jsonl`. A file without such a word is
training data. Files of the part `test` are not read. A file that is given by itself is training data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

from shoestring.base.errors import DataError
from shoestring.base.reading import reason
from shoestring.base.units import count_text, plural
from shoestring_recipes.finetune.formats import READERS

Part: TypeAlias = Literal["train", "validation", "test"]

PART_WORDS: Mapping[Part, frozenset[str]] = {
    "train": frozenset({"train", "training"}),
    "validation": frozenset({"validation", "valid", "val", "dev", "eval", "evaluation"}),
    "test": frozenset({"test", "testing"}),
}
"""The words of names that select a part."""

_ENDINGS = ", ".join(f"*{suffix}" for suffix in READERS)
_MOST_FILES = 10_000
# Descriptions of data, which lie beside it in published folders and in those that Kaggle's client uploads.
_DESCRIPTIONS = {
    "config.json", "dataset-metadata.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file of rows."""

    path: Path
    name: str
    """Its path in the folder of the data, or its own name if it was given by itself."""
    part: Part

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower()


def find_files(path: Path) -> tuple[list[DataFile], list[str]]:
    """Return the files of training and validation in the order of their names, and notes on files that are not read.

    Raises DataError if there is no file of training data.
    """
    if path.is_file():
        file = DataFile(path=path, name=path.name, part="train")
        if file.suffix not in READERS:
            raise DataError(f"{path} cannot be read: its ending is unknown", hint=f"the data may be in {_ENDINGS}")
        return [file], []
    if not path.is_dir():
        raise DataError(
            f"{path} is neither a file nor a folder" if path.exists() else f"the file or folder {path} does not exist",
            hint=f"set data to a file, {_ENDINGS}, or to a folder of them",
        )
    files, other_names = [], []
    for name in _file_names(path):
        file = DataFile(path=path / name, name=name, part=_part(PurePosixPath(name)))
        if file.suffix in READERS and file.path.name not in _DESCRIPTIONS:
            files.append(file)
        else:
            other_names.append(name)
    tests = [file.name for file in files if file.part == "test"]
    if not any(file.part == "train" for file in files):
        names = sorted([file.name for file in files] + other_names)
        words = ", ".join(sorted(PART_WORDS["validation"] | PART_WORDS["test"]))
        raise DataError(
            f"{path} has no file of training data: " + (f"it has {_list(names)}" if names else "it is empty"),
            hint=f"training data is in {_ENDINGS}, without these words in the name: {words}",
        )
    notes = []
    if tests:
        notes.append(f"{plural(len(tests), 'file')} of the part test, not used: {_list(tests)}")
    if other_names:
        notes.append(f"{plural(len(other_names), 'file')} of other kinds, not used: {_list(other_names)}")
    return [file for file in files if file.part != "test"], notes


def read_rows(file: DataFile, needed_columns: Collection[str]) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield for each row its place (`NAME, line N` or `NAME, row N`, from 1), and the row or why it cannot be read.

    The values of columns that are not `wanted` may be None.

    Raises DataError if the file as a whole cannot be read, or has no rows.
    """
    is_empty = True
    try:
        for place, row in READERS[file.suffix](file.path, needed_columns):
            is_empty = False
            yield f"{file.name}, {place}", row
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file.path} cannot be read: {reason(error)}",
            hint="correct or remove the file; on_bad_rows=skip skips only rows",
        ) from error
    if is_empty:
        raise DataError(f"{file.path} has no rows", hint="remove the file, or add rows to it")


def _file_names(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder and the folders in it, without hidden ones."""
    names: list[str] = []
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        inner = Path(parent).relative_to(folder)
        names += [(inner / name).as_posix() for name in files if not name.startswith((".", "_"))]
        if len(names) > _MOST_FILES:
            raise DataError(
                f"{folder} has more than {count_text(_MOST_FILES)} files", hint="set data to the folder of the data"
            )
    return sorted(names)


def _refuse(error: OSError) -> None:
    raise DataError(f"the folder {error.filename} cannot be read: {reason(error)}") from error


def _part(name: PurePosixPath) -> Part:
    for text in (name.stem, *reversed(name.parent.parts)):
        for word in re.split(r"[-._ 0-9]+", text.casefold()):
            for part, words in PART_WORDS.items():
                if word in words:
                    return part
    return "train"


def _list(names: list[str]) -> str:
    unlisted = len(names) - 5
    return ", ".join(names[:5]) + (f" and {count_text(unlisted)} more" if unlisted > 0 else "")
