"""The microbatches of a traced update, and what is marked in the record while the engine runs them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Protocol

from torch import nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import simulated_device
from shoestring.planning.trace.folding import Folding
from shoestring.planning.trace.recorder import Recorder
from shoestring.techniques import nested
from shoestring.training.engine.update import Microbatch, Weight, Work


class Hooks(Protocol):
    """What a way to train on several GPUs does within an update; nothing on one GPU."""

    model: nn.Module

    def before_update(self) -> None:
        """Run before the first microbatch of an update."""

    def before_forward(self) -> None:
        """Run before the forward pass of each microbatch."""

    def before_backward(self) -> None:
        """Run after the loss of each microbatch is computed."""

    def after_backward(self) -> None:
        """Run after the gradients of each microbatch are accumulated."""


class Microbatches:
    """Equal microbatches of an update, `count` of each logical shard."""

    def __init__(
        self,
        recorder: Recorder,
        batch: Any,
        settings: Settings,
        folding: Folding,
        hooks: Hooks,
        count: int,
    ) -> None:
        assert settings.micro_batch is not None
        self.size, self.count = settings.micro_batch, count
        self._recorder, self._batch, self._settings = recorder, batch, settings
        self._folding, self._hooks = folding, hooks
        self._position = (0, 0)

    def begin_update(self, number: int) -> None:
        self._position = (number, -1)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield the microbatches of a logical shard on the simulated device, with their size.

        No variable refers to a batch: the engine decides how long it is in memory.
        """
        for _ in range(self.count):
            number, index = self._position
            self._position = number, index + 1
            self._recorder.mark("forward", *self._position)
            if index < 0:
                self._hooks.before_update()
            yield self._on_device(), self.size

    def _on_device(self) -> Any:
        device_batch = simulated_device.move_batch(self._batch, self._settings.memory_format)
        self._recorder.label(nested.tensors(device_batch), "batch")
        return device_batch

    def begin_backward(self) -> None:
        """The forward pass of the current microbatch and its loss are computed."""
        self._recorder.mark("backward", *self._position)
        self._hooks.before_backward()

    def run(self, work: Work, batch: Any, expected: Weight | None, key: Hashable) -> Microbatch:  # noqa: ARG002
        """Run forward and backward of a microbatch, as a runner of the engine."""
        self._hooks.before_forward()
        with self._folding.microbatch():
            result = work(batch, expected)
            self._hooks.after_backward()
        self._recorder.label((parameter.grad for parameter in self._hooks.model.parameters()), "gradients")
        return result

    def mark(self, phase: Any) -> None:
        """Mark that the current update has come to its exchange or its optimizer's step."""
        self._recorder.mark(phase, self._position[0])
