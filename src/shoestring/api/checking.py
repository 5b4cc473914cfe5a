"""What this machine can do: its check, and files with its rates or with the lengths of data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.api.arguments import checked_path
from shoestring.base.errors import UsageError
from shoestring.base.packages.broken import usable_libraries

if TYPE_CHECKING:
    from shoestring.hardware.measured import MeasuredRates
    from shoestring.recipe.absent_data import Lengths
    from shoestring.runs.check.preflight import CheckResult


def check(
    recipe: str | object | None = None, on: str = "local", *, run: str | Path = "runs", **values: object
) -> CheckResult:
    """Check this machine before a run in the directory `run` under the limits of `on`: GPU, build, disk, data, ...

    With a recipe, also plan it for this machine and run a few of its updates in a separate process.

    Raises UsageError for invalid usage; a problem of the machine is a finding, not an error.
    """
    from shoestring.recipe.finding import choose
    from shoestring.runs.check.preflight import preflight

    if recipe is None:
        if values:
            raise UsageError(f"options need a recipe: {', '.join(values)}", hint="shoestring check RECIPE --set ...")
        return preflight(on, checked_path(run))
    loaded, settings = choose(recipe, values)
    return preflight(on, checked_path(run), loaded, settings)


def write_lengths(
    recipe: str | object,
    file: str | Path,
    *,
    overwrite: bool = False,
    progress: Callable[[float], object] = lambda _: None,
    **values: object,
) -> Lengths:
    """Read all data of a recipe, and write how many of its training samples have each length to a JSON file.

    `plan(..., lengths=file)` plans these data on a machine without them. `progress` is called with the seconds that are
    left. A file that exists is replaced only with `overwrite`.

    Raises UsageError for a recipe whose samples have no lengths, and for a file that exists.
    """
    with usable_libraries():
        from shoestring.recipe.finding import choose
        from shoestring.runs.check.lengths import write_lengths

    loaded, _ = choose(recipe, values)
    return write_lengths(loaded, checked_path(file), overwrite=overwrite, progress=progress)


def measure(
    file: str | Path,
    on: str = "local",
    *,
    overwrite: bool = False,
    progress: Callable[[float], object] = lambda _: None,
) -> MeasuredRates:
    """Measure the rates of this machine's GPU (or with `on="cpu"` its CPU), and write them to a JSON file.

    `plan(..., on=file)` and the other verbs take the file as a target, `plan(..., calibrate=file)` as measured rates.
    It takes about two minutes on a GPU and 40 s on a CPU. `progress` is called with the seconds that are left. If it is
    interrupted, no file is written; a file that exists is replaced only with `overwrite`.

    Raises UsageError for another target or a file that exists, RunError if the device cannot be measured.
    """
    with usable_libraries():
        from shoestring.runs.check.rates.writing import measure_to_file

    return measure_to_file(checked_path(file), on, overwrite=overwrite, progress=progress)
