"""What a row of measurements was of: a recipe, settings and a device, and where its numbers stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoestring.errors import UsageError
from shoestring.hardware.catalog import Device
from shoestring.settings import Settings

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row's run, as an estimate is asked for."""

    recipe: Callable[[], object]
    same: tuple[object, ...]
    """What the recipe depends on: rows for which it is equal share one."""
    settings: Settings
    device: Device
    gpus: int = 1


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A set of measurements: how its rows are read."""

    case: Callable[[Row, Path], Case]
    """From a row and the folder of configurations. Raises UsageError for what is not known."""
    measured: Callable[[Row], float | None]
    """The bytes or seconds that judge; None where nothing was measured."""
    judged: str
    """What they are held against: a breakdown's range, `allocated` or `reserved`, or `seconds`."""
    group: Callable[[Row], str]
    """The line of the table that the row belongs to."""
    fitted: Callable[[Row], bool] = lambda _: True
    """Whether the measured run did; one that did not was measured where it died."""
    rivals: tuple[str, ...] = field(default=())
    """Other estimators: their columns are `NAME_bytes`."""


def configuration(name: str, configs: Path) -> Path:
    """The file of a Hub name, `org--name.json`; a name without an owner may lie under any. Raises UsageError."""
    exact = configs / f"{name.replace('/', '--')}.json"
    if exact.is_file():
        return exact
    others = sorted(configs.glob(f"*--{name}.json")) if "/" not in name else []
    if len(others) != 1:
        raise UsageError(f"there is no configuration {exact}", hint="--configs DIR says where they lie")
    return others[0]


def number(row: Row, column: str) -> int | None:
    """A whole number of the row; None where the column is empty or not there."""
    text = row.get(column) or ""
    return int(float(text)) if text else None
