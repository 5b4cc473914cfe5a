"""Recording: every storage that begins and ceases to live on the pretend device, every operator that does work."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from shoestring.settings import Precision
from shoestring.trace import attention, kernels, products, recurrent
from shoestring.trace.fake import DEVICE_OF
from shoestring.trace.pretend import DEVICE
from shoestring.trace.record import Alloc, Event, Free, Op, Part, Phase, PhaseName, Storage

_PRECISIONS: dict[torch.dtype, Precision] = {torch.float16: "fp16", torch.bfloat16: "bf16"}

# Operators that read as much of their first operand as they return, not all of it.
_GATHERS = {"aten::embedding", "aten::index", "aten::index_select", "aten::gather"}


def pretend(tensor: Tensor) -> bool:
    """Whether the tensor lies on the pretend device."""
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == DEVICE


def real(tensor: Tensor) -> bool:
    """Whether the tensor lies in the memory of this process."""
    return not isinstance(tensor, FakeTensor) and tensor.device.type == "cpu"


class Recorder(TorchDispatchMode):
    """Entered above a fake mode, it sees what autograd and autocast have made of the model: plain operators.

    With `watched=real` it follows real tensors on the CPU likewise, without a fake mode.
    """

    def __init__(self, watched: Callable[[Tensor], bool] = pretend) -> None:
        enter: Any = super().__init__
        enter()
        self._watched = watched
        self.operator = ""
        """The operator that was called last: the one to name when it fails."""
        self._events: list[Event] = []
        self._bytes: list[int] = []
        self._parts: list[Part | None] = []
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        """From a storage's address to its index; the reference is what tells of its end."""
        self._asleep: set[int] = set()
        """Addresses of storages whose memory is given back while their tensors live on."""
        self._phase_began = 0
        self._calls = 0
        """Operators called since the last one that did work."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, so nothing has to be kept from being compiled at each operator.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is DEVICE_OF and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        self.operator = func.name()
        self._calls += 1
        result = func(*args, **kwargs)
        returned = self._of_interest(result)
        new = [tensor for tensor in returned if self._track(tensor)]
        self._pass_through(kernels.scratch_bytes(func, args) if attention.CAPABILITY.get() else 0)
        written = [tensor for read in _writes(func) for tensor in self._of_interest(read(args, kwargs))]
        if (new or written) and not _leaves_memory_alone(func):
            read = self._of_interest((args, kwargs))
            self._events.append(_operator(func, args, kwargs, result, read, new + written, self._calls))
            self._calls = 0
        if func is recurrent.FORWARD:
            self.label(result[-2:-1], "reserve space")
        return result

    def mark(self, name: PhaseName, update: int, microbatch: int = 0) -> None:
        """Begin a phase. Whatever a forward phase made that lives when backward begins are its activations."""
        if name == "backward":
            for index, _ in self._live.values():
                if index >= self._phase_began and self._parts[index] is None:
                    self._parts[index] = "activations"
        self._phase_began = len(self._bytes)
        self._events.append(Phase(name, update, microbatch))

    def label(self, group: Iterable[Tensor | None], part: Part) -> None:
        """Say what these tensors' storages are for, unless that was said before."""
        for tensor in group:
            if tensor is not None and (known := self._live.get(tensor.untyped_storage()._cdata)):
                self._parts[known[0]] = self._parts[known[0]] or part

    def release(self, tensor: Tensor) -> None:
        """End the storage's life in the record, not the tensor's: another device keeps what it holds."""
        address: int = tensor.untyped_storage()._cdata
        self._asleep.add(address)
        self._events.append(Free(self._live[address][0]))

    def revive(self, tensor: Tensor, size: int, part: Part) -> None:
        """Begin another life, with `size` bytes, of a storage that was released."""
        address: int = tensor.untyped_storage()._cdata
        self._asleep.remove(address)
        self._live[address] = self._begin(size, part), self._live[address][1]

    def erase(self, group: Iterable[Tensor]) -> None:
        """Release tensors that were never whole on the device: the record has nothing of them so far."""
        born = set()
        for tensor in group:
            address: int = tensor.untyped_storage()._cdata
            self._asleep.add(address)
            born.add(self._live[address][0])
        self._events = [event for event in self._events if not (isinstance(event, Alloc) and event.storage in born)]

    def record(self) -> tuple[tuple[Storage, ...], tuple[Event, ...]]:
        """The storages and the events so far; what has no part yet is a temporary."""
        storages = (Storage(size, part or "temporaries") for size, part in zip(self._bytes, self._parts, strict=True))
        return tuple(storages), tuple(self._events)

    def _of_interest(self, tree: Any) -> list[Tensor]:
        """The watched tensors in an operator's arguments or results: in tuples, lists and dicts."""
        if isinstance(tree, Tensor):
            return [tree] if self._watched(tree) else []
        if isinstance(tree, list | tuple):
            return [tensor for branch in tree for tensor in self._of_interest(branch)]
        return self._of_interest(list(tree.values())) if isinstance(tree, dict) else []

    def _pass_through(self, size: int) -> None:
        """A kernel's own storage, gone when the kernel has been queued."""
        if size:
            self._events.append(Free(self._begin(size, "temporaries")))

    def _track(self, tensor: Tensor) -> bool:
        """Whether the tensor's storage is a new one."""
        storage = tensor.untyped_storage()
        address: int = storage._cdata
        if address in self._live or not storage.nbytes():
            return False

        def ended(_: weakref.ref[Any]) -> None:
            index, _ = self._live.pop(address)
            if address in self._asleep:
                self._asleep.remove(address)
            else:
                self._events.append(Free(index))

        self._live[address] = self._begin(storage.nbytes(), None), weakref.ref(storage, ended)
        return True

    def _begin(self, size: int, part: Part | None) -> int:
        """The index of a new storage, which lives from now on."""
        self._bytes.append(size)
        self._parts.append(part)
        self._events.append(Alloc(len(self._bytes) - 1))
        return len(self._bytes) - 1


def _operator(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    read: list[Tensor],
    made: list[Tensor],
    calls: int,
) -> Op:
    if func._schema.name in _GATHERS:
        read = made
    count = flop_registry.get(func._overloadpacket)
    shape = products.shape(func, args, result)
    flops = int(count(*args, **kwargs, out_val=result)) if count else 0
    precision: Precision = next((name for x in read if (name := _PRECISIONS.get(x.dtype))), "fp32")
    recurring = func in (recurrent.FORWARD, recurrent.BACKWARD)
    launches = recurrent.launches(*args) if recurring else products.launches(func, args)
    flops = products.counted(func, args, kwargs, flops, shape)
    return Op(func.name(), flops, _size(read) + _size(made), precision, launches, calls, shape)


def _size(group: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in group)


@cache
def _leaves_memory_alone(func: Any) -> bool:
    name: str = func._schema.name
    return name.removeprefix("aten::").removeprefix("new_").startswith("empty")


@cache
def _writes(func: Any) -> list[Callable[[tuple[Any, ...], dict[str, Any]], Any]]:
    """How to find each argument that the operator writes to."""

    def reader(place: int, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        return lambda args, kwargs: args[place] if place < len(args) else kwargs.get(name)

    return [
        reader(place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
