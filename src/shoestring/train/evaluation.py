"""Metrics on data the model does not train on, and what they decide: the best weights and when to stop early."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import torch
from torch import nn

from shoestring.data.in_order import in_order
from shoestring.data.seeding import derive, seed_all
from shoestring.engine.precision import MixedPrecision
from shoestring.engine.update import as_sum
from shoestring.errors import UsageError
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts
from shoestring.session.stop import Stop
from shoestring.session.stretch import polled


def evaluate(
    loaded: LoadedRecipe,
    model: nn.Module,
    mixed_precision: MixedPrecision,
    dataset: Any,
    *,
    micro_batch: int,
    device: torch.device,
    stop: Stop,
    workers: int = 0,
) -> dict[str, Any]:
    """The recipe's metrics on `dataset`, in evaluation mode and without gradients, `micro_batch` samples at once.

    `workers` processes fetch ahead where that pays; the metrics are the same bits whatever their number.

    Raises SessionOver when it is time to stop before the last batch, or would be; nothing is changed then.
    """
    parts, training = loaded.parts, {module: module.training for module in model.modules()}
    batches = in_order(dataset, loaded.recipe, micro_batch, device, loaded.seed, workers=workers)
    fitting = polled(stop, "evaluation", batches, len(dataset))
    seed_all(derive(loaded.seed, "evaluation"))
    model.eval()
    try:
        with closing(batches), torch.no_grad(), mixed_precision.autocast():
            if parts.measured:
                size = {"size": micro_batch} if parts.measured_at_once else {}
                metrics = parts.measured(model, dataset, partial(polled, stop, "evaluation"), **size)
            elif parts.evaluate:
                metrics = parts.evaluate(model, (batch for batch, _ in fitting))
            else:
                metrics = mean_loss(loaded.recipe, model, fitting)
    finally:
        # Not simply train(): a recipe may keep frozen parts in evaluation mode.
        for module, mode in training.items():
            module.training = mode
    return dict(metrics)


def mean_loss(recipe: Any, model: nn.Module, batches: Iterator[tuple[Any, int]]) -> dict[str, float]:
    """The loss over all batches: sum divided by weight."""
    total, weight = 0.0, 0.0
    for batch, size in batches:
        loss_sum, loss_weight = as_sum(recipe.loss(model, batch), size)
        total += float(loss_sum)
        weight += float(loss_weight)
    return {"loss": total / weight if weight else float("nan")}


def best_entry(recipe: object, history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first of the best epochs by the recipe's deciding metric; None without any.

    Raises UsageError when the metrics do not have it as a number.
    """
    metric, direction = Parts.of(recipe).best
    for entry in history:
        if not isinstance(entry["metrics"].get(metric), (int, float)):
            raise UsageError(
                f"the deciding metric {metric!r} is no number among the metrics {', '.join(entry['metrics'])}",
                hint="name one that evaluate() returns in `best`",
            )
    choose = min if direction == "min" else max
    return choose(history, key=lambda entry: entry["metrics"][metric], default=None)


def out_of_patience(recipe: object, history: list[dict[str, Any]]) -> bool:
    """Whether the last `patience` epochs brought nothing better."""
    patience, best = Parts.of(recipe).patience, best_entry(recipe, history)
    return patience is not None and best is not None and history[-1]["epoch"] - best["epoch"] >= patience
