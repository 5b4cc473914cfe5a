"""What a recipe with its options requires: extras of Shoestring, and the packages that they consist of."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires

from shoestring.recipe.finding import BUILT_IN, HUGGING_FACE
from shoestring.recipe.options import LoadedRecipe

_EXTRAS_OF_OPTIONS = (
    ("quantization", ("nf4",), "bitsandbytes"),
    ("optimizer_states", ("8bit", "paged", "paged_8bit"), "bitsandbytes"),
)
"""An option, the values of it that need an extra, and the extra. It counts whether the recipe or Shoestring has it."""

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?P<versions>[^;]*)(;.*extra == ['\"](?P<extra>[a-z0-9_-]+)['\"])?"
)
_MINIMUM = re.compile(r">=\s*(?P<minimum>[0-9][0-9.]*)")


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """A package that is required."""

    name: str
    """As pip writes it: in lower case, with hyphens."""
    minimum: str = ""
    """The oldest version that is enough; empty for any."""
    extra: str = ""
    """The extra that requires it; empty for a package that Shoestring always requires."""


def required_extras(loaded: LoadedRecipe) -> frozenset[str]:
    """Return the extras of Shoestring that a recipe with these options requires."""
    extras = {loaded.name} if loaded.name in BUILT_IN else set()
    if loaded.name.startswith(HUGGING_FACE):
        extras.add("huggingface")
    if loaded.adaptation.lora_r is not None:
        extras.add("huggingface")  # it includes peft
    extras |= {extra for option, values, extra in _EXTRAS_OF_OPTIONS if loaded.options.get(option) in values}
    return frozenset(extras)


def required_packages(extras: Iterable[str]) -> tuple[Requirement, ...]:
    """Return the packages that Shoestring and its `extras` require; empty if Shoestring itself is not installed."""
    try:
        lines = requires("shoestring") or []
    except PackageNotFoundError:
        return ()
    extras, requirements = {"", *extras}, []
    for line in lines:
        requirement = parse_requirement(line)
        if requirement and requirement.name != "shoestring" and requirement.extra in extras:
            requirements.append(requirement)
    return tuple(requirements)


def parse_requirement(text: str) -> Requirement | None:
    """Return a requirement as the metadata of a package, or a person, writes it; None for another text."""
    match = _REQUIREMENT.match(text)
    if not match:
        return None
    minimum = _MINIMUM.search(match["versions"])
    return Requirement(
        name=normalized(match["name"]),
        minimum=minimum["minimum"] if minimum else "",
        extra=match["extra"] or "",
    )


def normalized(name: str) -> str:
    """Return the name of a package as pip compares it: huggingface_hub is huggingface-hub."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_version(text: str) -> tuple[int, ...]:
    """Return a version as a tuple of numbers that can be compared: 2.13.0+cu130 is (2, 13, 0)."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:3]))
