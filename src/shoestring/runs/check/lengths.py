"""The lengths of a recipe's training samples, written to a file for plans on machines without the data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.hardware.measured_file import write_at_once
from shoestring.recipe.absent_data import Lengths
from shoestring.recipe.contract import length_of
from shoestring.recipe.options import LoadedRecipe
from shoestring.training.data.seeded import seeded_data

_PROGRESS_SECONDS = 0.5


def write_lengths(
    loaded: LoadedRecipe, path: Path, *, overwrite: bool = False, progress: Callable[[float], object] = lambda _: None
) -> Lengths:
    """Read all data of the recipe, and write how many training samples have each length; `progress` is called with the
    seconds that are left.

    Raises UsageError for a recipe whose samples have no lengths, and for a file that exists, unless `overwrite` is true
    and it has lengths; RunError if it cannot be written.
    """
    loaded.require_real_data()
    if loaded.parts.data.length is None:
        raise UsageError(
            f"the samples of {loaded.name} all have the same length: it has no length(dataset, index)",
            hint="plan with --set rows=N alone",
        )
    _require_writable(path, overwrite=overwrite)
    data = seeded_data(loaded)
    length = length_of(loaded.recipe, data["train"])
    assert length
    source = loaded.parts.data.length_source
    lengths = Lengths.count(
        _with_progress(length, len(data["train"]), progress),
        unit=loaded.parts.data.length_unit,
        rows=loaded.parts.data.rows_read() if loaded.parts.data.rows_read else sum(map(len, data.values())),
        samples={name: len(dataset) for name, dataset in data.items()},
        tokenizer=source() if source else "",
    )
    write_at_once(path, json.dumps(lengths.json(), indent=1) + "\n")
    return lengths


def _require_writable(path: Path, *, overwrite: bool) -> None:
    """Raise UsageError before the data are read if the file may not be written."""
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder", hint="create it, or choose another file")
    if path.exists():
        if not overwrite:
            raise UsageError(f"{path} exists", hint="choose another file, or add --overwrite")
        Lengths.read(path)


def _with_progress(length: Callable[[int], float], count: int, progress: Callable[[float], object]) -> Iterator[float]:
    """Yield the length of each sample."""
    start, reported = time.monotonic(), 0.0
    for index in range(count):
        yield length(index)
        elapsed = time.monotonic() - start
        if elapsed - reported >= _PROGRESS_SECONDS:
            reported = elapsed
            progress(elapsed / (index + 1) * (count - index - 1))
