"""Record the allocations and frees of storages on the simulated device, and the operators that run kernels."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from shoestring.base.settings import Precision
from shoestring.planning.trace import attention, bounds, in_place, layouts, products, recurrent, reductions, results
from shoestring.planning.trace import scratch as kernel_scratch
from shoestring.planning.trace.draws import Draws
from shoestring.planning.trace.fake import DEVICE_OF
from shoestring.planning.trace.record import (
    BETWEEN_GPUS,
    Alloc,
    Event,
    Free,
    Op,
    Part,
    Phase,
    PhaseName,
    Repeat,
    Storage,
)
from shoestring.planning.trace.simulated_device import DEVICE

_PRECISIONS: dict[torch.dtype, Precision] = {torch.float16: "fp16", torch.bfloat16: "bf16"}

# Operators that read only as much of their first operand as they return.
_GATHERS = {"aten::embedding", "aten::index", "aten::index_select", "aten::gather"}


_FREED = -1
"""In place of the index of a storage of a kernel's own memory that is freed already."""


def is_simulated(tensor: Tensor) -> bool:
    """Return whether the tensor is on the simulated device."""
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == DEVICE


def real(tensor: Tensor) -> bool:
    """Return whether the tensor is in the memory of this process."""
    return not isinstance(tensor, FakeTensor) and tensor.device.type == "cpu"


class Position(NamedTuple):
    """The numbers of events and of storages so far, and of operators and Python functions called since the last
    operator that ran kernels."""

    events: int
    storages: int
    calls: int
    python_calls: int


class Recorder(TorchDispatchMode):
    """A dispatch mode, entered above a fake mode, which records operators after autograd and autocast.

    With `watched=real` it records real tensors on the CPU instead, without a fake mode.
    """

    def __init__(self, watched: Callable[[Tensor], bool] = is_simulated) -> None:
        initialize: Any = super().__init__
        initialize()
        self._watched = watched
        self.operator = ""
        """The last operator called, for error messages."""
        self.phase: Phase | None = None
        """The current phase."""
        self.host_bytes: dict[Part, int] = {}
        """What is in host memory, which is not recorded as it is allocated."""
        self._events: list[Event] = []
        self._bytes: list[int] = []
        self._parts: list[Part | None] = []
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        """Maps a storage's address to its index and to a weak reference, whose callback records that it was freed."""
        self._released: set[int] = set()
        """Addresses of storages whose memory is freed while their tensors still exist."""
        self._untracked: set[int] = set()
        """Indices of storages that are allocated in the record but have no tensor in this process (`repeat`)."""
        self._copied: dict[int, weakref.ref[Any]] = {}
        """Maps a storage to one whose copy it is: while that lives, the copy is not freed together with its tensor."""
        self._phase_start = 0
        """The number of storages when the phase started."""
        self._calls = 0
        """Operators called since the last one that ran kernels."""
        self._python_calls = 0
        """Python functions called since then."""
        self._bounds: dict[tuple[str, str], int] = {}
        """The largest number of rows by operator and place, where it depends on values."""
        self._draws = Draws()
        attention.grouped_in_math.clear()
        self.divides = False
        """Whether the model is divided between two devices, so that the device of each storage is recorded."""
        self._device = 0
        """The device of the operator that runs."""
        self._storage_devices: list[int] = []
        """The device of each storage, if the model is divided."""
        self._second_operators: set[int] = set()
        """The positions among the events of operators on the second device."""
        self._overwritten: int | None = None
        """The storage of the operand into which the target writes the last operator's result, if nobody needs it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, so there is no need to disable compilation at each operator.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is DEVICE_OF and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        self.operator = func.name()
        self._calls += 1
        on_gpu = self._watched is is_simulated and attention.CAPABILITY.get() is not None
        result = self._result(func, args, kwargs)
        returned = self._watched_tensors(results.on_device(func, args, result) if on_gpu else result)
        if self.divides:
            of_operator = returned or self._watched_tensors((args, kwargs))
            self._device = (of_operator[0].fake_device.index or 0) if of_operator else 0  # type: ignore[attr-defined]
        scratch = kernel_scratch.scratch(func, args) if on_gpu else kernel_scratch.Scratch()
        scratch_storages: list[int] = []
        self._record_scratch(scratch.before, scratch_storages)
        storage_bytes = results.storage_bytes(func, args) if on_gpu else None
        new = [tensor for tensor in returned if self._track(tensor, storage_bytes)]
        self._record_scratch(scratch.after, scratch_storages)
        operand = in_place.operand(func, args) if on_gpu and new else None
        if operand is not None:  # which has to be freed directly after the operator
            self._free_scratch(scratch_storages)
        written = [tensor for get in _written_arguments(func) for tensor in self._watched_tensors(get(args, kwargs))]
        if (new or written) and not _only_allocates(func):
            read = self._watched_tensors((args, kwargs))
            op = operator(func, args, kwargs, result, read, new + written)
            if self.divides and len({tensor.device for tensor in (*read, *new, *written)}) > 1:
                op = replace(op, name=BETWEEN_GPUS)
            if on_gpu and (buffers := reductions.reduction(func, args, kwargs) or kernel_scratch.split_sum(func, args)):
                op = replace(op, buffers=buffers)
            self._append_operator(op, self._calls, self._python_calls)
        self._free_scratch(scratch_storages)
        self._overwritten = self.storage_index(operand)
        if func is recurrent.FORWARD:
            self.label(result[-1:], "reserve space")
        return result

    @property
    def bounds(self) -> tuple[str, ...]:
        """Notes on the operators that were traced with their largest result, on random numbers of the host, and on
        attention without a fused kernel."""
        notes = (bounds.note(*operator_and_place, rows) for operator_and_place, rows in self._bounds.items())
        return (*notes, *self._draws.notes, *attention.notes())

    def _result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator; one whose output size depends on values returns its largest result."""
        if self._watched is not is_simulated:
            return func(*args, **kwargs)
        largest = bounds.largest_result(func, args, kwargs)
        if largest is None:
            return self._draws.observe(func, args, layouts.correct(func, args, func(*args, **kwargs)))
        result, rows = largest
        key = str(func), bounds.location()
        self._bounds[key] = max(rows, self._bounds.get(key, 0))
        return result

    def mark(self, name: PhaseName, update: int, microbatch: int = 0) -> None:
        """Start a phase. Storages allocated in a forward phase and alive when backward starts become activations."""
        if name == "backward":
            for index in (*(index for index, _ in self._live.values()), *self._untracked):
                if index >= self._phase_start and self._parts[index] is None:
                    self._parts[index] = "activations"
        self._phase_start = len(self._bytes)
        self.phase = Phase(name, update, microbatch)
        self._events.append(self.phase)

    def end_preparation(self) -> None:
        """What the current phase has allocated so far is no activation: an update's buffers."""
        self._phase_start = len(self._bytes)

    def mark_step(self, times: float) -> None:
        """End a step of the phase, which stands for `times` steps."""
        self._events.append(Repeat(times))

    def label(self, group: Iterable[Tensor | None], part: Part) -> None:
        """Assign these tensors' storages to a part, unless they are assigned already."""
        for tensor in group:
            if tensor is not None and (entry := self._live.get(tensor.untyped_storage()._cdata)):
                self._parts[entry[0]] = self._parts[entry[0]] or part

    def release(self, tensor: Tensor) -> None:
        """Record that the storage is freed while the tensor stays: another device holds its contents."""
        address: int = tensor.untyped_storage()._cdata
        self._released.add(address)
        self._events.append(Free(self._live[address][0]))

    def revive(self, tensor: Tensor, size: int, part: Part) -> None:
        """Record that a released storage is allocated again, with `size` bytes."""
        address: int = tensor.untyped_storage()._cdata
        self._released.remove(address)
        self._live[address] = self._allocate(size, part), self._live[address][1]

    def erase(self, group: Iterable[Tensor]) -> None:
        """Release tensors that are never whole on the device, and remove their allocation from the record."""
        erased = set()
        for tensor in group:
            address: int = tensor.untyped_storage()._cdata
            self._released.add(address)
            erased.add(self._live[address][0])
        self._events = [event for event in self._events if not (isinstance(event, Alloc) and event.storage in erased)]

    def position(self) -> Position:
        """Return the current end of the record."""
        return Position(len(self._events), len(self._bytes), self._calls, self._python_calls)

    def events_since(self, start: Position) -> list[Event]:
        """Return the events that were recorded after `start`."""
        return self._events[start.events :]

    def sizes(self, start: int, end: int) -> list[int]:
        """Return the bytes of the storages with these indices."""
        return self._bytes[start:end]

    def parts(self, start: int, end: int) -> list[Part | None]:
        """Return the parts that the storages with these indices are assigned to so far."""
        return self._parts[start:end]

    def storage_index(self, tensor: Tensor | None) -> int | None:
        """Return the index of the tensor's storage; None if it is not allocated on the device."""
        if tensor is None:
            return None
        address: int = tensor.untyped_storage()._cdata
        entry = self._live.get(address)
        return None if entry is None or address in self._released else entry[0]

    def repeat(
        self, steps: Iterable[Event | Any], sizes: list[int], parts: list[Part | None], free: Callable[[Any], None]
    ) -> int:
        """Record `steps` with new storages of these sizes and parts, and return the index of the first of them.

        Alloc and Free in `steps` count the storages from there. All steps that are no events are passed to `free`. The
        new storages have no tensors, until `bind` is called.
        """
        first = len(self._bytes)
        self._bytes += sizes
        self._parts += parts
        append, untracked = self._events.append, self._untracked
        for step in steps:  # millions in a model with scans: `match` and methods take most of the time
            if isinstance(step, Op):
                self._append_operator(step, step.calls + self._calls, step.python_calls + self._python_calls)
            elif isinstance(step, Alloc):
                untracked.add(first + step.storage)
                append(Alloc(first + step.storage))
            elif isinstance(step, Free):
                untracked.remove(first + step.storage)
                append(Free(first + step.storage))
            else:
                free(step)
        return first

    def count_calls(self, calls: int) -> None:
        """Count operators as called."""
        self._calls += calls

    def count_python_calls(self, calls: int) -> None:
        """Count Python functions as called."""
        self._python_calls += calls

    def free_untracked(self, index: int) -> None:
        """Record that a storage without a tensor is freed. Raises KeyError if it has one or is freed already."""
        self._untracked.remove(index)
        self._events.append(Free(index))

    def free_live(self, index: int) -> None:
        """Record that a storage is freed whose tensor stays: `rename` has to give it another storage.

        Raises KeyError if it has none.
        """
        self._address(index)
        self.append_free(index)

    def append_free(self, index: int) -> None:
        """Record that a storage without a tensor, which is in no list of this recorder any more, is freed."""
        self._events.append(Free(index))

    def rename(self, index: int, other: int) -> None:
        """Let the tensor of a storage be that of `other`, which has none. Raises KeyError."""
        address = self._address(index)
        self._untracked.remove(other)
        self._live[address] = other, self._live[address][1]

    def exchange_frees(self, start: Position, replacements: dict[int, int]) -> None:
        """Let `replacements`, which have no tensors, be freed in place of storages that were freed since `start`.

        Raises KeyError for one that was not freed.
        """
        missing = dict(replacements)
        for number in range(start.events, len(self._events)):
            event = self._events[number]
            if isinstance(event, Free) and event.storage in missing:
                other = missing.pop(event.storage)
                self._untracked.remove(other)
                self._events[number] = Free(other)
        if missing:
            raise KeyError(next(iter(missing)))

    def _address(self, index: int) -> int:
        """Return the address of a tensor's storage. Raises KeyError."""
        for address, (storage, _) in self._live.items():
            if storage == index:
                return address
        raise KeyError(index)

    @property
    def untracked(self) -> bool:
        """Whether any storage without a tensor is allocated."""
        return bool(self._untracked)

    def bind(self, tensor: Tensor, index: int, copied: Tensor | None = None) -> None:
        """Track a new tensor as that of a storage which has none: the storage is freed with it.

        If the storage of the tensor `copied` still exists then, the storage remains instead, without a tensor.
        """
        self._untracked.remove(index)
        storage = tensor.untyped_storage()
        if copied is not None:
            self._copied[index] = self._live[copied.untyped_storage()._cdata][1]
        self._live[storage._cdata] = index, weakref.ref(storage, self._on_free(storage._cdata))

    @property
    def devices(self) -> tuple[list[int], set[int]]:
        """The device of each storage of a divided model, and the positions of the operators on the second device."""
        return self._storage_devices, self._second_operators

    def record(self) -> tuple[tuple[Storage, ...], tuple[Event, ...]]:
        """Return the storages and the events so far; storages without a part are temporaries."""
        pairs = list(zip(self._bytes, self._parts, strict=True))
        distinct = {pair: Storage(pair[0], pair[1] or "temporaries") for pair in set(pairs)}
        return tuple(map(distinct.__getitem__, pairs)), tuple(self._events)

    def _watched_tensors(self, tree: Any) -> list[Tensor]:
        """Return the watched tensors in an operator's arguments or results: in tuples, lists and dicts."""
        if isinstance(tree, Tensor):
            return [tree] if self._watched(tree) else []
        if isinstance(tree, list | tuple):
            return [tensor for branch in tree for tensor in self._watched_tensors(branch)]
        return self._watched_tensors(list(tree.values())) if isinstance(tree, dict) else []

    def _append_operator(self, op: Op, calls: int, python_calls: int) -> None:
        """Record an operator, with the calls since the previous one."""
        if self._device:
            self._second_operators.add(len(self._events))
        is_same = op.calls == calls and op.python_calls == python_calls
        self._events.append(op if is_same else replace(op, calls=calls, python_calls=python_calls))
        self._calls = self._python_calls = 0

    def _record_scratch(self, steps: Iterable[int], storages: list[int]) -> None:
        """Record the steps of a kernel's own memory (`scratch.Scratch`); `storages` are those so far, in order."""
        for step in steps:
            if step >= 0:
                storages.append(self._allocate(step, "temporaries"))
            else:
                self._events.append(Free(storages[~step]))
                storages[~step] = _FREED

    def _free_scratch(self, storages: list[int]) -> None:
        """Record that what remains of a kernel's own memory is freed."""
        for storage in reversed(storages):
            if storage != _FREED:
                self._events.append(Free(storage))
        storages.clear()

    def _track(self, tensor: Tensor, size: int | None = None) -> bool:
        """Track the tensor's storage, of another `size` than it has here, and return whether it is new."""
        storage = tensor.untyped_storage()
        address: int = storage._cdata
        if address in self._live or not storage.nbytes():
            return False

        self._live[address] = (
            self._allocate(size or storage.nbytes(), None),
            weakref.ref(storage, self._on_free(address)),
        )
        return True

    def _on_free(self, address: int) -> Callable[[weakref.ref[Any]], None]:
        """Return the function that records that the storage at the address is freed."""

        def record_free(_: weakref.ref[Any]) -> None:
            index, _ = self._live.pop(address)
            copied = self._copied.pop(index, None)
            if address in self._released:
                self._released.remove(address)
            elif copied is not None and copied() is not None:
                self._untracked.add(index)
            else:
                self._append_free(index)

        return record_free

    def _append_free(self, index: int) -> None:
        """Record that a storage is freed.

        An operand that is freed directly after its operator was needed by no other one.
        """
        last = self._events[-1] if self._events else None
        if self._overwritten == index and isinstance(last, Op):
            self._events[-1] = replace(last, in_place=True)
        self._overwritten = None
        self._events.append(Free(index))

    def _allocate(self, size: int, part: Part | None) -> int:
        """Record the allocation of a new storage and return its index."""
        self._bytes.append(size)
        self._parts.append(part)
        if self.divides:
            self._storage_devices.append(self._device)
        self._events.append(Alloc(len(self._bytes) - 1))
        return len(self._bytes) - 1


def operator(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    read: list[Tensor],
    written: list[Tensor],
) -> Op:
    """Return the record of a call that read and wrote these tensors on the device."""
    if func._schema.name in _GATHERS:
        read = written
    if func._schema.name == "aten::copy_" and len(read) == 1 and any(read[0] is target for target in written):
        read = []  # the target alone was found, so the source is in host memory
    count = None if products.shares_heads(func, args) else flop_registry.get(func._overloadpacket)
    shape = products.shape(func, args, result)
    flops = int(count(*args, **kwargs, out_val=result)) if count else 0
    precision: Precision = next((name for x in read if (name := _PRECISIONS.get(x.dtype))), "fp32")
    is_recurrent = func in (recurrent.FORWARD, recurrent.BACKWARD)
    launches = recurrent.launches(*args) if is_recurrent else products.launches(func, args)
    flops = products.correct_flops(func, args, kwargs, flops, shape)
    return Op(func.name(), flops, _size(read) + _size(written), precision, launches, 0, shape)


def _size(group: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in group)


@cache
def _only_allocates(func: Any) -> bool:
    name: str = func._schema.name
    return name.removeprefix("aten::").removeprefix("new_").startswith("empty")


@cache
def _written_arguments(func: Any) -> list[Callable[[tuple[Any, ...], dict[str, Any]], Any]]:
    """Return a getter for each argument that the operator writes to."""

    def make_getter(index: int, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        return lambda args, kwargs: args[index] if index < len(args) else kwargs.get(name)

    return [
        make_getter(index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
