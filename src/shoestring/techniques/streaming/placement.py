"""Moving a model to the device with some of its blocks streamed, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text, plural
from shoestring.techniques import checkpointing, deferred_casts, offload
from shoestring.techniques.freed_memory import return_freed_memory
from shoestring.techniques.streaming import host_memory
from shoestring.techniques.streaming.host_weights import HostWeights
from shoestring.techniques.streaming.schedule import SLOTS, streamed_positions
from shoestring.techniques.streaming.slots import Slot, make_slots
from shoestring.techniques.streaming.stream import (
    Stream,
    is_streamable,
    is_streamed,
    make_streamable,
    stream_blocks,
    stream_of,
    streams_of,
)
from shoestring.techniques.streaming.tensors import Streamed, can_be_replaced, parts, streamed_tensors

Allocate = Callable[[int], Tensor]


def move(model: nn.Module, recipe: object, settings: Settings, device: torch.device) -> None:
    """Move the model to `device`, except the weights that `streamed_blocks` or `offload` copy there when needed.

    Call it before checkpointing. Raises UsageError for a model whose blocks cannot be streamed, and as `offload.move`.
    """
    if not settings.streamed_blocks:
        offload.move(model, recipe, settings, device)
        return
    blocks, tensors = choose(model, recipe, settings.streamed_blocks)
    make_all_streamable(model, recipe, settings.streamed_blocks)
    stream(model, blocks, tensors, device, allocation(settings, device))


def allocation(settings: Settings, device: torch.device) -> Allocate:
    """Return the function that allocates the memory from which blocks are streamed to `device`."""
    if settings.stream_from == "disk":
        return host_memory.allocate_on_disk
    return _pinned if device.type == "cuda" else host_memory.allocate


def notes(model: nn.Module, settings: Settings, group: int | None = None) -> list[str]:
    """Return what is streamed, how many microbatches of a `group` use each copy, and whether copies have to wait for
    the CPU.
    """
    streams = streams_of(model)
    if not streams:
        return []
    size = sum(own.buffer.nbytes for streaming in streams for own in streaming.weights)
    slots = sum(slot.buffer.nbytes for streaming in streams for slot in streaming.slots)
    source = "on the disk" if settings.stream_from == "disk" else "in host memory"
    lines = [
        f"streamed_blocks={settings.streamed_blocks}: {bytes_text(size)} of frozen weights are {source} and take turns "
        f"in {bytes_text(slots)} on the device"
    ]
    if settings.stream_order == "block":
        users = {None: "all microbatches", 1: "one microbatch"}.get(group, f"up to {group} microbatches")
        lines.append(f"stream_order=block: each copy is used by {users} of an update")
    is_pageable = any(slot.buffer.is_cuda for streaming in streams for slot in streaming.slots) and not all(
        own.buffer.is_pinned() for streaming in streams for own in streaming.weights
    )
    if is_pageable and settings.stream_from != "disk":
        lines.append(
            "CUDA has refused to pin the host memory of streamed blocks, so the CPU waits for each copy, and updates "
            "are slower"
        )
    return lines


def make_all_streamable(model: nn.Module, recipe: object, count: int) -> None:
    """Let all blocks with frozen weights be streamed later (`stream_more`). Raises as `choose`."""
    make_streamable(block for block, _ in _streamable_blocks(model, recipe, count))


def choose(model: nn.Module, recipe: object, count: int) -> tuple[list[nn.Module], list[list[Streamed]]]:
    """Return the blocks to stream, in their order, and the tensors of each that are streamed.

    Raises UsageError if the model does not have so many blocks with frozen weights.
    """
    streamable = _streamable_blocks(model, recipe, count)
    chosen = [streamable[position] for position in streamed_positions(len(streamable), count)]
    return [block for block, _ in chosen], [own for _, own in chosen]


def _streamable_blocks(model: nn.Module, recipe: object, count: int) -> list[tuple[nn.Module, list[Streamed]]]:
    """Return the blocks with frozen weights, and the tensors of each that are streamed with it. Raises as `choose`."""
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
    return streamable


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

    def on_host(staying: Iterable[Streamed]) -> set[int]:
        return {id(streamed.value) for streamed in staying}

    for number, (block, own) in enumerate(zip(blocks, tensors, strict=True)):
        # 4-bit weights are packed on their way to the device. Others need not go there.
        plain = [streamed for streamed in own if not hasattr(streamed.value, "quant_state")]
        deferred_casts.move([block], device, staying=on_host(chain(plain, *tensors[:number])))
        weights.append(HostWeights(own, allocate))
        return_freed_memory()
    slots = make_slots(slot_sizes(weights), device)
    remaining = [model] if modules is None else modules
    deferred_casts.move(remaining, device, staying=on_host(chain(*tensors)), recurse=modules is None)
    streaming = Stream(weights, slots, allocate)
    stream_blocks(blocks, streaming)
    return streaming


def further_host_bytes(model: nn.Module, recipe: object) -> list[int]:
    """Return the host memory that each further block needs which `stream_more` can stream: none of it from the disk.

    The list is empty for a model without streamed blocks.
    """
    is_on_disk = any(streaming.allocate is host_memory.allocate_on_disk for streaming in streams_of(model))
    return [0 if is_on_disk else sum(map(_bytes, own)) for _, own in _resident(model, recipe)]


def stream_more(
    model: nn.Module, recipe: object, count: int, part_of: Callable[[nn.Module], object] = lambda _: 0
) -> list[tuple[Tensor, Tensor]]:
    """Stream `count` blocks of a model that streams fewer, or all that can be; it stays as it is if it streams as many.

    The blocks that are streamed already stay so, and the others are spread evenly among those that were on the device.
    `part_of` returns the part of a divided model to which a block belongs: each part has a stream of its own.
    Returns each weight that the model had on the device with the one that it has now.

    Raises RunError if there is no disk space for their weights.
    """
    streams, resident = streams_of(model), _resident(model, recipe)
    further = min(count - sum(len(streaming.weights) for streaming in streams), len(resident))
    if further <= 0:
        return []
    added = dict(resident[position] for position in streamed_positions(len(resident), further))
    replaced: list[tuple[Tensor, Tensor]] = []
    blocks = list(dict.fromkeys(checkpointing.blocks(model, recipe)))
    for part in dict.fromkeys(map(part_of, added)):
        of_part = [block for block in blocks if part_of(block) == part and (is_streamed(block) or block in added)]
        replaced += _stream_added(of_part, added, streams[0].allocate)
    return replaced


def _stream_added(
    blocks: Sequence[nn.Module], added: Mapping[nn.Module, list[Streamed]], allocate: Allocate
) -> list[tuple[Tensor, Tensor]]:
    """Stream the `blocks`, of which some are `added` and the others have a stream already. Returns as `stream_more`."""
    earlier = next((streaming for block in blocks if (streaming := stream_of(block))), None)
    device = added[next(block for block in blocks if block in added)][0].value.device
    of_streamed = iter(earlier.weights if earlier else ())
    weights: list[HostWeights] = []
    replaced: list[tuple[Tensor, Tensor]] = []
    for block in blocks:
        if block not in added:
            weights.append(next(of_streamed))
            continue
        before = [streamed.value for streamed in added[block]]
        weights.append(HostWeights(added[block], allocate))
        replaced += zip(before, (streamed.value for streamed in added[block]), strict=True)
    stream_blocks(blocks, Stream(weights, _slots_for(weights, earlier.slots if earlier else (), device), allocate))
    return replaced


def _slots_for(weights: Sequence[HostWeights], slots: Sequence[Slot], device: torch.device) -> Sequence[Slot]:
    """Return the `slots` if the weights fit into them, and otherwise larger or further ones on the device."""
    sizes = slot_sizes(weights)
    if len(sizes) == len(slots) and all(slot.buffer.nbytes >= size for slot, size in zip(slots, sizes, strict=True)):
        return slots
    return make_slots(sizes, device)


def _resident(model: nn.Module, recipe: object) -> list[tuple[nn.Module, list[Streamed]]]:
    """Return the blocks on the device that can be streamed, and their tensors."""
    blocks = list(dict.fromkeys(checkpointing.blocks(model, recipe)))
    if not any(map(is_streamed, blocks)):
        return []
    pairs = zip(blocks, streamed_tensors(model, blocks), strict=True)
    return [(block, own) for block, own in pairs if own and is_streamable(block) and not is_streamed(block)]


def _bytes(streamed: Streamed) -> int:
    return sum(part.nbytes for part in parts(streamed.value))


def slot_sizes(weights: Sequence[HostWeights]) -> list[int]:
    """Return the bytes of each slot: those of the largest block that uses it."""
    count = min(SLOTS, len(weights))
    return [max(own.layout.size for own in weights[slot::count]) for slot in range(count)]


def _pinned(size: int) -> Tensor:
    buffer = host_memory.allocate(size)
    host_memory.pin(buffer)
    return buffer
