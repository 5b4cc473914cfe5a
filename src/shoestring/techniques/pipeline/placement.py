"""Moving a model to the devices that it is trained on: to one, or its two parts to one GPU each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.techniques import checkpointing, deferred_casts
from shoestring.techniques.pipeline.blocks import (
    bring_outputs_home,
    crossing_of,
    is_in_second_part,
    place_blocks,
    place_module,
)
from shoestring.techniques.pipeline.crossing import Crossing
from shoestring.techniques.pipeline.split import first_blocks
from shoestring.techniques.streaming import placement as streaming
from shoestring.techniques.streaming.tensors import Streamed

HINT = "set gpus=1, or gpus=2 with sharding=zero3, which divides each weight"


@dataclass(frozen=True)
class Part:
    """What is on one of the two devices."""

    device: torch.device
    blocks: list[nn.Module]
    outside: list[nn.Module]
    """The modules outside of all blocks, each without its children."""

    @property
    def modules(self) -> list[nn.Module]:
        return [*self.outside, *chain.from_iterable(block.modules() for block in self.blocks)]


def move(model: nn.Module, recipe: object, settings: Settings, device: torch.device) -> None:
    """Move the model to `device`, or its parts to the two GPUs of `sharding=pipeline`, except weights that are streamed
    or offloaded. On a CPU both parts are there.

    Call it before checkpointing. Raises UsageError for a model that cannot be divided, and as `streaming.move`.
    """
    if not settings.is_pipeline:
        streaming.move(model, recipe, settings, device)
        return
    first, second = two_devices(device)
    parts = divide(model, recipe, first, second)
    crossing = place(model, parts)
    if settings.streamed_blocks:
        streaming.make_all_streamable(model, recipe, settings.streamed_blocks)
    streamed = streamed_blocks(model, recipe, settings)
    for part in parts[::-1]:  # what both use is on the first device in the end
        own = [block for block in part.blocks if block in streamed]
        if own:
            tensors = [streamed[block] for block in own]
            allocate = streaming.allocation(settings, part.device)
            streaming.stream(model, own, tensors, part.device, allocate, part.modules)
        else:
            deferred_casts.move(part.modules, part.device, recurse=False)
    crossing.shared = shared_weights(parts)


def streamed_blocks(model: nn.Module, recipe: object, settings: Settings) -> dict[nn.Module, list[Streamed]]:
    """Return the blocks that are streamed, of both parts, and the tensors of each that are."""
    if not settings.streamed_blocks:
        return {}
    return dict(zip(*streaming.choose(model, recipe, settings.streamed_blocks), strict=True))


def stream_more(model: nn.Module, recipe: object, count: int) -> list[tuple[Tensor, Tensor]]:
    """Do what `streaming.stream_more` does, for each part of a divided model by itself."""
    return streaming.stream_more(model, recipe, count, part_of=is_in_second_part)


def on_available_gpus(settings: Settings) -> Settings:
    """Return the settings to use a trained model with: without a second GPU all of it is on one device."""
    has_two = torch.cuda.is_available() and torch.cuda.device_count() > 1
    return settings.replace(gpus=1) if settings.is_pipeline and not has_two else settings


def two_devices(device: torch.device) -> tuple[torch.device, torch.device]:
    """Return the devices of the first and the second part. Raises UsageError without a second GPU."""
    if device.type != "cuda":
        return device, device
    if torch.cuda.device_count() < 2:
        raise UsageError(
            "sharding=pipeline: this process sees one GPU, and the model is divided between two",
            hint="set gpus=1 to train on one GPU; CUDA_VISIBLE_DEVICES may hide others",
        )
    return torch.device("cuda", 0), torch.device("cuda", 1)


def divide(model: nn.Module, recipe: object, first: torch.device, second: torch.device) -> tuple[Part, Part]:
    """Return the two parts, whose weights are as equal in bytes as whole blocks permit.

    The second part are the last blocks, and the modules with a state that are registered after the first of these. A
    weight that both parts use belongs to the first one. Modules without a state, such as one that computes tables of
    positions, are in the first part.

    Raises UsageError for a model with fewer than two blocks.
    """
    blocks = list(dict.fromkeys(checkpointing.blocks(model, recipe)))
    if len(blocks) < 2:
        raise UsageError(
            f"sharding=pipeline: {type(model).__name__} has {len(blocks) or 'no'} block{'' if blocks else 's'}, and "
            "each of the two GPUs needs one at least",
            hint=f"define blocks(model) in the recipe, which returns a list of modules; or {HINT}",
        )
    modules = list(model.modules())
    order = {module: number for number, module in enumerate(modules)}
    blocks.sort(key=order.__getitem__)
    inside = {module for block in blocks for module in block.modules()}
    outside = [module for module in modules if module not in inside]
    last = order[blocks[-1]]
    after = [module for module in outside if order[module] > last and _has_state(module)]
    own_bytes = {id(value): _bytes(value) for value in model.parameters()}
    first_bytes = _bytes_of((module for module in outside if module not in after), own_bytes)
    sizes = [_bytes_of(block.modules(), own_bytes) for block in blocks]
    count = first_blocks(sizes, first_bytes, _bytes_of(after, own_bytes))
    boundary = order[blocks[count]]
    beyond = {module for module in outside if order[module] > boundary and _has_state(module)}
    return (
        Part(first, blocks[:count], [module for module in outside if module not in beyond]),
        Part(second, blocks[count:], [module for module in outside if module in beyond]),
    )


def place(model: nn.Module, parts: Sequence[Part]) -> Crossing:
    """Let the modules of the parts have their inputs on their devices, and return the boundary between them."""
    crossing = Crossing(parts[0].device, parts[1].device)
    for part in parts:
        is_second = part is parts[1]
        place_blocks(part.blocks, crossing, is_second=is_second)
        for module in part.outside:
            if _has_state(module) and not any(True for _ in module.children()):
                place_module(module, crossing, is_second=is_second)
    bring_outputs_home(model, crossing)
    return crossing


def shared_weights(parts: Sequence[Part]) -> list[nn.Parameter]:
    """Return the trained weights of the first part that modules of the second one use too."""
    first, second = (
        dict.fromkeys(
            parameter for module in part.modules for parameter in module._parameters.values() if parameter is not None
        )
        for part in parts
    )
    return [parameter for parameter in first if parameter in second and parameter.requires_grad]


def notes(model: nn.Module) -> list[str]:
    """Return what is on each of two GPUs; nothing for a model that is not divided."""
    crossing = crossing_of(model)
    if crossing is None or crossing.first == crossing.second:
        return []
    sizes = {crossing.first: 0, crossing.second: 0}
    for parameter in model.parameters():
        if parameter.device in sizes:
            sizes[parameter.device] += parameter.nbytes
    first, second = (bytes_text(size) for size in sizes.values())
    return [f"sharding=pipeline: {first} of weights are on {crossing.first} and {second} on {crossing.second}"]


def _has_state(module: nn.Module) -> bool:
    """Return whether the module itself has weights, or buffers that a checkpoint has."""
    buffers = (value for name, value in module._buffers.items() if name not in module._non_persistent_buffers_set)
    return any(value is not None for value in (*module._parameters.values(), *buffers))


def _bytes_of(modules: Iterable[nn.Module], own_bytes: dict[int, int]) -> int:
    """Return the bytes of the weights of modules. What several modules share counts for the first one asked for."""
    return sum(
        own_bytes.pop(id(value), 0) for module in modules for value in module._parameters.values() if value is not None
    )


def _bytes(value: Any) -> int:
    """Return the bytes of a tensor on its device, where bitsandbytes packs two 4-bit values in one byte."""
    return int(value.numel() // 2 if hasattr(value, "quant_state") else value.nbytes)
