"""The steps of a LightningModule: `training_step`, and an evaluation by `validation_step` or `test_step`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import Parameter
from typing import Any

from torch import Tensor

from shoestring.integrations.lightning import metrics
from shoestring.integrations.lightning.loaders import PartBatch
from shoestring.integrations.lightning.logs import Reduced, batch_size
from shoestring.integrations.lightning.trainer import Trainer

BEST = ("loss", "min")
"""The metric that selects the best weights if the class does not name another one."""


def call(module: Any, name: str, *values: Any) -> Any:
    """Call a step or hook with as many of the values as it takes, and then the number of the only dataloader.

    `*arguments` receive the values alone, as from Lightning's Trainer with one dataloader.
    """
    limit = _accepted_values(getattr(type(module), name))
    return getattr(module, name)(*(values if limit is None else (*values, 0)[:limit]))


@cache
def _accepted_values(method: Any) -> int | None:
    """Return how many arguments a method takes by position, without `self`; None for any number."""
    kinds = [parameter.kind for parameter in inspect.signature(method).parameters.values()]
    if Parameter.VAR_POSITIONAL in kinds:
        return None
    return sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds) - 1


def transferred(source: Any, batch: Any) -> Any:
    """Return the batch, which is on its device, as the hooks around its transfer change it."""
    batch = source.on_before_batch_transfer(batch, 0)
    return source.on_after_batch_transfer(batch, 0)


def prepare_trace(module: Any, tensors: list[Tensor]) -> None:
    """Make the module's own record of its device that of the batch, and let its metrics compute nothing."""
    for part in module.modules():
        if isinstance(getattr(part, "_device", None), type(tensors[0].device)):
            part._device = tensors[0].device
    metrics.disable(module)


def evaluate(
    module: Any,
    data_module: Any,
    batches: Iterable[Any],
    training_loss: Callable[[Any, Any], Tensor] | None,
) -> dict[str, Any]:
    """Return the averages of what the module logs, and `loss`: a value logged under a name with `loss`, else what the
    step returns, else `training_loss`, if given.
    """
    trainer: Trainer = module._trainer
    metrics.reset(module)
    trainer.logs.begin()
    returned, part = Reduced("mean"), ""
    for index, part_batch in enumerate(batches):
        part, loaded = part_batch if isinstance(part_batch, PartBatch) else PartBatch("validation", part_batch)
        with trainer.during(part):
            trainer.logs.begin_batch(None)
            if index == 0:
                for hook in ("start", "epoch_start"):
                    getattr(module, f"on_{part}_{hook}")()
            batch = transferred(data_module or module, loaded)
            trainer.logs.begin_batch(batch)
            call(module, f"on_{part}_batch_start", batch, index)
            result = call(module, f"{part}_step", batch, index)
            call(module, f"on_{part}_batch_end", result, batch, index)
            loss = _loss(result)
        if loss is None and training_loss and part == "validation" and not _loss_names(trainer.logs.names):
            loss = training_loss(module, loaded)
        if loss is not None:
            returned.add(loss.detach().float().reshape(()), batch_size(batch))
    if part:
        with trainer.during(part):
            trainer.logs.begin_batch(None)
            for hook in ("epoch_end", "end"):
                getattr(module, f"on_{part}_{hook}")()
    logged = trainer.logs.finish()
    metrics.reset(module)
    if "loss" not in logged and training_loss:
        if names := _loss_names(logged):
            return {"loss": logged[names[0]], **logged}
        if returned.value is not None:
            return {"loss": returned.compute(), **logged}
    return logged


def _loss_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if "loss" in name.lower()]


def _loss(result: Any) -> Tensor | None:
    """Return the loss in what a step returned."""
    if isinstance(result, Mapping):
        result = next((result[name] for name in _loss_names(map(str, result)) if name in result), None)
    return result if isinstance(result, Tensor) and result.numel() == 1 else None
