"""Offloaded and streamed weights on the simulated device: which of them stay in host memory.

Streamed blocks run with the weights in their slots, but the copies into these are no part of the record: which there
are follows from the calls of blocks, and their time from the bytes (`planning/estimate/streaming.py`). So identical
blocks can be folded, as if they were resident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import loading, redirected, simulated_device
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.record import BlockUse, Event, Op, Phase
from shoestring.techniques import checkpointing, nf4, offload
from shoestring.techniques.streaming import placement
from shoestring.techniques.streaming.host_weights import HostWeights, Layout
from shoestring.techniques.streaming.slots import make_slots
from shoestring.techniques.streaming.tensors import Streamed, parts, streamed_tensors, with_parts


def move(log: EventLog, model: nn.Module, recipe: Any, settings: Settings, *, from_host: bool = True) -> None:
    """Move the model's weights to the simulated device, except those that `offload` or `streamed_blocks` keep in host
    memory.

    `from_host` is false if the device is a CPU.

    Raises UsageError if the model has no blocks, or not those that the settings need.
    """
    if settings.streamed_blocks:
        _stream(log, model, recipe, settings.streamed_blocks, from_host=from_host)
        return
    if settings.offload != "parameters":
        loading.move_model(log, model, from_host=from_host)
        return
    blocks = checkpointing.blocks(model, recipe)
    host_parameters = {id(parameter) for parameter in offload.block_parameters_on_host(model, blocks)}

    def copy_to_its_device(tensor: Tensor) -> Tensor:
        if id(tensor) in host_parameters:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=offload.HOST)
        return simulated_device.allocate_like(tensor)

    loading.move_model(log, model, copy_to_its_device)
    offload.copy_weights_on_use(blocks, simulated_device.DEVICE, on_copy=lambda weight: log.label([weight], "weights"))


def _stream(log: EventLog, model: nn.Module, recipe: Any, count: int, *, from_host: bool) -> None:
    """Stream blocks as `placement.stream` does: first each of them, then the slots, then all other weights."""
    blocks, tensors = placement.choose(model, recipe, count)
    device = torch.device(simulated_device.DEVICE)
    move_streamed(log, [*loading.children_first(model)], blocks, tensors, device, from_host=from_host)


def move_streamed(
    log: EventLog,
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
        loading.move_modules(log, [*loading.children_first(block)], copies, from_host=from_host)
        copies.forget([streamed.value for streamed in own])
        weights.append(HostWeights(own, lambda size: torch.empty(size, dtype=torch.uint8, device=offload.HOST)))
    slots = make_slots(placement.slot_sizes(weights), device) if weights else []
    log.label([slot.buffer for slot in slots], "weights")
    for number, own_weights in enumerate(weights):
        views = own_weights.layout.views(slots[number % len(slots)].buffer)
        for streamed, own_views in own_weights.by_tensor(views):
            streamed.set(with_parts(streamed.value, own_views))
    streamed_modules = {module for block in blocks for module in block.modules()}
    remaining = [module for module in modules if module not in streamed_modules]
    loading.move_modules(log, remaining, copies, from_host=from_host)
    return copies


class StreamableBlocks:
    """The blocks of a model that can be streamed: their bytes, and where in the record they are called."""

    def __init__(self, model: nn.Module, recipe: Any) -> None:
        """Find them in a model that has not been moved."""
        blocks = list(dict.fromkeys(checkpointing.blocks(model, recipe)))
        pairs = zip(blocks, streamed_tensors(model, blocks), strict=True)
        self._blocks = [(block, own) for block, own in pairs if own]
        self.bytes: tuple[int, ...] = ()
        """The bytes of each, as they are copied to the device, once the model has moved there."""
        self._calls: list[tuple[int, int, int]] = []

    def measure(self) -> None:
        """Set the bytes; the model is on the device, where 4-bit weights are packed."""
        self.bytes = tuple(_copied_bytes(own) for _, own in self._blocks)

    @contextmanager
    def observed(self, log: EventLog) -> Iterator[None]:
        """Note the calls of the blocks in the context, in the first forward of the second update."""
        kinds = [(block, type(block)) for block, _ in self._blocks]
        for number, (block, _) in enumerate(self._blocks):
            redirected.redirect(block, self._noting(log, number))
        try:
            yield
        finally:
            for block, kind in kinds:
                block.__class__ = kind

    def _noting(self, log: EventLog, number: int) -> Callable[[Callable[..., Any], Any, Any], Any]:
        def call(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if log.phase != NOTED:
                return run(*args, **kwargs)
            start = log.position().events
            result = run(*args, **kwargs)
            self._calls.append((number, start, log.position().events))
            return result

        return call

    def uses(self, events: Sequence[Event]) -> tuple[BlockUse, ...]:
        """Return the calls, counted in the operators of that forward among the `events` of the whole record."""
        operators, is_noted, counts = 0, False, [0]
        for event in events:
            if isinstance(event, Phase):
                is_noted = event == NOTED
            operators += is_noted and isinstance(event, Op)
            counts.append(operators)
        return tuple(BlockUse(number, counts[start], counts[end]) for number, start, end in self._calls)


NOTED = Phase("forward", 1, 0)


def _copied_bytes(tensors: Sequence[Streamed]) -> int:
    return Layout.of_tensors([part for streamed in tensors for part in parts(streamed.value)]).size
