"""Events of one call of a block, or of its backward, in a form that can be recorded again with other storages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from shoestring.planning.trace.event_log import EventLog, Position
from shoestring.planning.trace.record import Alloc, Free, Op, Part


class NotRepeatableError(Exception):
    """The events of a block cannot be those of another one; the model has to be traced without folding."""


Role: TypeAlias = tuple[str | int, ...]
"""What a storage that an earlier range has allocated is to the block, such as `("input",)`."""


class Form(NamedTuple):
    """All that a fake tensor is besides its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    bytes: int


class Released(NamedTuple):
    """The storage with this role is freed: a step of a template."""

    role: Role


@dataclass(frozen=True)
class Template:
    """The events from one position of the record to another, with storages counted from the first new one."""

    steps: tuple[Alloc | Free | Op | Released, ...]
    sizes: tuple[int, ...]
    calls: int
    """Operators called after the last one that ran kernels."""
    python_calls: int
    """Python functions called after it."""
    survivors: frozenset[int]
    """The new storages that are not freed."""
    device: int
    """The device of the storages and the operators."""


def make(log: EventLog, start: Position, roles: Mapping[int, Role]) -> Template:
    """Return the template of the events since `start`; `roles` are those of earlier storages by their index.

    Raises NotRepeatableError if a storage without a role is freed, or if the events are on two devices.
    """
    first = start.storages
    steps: list[Alloc | Free | Op | Released] = []
    survivors = set()
    pending, pending_python = start.calls, start.python_calls
    for event in log.events_since(start):
        match event:
            case Alloc(storage):
                steps.append(Alloc(storage - first))
                survivors.add(storage - first)
            case Free(storage) if storage >= first:
                steps.append(Free(storage - first))
                survivors.discard(storage - first)
            case Free(storage):
                if storage not in roles:
                    raise NotRepeatableError("a block frees a storage of another module")
                steps.append(Released(roles[storage]))
            case Op():
                if pending or pending_python:
                    calls, python_calls = event.calls - pending, event.python_calls - pending_python
                    event = replace(event, calls=calls, python_calls=python_calls)
                steps.append(event)
                pending = pending_python = 0
            case _:
                raise NotRepeatableError("a phase begins inside of a block")
    end = log.position()
    sizes = tuple(log.sizes(first, end.storages))
    calls, python_calls = end.calls - pending, end.python_calls - pending_python
    devices = log.devices_since(start)
    if len(devices) > 1:
        raise NotRepeatableError("a block computes on two devices")
    return Template(tuple(steps), sizes, calls, python_calls, frozenset(survivors), max(devices, default=0))


def repeat(log: EventLog, template: Template, parts: list[Part | None], free: Callable[[Released], None]) -> int:
    """Record the template's events again and return the index of the first new storage."""
    log.device = template.device
    first = log.repeat(template.steps, list(template.sizes), parts, free)
    log.count_calls(template.calls)
    log.count_python_calls(template.python_calls)
    return first


def form(tensor: Tensor) -> Form:
    """Return the form of a fake tensor."""
    return Form(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.untyped_storage().nbytes(),
    )


def new_tensor(tensor_form: Form, example: FakeTensor) -> Tensor:
    """Return a fake tensor with a storage of its own on the device of `example`, without recorded operators."""
    with no_dispatch(), torch.no_grad():
        meta = torch.empty(0, dtype=tensor_form.dtype, device="meta")
        storage = torch.UntypedStorage(tensor_form.bytes, device="meta")
        meta.set_(storage, tensor_form.offset, tensor_form.shape, tensor_form.stride)
        make_tensor: Any = FakeTensor
        tensor: Tensor = make_tensor(example.fake_mode, meta, example.fake_device)
    return tensor
