"""Where Kaggle has mounted an input. The place differs from session to session, so it is looked for."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from shoestring.remote.kaggle.kernel.program.places import INPUT, SessionError


def folders_named(reference: str, inputs: Path = INPUT) -> Iterator[Path]:
    """Yield the folders that an input `owner/slug` may be mounted at, the likely ones first."""
    owner, slug = reference.split("/")
    for folder in (inputs / slug, *(inputs / kind / owner / slug for kind in ("datasets", "notebooks", "kernels"))):
        if folder.is_dir():
            yield folder


def find_input(dataset: str, path: str, inputs: Path = INPUT) -> Path:
    """Return where a path in a dataset is mounted. Raises SessionError if it is nowhere."""
    folders = list(folders_named(dataset, inputs))
    for folder in folders:
        # Kaggle may have a folder for the version in between.
        for place in (folder, *sorted(entry for entry in folder.iterdir() if entry.is_dir())):
            if (place / path).exists():
                return place / path
    raise SessionError(
        f"the dataset {dataset} has no {path}" if folders else f"the dataset {dataset} is not mounted",
        f"see whether the dataset is there, and what it has: https://www.kaggle.com/datasets/{dataset}",
    )


def folders_with(marker: str, reference: str) -> Iterator[Path]:
    """Yield the folders with the file `marker`: those named as the input, one below for its version, then any other."""
    places = set()
    for folder in [*folders_named(reference), INPUT]:
        depth = 4 if folder == INPUT else 1
        level = [folder]
        for _ in range(depth + 1):
            below = []
            for place in level[:1000]:
                if (place / marker).is_file() and not (place / marker).is_symlink():
                    if place not in places:
                        places.add(place)
                        yield place
                    continue
                with contextlib.suppress(OSError):
                    below += sorted(entry for entry in place.iterdir() if entry.is_dir())[:1000]
            level = below
