"""What is in host memory while a model is loaded, and in a traced update: it is not in the record of the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import simulated_device
from shoestring.planning.trace.loading import children_first
from shoestring.planning.trace.record import Part
from shoestring.planning.trace.recorder import is_simulated
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import checkpointing, deferred_casts, offload
from shoestring.techniques.streaming import placement
from shoestring.training.engine.averaging import AveragedWeights

_STACKED_DIMENSIONS = 3
"""Of weights that transformers puts together of several tensors of the files: the experts of a layer."""


class _Group(NamedTuple):
    """What is moved, or streamed, after the groups before it."""

    weights: list[nn.Parameter]
    """They have their values at the same time."""
    streamed_bytes: int = 0
    """Their bytes, and those of other streamed tensors of their block, that are in host memory from then on."""


def loading_bytes(model: nn.Module, loaded: LoadedRecipe, settings: Settings, *, is_pretrained: bool) -> int:
    """Return the most bytes of weights that are in memory of the process while an adapted model is loaded, beside those
    of all streamed blocks.

    `model` is not moved yet. Files that are mapped do not count, since the operating system can take their pages back.
    """
    is_adapted = loaded.adaptation.lora_r is not None
    is_mapped = is_pretrained and loaded.parts.learning.maps_files

    def memory_of(weight: nn.Parameter) -> deferred_casts.HostMemory:
        is_new = is_adapted and weight.requires_grad
        is_in_files = is_mapped and not is_new and weight.dim() != _STACKED_DIMENSIONS
        return deferred_casts.host_memory(weight, is_mapped=is_in_files)

    groups = [([*map(memory_of, group.weights)], group.streamed_bytes) for group in _groups(model, loaded, settings)]
    streamed = sum(size for _, size in groups) if settings.stream_from != "disk" else 0
    present = sum(memory.before for memories, _ in groups for memory in memories) - streamed
    peak = max(0, present)
    for memories, streamed_bytes in groups:
        for memory in memories:
            peak = max(peak, present + memory.converting)
            present += memory.after - memory.before
        present += streamed_bytes if streamed else 0
        peak = max(peak, present)
        present -= sum(memory.after for memory in memories)
    return peak


def _groups(model: nn.Module, loaded: LoadedRecipe, settings: Settings) -> Iterator[_Group]:
    """Yield the parameters in the order in which they get their values, those together that have them together: what
    is streamed of a block, or divided of it among the GPUs. 4-bit weights of a block are packed one by one."""
    left = dict.fromkeys(weight for module in children_first(model) for weight in module.parameters(recurse=False))

    def removed(weights: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        chosen = [weight for weight in dict.fromkeys(weights) if weight in left]
        for weight in chosen:
            del left[weight]
        return chosen

    is_divided = settings.sharding in ("zero2", "zero3")
    if settings.streamed_blocks:
        for block, tensors in zip(*placement.choose(model, loaded.parts, settings.streamed_blocks), strict=True):
            values = [streamed.value for streamed in tensors]
            plain = [value for value in values if isinstance(value, nn.Parameter) and value.is_floating_point()]
            remaining = [weight for weight in block.parameters() if not any(weight is value for value in plain)]
            yield from (_Group([weight]) for weight in removed(remaining))
            yield _Group(removed(plain), sum(value.nbytes for value in values))
    elif is_divided:
        for block in checkpointing.blocks(model, loaded.parts):
            yield _Group(removed(block.parameters()))
    yield from [_Group([*left])] if is_divided else (_Group([weight]) for weight in left)


def bytes_by_part(model: nn.Module, optimizer: Any, averages: AveragedWeights | None) -> dict[Part, int]:
    """Return the bytes in host memory when an update is complete but for its step.

    Call it after a step of the `optimizer`, with those parameters registered in the model that the GPU has.
    """
    stepped = offload.stepped_parameters(optimizer)
    tensors: dict[Part, Iterable[Tensor]] = {
        "weights": [*model.parameters(), *stepped],
        "buffers": model.buffers(),
        "gradients": [parameter for parameter in stepped if parameter.requires_grad],
        "optimizer states": simulated_device.tensors(list(optimizer.state.values())),
        "averaged weights": averages.averages.values() if averages else (),
    }
    sizes = {part: _bytes_on_host(members) for part, members in tensors.items()}
    return {part: size for part, size in sizes.items() if size}


def _bytes_on_host(tensors: Iterable[Tensor]) -> int:
    return sum(
        tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values() if not is_simulated(tensor)
    )
