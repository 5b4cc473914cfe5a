"""What is to be rehearsed, as a value, and how far a rehearsal is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoestring.base import shell
from shoestring.hardware.catalog import Target
from shoestring.planning.simulator.environment import Values


@dataclass(frozen=True, kw_only=True)
class RehearsalRequest:
    """A script, a module, or a recipe, and what it is rehearsed on. Exactly one of the first four is set."""

    script: Path | None = None
    """A Python file or a notebook."""
    module: str | None = None
    """The name of a module, as `python -m` takes it; `torchrun` and `accelerate` are launchers."""
    recipe: str | None = None
    """The name of an installed recipe, or `hf:...`."""
    recipe_file: Path | None = None
    set_values: Mapping[str, object] = field(default_factory=dict)
    """The options and settings of a recipe."""
    arguments: tuple[str, ...] = ()
    """The arguments of the script, the module or the launcher."""
    target: Target
    updates: int | None = None
    """The number of optimizer steps after which the script is ended; None: it runs to its own end."""
    total_updates: int | None = None
    """The number of updates that the time is predicted for, if the script does not tell."""
    values: Values = "auto"
    stack: str | None = None
    """The platform whose versions are used; None for those of this environment."""
    session_seconds: float | None = None
    """The length of a session; None: no limit is known."""
    json: bool = False
    """Whether the script's standard output goes to standard error."""
    command: str = ""
    """The command of this rehearsal, to be typed again."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a rehearsal is."""

    seconds: float
    """The time since the script began."""
    updates: int
    """The updates that were made."""
    total_updates: int | None
    phase: str
    reserved_bytes: int
    """What PyTorch's allocator holds on the GPU that uses most."""
    capacity_bytes: int
    """The memory of a GPU."""


def command_line(
    subject: list[str],
    target: str,
    arguments: tuple[str, ...],
    options: Mapping[str, object],
) -> str:
    """Return the command that rehearses `subject` again; options without a value are left out."""
    words = ["shoestring", "rehearse", *subject, "--on", target]
    for name, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            words += [name, f"{item:g}s" if name == "--limit" else str(item)] if item is not None else []
    return shell.join([*words, *(["--", *arguments] if arguments else [])])
