"""The case of a row of measurements (recipe, settings and device), and the columns of its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Device

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Case:
    """The run of one row, in the form that an estimate needs."""

    recipe: Callable[[], object]
    same: tuple[object, ...]
    """The inputs of the recipe: rows with equal inputs share one recipe."""
    settings: Settings
    device: Device
    gpus: int = 1
    loading: Literal["engine", "transformers"] = "engine"
    """What brings the weights to the device."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A set of measurements: the functions that read its rows."""

    case: Callable[[Row, Path], Case]
    """Builds the case from a row and the folder of configurations. Raises UsageError for unknown properties."""
    measured: Callable[[Row], float | None]
    """Returns the measured bytes or seconds; None if there is no measurement."""
    quantity: str
    """The estimate to compare with: the `allocated` or `reserved` range of a breakdown, or `seconds`."""
    group: Callable[[Row], str]
    """Returns the group of the row in the table."""
    fitted: Callable[[Row], bool] = lambda _: True
    """Returns whether the measured run fitted; otherwise the measurement ends at its out-of-memory error."""
    rivals: tuple[str, ...] = field(default=())
    """Names of other estimators, with columns `NAME_bytes`."""


def configuration(name: str, configs: Path) -> Path:
    """Return the file of a Hub name, `org--name.json`; a name without an owner matches any. Raises UsageError."""
    exact = configs / f"{name.replace('/', '--')}.json"
    if exact.is_file():
        return exact
    candidates = sorted(configs.glob(f"*--{name}.json")) if "/" not in name else []
    if len(candidates) != 1:
        raise UsageError(
            f"there is no configuration {exact}", hint="pass the folder of configurations as --configs DIR"
        )
    return candidates[0]


def number(row: Row, column: str) -> int | None:
    """Return an integer of the row; None if the column is empty or missing."""
    text = row.get(column) or ""
    return int(float(text)) if text else None
