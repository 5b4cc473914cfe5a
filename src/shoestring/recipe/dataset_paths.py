"""Paths inside datasets of Kaggle, `owner/dataset[:PATH]`, as values of options that are paths.

Only sessions on Kaggle have such a path. Elsewhere it cannot be read, and plans have options that stand for its data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.base.reading import is_file, is_folder

_REFERENCE = re.compile(r"([A-Za-z0-9][\w-]{1,60})/([A-Za-z0-9][\w-]{1,60})(?::(.+))?")


@dataclass(frozen=True, kw_only=True)
class DatasetPath:
    """A file or folder in a dataset of Kaggle."""

    dataset: str
    """`owner/slug`."""
    path: str | None = None
    """The path in the dataset, relative; None or `.` for the whole dataset."""

    def __str__(self) -> str:
        return self.dataset if self.path is None else f"{self.dataset}:{self.path}"

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole dataset."""
        return self.path in (None, ".")

    @property
    def problem(self) -> str:
        """Why there can be no such path in a dataset; empty if there can."""
        path = self.path or ""
        is_outside = path.startswith("/") or ".." in Path(path).parts or "\\" in path
        return f"{path} is not a path inside the dataset" if is_outside else ""


def parse_dataset_path(text: str) -> DatasetPath | None:
    """Return the path of `owner/slug` or `owner/slug:PATH`; None for another text."""
    match = _REFERENCE.fullmatch(text)
    if not match:
        return None
    path = match[3] and (match[3].rstrip("/") or "/")
    return DatasetPath(dataset=f"{match[1]}/{match[2]}", path=path or None)


def split_dataset_paths(
    values: Mapping[str, object], fields: Mapping[str, config.Field]
) -> tuple[dict[str, object], dict[str, DatasetPath]]:
    """Return the values that are not in a dataset of Kaggle, and the others as paths in their datasets.

    An existing path of this machine is none of them. Neither is `owner/name` for an option that also takes text, such
    as a name on the hub: there a dataset needs a path, which is `owner/dataset:.` for all of it.
    """
    in_datasets = {
        name: path
        for name, value in values.items()
        if name in fields and isinstance(value, str) and (path := _dataset_path(value, fields[name]))
    }
    return {name: value for name, value in values.items() if name not in in_datasets}, in_datasets


def _dataset_path(value: str, field: config.Field) -> DatasetPath | None:
    path = parse_dataset_path(value) if {Path, str} & set(field.types) else None
    is_name = path is not None and path.path is None and str in field.types
    return None if is_name or is_file(Path(value)) or is_folder(Path(value)) else path


def require_no_local_paths(values: Mapping[str, object], fields: Mapping[str, config.Field]) -> None:
    """Raise UsageError for values that are paths of this machine: a session on Kaggle has only those below /kaggle."""
    problems = []
    for name, value in values.items():
        path = fields[name].read(value) if name in fields and Path in fields[name].types else None
        if isinstance(path, Path) and path.parts[:2] != ("/", "kaggle"):
            problems.append(
                f"{name}={value}: a path of this machine; in a dataset it is {name}=OWNER/DATASET:{path.name}"
            )
    if problems:
        raise UsageError(
            "a session on Kaggle has no files of this machine",
            problems=problems,
            hint="make a dataset of their folder, for example with kaggle datasets create",
        )
