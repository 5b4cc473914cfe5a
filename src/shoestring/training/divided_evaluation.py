"""An evaluation whose batches several ranks divide, with the metrics of one process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, zip_longest
from typing import Any, cast

import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.recipe.losses import EVALUATION_HINT, loss_without_stage
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques.memory_format import reshaping_views
from shoestring.training.batch_results import on_host
from shoestring.training.data.sequential import sequential_batches
from shoestring.training.engine.evaluation_mode import evaluation_mode
from shoestring.training.engine.memory import Failure
from shoestring.training.engine.parallel import messages
from shoestring.training.engine.parallel.default_group import without_default_group
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.engine.precision import MixedPrecision
from shoestring.training.engine.update import loss_sum_and_weight, mean_of_sums
from shoestring.training.evaluation import as_json, seed_batches, seed_combination
from shoestring.training.session.polling import poll_deadline
from shoestring.training.session.stop import Stop


def evaluate_divided(
    ranks: Ranks,
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
) -> dict[str, Any] | Failure:
    """Compute the metrics of `train.evaluation.evaluate` on all ranks, each of which evaluates every `ranks.size`th
    batch. The first rank combines the results in the order of the batches.

    Returns a Failure on all ranks if one of them has run out of memory. The errors are those of `evaluate`, on all
    ranks.
    """
    result_of, combine = _steps(loaded, model)
    batches = sequential_batches(
        dataset,
        loaded.recipe,
        micro_batch,
        device,
        loaded.seed,
        workers=workers,
        memory_format=settings.memory_format,
        offset=ranks.rank,
        stride=ranks.size,
    )

    @contextmanager
    def evaluating() -> Iterator[None]:
        with (
            without_default_group(),
            evaluation_mode(model),
            torch.no_grad(),
            mixed_precision.autocast(),
            reshaping_views(settings.memory_format),
        ):
            yield

    def compute() -> tuple[list[Any], bytes]:
        with evaluating(), closing(batches):
            polled_batches = poll_deadline(stop, "evaluation", batches, -(-len(dataset) // ranks.size))
            seeded_batches = seed_batches(polled_batches, loaded.seed, offset=ranks.rank, stride=ranks.size)
            own_results = [on_host(result_of(batch, size)) for batch, size in seeded_batches]
            return own_results, b"" if ranks.is_first else messages.pack(own_results)

    computed = ranks.call(compute)
    if isinstance(computed, Failure):
        return computed
    results, content = computed
    contents = ranks.send_to_first(content)

    def compute_metrics() -> dict[str, Any]:
        if not ranks.is_first:
            return {}
        all_results = _in_turn([results, *(messages.unpack(received) for received in contents)])
        with evaluating():
            seed_combination(loaded.seed)
            return as_json(combine(all_results))

    metrics = ranks.call(compute_metrics)
    return metrics if isinstance(metrics, Failure) else cast("dict[str, Any]", ranks.share(lambda: metrics))


def _steps(loaded: LoadedRecipe, model: nn.Module) -> tuple[Callable[[Any, int], Any], Callable[[Sequence[Any]], Any]]:
    """Return the function of a batch and its number of samples, and that of all of its results."""
    parts = loaded.parts
    evaluate_batch, combine = parts.evaluation.evaluate_batch, parts.evaluation.combine
    if evaluate_batch and combine:
        return lambda batch, _: evaluate_batch(model, batch), combine
    loss = loss_without_stage(loaded.recipe, "an evaluation", EVALUATION_HINT)

    def loss_of(batch: Any, size: int) -> tuple[float, float]:
        loss_sum, weight = loss_sum_and_weight(loss(model, batch), size)
        return float(loss_sum), float(weight)

    return loss_of, lambda sums: {"loss": mean_of_sums(sums)}


def _in_turn(results_by_rank: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the results in the order of the batches: the first of each rank, then the second of each."""
    missing = object()
    return [result for result in chain(*zip_longest(*results_by_rank, fillvalue=missing)) if result is not missing]
