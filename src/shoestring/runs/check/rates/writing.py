"""`shoestring check --measure FILE`: measure this machine's device, and write the file at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from shoestring.base.errors import RunError, UsageError
from shoestring.hardware import targets
from shoestring.hardware.measured import MeasuredRates
from shoestring.hardware.measured_file import SUFFIX, has_rates, require_space, write_measured


def measure_to_file(path: Path, on: str, *, overwrite: bool, progress: Callable[[float], object]) -> MeasuredRates:
    """Measure the target `on`, `local` or `cpu`, and write the rates to `path`, at once after the last measurement.

    Raises UsageError for another target, for a file that exists, unless it has rates and `overwrite` is true, and for a
    name without `.json`. Raises RunError if torch cannot use the device, or, before it is measured, if the file cannot
    be written.
    """
    _require_writable(path, overwrite=overwrite)
    if on not in targets.PROBED:
        raise UsageError(
            f"only this machine can be measured, not {on}", hint="pass --on local, or --on cpu for its CPU"
        )
    target = targets.find(on)
    # Only here, because it takes a second and may fail: torch.
    import torch

    from shoestring.runs.check.rates.measure import measure_rates

    if target.device.kind == "cuda" and not torch.cuda.is_available():
        raise RunError(
            f"this machine has {target.device.title}, but this torch ({torch.__version__}) cannot use it",
            hint="see shoestring check for the reason, or measure the CPU: --on cpu",
        )
    try:
        measured = measure_rates(target, progress=progress)
    except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise RunError(
            f"{target.device.title} cannot be measured: {first_line}",
            hint="end other processes that use it; shoestring check lists them",
        ) from error
    write_measured(path, measured)
    return dataclasses.replace(measured, file=str(path))


def _require_writable(path: Path, *, overwrite: bool) -> None:
    """Raise UsageError before anything is measured if the file could not be written afterwards."""
    if path.suffix.lower() != SUFFIX:
        raise UsageError(f"{path} does not end with {SUFFIX}", hint=f"--measure {path}{SUFFIX}")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder", hint="create it, or choose another file")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="choose another file")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists", hint="choose another file, or replace this one: --overwrite")
    if path.exists() and not has_rates(path):
        raise UsageError(f"{path} has no measured rates, so it is not replaced", hint="choose another file")
    require_space(path)
