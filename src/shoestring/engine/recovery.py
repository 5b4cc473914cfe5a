"""An update that is done again from its beginning: in smaller microbatches where memory ran out, with a smaller loss
scale where fp16 overflowed."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from shoestring.engine.buffers import Buffers
from shoestring.engine.memory import Failure, catch_out_of_memory, free
from shoestring.engine.precision import LEAST_SCALE, MixedPrecision
from shoestring.engine.state import trains_batch_norm
from shoestring.engine.update import UpdateResult
from shoestring.errors import RunError
from shoestring.renamed import accepts_old_arguments
from shoestring.techniques.fallbacks import halved, least_micro_batch

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """What did not fit and what is done about it."""

    failure: str
    """What the library said."""
    micro_batch: int
    """That it was tried with."""
    done: str
    """In words: microbatch 4, ..."""


class Recovering:
    """Runs an update, in anyone's loop, until it fits. The effective batch stays as it is::

        recovering = Recovering(model, optimizer, mixed_precision)
        for number in range(updates):
            def attempt(micro_batch):  # all of the update, from its random numbers on
                seed_all(derive(seed, "update", number))
                microbatches = batches(number, micro_batch)
                return update(
                    model, optimizer, loss, microbatches, samples=64, mixed_precision=mixed_precision
                )
            result, micro_batch = recovering.run(attempt, micro_batch)  # keep micro_batch with your checkpoint

    Before each new attempt gradients are cleared, buffers are as they were at the start and the scaler has forgotten
    the attempt but kept its scale. Random generators are not touched: an attempt that seeds them begins as the first
    one did. Python attributes that a forward changes stay changed.
    """

    @accepts_old_arguments
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        mixed_precision: MixedPrecision,
        *,
        on_out_of_memory: Callable[[OutOfMemory], None] = lambda _: None,
        fallback: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`on_out_of_memory` is called after each failed attempt. `fallback` is called with the error message when the
        smallest microbatch does not fit: it reduces memory in another way and returns a description of it, or an empty
        string if there is no other way. An evaluation passes None as the optimizer.
        """
        self._model, self._optimizer, self._mixed_precision = model, optimizer, mixed_precision
        self._on_out_of_memory, self._fallback = on_out_of_memory, fallback
        self._buffers = Buffers(model)

    def run(self, attempt: Callable[[int], T], micro_batch: int) -> tuple[T, int]:
        """What `attempt(micro_batch)` returns, halved as often as it takes, and the size that it took.

        Where the result is an `UpdateResult` whose step was left out because scaled gradients overflowed, the attempt
        is made again with the smaller scale; `skipped` of the one returned counts all of them.

        Raises RunError when the smallest microbatch does not fit and nothing else is left to try, and HalfDoneError
        when weights may have been changed in part: then a checkpoint is the only way back.
        """
        self._buffers.keep()
        overflows = 0
        while True:
            done = catch_out_of_memory(functools.partial(attempt, micro_batch))
            if isinstance(done, Failure):
                self._rewind()
                free()
                micro_batch = self._smaller(done.message, micro_batch)
                continue
            if isinstance(done, UpdateResult):
                if not done.stepped:
                    self._rewind()  # an update that leaves out its step leaves nothing else behind either
                    if self._may_fit_a_smaller_scale(done):
                        overflows += 1
                        continue
                done.skipped += overflows
            return done, micro_batch

    def _smaller(self, failure: str, micro_batch: int) -> int:
        """The size to try next."""
        smaller = halved(micro_batch, least_micro_batch(batch_norm=trains_batch_norm(self._model)))
        done = f"microbatch {smaller}" if smaller < micro_batch else self._fallback(failure)
        if not done:
            raise RunError(
                f"out of memory even with microbatches of {smaller}: {failure}",
                hint="a smaller model or shorter samples, activation checkpointing, or a GPU with more memory",
            )
        self._on_out_of_memory(OutOfMemory(failure=failure, micro_batch=micro_batch, done=done))
        return smaller

    def _rewind(self) -> None:
        forget(self._model, self._optimizer, self._mixed_precision)
        self._buffers.restore()

    def _may_fit_a_smaller_scale(self, result: UpdateResult) -> bool:
        """Not where the loss itself is not finite: the scale is no part of it."""
        scaler = self._mixed_precision.scaler
        return scaler is not None and scaler.get_scale() >= LEAST_SCALE and bool(torch.isfinite(result.loss))


def forget(model: nn.Module, optimizer: Optimizer | None, mixed_precision: MixedPrecision) -> None:
    """Drop the gradients of an update that was not finished, and what the scaler knows of it."""
    model.zero_grad(set_to_none=True)
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    if mixed_precision.scaler:
        # A scale that is given, the same as before, is all that has it forget that these gradients were unscaled, and
        # nothing else. One that has scaled nothing yet has nothing to forget, and says so by an assertion.
        with contextlib.suppress(AssertionError):
            mixed_precision.scaler.update(new_scale=mixed_precision.scaler.get_scale())
