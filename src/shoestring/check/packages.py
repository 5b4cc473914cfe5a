"""The packages that the project and a recipe require, from the metadata of the installed project."""

import re
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from shoestring.check.facts import Package

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

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?P<versions>[^;]*)(;.*extra == ['\"](?P<extra>[a-z0-9_-]+)['\"])?"
)
_MINIMUM = re.compile(r">=\s*(?P<minimum>[0-9][0-9.]*)")


def required_packages(extras: Iterable[str], installed: Callable[[str], str] | None = None) -> tuple[Package, ...]:
    """Return the packages that the project and its `extras` require; empty if the project itself is not installed."""
    try:
        lines = requires("shoestring") or []
    except PackageNotFoundError:
        return ()
    return tuple(_parse_requirements(lines, set(extras), installed or _installed_version))


def parse_version(text: str) -> tuple[int, ...]:
    """Return a version as a tuple of numbers that can be compared: 2.13.0+cu130 is (2, 13, 0)."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:3]))


def _parse_requirements(lines: list[str], extras: set[str], installed: Callable[[str], str]) -> Iterator[Package]:
    for line in lines:
        match = _REQUIREMENT.match(line)
        extra = (match["extra"] or "") if match else ""
        if not match or match["name"] == "shoestring" or (extra and extra not in extras):
            continue
        minimum = _MINIMUM.search(match["versions"])
        yield Package(
            name=match["name"],
            minimum=minimum["minimum"] if minimum else "",
            installed=installed(match["name"]),
            extra=extra,
        )


def _installed_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
