"""Forward passes apart from training, which leave no trace in it: they compare losses before the first update."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.techniques import deferred_compiler
from shoestring.training.data.generators import GeneratorStates
from shoestring.training.engine.buffers import BufferBackup
from shoestring.training.engine.evaluation_mode import evaluation_mode


class Generators:
    """The states of all generators that a loss may draw from: the CPU's and the device's."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._host = device, GeneratorStates()
        self._on_device = self._device_state()

    def unchanged(self) -> bool:
        state = self._device_state()
        is_equal = state is None or self._on_device is None or torch.equal(state, self._on_device)
        return is_equal and self._host.unchanged()

    def restore(self) -> None:
        self._host.restore()
        if self._on_device is not None:
            torch.cuda.set_rng_state(self._on_device, self._device)

    def _device_state(self) -> Tensor | None:
        return torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None


@contextmanager
def without_side_effects(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Return a context for forward passes of `model` in evaluation mode, without gradients and without compilation.

    Training modes, buffers and random states are restored afterwards. Parameters are not: a loss that changes them
    itself has to be detected by the caller.
    """
    buffers, generators = BufferBackup(model, complete=True), Generators(device)
    with (
        warnings.catch_warnings(action="ignore"),
        evaluation_mode(model),
        _without_compilation(),
        torch.no_grad(),
    ):
        buffers.save()
        try:
            yield
        finally:
            buffers.restore()
            generators.restore()


def _without_compilation() -> AbstractContextManager[Any]:
    """Run compiled blocks as plain Python: compiling them for other shapes takes longer than an epoch of a small run.

    If no block is compiled, this has no effect, and importing the compiler for it would take a second.
    """
    if not deferred_compiler.is_compiler_loaded():
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
