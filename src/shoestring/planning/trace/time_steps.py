"""Folding of scans: of a loop over time steps, written in Python, only the first and the last steps run.

Without their kernels some models compute one time step after another: `for index in range(length)` with a dozen
operators in each. Their record is exactly that of running all steps, as that of identical blocks (`folding.py`): the
events of the last step before the gap are repeated with new storages, and in backward, which runs in reverse, those of
the first step after it. The tensors of the step before the gap stand for those of the last skipped step.

Each step begins, in backward, with its latest node, since autograd runs nodes in the reverse order of their creation.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from shoestring.planning.trace import templates
from shoestring.planning.trace.event_log import EventLog, Position
from shoestring.planning.trace.templates import NotRepeatableError, Released, Role, Template

MODULES = tuple(
    f"transformers.models.{name}.modeling_{name}" for name in ("falcon_mamba", "jamba", "mamba", "rwkv", "zamba")
)
"""The modules whose loops over `range(length)` are scans (transformers 5.23)."""

_FIRST, _LAST = 4, 5
"""The steps that run before the gap and after it: the first ones of a pass differ from the others, and two have to be
equal."""
_LEAST = 2 * (_FIRST + _LAST)


class Scans:
    """Folds the scans of `modules` in the microbatches that run in the context `microbatch`."""

    def __init__(self, log: EventLog) -> None:
        self.count = 0
        """The number of time steps that were folded."""
        self.problem: NotRepeatableError | None = None
        """What went wrong in backward, where an exception may abort the process."""
        self._log = log
        self._loops: list[_Loop] = []
        self._is_active = False

    @contextmanager
    def microbatch(self) -> Iterator[None]:
        """Fold scans that run in the context. Raises NotRepeatableError."""
        self._is_active = True
        try:
            yield
        finally:
            self._is_active = False
            loops, self._loops = self._loops, []
        if self.problem is not None:
            raise self.problem
        for loop in loops:
            loop.check_complete()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Replace `range` in the modules within the context."""
        modules = [module for name in MODULES if (module := sys.modules.get(name)) is not None]
        for module in modules:
            module.__dict__["range"] = self._range
        try:
            yield
        finally:
            for module in modules:
                del module.__dict__["range"]

    def _range(self, *arguments: int) -> Sequence[int] | Iterator[int]:
        """Return the numbers of `range`, without most of them where the steps of a scan can be repeated."""
        indices, frame = builtins.range(*arguments), sys._getframe(1)
        is_loop = not frame.f_code.co_name.startswith("<")  # the results of a comprehension cannot be completed
        if not self._is_active or not is_loop or len(indices) < _LEAST or _is_recomputed():
            return indices
        loop = _Loop(self, self._log, frame)
        self._loops.append(loop)
        return loop.run(indices)


def _is_recomputed() -> bool:
    """Return whether backward will recompute what runs now: the nodes of its backward are then of another forward."""
    top_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top_hooks is None or top_hooks(True) is not None


@dataclass
class _Step:
    """A time step that ran."""

    storages: range
    template: Template | None
    """The events of its forward; None if they cannot be repeated."""
    grown: dict[int, list[Any]]
    """What the step has appended to each list of the loop's function, by the identity of the list."""


class _Loop:
    """A scan in progress."""

    def __init__(self, scans: Scans, log: EventLog, frame: FrameType) -> None:
        self._scans, self._log = scans, log
        self._frame: FrameType | None = frame
        self._lengths: dict[int, int] = {}
        self._storages: dict[int, range] = {}
        """The storages of the forward of each step that ran."""
        self._skipped: list[int] = []
        """The first storage of the forward of each skipped step."""
        self._has_backward = self._is_repeated = False
        self._running: tuple[int, Position] | None = None
        """The step whose backward runs, and where it began."""
        self._carried = range(0)
        """The storages of the backward of the step after that."""
        self._backward: list[Template | None] = []

    def check_complete(self) -> None:
        """Raise NotRepeatableError unless the backward of the skipped steps was recorded."""
        if self._skipped and self._has_backward and not self._is_repeated:
            raise NotRepeatableError("time steps have no backward")

    def run(self, indices: Sequence[int]) -> Iterator[int]:
        """Yield the indices of the steps that run."""
        last: _Step | None = None
        steps: list[_Step] = []
        try:
            for number, index in enumerate(indices):
                if number == _FIRST:
                    self._skip(steps, len(indices) - _FIRST - _LAST)
                    for step in steps:
                        step.grown.clear()
                if self._skipped and _FIRST <= number < len(indices) - _LAST:
                    continue
                start = self._log.position()
                yield index
                last = self._finish(number, start, self._previous(last))
                if number < _FIRST:
                    steps.append(last)
                    continue
                last.grown.clear()
                if self._skipped and last.template != steps[-1].template:
                    raise NotRepeatableError("a time step has other events")
        finally:
            steps.clear()
            self._frame = None

    def _previous(self, last: _Step | None) -> range:
        """Return the storages of the step before the one that runs, of which it may free some."""
        if last is None:
            return range(0)
        size = len(last.storages)
        is_first_after_gap = self._skipped and max(self._storages) == _FIRST - 1
        return range(self._skipped[-1], self._skipped[-1] + size) if is_first_after_gap else last.storages

    def _finish(self, number: int, start: Position, previous: range) -> _Step:
        """Return what a step was that has ended, and watch its backward."""
        storages = range(start.storages, self._log.position().storages)
        roles: dict[int, Role] = {storage: ("previous", storage - previous.start) for storage in previous}
        template = _template(self._log, start, roles)
        self._storages[number] = storages
        assert self._frame is not None
        names = self._frame.f_locals
        lists = [value for value in names.values() if isinstance(value, list)]
        grown = {id(values): values[self._lengths.get(id(values), 0) :] for values in lists}
        self._lengths = {id(values): len(values) for values in lists}
        tensors = [
            value for value in (*names.values(), *chain.from_iterable(grown.values())) if isinstance(value, Tensor)
        ]
        nodes: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        if sys.version_info < (3, 13):
            names.clear()  # a copy, which would hold the tensors of the loop's variables
        if nodes:
            self._has_backward = True
            node = max(nodes, key=lambda node: node._sequence_nr())
            node.register_prehook(lambda _: self._guarded(lambda: self._begin_backward(number)))
        return _Step(storages, template, grown)

    def _skip(self, steps: list[_Step], count: int) -> None:
        """Record the events of the last step again, `count` times, if the one before had the same."""
        before, last = steps[-2:]
        template = last.template
        places = self._places(last)
        if template is None or template != before.template or places is None or places != self._places(before):
            return
        self._scans.count += count
        released = [step.role[1] for step in template.steps if isinstance(step, Released)]
        parts = self._log.parts(last.storages.start, last.storages.stop)
        previous = last.storages.start
        for number in builtins.range(count):
            free = self._log.free_live if number == 0 else self._log.free_untracked
            first = templates.repeat(self._log, template, parts, _freeing(free, previous))
            for values, tensor, offset in self._appended(last, places):
                copy = templates.new_tensor(templates.form(tensor), tensor)
                self._log.bind(copy, first + offset)
                values.append(copy)
            self._skipped.append(first)
            previous = first
        for place in released:
            self._log.rename(last.storages.start + int(place), previous + int(place))
        self._lengths = {id(values): len(values) for values in self._lists()}

    def _lists(self) -> list[list[Any]]:
        assert self._frame is not None
        names = self._frame.f_locals
        lists = [value for value in names.values() if isinstance(value, list)]
        if sys.version_info < (3, 13):
            names.clear()
        return lists

    def _places(self, step: _Step) -> list[int] | None:
        """Return the numbers of the storages of what the step has appended to lists; None if they are not its own."""
        places = []
        for tensor in chain.from_iterable(step.grown.values()):
            index = self._log.storage_index(tensor) if isinstance(tensor, FakeTensor) else None
            if index is None or index not in step.storages:
                return None
            places.append(index - step.storages.start)
        return places if len(set(places)) == len(places) else None

    def _appended(self, step: _Step, places: list[int]) -> Iterator[tuple[list[Any], FakeTensor, int]]:
        """Yield what a step has appended to which list, and the number of its storage."""
        offsets = iter(places)
        for values in self._lists():
            for tensor in step.grown.get(id(values), ()):
                yield values, tensor, next(offsets)

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._scans.problem is None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - any exception here may abort the process
                self._scans.problem = NotRepeatableError(str(error))

    def _begin_backward(self, number: int) -> None:
        """Run when the backward of the step with this number begins: that of the one after it has ended."""
        if not self._skipped:
            return
        if self._running is not None:
            later, start = self._running
            is_next = later == number + 1 or (number == _FIRST - 1 and later == min(self._later_steps()))
            if not is_next:
                raise NotRepeatableError("time steps have their backward in another order")
            self._backward.append(_template(self._log, start, self._backward_roles(later)))
            self._carried = range(start.storages, self._log.position().storages)
            if number == _FIRST - 1:
                self._repeat_backward(start)
        self._running = number, self._log.position()

    def _later_steps(self) -> list[int]:
        """Return the numbers of the steps that ran after the gap."""
        return [number for number in self._storages if number >= _FIRST]

    def _backward_roles(self, number: int) -> dict[int, Role]:
        """Return the roles of the storages that the backward of a step may free."""
        own = self._storages[number]
        earlier = [self._storages.get(number - 1, self._storages[_FIRST - 1])]
        if number == min(self._later_steps()):
            earlier.append(range(self._skipped[-1], self._skipped[-1] + len(own)))
        roles: dict[int, Role] = {storage: ("carried", storage - self._carried.start) for storage in self._carried}
        for storages in earlier:
            roles |= {storage: ("earlier", storage - storages.start) for storage in storages}
        return roles | {storage: ("own", storage - own.start) for storage in own}

    def _repeat_backward(self, start: Position) -> None:
        """Record the backward of the skipped steps: that of the step after them, which began at `start`."""
        template, other = self._backward[-1], self._backward[-2]
        if template is None or template != other:
            raise NotRepeatableError("the backward of a time step has other events")
        offsets: dict[Any, list[int]] = {"carried": [], "earlier": [], "own": []}
        for step in template.steps:
            if isinstance(step, Released):
                offsets[step.role[0]].append(int(step.role[1]))
        if template.survivors != set(offsets["carried"]):
            raise NotRepeatableError("storages of the backward of a time step are not freed")
        log, before = self._log, self._storages[_FIRST - 1].start
        # The step after the gap has freed tensors of the step before it, in place of those of the last skipped one.
        log.exchange_frees(start, {before + offset: self._skipped[-1] + offset for offset in offsets["earlier"]})
        previous, first_storages = self._carried.start, [before, *self._skipped]
        for index in reversed(builtins.range(1, len(first_storages))):
            is_first, is_last = index == len(self._skipped), index == 1
            frees = {
                "carried": _from(previous, log.free_live if is_first else log.free_untracked),
                "earlier": _from(first_storages[index - 1], log.append_free if is_last else log.free_untracked),
                "own": _from(first_storages[index], log.free_untracked),
            }
            previous = templates.repeat(log, template, [None] * len(template.sizes), _by_role(frees))
        for offset in offsets["carried"]:
            log.rename(self._carried.start + offset, previous + offset)
        self._is_repeated = True


def _template(log: EventLog, start: Position, roles: dict[int, Role]) -> Template | None:
    try:
        return templates.make(log, start, roles)
    except NotRepeatableError:
        return None


def _freeing(free: Callable[[int], None], first: int) -> Callable[[Released], None]:
    return lambda step: free(first + int(step.role[1]))


def _by_role(frees: Mapping[Any, Callable[[Any], None]]) -> Callable[[Released], None]:
    return lambda step: frees[step.role[0]](step.role[1])


def _from(first: int, free: Callable[[int], None]) -> Callable[[Any], None]:
    return lambda offset: free(first + int(offset))
