"""A recipe's loss: its value, and the stages of training in which it differs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.recipe.parts import Parts

Loss = Callable[[Any, Any], Any]
"""`loss(model, batch)`"""


EVALUATION_HINT = "write evaluate(model, batches) -> the metrics by name, or give the argument a default"


def loss_at(recipe: Any, update: int, updates_per_epoch: int, total_updates: int) -> Loss:
    """Return the recipe's loss for update number `update`, with its `stage` if the recipe has stages."""
    stage = Parts.from_recipe(recipe).learning.stage
    if stage is None:
        plain: Loss = recipe.loss
        return plain
    return partial(recipe.loss, stage=stage(update, updates_per_epoch, total_updates))


def clip_norm(parts: Parts, loss: Loss) -> float | None:
    """Return the maximum norm of the gradient of a loss of `loss_at` or `losses_by_stage`; None without one.

    Raises UsageError if the recipe has one for each stage, and none for this.
    """
    if not isinstance(parts.learning.clip_norm, Mapping):
        return parts.learning.clip_norm
    stage = getattr(loss, "keywords", {}).get("stage")
    if stage not in parts.learning.clip_norm:
        raise UsageError(
            f"clip_norm has no entry for the stage {stage!r}; it has {', '.join(map(repr, parts.learning.clip_norm))}",
            hint="give clip_norm a number, or one for each value of `stages`",
        )
    return parts.learning.clip_norm[stage]


def losses_by_stage(recipe: Any) -> Sequence[Loss]:
    """Return the recipe's loss in each stage that it declares; without declared stages one loss, without a stage.

    Raises UsageError if the loss needs a stage and none is declared, and for a declaration that is not a sequence.
    """
    parts = Parts.from_recipe(recipe)
    if parts.learning.stage is not None and parts.learning.stages is not None:
        if (
            isinstance(parts.learning.stages, str)
            or not isinstance(parts.learning.stages, Sequence)
            or not parts.learning.stages
        ):
            raise UsageError(
                f"stages = {parts.learning.stages!r}: not a sequence of the values that stage() returns",
                hint='for example stages = ("d", "g")',
            )
        return [partial(recipe.loss, stage=stage) for stage in parts.learning.stages]
    return [loss_without_stage(recipe, "estimates", _declare_stages(parts))]


def loss_without_stage(recipe: Any, purpose: str, hint: str) -> Loss:
    """Return the recipe's loss for `purpose`, which is no update of a run.

    Raises UsageError with the `hint` if it needs a stage.
    """
    if requires_stage(recipe):
        raise UsageError(f"loss() needs the argument stage, which {purpose} cannot give it", hint=hint)
    loss: Loss = recipe.loss
    return loss


def requires_stage(recipe: Any) -> bool:
    """Return whether the loss has a parameter `stage` without a default."""
    try:
        stage = inspect.signature(recipe.loss).parameters.get("stage")
    except (TypeError, ValueError):  # a callable without a signature
        return False
    return stage is not None and stage.default is stage.empty and stage.kind is not stage.VAR_KEYWORD


def _declare_stages(parts: Parts) -> str:
    declaration = 'declare the values of the argument that are to be estimated, for example stages = ("d", "g")'
    if parts.learning.stage is None:
        declaration += ", and write stage(update, updates_per_epoch, total_updates), which returns one of them"
    return f"{declaration}; or give the argument a default"


def scalar_loss(value: Any) -> tuple[Any, Any]:
    """Return the tensor that a recipe's loss has returned, and the weight of its samples: None for a mean over them.

    Raises UsageError for anything other than a scalar or (scalar, weight).
    """
    from torch import Tensor

    pair = isinstance(value, tuple) and len(value) == 2
    loss, weight = value if pair else (value, None)
    invalid_weight = isinstance(weight, Tensor) and weight.numel() != 1
    if not isinstance(loss, Tensor) or loss.numel() != 1 or invalid_weight:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(
            f"loss() returned {shape}", hint="return the mean over the batch as a scalar, or the pair (sum, weight)"
        )
    return loss, weight
