"""The packages that the project and a recipe need, as the installed project's own metadata says."""

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
"""Of constraints.txt, which is not part of an installed package, those on which results may depend."""

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<rest>[^;]*)(;.*extra == ['\"](?P<extra>[a-z0-9_-]+)['\"])?")
_LEAST = re.compile(r">=\s*(?P<least>[0-9][0-9.]*)")


def needed(extras: Iterable[str], installed: Callable[[str], str] | None = None) -> tuple[Package, ...]:
    """What the project always needs, and what `extras` add; empty where the project itself was never installed."""
    try:
        lines = requires("shoestring") or []
    except PackageNotFoundError:
        return ()
    return tuple(_packages(lines, set(extras), installed or _installed))


def numbers(text: str) -> tuple[int, ...]:
    """A version as numbers to compare: 2.13.0+cu130 is (2, 13, 0)."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:3]))


def _packages(lines: list[str], extras: set[str], installed: Callable[[str], str]) -> Iterator[Package]:
    for line in lines:
        found = _REQUIREMENT.match(line)
        extra = (found["extra"] or "") if found else ""
        if not found or found["name"] == "shoestring" or (extra and extra not in extras):
            continue
        least = _LEAST.search(found["rest"])
        yield Package(
            name=found["name"],
            least=least["least"] if least else "",
            installed=installed(found["name"]),
            extra=extra,
        )


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
