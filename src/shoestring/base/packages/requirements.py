"""The libraries that Shoestring and its extras require, and which of them are missing, too old or too new.

What is required is in the metadata of the installed project, so in pyproject.toml: from a minimum to below the first
major version that is unknown. What is installed is in the metadata of the libraries; none of them is imported. Python's
reader of metadata is imported when it is needed, since every command imports this module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec

from shoestring.base.errors import UsageError
from shoestring.base.packages.origin import DISTRIBUTION, install_command, pip_install

UNKNOWN_VERSION = "of unknown version"
"""What is `installed` of a library without metadata, such as one on PYTHONPATH."""

MODULES = {
    "nvidia-ml-py": "pynvml",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
}
"""The modules of libraries that have another name than their module, apart from `-` for `_`."""

_ESSENTIAL = ("torch", "numpy", "safetensors")
"""The libraries without which nothing is planned or trained. Other requirements are missed where they are used."""

_COLLECTIONS = ("all", "dev", "docs")
"""Extras that repeat others, or that only development needs."""

_CPU_BUILD = "add --extra-index-url https://download.pytorch.org/whl/cpu on a machine without a GPU"
"""The default build of torch brings gigabytes of CUDA libraries."""

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?P<versions>[^;]*)(;.*extra == ['\"](?P<extra>[a-z0-9_-]+)['\"])?"
)
_MINIMUM = re.compile(r">=\s*(?P<version>[0-9][0-9.]*)")
_BELOW = re.compile(r"<\s*(?P<version>[0-9][0-9.]*)")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A library that is required, and what is installed of it."""

    name: str
    minimum: str = ""
    """The oldest supported version; empty for any."""
    below: str = ""
    """The first version that is unknown to Shoestring, such as 3 for a library whose versions 1 and 2 are tested."""
    installed: str = ""
    """The installed version; empty if the library is not installed."""
    extra: str = ""
    """The extra that requires it; empty for a library that is always required."""
    is_complete: bool = True
    """Whether its module is there; an interrupted installation may leave the metadata alone."""

    @property
    def requirement(self) -> str:
        """The requirement as pip takes it, such as transformers>=4.56,<6."""
        limits = [f">={self.minimum}" if self.minimum else "", f"<{self.below}" if self.below else ""]
        return self.name + ",".join(filter(None, limits))

    @property
    def problem(self) -> str:
        """Why it cannot be used, as a predicate; empty if it can, as far as its metadata tell."""
        if not self.installed:
            return "is not installed"
        if not self.is_complete:
            return f"{self.installed} is installed only in part: its module {module_of(self.name)} is not there"
        if self.installed == UNKNOWN_VERSION:
            return ""
        if self.minimum and parse_version(self.installed) < parse_version(self.minimum):
            return f"{self.installed} is too old"
        if self.below and parse_version(self.installed) >= parse_version(self.below):
            return f"{self.installed} is too new: version {self.below} and later are unknown to Shoestring"
        return ""

    @property
    def problem_text(self) -> str:
        """The problem with the name, and what is required."""
        return f"{self.name} {self.problem} (required: {self.requirement})"


def require(extra: str, *modules: str) -> None:
    """Raise UsageError if a library is missing, too old or too new, by the `modules` that will be imported.

    The error names what is installed, what the `extra` requires, and the command that installs it.
    """
    if error := problems_as_error(_package(name_of(module), extra) for module in modules):
        raise error


def require_essential() -> None:
    """Raise UsageError if a library is missing, too old or too new without which nothing is planned or trained."""
    if error := problems_as_error(_package(name, "") for name in _ESSENTIAL):
        raise error


def problems_as_error(packages: Iterable[Package]) -> UsageError | None:
    """Return the one error for all packages that cannot be used, with one command that helps; None without any."""
    unusable = [package for package in packages if package.problem]
    if not unusable:
        return None
    texts = [package.problem_text for package in unusable]
    hint = f"{remedy(unusable)}, then start again"
    if len(texts) == 1:
        return UsageError(texts[0], hint=hint)
    are_missing = not any(package.installed for package in unusable)
    predicate = "are not installed" if are_missing else "cannot be used"
    return UsageError(f"{len(texts)} libraries {predicate}", problems=texts, hint=hint)


def remedy(unusable: Iterable[Package]) -> str:
    """Return the command that installs the right versions of packages that cannot be used.

    Missing libraries of one extra are installed with the extra from where this copy of Shoestring came from, so that
    the next library of the extra is not missed afterwards. A package without a `problem` has damaged files.
    """
    unusable = list(unusable)
    damaged = [package for package in unusable if package.installed and not (package.problem and package.is_complete)]
    if damaged:
        return reinstall_command(*map(pinned, damaged))
    requirements = [package.requirement for package in unusable]
    extras = {package.extra for package in unusable}
    if any(package.installed for package in unusable) or "" in extras:
        command = pip_install(*requirements)
        is_torch_missing = any(package.name == "torch" for package in unusable)
        return f"{command}; {_CPU_BUILD}" if is_torch_missing else command
    of_extras = [package.requirement for package in required(extras) if package.extra and package.problem]
    return install_command(",".join(sorted(extras)), of_extras or requirements)


def pinned(package: Package) -> str:
    """Return the requirement of the installed version, without the label of a build, which an index may not have."""
    is_known = package.installed not in ("", UNKNOWN_VERSION)
    return f"{package.name}=={package.installed.partition('+')[0]}" if is_known else package.requirement


def reinstall_command(*requirements: str) -> str:
    """Return the command that replaces the files of libraries, and of no others: torch alone is gigabytes."""
    return pip_install("--force-reinstall", "--no-deps", *requirements)


def required(extras: Iterable[str] = ()) -> tuple[Package, ...]:
    """Return the libraries that the project and its `extras` require; none if the project itself is not installed.

    A library that several require is returned once: they agree on its versions.
    """
    names = {"", *extras}
    by_name = {package.name: package for package in reversed(declared()) if package.extra in names}
    return tuple(map(_inspected, reversed(by_name.values())))


@cache
def declared() -> tuple[Package, ...]:
    """Return what the project and its extras for users require, without what is installed; nothing without metadata."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return tuple(_parse_requirements(requires(DISTRIBUTION) or []))
    except PackageNotFoundError:
        return ()


def library_of(module: str) -> Package:
    """Return a library by its module, as the project, or else one of its extras, requires it."""
    name = name_of(module)
    of_name = [package for package in declared() if package.name == name]
    return _inspected(min(of_name, key=lambda package: package.extra, default=Package(name=name)))


def parse_version(text: str) -> tuple[int, ...]:
    """Return a version as a tuple of numbers that can be compared: 2.13.0+cu130 is (2, 13, 0)."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:3]))


def name_of(module: str) -> str:
    """Return the name under which pip installs a module."""
    return {module: name for name, module in MODULES.items()}.get(module, module.replace("_", "-"))


def module_of(name: str) -> str:
    """Return the module of a library."""
    return MODULES.get(name, name.replace("-", "_"))


def installed_version(name: str) -> str:
    """Return the installed version of a library; empty if there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name) or ""  # None if its metadata have no version
    except PackageNotFoundError:
        return ""


def _package(name: str, extra: str) -> Package:
    """Return a library as the `extra` requires it, or else the project."""
    of_name = [package for package in declared() if package.name == name and package.extra in ("", extra)]
    return _inspected(max(of_name, key=lambda package: package.extra, default=Package(name=name, extra=extra)))


def _parse_requirements(lines: Iterable[str]) -> Iterator[Package]:
    for line in lines:
        match = _REQUIREMENT.match(line)
        if not match or match["extra"] in _COLLECTIONS:
            continue
        minimum, below = _MINIMUM.search(match["versions"]), _BELOW.search(match["versions"])
        yield Package(
            name=match["name"],
            minimum=minimum["version"] if minimum else "",
            below=below["version"] if below else "",
            extra=match["extra"] or "",
        )


def _inspected(package: Package) -> Package:
    """Return the package with what is installed of it."""
    installed, is_there = installed_version(package.name), has_module(module_of(package.name))
    version_text = installed or (UNKNOWN_VERSION if is_there else "")
    return replace(package, installed=version_text, is_complete=is_there or not installed)


def has_module(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    if module in sys.modules:
        return sys.modules[module] is not None
    spec = find_spec(module)
    return spec is not None and spec.origin is not None  # a folder that was left behind has a specification
