"""Record the allocations and frees of storages on the simulated device, and the operators that run kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoestring.planning.trace import attention, bounds, in_place, layouts, operators, recurrent, reductions, results
from shoestring.planning.trace import scratch as kernel_scratch
from shoestring.planning.trace.draws import Draws, draws_random
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.fake import DEVICE_OF
from shoestring.planning.trace.record import BETWEEN_GPUS, Part
from shoestring.planning.trace.simulated_device import DEVICE

_FREED = -1
"""In place of the index of a storage of a kernel's own memory that is freed already."""


def is_simulated(tensor: Tensor) -> bool:
    """Return whether the tensor is on the simulated device."""
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == DEVICE


def real(tensor: Tensor) -> bool:
    """Return whether the tensor is in the memory of this process."""
    return not isinstance(tensor, FakeTensor) and tensor.device.type == "cpu"


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
        self.log = EventLog()
        """What is recorded."""
        self.host_bytes: dict[Part, int] = {}
        """What is in host memory, which is not recorded as it is allocated."""
        self.draws_random = False
        """Whether an operator has drawn random numbers. Weights are drawn before, when nothing is recorded."""
        self.loading_host_bytes = 0
        """The most bytes of weights in host memory while the model is loaded."""
        self._bounds: dict[tuple[str, str], int] = {}
        """The largest number of rows by operator and place, where it depends on values."""
        self._draws = Draws()
        attention.grouped_in_math.clear()

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
        self.log.calls += 1
        self.draws_random = self.draws_random or draws_random(func, args, kwargs)
        on_gpu = self._watched is is_simulated and attention.CAPABILITY.get() is not None
        result = self._result(func, args, kwargs)
        returned = self._watched_tensors(results.on_device(func, args, result) if on_gpu else result)
        if self.log.divides:
            of_operator = returned or self._watched_tensors((args, kwargs))
            self.log.device = (of_operator[0].fake_device.index or 0) if of_operator else 0  # type: ignore[attr-defined]
        scratch = kernel_scratch.scratch(func, args) if on_gpu else kernel_scratch.Scratch()
        scratch_storages: list[int] = []
        self._record_scratch(scratch.before, scratch_storages)
        storage_bytes = results.storage_bytes(func, args) if on_gpu else None
        new = [tensor for tensor in returned if self.log.track(tensor, storage_bytes)]
        self._record_scratch(scratch.after, scratch_storages)
        operand = in_place.operand(func, args) if on_gpu and new else None
        if operand is not None:  # which has to be freed directly after the operator
            self._free_scratch(scratch_storages)
        arguments = [get(args, kwargs) for get in operators.written_arguments(func)]
        written = [tensor for argument in arguments for tensor in self._watched_tensors(argument)]
        if (new or written) and not operators.only_allocates(func):
            read = self._watched_tensors((args, kwargs))
            op = operators.operator(func, args, kwargs, result, read, new + written)
            if self.log.divides and len({tensor.device for tensor in (*read, *new, *written)}) > 1:
                op = replace(op, name=BETWEEN_GPUS)
            if on_gpu and (buffers := reductions.reduction(func, args, kwargs) or kernel_scratch.split_sum(func, args)):
                op = replace(op, buffers=buffers)
            self.log.append_operator(op, self.log.calls, self.log.python_calls)
        self._free_scratch(scratch_storages)
        self.log.overwritten = self.log.storage_index(operand)
        if func is recurrent.FORWARD:
            self.log.label(result[-1:], "reserve space")
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

    def _watched_tensors(self, tree: Any) -> list[Tensor]:
        """Return the watched tensors in an operator's arguments or results: in tuples, lists and dicts."""
        if isinstance(tree, Tensor):
            return [tree] if self._watched(tree) else []
        if isinstance(tree, list | tuple):
            return [tensor for branch in tree for tensor in self._watched_tensors(branch)]
        return self._watched_tensors(list(tree.values())) if isinstance(tree, dict) else []

    def _record_scratch(self, steps: Iterable[int], storages: list[int]) -> None:
        """Record the steps of a kernel's own memory (`scratch.Scratch`); `storages` are those so far, in order."""
        for step in steps:
            if step >= 0:
                storages.append(self.log.allocate(step, "temporaries"))
            else:
                self.log.append_free(storages[~step])
                storages[~step] = _FREED

    def _free_scratch(self, storages: list[int]) -> None:
        """Record that what remains of a kernel's own memory is freed."""
        for storage in reversed(storages):
            if storage != _FREED:
                self.log.append_free(storage)
        storages.clear()
