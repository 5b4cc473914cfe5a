"""The part `after_update` of a recipe: what follows each update, such as a teacher that averages the weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError
from shoestring.recipe.losses import Loss

if TYPE_CHECKING:
    from shoestring.recipe.parts import Parts


def after_update_of(parts: Parts, loss: Loss) -> Callable[[Any], Any] | None:
    """Return the recipe's `after_update` for an update with this loss of `losses.loss_at` or `losses_by_stage`.

    If it has the parameter `stage`, it gets the stage of the loss.

    Raises UsageError if a library's trainer makes the updates, which does not call it.
    """
    hook = parts.learning.after_update
    if hook is None:
        return None
    if parts.learning.trainer is not None:
        raise UsageError(
            "after_update() would not be called, because trainer() leaves the updates to a library",
            hint="give the library's trainer a callback with on_step_end",
        )
    keywords = getattr(loss, "keywords", {})
    if "stage" in keywords and "stage" in inspect.signature(hook).parameters:
        return partial(hook, stage=keywords["stage"])
    return hook
