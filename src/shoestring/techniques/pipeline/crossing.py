"""The boundary between the two parts of a model, and what happens where a forward crosses it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shoestring.techniques import nested
from shoestring.techniques.streaming.stream import is_in_backward


class Pass:
    """A forward pass, or several of which each begins in the first part again."""

    def __init__(self, batch: Any, *, trains: bool) -> None:
        self.batch, self.trains = batch, trains
        self.is_beyond = False
        """Whether the boundary has been crossed, so that what runs now belongs to the second part."""
        self.copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        """Copies on the second device by the identity of the tensor on the first one."""


class Crossing:
    """The boundary of a model whose parts are on two devices.

    Beyond the boundary, code outside of modules, such as a loss, computes on the second device: tensors of the first
    one are copied when a function gets them together with tensors of the second one. The batch, and trained weights
    that both parts use, are copied where the boundary is crossed, ahead of the deferred backward: a copy between GPUs
    waits for everything that is in the queues of both.
    """

    def __init__(self, first: torch.device, second: torch.device) -> None:
        self.first, self.second = first, second
        self.shared: Sequence[nn.Parameter] = ()
        """The weights on the first device that modules of the second part use too."""
        self.classes: dict[type[nn.Module], type[nn.Module]] = {}
        """The classes of placed blocks by their original ones."""
        self.around_deferred: Callable[[], AbstractContextManager[None]] = nullcontext
        """Returns the context of a deferred backward."""
        self._pass: Pass | None = None
        self._mode: Any = _Beyond(self)
        self._is_mode_on = False
        self._frozen: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}
        """Copies of frozen weights on the second device, each with the version of the weight that it is a copy of."""
        self._run_deferred: Callable[[], None] | None = None

    @contextmanager
    def passing(self, batch: Any = None, *, trains: bool) -> Iterator[None]:
        """Return the context of a forward and its loss. Without `trains`, the model's outputs are on the first device.

        `batch` has the tensors that code beyond the boundary is expected to use. A pass within another one, such as
        that of a reference model, leaves the other one in its part.
        """
        outer = self._pass
        was_beyond = outer is not None and outer.is_beyond
        self.come_back()
        self._pass = Pass(batch, trains=trains)
        try:
            yield
        finally:
            self.come_back()
            self._pass = outer
            if outer is not None and was_beyond:
                outer.is_beyond = True
                self._continue_random_numbers(self.first, self.second)
                self.leave()

    @property
    def trains(self) -> bool:
        """Whether the pass is that of an update."""
        return self._pass is not None and self._pass.trains

    @contextmanager
    def deferring(self) -> Iterator[Callable[[Tensor], None]]:
        """Return a context with a function that runs the backward of a loss where the next forward crosses the
        boundary, or at the end of the context. After an error nothing more runs.
        """
        pending: list[Tensor] = []

        def run() -> None:
            while pending:
                with self.around_deferred():
                    _backward(pending.pop())

        def defer(loss: Tensor) -> None:
            run()
            pending.append(loss)

        self._run_deferred = run
        try:
            yield defer
            run()
        finally:
            self._run_deferred = None
            pending.clear()

    def enter(self, inputs: Any, *, is_second: bool) -> Any:
        """Return the nested inputs of a module of one part on its device, and be in this part from now on."""
        self._switch_mode(on=False)
        if is_second:
            inputs = self.moved(inputs, self.second)
            self._cross()
        else:
            self.come_back()
            inputs = self.moved(inputs, self.first)
        return inputs

    def leave(self) -> None:
        """Let code outside of modules compute on the device of the part in which the forward is."""
        self._switch_mode(on=self._pass is not None and self._pass.is_beyond)

    def come_back(self) -> None:
        """Be in the first part again, whose random numbers continue those of the second one."""
        self._switch_mode(on=False)
        if self._pass is not None and self._pass.is_beyond:
            self._pass.is_beyond = False
            self._pass.copies.clear()
            self._continue_random_numbers(self.second, self.first)

    def moved(self, value: Any, device: torch.device) -> Any:
        """Return nested tuples, lists and dictionaries with the tensors of the other device copied to `device`.

        Other objects, such as a cache of keys and values, stay as they are.
        """
        if isinstance(value, Tensor):
            if device == self.first:
                return value.to(device) if value.device == self.second else value
            return self.copy_beyond(value) if value.device == self.first else value
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self.moved(item, device) for item in value])
        if kind is dict:
            return {name: self.moved(item, device) for name, item in value.items()}
        if isinstance(value, tuple) and hasattr(kind, "_make"):
            return kind._make([self.moved(item, device) for item in value])
        return value

    def copy_beyond(self, tensor: Tensor) -> Tensor:
        """Return the copy on the second device of a tensor on the first one, which is made once in a pass."""
        if self.first == self.second:
            return tensor
        if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
            return self._copy_frozen(tensor)
        copies = self._pass.copies if self._pass else {}
        source, copy = copies.get(id(tensor), (None, None))
        if source is None or source() is not tensor or copy is None:
            copy = tensor.to(self.second)
            copies[id(tensor)] = weakref.ref(tensor), copy
        return copy

    def is_copied(self, tensor: Tensor) -> bool:
        """Return whether the pass has a copy of a tensor on the first device."""
        entry = self._pass.copies.get(id(tensor)) if self._pass else None
        return entry is not None and entry[0]() is tensor

    def _copy_frozen(self, weight: nn.Parameter) -> Tensor:
        source, version, copy = self._frozen.get(id(weight), (None, 0, weight))
        if source is None or source() is not weight or version != weight._version:
            copy = weight.detach().to(self.second)
            self._frozen[id(weight)] = weakref.ref(weight), weight._version, copy
        return copy

    def _cross(self) -> None:
        current = self._pass
        if current is None or current.is_beyond or is_in_backward():
            return
        if self.first != self.second:
            for tensor in (*nested.tensors(current.batch), *self.shared):
                if tensor.device == self.first:
                    self.copy_beyond(tensor)
        self._continue_random_numbers(self.first, self.second)
        if self._run_deferred and current.trains:
            self._run_deferred()
        current.is_beyond = True

    def _switch_mode(self, *, on: bool) -> None:
        if on and not self._is_mode_on and self.first != self.second:
            self._mode.__enter__()
            self._is_mode_on = True
        elif not on and self._is_mode_on:
            self._mode.__exit__(None, None, None)
            self._is_mode_on = False

    @staticmethod
    def _continue_random_numbers(source: torch.device, target: torch.device) -> None:
        """Let the generator of one GPU continue the random numbers of the other, as if there were one GPU."""
        if source.type == "cuda" and source != target:
            torch.cuda.set_rng_state(torch.cuda.get_rng_state(source), target)


class _Beyond(TorchFunctionMode):
    """Lets code beyond the boundary compute on the second device.

    A function that writes into a tensor gets the others on that tensor's device.
    """

    def __init__(self, crossing: Crossing) -> None:
        super().__init__()
        self._crossing = crossing

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        crossing = self._crossing
        devices = {tensor.device for tensor in _tensors((args, kwargs))}
        if crossing.first in devices:
            target = crossing.second
            if _writes(function, kwargs) and isinstance(args[0], Tensor) and not crossing.is_copied(args[0]):
                target = args[0].device
            elif crossing.second not in devices and not any(map(crossing.is_copied, _tensors((args, kwargs)))):
                target = crossing.first
            args, kwargs = crossing.moved((tuple(args), dict(kwargs)), target)
        return function(*args, **kwargs)


def _writes(function: Any, kwargs: dict[str, Any]) -> bool:
    name: str = getattr(function, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name in ("__setitem__", "__set__") or kwargs.get("out") is not None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _backward(loss: Tensor) -> None:
    """Run a backward within the forward of the next microbatch as if it ran outside of it."""
    # The casts of weights that the forward has made so far would be in memory as long as the backward.
    torch.clear_autocast_cache()
    with torch.enable_grad(), _without_saved_tensors_hooks(), torch.autocast(loss.device.type, enabled=False):
        torch.autograd.backward(loss)
    # Blocks that were recomputed have left casts of weights, which belong to the graph of the previous microbatch.
    torch.clear_autocast_cache()


@contextmanager
def _without_saved_tensors_hooks() -> Iterator[None]:
    """Remove the hooks for saved tensors that surround the forward, which a recomputed block would apply."""
    with ExitStack() as stack:
        while hooks := torch._C._autograd._top_saved_tensors_default_hooks(False):
            torch._C._autograd._pop_saved_tensors_default_hooks()
            stack.callback(torch._C._autograd._push_saved_tensors_default_hooks, *hooks)
        yield
