"""Moving a model to the device with some of its blocks streamed, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text, plural
from shoestring.techniques import checkpointing, deferred_casts, offload
from shoestring.techniques.streaming import host_memory
from shoestring.techniques.streaming.host_weights import HostWeights
from shoestring.techniques.streaming.schedule import SLOTS, streamed_positions
from shoestring.techniques.streaming.slots import make_slots
from shoestring.techniques.streaming.stream import Stream, stream_blocks, stream_of
from shoestring.techniques.streaming.tensors import Streamed, can_be_replaced, streamed_tensors

Allocate = Callable[[int], Tensor]


def move(model: nn.Module, recipe: object, settings: Settings, device: torch.device) -> None:
    """Move the model to `device`, except the weights that `streamed_blocks` or `offload` copy there when needed.

    Call it before checkpointing. Raises UsageError for a model whose blocks cannot be streamed, and as `offload.move`.
    """
    if not settings.streamed_blocks:
        offload.move(model, recipe, settings, device)
        return
    blocks, tensors = choose(model, recipe, settings.streamed_blocks)
    stream(model, blocks, tensors, device, allocation(settings, device))


def allocation(settings: Settings, device: torch.device) -> Allocate:
    """Return the function that allocates the memory from which blocks are streamed to `device`."""
    if settings.stream_from == "disk":
        return host_memory.allocate_on_disk
    return _pinned if device.type == "cuda" else host_memory.allocate


def notes(model: nn.Module, settings: Settings) -> list[str]:
    """Return what is streamed, and whether copies have to wait for the CPU."""
    streaming = stream_of(model)
    if streaming is None:
        return []
    size = sum(own.buffer.nbytes for own in streaming.weights)
    slots = sum(slot.buffer.nbytes for slot in streaming.slots)
    source = "on the disk" if settings.stream_from == "disk" else "in host memory"
    lines = [
        f"streamed_blocks={settings.streamed_blocks}: {bytes_text(size)} of frozen weights are {source} and take turns "
        f"in {bytes_text(slots)} on the device"
    ]
    is_pageable = any(slot.buffer.is_cuda for slot in streaming.slots) and not all(
        own.buffer.is_pinned() for own in streaming.weights
    )
    if is_pageable and settings.stream_from != "disk":
        lines.append(
            "CUDA has refused to pin the host memory of streamed blocks, so the CPU waits for each copy, and updates "
            "are slower"
        )
    return lines


def choose(model: nn.Module, recipe: object, count: int) -> tuple[list[nn.Module], list[list[Streamed]]]:
    """Return the blocks to stream, in their order, and the tensors of each that are streamed.

    Raises UsageError if the model does not have so many blocks with frozen weights.
    """
    setting, name = f"streamed_blocks={count}", type(model).__name__
    blocks = list(dict.fromkeys(checkpointing.blocks(model, recipe)))
    if not blocks:
        raise UsageError(
            f"{setting}: {name} has no blocks whose weights could be streamed",
            hint="use streamed_blocks=0, or define blocks(model) in the recipe, which returns a list of modules",
        )
    tensors = streamed_tensors(model, blocks)
    streamable = [(block, own) for block, own in zip(blocks, tensors, strict=True) if own]
    if not streamable:
        raise UsageError(
            f"{setting}: the blocks of {name} have no frozen weights that only they use, and a weight that is trained "
            "changes in each update, so it would have to be copied back",
            hint="train adapters: --set lora_r=8; or use streamed_blocks=0, or offload=parameters",
        )
    if count > len(streamable):
        raise UsageError(
            f"{setting}: {name} has {plural(len(streamable), 'block')} with frozen weights",
            hint=f"streamed_blocks={len(streamable)} streams all of them",
        )
    for place, value in ((streamed.places[0], streamed.value) for _, own in streamable for streamed in own):
        if not can_be_replaced(value):
            raise UsageError(
                f"{setting}: {place.name!r} of a {type(place.module).__name__} is a {type(value).__name__}, and only "
                "plain tensors, tensor subclasses of torch's kind and 4-bit weights of bitsandbytes are streamed",
                hint="streamed_blocks=0; or leave the weights plain in model() and set quantization=nf4",
            )
    chosen = [streamable[position] for position in streamed_positions(len(streamable), count)]
    return [block for block, _ in chosen], [own for _, own in chosen]


def stream(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    tensors: Sequence[list[Streamed]],
    device: torch.device,
    allocate: Allocate,
    modules: Iterable[nn.Module] | None = None,
) -> Stream:
    """Move the model to `device` and stream the `tensors` of the `blocks` from memory that `allocate` returns.

    With `modules`, which include those of the blocks, only these are moved, each without its children.

    At no time are the weights of more than one streamed block on the device, and no weight is twice in host memory but
    those of one block.
    """
    weights: list[HostWeights] = []

    def move_module(module: nn.Module, staying: Iterable[Streamed], *, recurse: bool = True) -> None:
        on_host = {id(streamed.value) for streamed in staying}

        def moved(tensor: Tensor) -> Tensor:
            deferred_casts.convert(tensor)
            return tensor if id(tensor) in on_host else tensor.to(device)

        module._apply(moved, recurse=recurse)

    for number, (block, own) in enumerate(zip(blocks, tensors, strict=True)):
        # 4-bit weights are packed on their way to the device. Others need not go there.
        plain = [streamed for streamed in own if not hasattr(streamed.value, "quant_state")]
        move_module(block, chain(plain, *tensors[:number]))
        weights.append(HostWeights(own, allocate))
        host_memory.return_freed_memory()
    slots = make_slots(slot_sizes(weights), device)
    for module in [model] if modules is None else modules:
        move_module(module, chain(*tensors), recurse=modules is None)
    streaming = Stream(weights, slots)
    stream_blocks(blocks, streaming)
    return streaming


def slot_sizes(weights: Sequence[HostWeights]) -> list[int]:
    """Return the bytes of each slot: those of the largest block that uses it."""
    count = min(SLOTS, len(weights))
    return [max(own.layout.size for own in weights[slot::count]) for slot in range(count)]


def _pinned(size: int) -> Tensor:
    buffer = host_memory.allocate(size)
    host_memory.pin(buffer)
    return buffer
