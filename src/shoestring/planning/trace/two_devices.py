"""A model that `sharding=pipeline` divides between two simulated devices, and the record of each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import loading, offloading, simulated_device
from shoestring.planning.trace.microbatches import Microbatches
from shoestring.planning.trace.record import Alloc, Event, Free, Op, Storage
from shoestring.planning.trace.recorder import Recorder
from shoestring.techniques.pipeline import placement
from shoestring.techniques.pipeline.crossing import Crossing

DEVICES = tuple(torch.device(simulated_device.DEVICE, index) for index in range(2))


def move(
    recorder: Recorder, model: nn.Module, recipe: object, settings: Settings, microbatches: Microbatches
) -> Crossing:
    """Move the two parts of the model to a simulated device each, as `pipeline.placement.move` does.

    Raises UsageError for a model that cannot be divided or streamed.
    """
    recorder.divides = True
    parts = placement.divide(model, recipe, *DEVICES)
    crossing = placement.place(model, parts)
    streamed = placement.streamed_blocks(model, recipe, settings)
    copies: list[loading.Copies] = []
    for part in parts:  # what both use is copied with the first one
        own = [block for block in part.blocks if block in streamed]
        tensors = [streamed[block] for block in own]
        copies.append(offloading.move_streamed(recorder, part.modules, own, tensors, part.device, copies[-1:]))
    crossing.shared = placement.shared_weights(parts)
    crossing.around_deferred = lambda: _marked(recorder, model, microbatches)
    return crossing


@contextmanager
def _marked(recorder: Recorder, model: nn.Module, microbatches: Microbatches) -> Iterator[None]:
    """Mark a backward that runs within the next forward."""
    with microbatches.deferred_backward():
        yield
    recorder.label((parameter.grad for parameter in model.parameters()), "gradients")


def split(
    recorder: Recorder, storages: Sequence[Storage], events: Sequence[Event]
) -> list[tuple[tuple[Storage, ...], tuple[Event, ...]]]:
    """Return the storages and events of each of the two devices; the phases are those of both."""
    devices, second_operators = recorder.devices
    return [_of_device(storages, events, devices, second_operators, device) for device in range(2)]


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
