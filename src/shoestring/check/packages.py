"""The packages that the project and a recipe require, from the metadata of the installed project."""

from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version

from shoestring.check.facts import Package
from shoestring.recipe import requirements

TESTED = {
    "torch": "2.13.0",
    "numpy": "2.4.6",
    "safetensors": "0.8.0",
    "transformers": "5.23.0",
    "peft": "0.21.2",
    "pandas": "3.1.1",
    "torchmetrics": "1.9.0",
}
"""Tested versions of the packages that results may depend on, copied from constraints.txt, which is not installed."""


def required_packages(extras: Iterable[str], installed: Callable[[str], str] | None = None) -> tuple[Package, ...]:
    """Return the packages that the project and its `extras` require; empty if the project itself is not installed."""
    installed = installed or _installed_version
    return tuple(
        Package(
            name=requirement.name,
            minimum=requirement.minimum,
            installed=installed(requirement.name),
            extra=requirement.extra,
        )
        for requirement in requirements.required_packages(extras)
    )


def _installed_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
