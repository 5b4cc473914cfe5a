"""The events of a trace: storages that are allocated and freed, and the operators between them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from shoestring.planning.trace.record import Alloc, Event, Free, Op, Part, Phase, PhaseName, Repeat, Storage


class Position(NamedTuple):
    """The numbers of events and of storages so far, and of operators and Python functions called since the last
    operator that ran kernels."""

    events: int
    storages: int
    calls: int
    python_calls: int


class EventLog:
    """The events so far. A storage that a tensor has is freed when the tensor's own one is."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
        """The current phase."""
        self.calls = 0
        """Operators called since the last one that ran kernels."""
        self.python_calls = 0
        """Python functions called since then."""
        self.overwritten: int | None = None
        """The storage of the operand into which the target writes the last operator's result, if nobody needs it."""
        self.divides = False
        """Whether the model is divided between two devices, so that the device of each storage is recorded."""
        self.device = 0
        """The device of the operator that runs."""
        self.storage_devices: list[int] = []
        """The device of each storage, if the model is divided."""
        self.second_operators: set[int] = set()
        """The positions among the events of operators on the second device."""
        self._events: list[Event] = []
        self._bytes: list[int] = []
        self._parts: list[Part | None] = []
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        """Maps a storage's address to its index and to a weak reference, whose callback records that it was freed."""
        self._released: set[int] = set()
        """Addresses of storages whose memory is freed while their tensors still exist."""
        self._untracked: set[int] = set()
        """Indices of storages that are allocated in the log but have no tensor in this process (`repeat`)."""
        self._copied: dict[int, weakref.ref[Any]] = {}
        """Maps a storage to one whose copy it is: while that lives, the copy is not freed together with its tensor."""
        self._phase_start = 0
        """The number of storages when the phase started."""

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
        self._live[address] = self.allocate(size, part), self._live[address][1]

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
        return Position(len(self._events), len(self._bytes), self.calls, self.python_calls)

    def events_since(self, start: Position) -> list[Event]:
        """Return the events that were recorded after `start`."""
        return self._events[start.events :]

    def devices_since(self, start: Position) -> set[int]:
        """Return the devices of the storages and the operators that were recorded after `start`."""
        if not self.divides:
            return {0}
        positions = range(start.events, len(self._events))
        operators = (position for position in positions if isinstance(self._events[position], Op))
        return {
            *self.storage_devices[start.storages :],
            *(int(position in self.second_operators) for position in operators),
        }

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
        new storages have no tensors, until `bind` is called. All of them, and the operators, are on `device`.
        """
        first = len(self._bytes)
        self._bytes += sizes
        self._parts += parts
        if self.divides:
            self.storage_devices += [self.device] * len(sizes)
        append, untracked = self._events.append, self._untracked
        for step in steps:  # millions in a model with scans: `match` and methods take most of the time
            if isinstance(step, Op):
                self.append_operator(step, step.calls + self.calls, step.python_calls + self.python_calls)
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
        self.calls += calls

    def count_python_calls(self, calls: int) -> None:
        """Count Python functions as called."""
        self.python_calls += calls

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
        """Record that a storage without a tensor, which is in no list of this log any more, is freed."""
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

    def record(self) -> tuple[tuple[Storage, ...], tuple[Event, ...]]:
        """Return the storages and the events so far; storages without a part are temporaries."""
        pairs = list(zip(self._bytes, self._parts, strict=True))
        distinct = {pair: Storage(pair[0], pair[1] or "temporaries") for pair in set(pairs)}
        return tuple(map(distinct.__getitem__, pairs)), tuple(self._events)

    def append_operator(self, op: Op, calls: int, python_calls: int) -> None:
        """Record an operator, with the calls since the previous one."""
        if self.device:
            self.second_operators.add(len(self._events))
        is_same = op.calls == calls and op.python_calls == python_calls
        self._events.append(op if is_same else replace(op, calls=calls, python_calls=python_calls))
        self.calls = self.python_calls = 0

    def track(self, tensor: Tensor, size: int | None = None) -> bool:
        """Track the tensor's storage, of another `size` than it has here, and return whether it is new."""
        storage = tensor.untyped_storage()
        address: int = storage._cdata
        if address in self._live or not storage.nbytes():
            return False

        self._live[address] = (
            self.allocate(size or storage.nbytes(), None),
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
                self._free_with_tensor(index)

        return record_free

    def _free_with_tensor(self, index: int) -> None:
        """Record that a storage is freed with its tensor.

        An operand that is freed directly after its operator was needed by no other one.
        """
        last = self._events[-1] if self._events else None
        if self.overwritten == index and isinstance(last, Op):
            self._events[-1] = replace(last, in_place=True)
        self.overwritten = None
        self._events.append(Free(index))

    def allocate(self, size: int, part: Part | None) -> int:
        """Record the allocation of a new storage and return its index."""
        self._bytes.append(size)
        self._parts.append(part)
        if self.divides:
            self.storage_devices.append(self.device)
        self._events.append(Alloc(len(self._bytes) - 1))
        return len(self._bytes) - 1
