"""Facts of a recipe that do not depend on the settings: counts from its model and its data, without an update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import psutil
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.planning.trace import simulated_device
from shoestring.planning.trace.absent_data import absent_data_notes
from shoestring.planning.trace.pretrained import observe_loading
from shoestring.planning.trace.record import Facts
from shoestring.recipe.contract import length_of
from shoestring.recipe.losses import EVALUATION_HINT, loss_without_stage
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts
from shoestring.techniques import adapt, checkpointing, kernels, nested, nf4, norms
from shoestring.techniques.parameter_count import ParameterCount


def read(loaded: LoadedRecipe) -> Facts:
    """Return the facts of the recipe with its options. Raises whatever the recipe's code raises."""
    recipe, samples, lengths = loaded.recipe, None, list[float]()
    if loaded.absent_data:
        samples, lengths = loaded.absent_samples(), _absent_lengths(loaded)
    elif loaded.parts.data.data is not None:
        data = loaded.data()
        samples = {name: len(dataset) for name, dataset in data.items()}
        lengths = _lengths(recipe, data["train"])
    if (
        samples
        and samples.keys() - {"train"}
        and not (loaded.parts.evaluation.evaluate or loaded.parts.evaluation.measured)
    ):
        loss_without_stage(recipe, "an evaluation", EVALUATION_HINT)
    model, is_pretrained = _build(loaded)
    # Unless torch's compiler can be left out, creating an optimizer imports it, as in training.
    torch.optim.AdamW([torch.zeros(1)])
    process_bytes = int(psutil.Process().memory_info().rss)
    parameters, count = list(model.parameters()), ParameterCount(model)
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    unique_tensors = {id(tensor): tensor for tensor in simulated_device.tensors(dict(model.state_dict(keep_vars=True)))}
    return Facts(
        parameters_total=count.total,
        parameters_trainable=count.trainable,
        weight_bytes=sum(map(_bytes, unique_tensors.values())),
        frozen_bytes=sum(map(_bytes, (*frozen, *nf4.scales_and_tables(model)))),
        rounded_bytes=sum(
            parameter.numel() * max(0, parameter.element_size() - 2)
            for parameter in parameters
            if parameter.is_floating_point()
        ),
        batch_norm=any(isinstance(module, norms.BATCH) and module.training for module in model.modules()),
        samples=samples,
        process_bytes=process_bytes,
        is_pretrained=is_pretrained,
        random_parts=tuple(loaded.parts.learning.random_parts()),
        blocks=len(checkpointing.blocks(model, loaded.parts)),
        fused_optimizer=_has_fused_optimizer(loaded, model),
        data_parallel=any(isinstance(module, nn.DataParallel) for module in model.modules()),
        lengths=(sum(lengths) / len(lengths), max(lengths)) if lengths else None,
        export_bytes=_export_bytes(loaded, model),
        sample_lengths=tuple(lengths) if loaded.parts.data.capacity is not None else (),
        # Notes describe the data, so a recipe with data may have none before its data is loaded.
        notes=(*_notes(loaded, samples), *adapt.notes(model, loaded)),
    )


def _absent_lengths(loaded: LoadedRecipe) -> list[float]:
    """Return the lengths of data that are not here; none if they are not known."""
    assert loaded.absent_data
    if loaded.lengths:
        return list(loaded.lengths.quantiles())
    length = loaded.absent_data.row_tokens
    return [] if length is None else [float(length)]


def _notes(loaded: LoadedRecipe, samples: Mapping[str, int] | None) -> Iterator[str]:
    if loaded.absent_data and samples:
        yield from absent_data_notes(loaded, samples)
        with suppress(Exception):  # a recipe's notes may be about the data, which it has not read
            yield from loaded.parts.data.notes()
    elif samples or loaded.parts.data.data is None:
        yield from loaded.parts.data.notes()
        if not samples and _has_length(loaded):
            data = loaded.parts.data
            yield (
                f"all samples have {data.capacity:g} {data.length_unit} ({data.length_option}): samples that differ in "
                "length reserve more memory, which lengths=FILE predicts (shoestring check RECIPE --lengths FILE)"
            )


def _has_length(loaded: LoadedRecipe) -> bool:
    """Return whether the option of the length decides the size of a batch, as it does not for images."""
    data = loaded.parts.data
    if not data.length_option or data.capacity is None:
        return False
    tensors = nested.tensors(loaded.recipe.batch(1))
    return any(int(data.capacity) in tensor.shape for tensor in tensors)


def _build(loaded: LoadedRecipe) -> tuple[nn.Module, bool]:
    """Return the model and whether it begins from pretrained weights."""

    def build() -> nn.Module:
        return simulated_device.build(lambda: adapt.planned_model(loaded))

    if loaded.parts.learning.is_pretrained is not None:
        return build(), loaded.parts.learning.is_pretrained
    return observe_loading(build)  # takes half as long again


def _has_fused_optimizer(loaded: LoadedRecipe, model: nn.Module) -> bool:
    """Return whether a plan may choose the fused kernel; False as well for an optimizer that cannot be built."""
    if loaded.parts.learning.trainer is not None:
        return False
    with suppress(Exception):  # the trace reports it, with the recipe's line
        return kernels.can_be_fused(adapt.optimizer(loaded, model), model)
    return False


def _export_bytes(loaded: LoadedRecipe, model: nn.Module) -> dict[str, int]:
    """Return the bytes of the exports whose size the recipe knows; none of a format that the model does not have."""
    sizes = {}
    for name, format_ in loaded.parts.use.exports.items():
        with suppress(UsageError):
            if format_.size:
                sizes[name] = format_.size(model)
    return sizes


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _lengths(recipe: Any, data: Any) -> list[float]:
    """Return the lengths of at most a thousand evenly spaced samples; none without `length`."""
    length = length_of(recipe, data)
    if length is None:
        return []
    return [length(index) for index in range(0, len(data), -(-len(data) // 1000))]


def first_batches(recipe: Any, size: int) -> tuple[tuple[float, float], ...]:
    """Return the possible sizes of the first batch, as pairs of a share of `recipe.batch(size)` and its probability.

    They come from the recipe's `first_batches` if it has one. Otherwise, if a batch has sequences of tokens, which are
    usually padded to the longest of the batch, it is a sixteenth or an eighth smaller with a probability of a quarter
    each: an assumption.
    """
    recipe_first_batches = Parts.from_recipe(recipe).learning.first_batches
    if recipe_first_batches is not None:
        probabilities: Mapping[float, float] = recipe_first_batches(size)
        return tuple(probabilities.items())
    tokens = any(tensor.dtype == torch.int64 and tensor.dim() > 1 for tensor in nested.tensors(recipe.batch(size)))
    return ((15 / 16, 0.25), (7 / 8, 0.25)) if tokens else ()
