"""The microbatches of a traced update, and what is marked in the record while the engine runs them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import autocast, simulated_device
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.folding import Folding
from shoestring.techniques import nested
from shoestring.training.engine.update import Microbatch, Weight, Work


class Hooks:
    """What happens within an update besides the engine's own code: nothing on one GPU."""

    def before_update(self) -> None:
        """Run before the first microbatch of an update."""

    def before_forward(self) -> None:
        """Run before the forward pass of each microbatch."""

    def before_backward(self) -> None:
        """Run after the loss of each microbatch is computed."""

    def after_backward(self) -> None:
        """Run after the gradients of each microbatch are accumulated."""

    def after_update(self) -> None:
        """Run after the gradients are cleared."""


class Microbatches:
    """Equal microbatches of an update, `count` of each logical shard."""

    folding: Folding
    hooks: Hooks

    def __init__(self, log: EventLog, batch: Any, settings: Settings, count: int) -> None:
        """`folding` and `hooks` have to be set before the first update."""
        assert settings.micro_batch is not None
        self.size, self.count = settings.micro_batch, count
        self._log, self._batch, self._settings = log, batch, settings
        self._position = (0, 0)
        self._is_computed = False
        """Whether the loss of the current microbatch has been computed."""

    def begin_update(self, model: nn.Module, number: int) -> None:
        """Mark the beginning of an update, which may allocate buffers before its first microbatch."""
        self._model, self._position = model, (number, -1)
        self._log.mark("forward", number, 0)

    def by_shard(self, shards: Iterable[int], *, exchanges: bool) -> Iterator[tuple[int, Iterable[tuple[Any, int]]]]:
        """Yield the logical `shards` of an update that has begun, each with its microbatches, and mark what follows."""
        for shard in shards:
            yield shard, self._of_shard()
        self.mark("exchange" if exchanges else "optimizer")

    def _of_shard(self) -> Iterator[tuple[Any, int]]:
        """Yield the microbatches of a logical shard on the simulated device, with their size.

        No variable refers to a batch: the engine decides how long it is in memory.
        """
        for _ in range(self.count):
            number, index = self._position
            self._position = number, index + 1
            if index < 0:
                self._log.end_preparation()
                self.hooks.before_update()
            else:
                self._log.mark("forward", *self._position)
            self._is_computed = False
            yield self._on_device(), self.size

    def _on_device(self) -> Any:
        device_batch = simulated_device.move_batch(self._batch, self._settings.memory_format)
        self._log.label(nested.tensors(device_batch), "batch")
        return device_batch

    def begin_backward(self) -> None:
        """The forward pass of the current microbatch and its loss are computed."""
        self._is_computed = True
        self._log.mark("backward", *self._position)
        self.hooks.before_backward()

    @contextmanager
    def deferred_backward(self) -> Iterator[None]:
        """Mark the backward of the previous microbatch, which runs within the forward of the current one; the last one
        runs after all forwards.
        """
        number, index = self._position
        is_last = self._is_computed
        self._log.mark("backward", number, index if is_last else index - 1)
        with autocast.in_other_thread():
            yield
        self.folding.end_microbatch()
        if not is_last:
            self._log.mark("forward", number, index)

    def run(self, work: Work, batch: Any, expected: Weight | None, key: Hashable) -> Microbatch:  # noqa: ARG002
        """Run forward and backward of a microbatch, as a runner of the engine."""
        self.hooks.before_forward()
        with self.folding.microbatch():
            result = work(batch, expected)
            self.hooks.after_backward()
        if not self._settings.is_pipeline:
            self.folding.end_microbatch()
        self._log.label((parameter.grad for parameter in self._model.parameters()), "gradients")
        return result

    def mark(self, phase: Any) -> None:
        """Mark that the current update has come to its exchange or its optimizer's step."""
        self._log.mark(phase, self._position[0])
