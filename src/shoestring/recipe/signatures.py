"""The parameters of a recipe's optional functions, compared with what they are called with, before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError

if TYPE_CHECKING:
    from shoestring.recipe.parts import Parts

_OF_UPDATES = ("update", "updates_per_epoch", "total_updates")


def require_signatures(parts: Parts) -> None:
    """Raise UsageError that names each function which cannot be called as it will be."""
    learning = parts.learning
    functions = (
        ("schedule", learning.schedule, _OF_UPDATES),
        ("stage", learning.stage, _OF_UPDATES),
        ("after_update", learning.after_update, ("model",)),
    )
    problems = [
        f"{name}{inspect.signature(function)} is called as {name}({', '.join(arguments)})"
        for name, function, arguments in functions
        if callable(function) and not _accepts(function, len(arguments), has_stage=learning.stage is not None)
    ]
    if problems:
        raise UsageError(
            "functions of the recipe have other parameters than they are called with",
            problems=problems,
            hint="give them these parameters; further ones need a default",
        )


def _accepts(function: Callable[..., Any], count: int, *, has_stage: bool) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C
        return True
    # `after_update` gets the stage by its name, in a recipe that has stages.
    stage = {"stage": None} if has_stage and count == 1 and "stage" in signature.parameters else {}
    try:
        signature.bind(*range(count), **stage)
    except TypeError:
        return False
    return True
