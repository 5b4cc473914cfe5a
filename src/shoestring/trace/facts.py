"""What a recipe is, whatever the settings: counts that need its model and its data, but no update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil
import torch
from torch import nn

from shoestring.recipe.contract import length_of
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts
from shoestring.techniques import adapt, checkpointing, norms
from shoestring.trace import pretend
from shoestring.trace.record import Facts


def read(loaded: LoadedRecipe) -> Facts:
    """The facts of the recipe and its options; raises what its own code raises."""
    recipe, samples, lengths = loaded.recipe, None, None
    if loaded.parts.data is not None:
        data = loaded.data()
        samples = {name: len(each) for name, each in data.items()}
        lengths = _lengths(recipe, data["train"])
    model: nn.Module = pretend.build(lambda: adapt.model(recipe.model(), loaded.adaptation))
    # Where torch's compiler cannot be spared, making an optimizer imports it, as it does in training.
    torch.optim.AdamW([torch.zeros(1)])
    process = int(psutil.Process().memory_info().rss)
    parameters = list(model.parameters())
    stored = {id(tensor): tensor for tensor in pretend.tensors(dict(model.state_dict(keep_vars=True)))}
    return Facts(
        # Packed weights (4 bits, two in each byte) say how many they are.
        parameters_total=sum(getattr(parameter, "unpacked_numel", parameter.numel()) for parameter in parameters),
        parameters_trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        weight_bytes=sum(map(_bytes, stored.values())),
        frozen_bytes=sum(_bytes(parameter) for parameter in parameters if not parameter.requires_grad),
        rounded_bytes=sum(
            parameter.numel() * max(0, parameter.element_size() - 2)
            for parameter in parameters
            if parameter.is_floating_point()
        ),
        batch_norm=any(isinstance(module, norms.BATCH) and module.training for module in model.modules()),
        samples=samples,
        process_bytes=process,
        blocks=len(checkpointing.blocks(model, loaded.parts)),
        data_parallel=any(isinstance(module, nn.DataParallel) for module in model.modules()),
        lengths=lengths,
        # Of its data; without them it may have nothing to tell yet.
        notes=tuple(loaded.parts.notes()) if samples else (),
    )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _lengths(recipe: Any, data: Any) -> tuple[float, float] | None:
    """The mean and the longest of at most a thousand samples at equal distances."""
    length = length_of(recipe, data)
    if length is None:
        return None
    found = [length(index) for index in range(0, len(data), -(-len(data) // 1000))]
    return sum(found) / len(found), max(found)


def first_batches(recipe: Any, size: int) -> tuple[tuple[float, float], ...]:
    """How likely the first batch of `size` samples is which share of `recipe.batch(size)`.

    What the recipe says; else, where a batch has sequences of tokens, which are padded to the longest of a batch more
    often than not, a sixteenth or an eighth less, each as likely as one in four: an assumption.
    """
    own = Parts.of(recipe).first_batches
    if own is not None:
        said: Mapping[float, float] = own(size)
        return tuple(said.items())
    tokens = any(tensor.dtype == torch.int64 and tensor.dim() > 1 for tensor in pretend.tensors(recipe.batch(size)))
    return ((15 / 16, 0.25), (7 / 8, 0.25)) if tokens else ()
