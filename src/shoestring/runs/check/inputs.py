"""The recipe's input paths and the mounted data sets.

Both are located by listing folders: platforms mount the same data set under different paths, and have changed them.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shoestring.runs.check.facts import Input

ROOTS = (Path("/kaggle/input"), Path("/content/drive/MyDrive"), Path("/content"))
"""The folders under which platforms mount data."""
_KINDS = ("datasets", "notebooks")
_MAX_DEPTH = 6
_MAX_ENTRIES = 20_000
"""The most directory entries to list: a mounted bucket may have millions."""


def inspect_inputs(paths: Mapping[str, Path], roots: Sequence[Path] = ROOTS) -> tuple[Input, ...]:
    """Inspect the path of each option, and find files or folders of the same name below `roots`."""
    return tuple(_inspect_input(option, path, roots) for option, path in paths.items())


def mounted_data_sets(root: Path = ROOTS[0]) -> tuple[Path, ...]:
    """Return the folders of the data sets that Kaggle has mounted.

    A data set is mounted as `datasets/OWNER/NAME`, `OWNER/NAME` or `NAME`; outside of `datasets`, a folder that
    contains only one other folder is taken for an owner.
    """
    data_sets: list[Path] = []
    for path in _list_folder(root):
        if path.name in _KINDS:
            data_sets += [data_set for owner in _list_folder(path) for data_set in _list_folder(owner)]
        else:
            data_sets.append(_skip_single_folders(path))
    return tuple(data_sets)


def _inspect_input(option: str, path: Path, roots: Sequence[Path]) -> Input:
    problem = ""
    if not path.exists():
        problem = "does not exist"
    elif not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        problem = "is not readable"
    elif path.is_dir() and not _list_folder(path):
        problem = "is empty"
    alternatives = tuple(_find_by_name(path.name, roots)) if problem else ()
    return Input(option=option, path=path, problem=problem, alternatives=alternatives)


def _find_by_name(name: str, roots: Sequence[Path], limit: int = 5) -> Iterator[Path]:
    """Yield at most `limit` files or folders called `name` below `roots`, breadth first."""
    entries = 0
    for root in roots:
        level = [root]
        for _ in range(_MAX_DEPTH):
            next_level: list[Path] = []
            for folder in level:
                for entry in _list_folder(folder):
                    entries += 1
                    if entries > _MAX_ENTRIES:
                        return
                    if entry.name == name:
                        yield entry
                        limit -= 1
                        if not limit:
                            return
                    if entry.is_dir() and not entry.is_symlink():
                        next_level.append(entry)
            level = next_level


def _list_folder(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _skip_single_folders(path: Path) -> Path:
    """Descend from `path` while it contains only one folder and nothing else."""
    for _ in range(_MAX_DEPTH):
        entries = _list_folder(path) if path.is_dir() else []
        if len(entries) != 1 or not entries[0].is_dir():
            break
        path = entries[0]
    return path
