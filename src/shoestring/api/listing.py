"""What there is: recipes and targets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoestring.hardware.catalog import Target


def recipes(recipe: str | None = None) -> list[dict[str, Any]]:
    """Return the recipes of installed packages, or only `recipe`: name, summary, origin, and options with defaults,
    choices and help.

    `recipe` is the name of one of them or a path to a file, which is executed. The keys of each dict are those of the
    JSON of `shoestring recipes`.

    Raises UsageError for an unknown recipe.
    """
    from shoestring.recipe.finding import describe, describe_installed, find

    return describe_installed() if recipe is None else [describe(find(recipe))]


def targets() -> list[Target]:
    """Return the known targets: platforms, single GPUs, and this machine as `local`, which is detected.

    The fields of a target have bytes, FLOP/s, bytes/s and hours, each with its source.
    """
    from shoestring.hardware.targets import find, known

    return [*known().values(), find("local")]


def target_names(on: Iterable[str]) -> list[str]:
    """Return the names of targets; a platform with several machines, such as kaggle, stands for all of them."""
    from shoestring.hardware.targets import with_machines

    return with_machines(on)


def priced_targets() -> list[str]:
    """Return the names of the targets that everybody can have and whose price is known, the free ones first."""
    from shoestring.hardware.prices import price
    from shoestring.hardware.targets import known

    return [name for name, target in known().items() if price(target) and not target.depends_on_account]
