"""A model that `sharding=pipeline` divides between two simulated devices, and the record of each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import loading, offloading, simulated_device
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.microbatches import Microbatches
from shoestring.planning.trace.record import Alloc, BlockUse, Event, Free, Op, Phase, Storage, Trace
from shoestring.techniques.pipeline import placement
from shoestring.techniques.pipeline.crossing import Crossing

DEVICES = tuple(torch.device(simulated_device.DEVICE, index) for index in range(2))


def move(log: EventLog, model: nn.Module, recipe: object, settings: Settings, microbatches: Microbatches) -> Crossing:
    """Move the two parts of the model to a simulated device each, as `pipeline.placement.move` does.

    Raises UsageError for a model that cannot be divided or streamed.
    """
    log.divides = True
    parts = placement.divide(model, recipe, *DEVICES)
    crossing = placement.place(model, parts)
    streamed = placement.streamed_blocks(model, recipe, settings)
    copies: list[loading.Copies] = []
    for part in parts:  # what both use is copied with the first one
        own = [block for block in part.blocks if block in streamed]
        tensors = [streamed[block] for block in own]
        copies.append(offloading.move_streamed(log, part.modules, own, tensors, part.device, copies[-1:]))
    crossing.shared = placement.shared_weights(parts)
    crossing.around_deferred = lambda: _marked(log, model, microbatches)
    return crossing


@contextmanager
def _marked(log: EventLog, model: nn.Module, microbatches: Microbatches) -> Iterator[None]:
    """Mark a backward that runs within the next forward."""
    with microbatches.deferred_backward():
        yield
    log.label((parameter.grad for parameter in model.parameters()), "gradients")


def divided(trace: Trace, log: EventLog) -> Trace:
    """Return the trace of the first of two devices, with that of the second one; the phases are those of both."""
    devices, second_operators = log.storage_devices, log.second_operators
    first, second = (
        replace(trace, storages=storages, events=events, block_bytes=block_bytes, block_uses=block_uses)
        for (storages, events), (block_bytes, block_uses) in (
            (
                _of_device(trace.storages, trace.events, devices, second_operators, device),
                _blocks_of_device(trace, second_operators, device),
            )
            for device in range(2)
        )
    )
    return replace(first, second=second)


def _blocks_of_device(
    trace: Trace, second_operators: Collection[int], device: int
) -> tuple[tuple[int, ...], tuple[BlockUse, ...]]:
    """Return the bytes and the calls of the blocks of one device that can be streamed, counted in its operators."""
    counts, is_noted = [0], False
    for position, event in enumerate(trace.events):
        if isinstance(event, Phase):
            is_noted = event == offloading.NOTED
        elif is_noted and isinstance(event, Op):
            counts.append(counts[-1] + ((position in second_operators) == bool(device)))
    uses = [use for use in trace.block_uses if counts[use.end] > counts[use.start]]
    numbers = {block: number for number, block in enumerate(sorted({use.block for use in uses}))}
    return (
        tuple(trace.block_bytes[block] for block in numbers),
        tuple(BlockUse(numbers[use.block], counts[use.start], counts[use.end]) for use in uses),
    )


def _of_device(
    storages: Sequence[Storage],
    events: Sequence[Event],
    devices: Sequence[int],
    second_operators: Collection[int],
    device: int,
) -> tuple[tuple[Storage, ...], tuple[Event, ...]]:
    numbers: dict[int, int] = {}
    own: list[Event] = []
    for position, event in enumerate(events):
        match event:
            case Alloc(storage) if devices[storage] == device:
                numbers[storage] = len(numbers)
                own.append(Alloc(numbers[storage]))
            case Free(storage) if devices[storage] == device:
                own.append(Free(numbers[storage]))
            case Op() if (position in second_operators) == bool(device):
                own.append(event)
            case Alloc() | Free() | Op():
                pass
            case _:
                own.append(event)
    return tuple(storages[storage] for storage in numbers), tuple(own)
