"""Offloaded and streamed weights on the simulated device: which of them stay in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import loading, simulated_device
from shoestring.planning.trace.recorder import Recorder
from shoestring.techniques import checkpointing, nf4, offload
from shoestring.techniques.streaming import placement
from shoestring.techniques.streaming.host_weights import HostWeights
from shoestring.techniques.streaming.slots import make_slots
from shoestring.techniques.streaming.stream import Stream, stream_blocks
from shoestring.techniques.streaming.tensors import Streamed


def move(recorder: Recorder, model: nn.Module, recipe: Any, settings: Settings, *, from_host: bool = True) -> None:
    """Move the model's weights to the simulated device, except those that `offload` or `streamed_blocks` keep in host
    memory.

    `from_host` is false if the device is a CPU.

    Raises UsageError if the model has no blocks, or not those that the settings need.
    """
    if settings.streamed_blocks:
        _stream(recorder, model, recipe, settings.streamed_blocks, from_host=from_host)
        return
    if settings.offload != "parameters":
        loading.move_model(recorder, model, from_host=from_host)
        return
    blocks = checkpointing.blocks(model, recipe)
    host_parameters = {id(parameter) for parameter in offload.block_parameters_on_host(model, blocks)}

    def copy_to_its_device(tensor: Tensor) -> Tensor:
        if id(tensor) in host_parameters:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=offload.HOST)
        return simulated_device.allocate_like(tensor)

    loading.move_model(recorder, model, copy_to_its_device)
    offload.copy_weights_on_use(
        blocks, simulated_device.DEVICE, on_copy=lambda weight: recorder.label([weight], "weights")
    )


def _stream(recorder: Recorder, model: nn.Module, recipe: Any, count: int, *, from_host: bool) -> None:
    """Stream blocks as `placement.stream` does: first each of them, then the slots, then all other weights."""
    blocks, tensors = placement.choose(model, recipe, count)
    device = torch.device(simulated_device.DEVICE)
    move_streamed(recorder, [*loading.children_first(model)], blocks, tensors, device, from_host=from_host)


def move_streamed(
    recorder: Recorder,
    modules: Sequence[nn.Module],
    blocks: Sequence[nn.Module],
    tensors: Sequence[list[Streamed]],
    device: torch.device,
    earlier: Sequence[loading.Copies] = (),
    *,
    from_host: bool = True,
) -> loading.Copies:
    """Move `modules` to `device` and stream the `tensors` of the `blocks` among them; there may be none.

    Returns the copies that the modules have then. What one of the `earlier` copies has is left where it is.
    """
    # 4-bit weights are packed on the device.
    plain = {
        id(streamed.value)
        for streamed in chain(*tensors)
        if not isinstance(streamed.places[0].module, nf4.Nf4Linear) or streamed.places[0].name == "bias"
    }

    def copy_to_its_device(tensor: Tensor) -> Tensor:
        if id(tensor) in plain:
            return simulated_device.allocate_like(tensor, offload.HOST)
        return simulated_device.allocate_like(tensor, device)

    copies, weights = loading.Copies(copy_to_its_device, *earlier, device=device), list[HostWeights]()
    for block, own in zip(blocks, tensors, strict=True):
        loading.move_modules(recorder, [*loading.children_first(block)], copies, from_host=from_host)
        weights.append(HostWeights(own, lambda size: torch.empty(size, dtype=torch.uint8, device=offload.HOST)))
    slots = make_slots(placement.slot_sizes(weights), device) if weights else []
    recorder.label([slot.buffer for slot in slots], "weights")
    streamed_modules = {module for block in blocks for module in block.modules()}
    others = [module for module in modules if module not in streamed_modules]
    loading.move_modules(recorder, others, copies, from_host=from_host)
    if weights:
        stream_blocks(blocks, Stream(weights, slots))
    return copies
