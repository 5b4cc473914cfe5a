"""Metrics on data the model does not train on, and what depends on them: the best weights and early stopping."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.json_values import NotJsonError, encode
from shoestring.base.settings import Settings
from shoestring.recipe import evidence
from shoestring.recipe.losses import EVALUATION_HINT, loss_without_stage
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts
from shoestring.techniques.memory_format import reshaping_views
from shoestring.training.batch_results import on_host
from shoestring.training.data.own_generators import OwnGenerators
from shoestring.training.data.seeding import derive
from shoestring.training.data.sequential import sequential_batches
from shoestring.training.engine.evaluation_mode import evaluation_mode
from shoestring.training.engine.memory import Failure
from shoestring.training.engine.parallel.default_group import without_default_group
from shoestring.training.engine.precision import MixedPrecision
from shoestring.training.engine.update import loss_sum_and_weight, mean_of_sums
from shoestring.training.session.polling import poll_deadline
from shoestring.training.session.stop import Stop

T = TypeVar("T")

_NON_FINITE = ("nan", "inf", "-inf")
"""The names of the numbers that JSON lacks."""

Pieces = Iterator[tuple[Any, int]]
"""Parts of an evaluation, with their numbers of samples."""


class EvaluationStrategy:
    """Who evaluates. In this strategy it is one process, which knows of no others; `processes` has those of several."""

    offset, stride = 0, 1
    """Of the batches, this process computes every `stride`th from number `offset` on."""

    def run(self, attempts: Callable[[], T]) -> T:
        """Return in all processes what `attempts` returns, which evaluates until the memory suffices."""
        return without_default_group()(attempts)()

    def attempt(self, compute: Callable[[], T]) -> T | Failure:
        """Return the result of one attempt, or a Failure without memory for it."""
        return compute()

    def agree(self, pieces: Pieces) -> Pieces:
        """Yield the pieces of an evaluation, each when it may be computed."""
        return pieces

    def metrics(self, compute: Callable[[], Any], combine: Callable[[Any], dict[str, Any]]) -> dict[str, Any] | Failure:
        """Return what `combine` makes of the results of `compute`, or a Failure without memory for it."""
        return combine(compute())


BY_THIS_PROCESS = EvaluationStrategy()


def evaluate(
    loaded: LoadedRecipe,
    model: nn.Module,
    mixed_precision: MixedPrecision,
    dataset: Any,
    *,
    micro_batch: int,
    device: torch.device,
    stop: Stop,
    settings: Settings,
    workers: int = 0,
    seeds_batches: bool = False,
    strategy: EvaluationStrategy = BY_THIS_PROCESS,
) -> dict[str, Any] | Failure:
    """Compute the recipe's metrics on `dataset`, in evaluation mode, without gradients, `micro_batch` samples at a
    time.

    Up to `workers` processes prefetch batches if that saves time; the metrics are bit-identical for any number of them.
    Batches have the memory format of `settings`. With `seeds_batches`, each batch and `combine` have random numbers of
    their own, which several processes need that divide the batches by their `strategy`. They return a Failure in all of
    them if one has run out of memory.

    Raises SessionOver if the session has to stop before the last batch; the model is unchanged then. Raises UsageError
    for metrics that are not JSON, and for results of batches that processes could not send each other.
    """
    parts, offset, stride = loaded.parts, strategy.offset, strategy.stride
    generators = OwnGenerators(recipe=loaded.recipe, model=model)
    batches = sequential_batches(
        dataset,
        loaded.recipe,
        micro_batch,
        device,
        loaded.seed,
        workers=workers,
        memory_format=settings.memory_format,
        offset=offset,
        stride=stride,
    )

    def poll(pieces: Pieces, samples: int) -> Pieces:
        return strategy.agree(poll_deadline(stop, "evaluation", pieces, samples))

    polled_batches = poll(batches, -(-len(dataset) // stride))
    if seeds_batches:
        polled_batches = seed_batches(polled_batches, generators, loaded.seed, offset=offset, stride=stride)
    if parts.divides_evaluation:
        result_of, combine_results = _batch_functions(loaded, model)

    def compute() -> Any:
        """Return the results of the batches, or the metrics of an evaluation that has none."""
        if parts.divides_evaluation:
            return [on_host(result_of(batch, size)) for batch, size in polled_batches]
        if parts.evaluation.measured:
            size = {"size": micro_batch} if parts.default_measured_size else {}
            return parts.evaluation.measured(model, dataset, poll, **size)
        assert parts.evaluation.evaluate is not None
        return parts.evaluation.evaluate(model, (batch for batch, _ in polled_batches))

    def combine(results: Any) -> dict[str, Any]:
        if not parts.divides_evaluation:
            return as_json(results)
        if seeds_batches:  # the last batch of a process depends on the number of processes
            generators.seed_all(derive(loaded.seed, "evaluation", "combine"))
        return as_json(combine_results(results))

    generators.seed_all(derive(loaded.seed, "evaluation"))
    with (
        evaluation_mode(model),
        closing(batches),
        torch.no_grad(),
        mixed_precision.autocast(),
        reshaping_views(settings.memory_format),
    ):
        return strategy.metrics(compute, combine)


def _batch_functions(
    loaded: LoadedRecipe, model: nn.Module
) -> tuple[Callable[[Any, int], Any], Callable[[Sequence[Any]], Any]]:
    """Return the function of a batch and its number of samples, and that of the results of all batches."""
    evaluate_batch, combine = loaded.parts.evaluation.evaluate_batch, loaded.parts.evaluation.combine
    if evaluate_batch and combine:
        return lambda batch, _: evaluate_batch(model, batch), combine
    loss = loss_without_stage(loaded.recipe, "an evaluation", EVALUATION_HINT)

    def loss_of(batch: Any, size: int) -> tuple[float, float]:
        loss_sum, weight = loss_sum_and_weight(loss(model, batch), size)
        return float(loss_sum), float(weight)

    return loss_of, lambda sums: {"loss": mean_of_sums(sums)}


def seed_batches(batches: Pieces, generators: OwnGenerators, seed: int, *, offset: int = 0, stride: int = 1) -> Pieces:
    """Yield the batches, of which these are every `stride`th from number `offset` on, each with its own seed."""
    for index, piece in enumerate(batches):
        generators.seed_all(derive(seed, "evaluation", offset + index * stride))
        yield piece


def as_json(metrics: Any) -> dict[str, Any]:
    """Return metrics by name as JSON. Raises UsageError if they are something else."""
    if not isinstance(metrics, Mapping):
        raise UsageError(
            f"evaluate() returned a {type(metrics).__name__}", hint='return the metrics by name: {"accuracy": 0.9}'
        )
    encoded = {}
    for name, value in metrics.items():
        try:
            encoded[str(name)] = encode(value, names=True)
        except NotJsonError as error:
            raise UsageError(
                f"the metric {name!r} is {error}, which cannot be stored",
                hint="evaluate() returns numbers by name, or JSON",
            ) from None
    return encoded


def split_evidence(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metrics without their evidence (`recipe/evidence.py`), and the evidence; empty if there is none."""
    content = metrics.get(evidence.KEY)
    if not isinstance(content, dict):
        return dict(metrics), {}
    return {name: value for name, value in metrics.items() if name != evidence.KEY}, content


def best_entry(recipe: object, history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the entry of the best epoch by the recipe's deciding metric, the first of equals; None without any epoch.

    Raises UsageError if the metrics of an epoch do not contain it as a number.
    """
    metric, direction = Parts.from_recipe(recipe).evaluation.best
    for entry in history:
        if (
            not isinstance(entry["metrics"].get(metric), (int, float))
            and entry["metrics"].get(metric) not in _NON_FINITE
        ):
            raise UsageError(
                f"the deciding metric {metric!r} is not a number or is missing; "
                f"the metrics are: {', '.join(entry['metrics'])}",
                hint="set `best` to a metric that evaluate() returns",
            )
    worst = math.inf if direction == "min" else -math.inf

    def score(entry: dict[str, Any]) -> float:
        value = float(entry["metrics"][metric])
        return worst if math.isnan(value) else value

    choose = min if direction == "min" else max
    return choose(history, key=score, default=None)


def patience_exhausted(recipe: object, history: list[dict[str, Any]]) -> bool:
    """Return whether none of the last `patience` epochs improved on the best one."""
    patience, best = Parts.from_recipe(recipe).evaluation.patience, best_entry(recipe, history)
    return patience is not None and best is not None and history[-1]["epoch"] - best["epoch"] >= patience
