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
from shoestring.engine.memory import Failure, attempted, free
from shoestring.engine.precision import LEAST_SCALE, Arithmetic
from shoestring.engine.state import trains_batch_norm
from shoestring.engine.update import UpdateResult
from shoestring.errors import RunError
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

        recovering = Recovering(model, optimizer, arithmetic)
        for number in range(updates):
            def attempt(micro_batch):  # all of the update, from its random numbers on
                seed_all(derive(seed, "update", number))
                return update(model, optimizer, loss, batches(number, micro_batch), samples=64, arithmetic=arithmetic)
            result, micro_batch = recovering.run(attempt, micro_batch)  # keep micro_batch with your checkpoint

    Before each new attempt gradients are cleared, buffers are as they were at the start and the scaler has forgotten
    the attempt but kept its scale. Random generators are not touched: an attempt that seeds them begins as the first
    one did. Python attributes that a forward changes stay changed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        arithmetic: Arithmetic,
        *,
        told: Callable[[OutOfMemory], None] = lambda _: None,
        otherwise: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`told` is called with each failure. `otherwise` is called when the smallest microbatch does not fit, with the
        library's message: it makes something else smaller and returns what, or an empty text if nothing is left. An
        evaluation needs no optimizer.
        """
        self._model, self._optimizer, self._arithmetic = model, optimizer, arithmetic
        self._told, self._otherwise = told, otherwise
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
            done = attempted(functools.partial(attempt, micro_batch))
            if isinstance(done, Failure):
                self._rewind()
                free()
                micro_batch = self._smaller(done.said, micro_batch)
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
        done = f"microbatch {smaller}" if smaller < micro_batch else self._otherwise(failure)
        if not done:
            raise RunError(
                f"out of memory even with microbatches of {smaller}: {failure}",
                hint="a smaller model or shorter samples, activation checkpointing, or a GPU with more memory",
            )
        self._told(OutOfMemory(failure=failure, micro_batch=micro_batch, done=done))
        return smaller

    def _rewind(self) -> None:
        forget(self._model, self._optimizer, self._arithmetic)
        self._buffers.restore()

    def _may_fit_a_smaller_scale(self, result: UpdateResult) -> bool:
        """Not where the loss itself is not finite: the scale is no part of it."""
        scaler = self._arithmetic.scaler
        return scaler is not None and scaler.get_scale() >= LEAST_SCALE and bool(torch.isfinite(result.loss))


def forget(model: nn.Module, optimizer: Optimizer | None, arithmetic: Arithmetic) -> None:
    """Drop the gradients of an update that was not finished, and what the scaler knows of it."""
    model.zero_grad(set_to_none=True)
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    if arithmetic.scaler:
        # A scale that is given, the same as before, is all that has it forget that these gradients were unscaled, and
        # nothing else. One that has scaled nothing yet has nothing to forget, and says so by an assertion.
        with contextlib.suppress(AssertionError):
            arithmetic.scaler.update(new_scale=arithmetic.scaler.get_scale())
