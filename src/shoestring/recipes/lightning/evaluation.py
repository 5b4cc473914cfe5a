"""The steps of a LightningModule: `training_step`, and an evaluation by `validation_step` or `test_step`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from torch import Tensor

from shoestring.recipes.lightning import metrics
from shoestring.recipes.lightning.loaders import PartBatch
from shoestring.recipes.lightning.logs import batch_size
from shoestring.recipes.lightning.trainer import Trainer

BEST = ("loss", "min")
"""The metric that selects the best weights if the class does not name another one."""


def call_step(module: Any, step: str, batch: Any, index: int) -> Any:
    """Call a step with as many of (batch, index, dataloader 0) as it takes."""
    method = getattr(module, step)
    return method(*(batch, index, 0)[: _accepted(getattr(type(module), step)) - 1])


@cache
def _accepted(function: Any) -> int:
    """Return how many positional arguments a function accepts, with `self`."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 1 + 2
    return sum(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters)


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
    batches: Iterable[PartBatch],
    training_loss: Callable[[Any, Any], Tensor] | None,
) -> dict[str, Any]:
    """Return the averages of what the module logs, and `loss`: a value logged under a name with `loss`, else what the
    step returns, else `training_loss`, if given.
    """
    trainer: Trainer = module._trainer
    metrics.reset(module)
    trainer.logs.begin()
    returned, part = _Mean(), ""
    for index, (part, loaded) in enumerate(batches):
        with trainer.during(part):
            trainer.logs.begin_batch(None)
            if index == 0:
                for hook in ("start", "epoch_start"):
                    getattr(module, f"on_{part}_{hook}")()
            batch = transferred(data_module or module, loaded)
            trainer.logs.begin_batch(batch)
            _call_batch_hook(module, f"on_{part}_batch_start", batch, index)
            result = call_step(module, f"{part}_step", batch, index)
            _call_batch_hook(module, f"on_{part}_batch_end", result, batch, index)
            loss = _loss(result)
        if loss is None and training_loss and part == "validation" and not _loss_names(trainer.logs.names):
            loss = training_loss(module, loaded)
        if loss is not None:
            returned.add(loss, batch_size(batch))
    if part:
        with trainer.during(part):
            trainer.logs.begin_batch(None)
            for hook in ("epoch_end", "end"):
                getattr(module, f"on_{part}_{hook}")()
    logged = trainer.logs.finish()
    metrics.reset(module)
    if "loss" not in logged and training_loss:
        names = _loss_names(logged)
        loss_value = logged[names[0]] if names else returned.compute()
        logged = {"loss": loss_value, **logged} if loss_value is not None else logged
    return logged


def _loss_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if "loss" in name.lower()]


def _loss(result: Any) -> Tensor | None:
    """Return the loss in what a step returned."""
    if isinstance(result, Mapping):
        result = next((result[name] for name in _loss_names(map(str, result)) if name in result), None)
    return result if isinstance(result, Tensor) and result.numel() == 1 else None


def _call_batch_hook(module: Any, name: str, *values: Any) -> None:
    """Call a hook, with the index of the only dataloader if it takes that."""
    getattr(module, name)(*(*values, 0)[: _accepted(getattr(type(module), name)) - 1])


class _Mean:
    """The mean over the samples of what is added for each batch."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._weight = 0

    def add(self, value: Tensor, weight: int) -> None:
        scaled = value.detach().float().reshape(()) * weight
        self._sum = scaled if self._sum is None else self._sum + scaled
        self._weight += weight

    def compute(self) -> Tensor | None:
        return None if self._sum is None else self._sum / self._weight
