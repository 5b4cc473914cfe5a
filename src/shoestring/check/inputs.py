"""Inputs are found by looking: platforms mount the same data set under different paths, and have changed them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shoestring.check.facts import Input

ROOTS = (Path("/kaggle/input"), Path("/content/drive/MyDrive"), Path("/content"))
"""Where platforms put data."""
_KINDS = ("datasets", "notebooks")
_DEEPEST = 6
_ENTRIES = 20_000
"""At most looked at: a mounted bucket may have millions."""


def look(paths: Mapping[str, Path], roots: Sequence[Path] = ROOTS) -> tuple[Input, ...]:
    """Each path that an option names, and where else something of its name lies."""
    return tuple(_input(option, path, roots) for option, path in paths.items())


def mounted(root: Path = ROOTS[0]) -> tuple[Path, ...]:
    """The data sets that Kaggle has mounted: `datasets/OWNER/NAME`, `OWNER/NAME` or `NAME`; without `datasets` a folder
    with nothing in it but another folder is taken for an owner.
    """
    found: list[Path] = []
    for path in _listed(root):
        if path.name in _KINDS:
            found += [name for owner in _listed(path) for name in _listed(owner)]
        else:
            found.append(_through(path))
    return tuple(found)


def _input(option: str, path: Path, roots: Sequence[Path]) -> Input:
    problem = ""
    if not path.exists():
        problem = "it is not there"
    elif not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        problem = "it may not be read"
    elif path.is_dir() and not _listed(path):
        problem = "it is empty"
    elsewhere = tuple(_found(path.name, roots)) if problem else ()
    return Input(option=option, path=path, problem=problem, elsewhere=elsewhere)


def _found(name: str, roots: Sequence[Path], most: int = 5) -> Iterator[Path]:
    """What is called `name` below `roots`, what lies highest first."""
    seen = 0
    for root in roots:
        level = [root]
        for _ in range(_DEEPEST):
            deeper: list[Path] = []
            for folder in level:
                for entry in _listed(folder):
                    seen += 1
                    if seen > _ENTRIES:
                        return
                    if entry.name == name:
                        yield entry
                        most -= 1
                        if not most:
                            return
                    if entry.is_dir() and not entry.is_symlink():
                        deeper.append(entry)
            level = deeper


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _through(path: Path) -> Path:
    for _ in range(_DEEPEST):
        inside = _listed(path) if path.is_dir() else []
        if len(inside) != 1 or not inside[0].is_dir():
            break
        path = inside[0]
    return path
