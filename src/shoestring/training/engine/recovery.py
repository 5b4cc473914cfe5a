"""Repeating an update from its beginning: with smaller microbatches on out-of-memory, with a smaller loss scale on
overflow in fp16."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from shoestring.base.errors import RunError
from shoestring.base.renamed import accepts_old_arguments, instance_attributes_of
from shoestring.techniques.fallbacks import halved, least_micro_batch
from shoestring.techniques.norms import trains_batch_norm
from shoestring.training.engine.buffers import BufferBackup
from shoestring.training.engine.memory import (
    Failure,
    free_unused_memory,
    out_of_memory_message,
    retry_with_freed_memory,
)
from shoestring.training.engine.precision import MIN_LOSS_SCALE, MixedPrecision
from shoestring.training.engine.update import RepeatedUpdate, UpdateResult
from shoestring.training.monitor.host_memory import describe_memory

T = TypeVar("T")

WHOLE_BATCH = "with all {size} samples at once, which are not split because the recipe has whole_batch = True"


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """An out-of-memory event: what failed, and how training continues."""

    failure: str
    """The library's error message."""
    micro_batch: int
    """The microbatch of the failed attempt."""
    action: str
    """A description of what is smaller now: "microbatch 4", ..."""

    if not TYPE_CHECKING:
        __getattr__ = instance_attributes_of("OutOfMemory")


_OWN_ERRORS = (AssertionError, RuntimeError, ValueError)
"""What code raises for a number of samples that it does not take, such as an odd one."""


@dataclass(frozen=True)
class Refusal:
    """The recipe's code failed with a smaller microbatch, with this error."""

    message: str


class Attempt:
    """One attempt at an update or an evaluation: the context in which it is made.

    An out-of-memory error ends the context. Only its message becomes the result: the error references every frame that
    it passed through, and so all their tensors, which are freed when the context has ended.
    """

    def __init__(self, micro_batch: int, *, is_smaller: bool = False) -> None:
        """`is_smaller`: the microbatch is no longer the one that was requested, and the recipe may refuse it."""
        self.micro_batch, self._is_smaller = micro_batch, is_smaller
        self.result: Any = None
        """Set in the context; a `Failure` if the attempt has run out of memory, a `Refusal` if the recipe has raised an
        error for a smaller microbatch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        message = out_of_memory_message(error) if isinstance(error, Exception) else None
        if message is not None:
            self.result = Failure(message)
        elif self._is_smaller and isinstance(error, _OWN_ERRORS):
            self.result = Refusal(f"{type(error).__name__}: {error}")
        else:
            return False
        return True


class Recovering:
    """Runs an update, in any training loop, until it fits in memory. The effective batch is unchanged::

        recovering = Recovering(model, optimizer, mixed_precision)
        for number in range(updates):
            def attempt(micro_batch):  # the whole update, starting with its random numbers
                seed_all(derive(seed, "update", number))
                microbatches = batches(number, micro_batch)
                return update(
                    model, optimizer, loss, microbatches, samples=64, mixed_precision=mixed_precision
                )
            result, micro_batch = recovering.run(attempt, micro_batch)  # store micro_batch in your checkpoint

    Before each new attempt gradients are cleared, buffers are restored from the start of the update, and the scaler
    drops the state of the failed attempt; its scale is that of the start of the update, or the smaller one after an
    overflow. Random generators are not changed: an attempt that seeds
    them starts like the first one. Python attributes that a forward changes are not restored.
    """

    @accepts_old_arguments
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        mixed_precision: MixedPrecision,
        *,
        on_out_of_memory: Callable[[OutOfMemory], None] = lambda _: None,
        before_smaller: Callable[[], str] = lambda: "",
        fallback: Callable[[str], str] = lambda _: "",
        divisible: bool = True,
        skips_refused: bool = False,
    ) -> None:
        """`on_out_of_memory` is called after each failed attempt. `before_smaller` is called before the microbatch
        becomes smaller: it may reduce memory in a cheaper way and return a description of it, or an empty string.
        `fallback` is called with the error message when the smallest microbatch does not fit: it reduces memory in
        another way and returns a description of it, or an empty string if there is no other way. An evaluation passes
        None as the optimizer. The microbatch of a loss that compares all samples of an update is not `divisible`: then
        the fallback is the first way. With `skips_refused` a smaller microbatch for which the loss raises an error,
        such as an odd one, is passed over.
        """
        self._divisible, self._skips_refused = divisible, skips_refused
        self._model, self._optimizer, self._mixed_precision = model, optimizer, mixed_precision
        self._on_out_of_memory, self._before_smaller, self._fallback = on_out_of_memory, before_smaller, fallback
        self._buffers = BufferBackup(model)

    def run(self, attempt: Callable[[int], T | Failure], micro_batch: int) -> tuple[T, int]:
        """Call `attempt(micro_batch)` as often as `attempts` yields, and return its result and the microbatch."""
        for current in self.attempts(micro_batch):
            with current:
                current.result = attempt(current.micro_batch)
        return current.result, current.micro_batch

    def attempts(self, micro_batch: int) -> Iterator[Attempt]:
        """Yield attempts, contexts in which the update is made, until one has a result that counts.

        After an out-of-memory error the next attempt has half the microbatch. If the result is an `UpdateResult` whose
        step was skipped because scaled gradients overflowed, the next one has the smaller scale; `skipped` of the last
        result counts all of these.

        Raises RunError if the smallest microbatch does not fit and no fallback is left. HalfDoneError, which an attempt
        raises if weights may be partly updated, ends them: then only a checkpoint restores the weights.
        """
        retry_with_freed_memory(self._buffers.save, "copying the model's buffers")
        scaler = self._mixed_precision.scaler
        scale = scaler.state_dict() if scaler else {}
        overflows, requested, failed = 0, micro_batch, micro_batch
        while True:
            attempt = Attempt(micro_batch, is_smaller=self._skips_refused and micro_batch < requested)
            yield attempt
            result = attempt.result
            if isinstance(result, Refusal):
                discard_attempt(self._model, self._optimizer, self._mixed_precision)
                self._buffers.restore()
                micro_batch = self._next_accepted(result.message, micro_batch, failed)
                continue
            if isinstance(result, Failure):
                discard_attempt(self._model, self._optimizer, self._mixed_precision)
                # The cache has blocks of the sizes that failed, which smaller ones would split; and a frame that has
                # stored its exception is a reference cycle, which holds the frame's tensors until it is collected.
                free_unused_memory()
                self._buffers.restore()
                if scaler:
                    # Larger microbatches may have overflowed before. With smaller ones the update begins as if they had
                    # not been tried: other scales round small gradients in fp16 differently.
                    scaler.load_state_dict(scale)
                    overflows = 0
                failed, micro_batch = micro_batch, self._next_micro_batch(result.message, micro_batch)
                # A fallback may have replaced buffers, whose earlier ones would stay in memory with their backup.
                self._buffers = BufferBackup(self._model)
                retry_with_freed_memory(self._buffers.save, "copying the model's buffers")
                continue
            if isinstance(result, RepeatedUpdate):
                discard_attempt(self._model, self._optimizer, self._mixed_precision)
                self._buffers.restore()
                continue
            if isinstance(result, UpdateResult):
                if not result.stepped:
                    # A skipped step must not leave anything else of its update behind either.
                    discard_attempt(self._model, self._optimizer, self._mixed_precision)
                    self._buffers.restore()
                    if self._smaller_scale_may_help(result):
                        overflows += 1
                        continue
                result.skipped += overflows
            return

    def _next_micro_batch(self, failure: str, micro_batch: int) -> int:
        """Return the microbatch to try next, after applying a fallback if it cannot be smaller."""
        least = least_micro_batch(
            batch_norm=trains_batch_norm(self._model), whole_batch=None if self._divisible else micro_batch
        )
        if description := self._before_smaller():
            self._on_out_of_memory(OutOfMemory(failure=failure, micro_batch=micro_batch, action=description))
            return micro_batch
        smaller = halved(micro_batch, least)
        description = f"microbatch {smaller}" if smaller < micro_batch else self._fallback(failure)
        if not description:
            reason = f"even with microbatches of {smaller}" if self._divisible else WHOLE_BATCH.format(size=smaller)
            raise RunError(
                f"out of memory {reason}: {failure}",
                problems=describe_memory(),
                hint="use a smaller model, shorter samples, activation checkpointing, or a GPU with more memory",
            )
        self._on_out_of_memory(OutOfMemory(failure=failure, micro_batch=micro_batch, action=description))
        return smaller

    def _next_accepted(self, refusal: str, micro_batch: int, failed: int) -> int:
        """Return the microbatch to try after one that the recipe refuses; `failed` is the last without memory.

        Powers of two are multiples of the numbers that recipes usually require.
        """
        least = least_micro_batch(batch_norm=trains_batch_norm(self._model))
        smaller = 1 << (micro_batch - 1).bit_length() - 1 if micro_batch > 1 else 0
        if smaller < least:
            raise RunError(
                f"out of memory, and the recipe fails with each smaller microbatch that was tried, the last of "
                f"{micro_batch}: {refusal}",
                problems=describe_memory(),
                hint="set micro_batch to a size that fits and that the recipe takes, or let its loss take other sizes",
            )
        action = f"microbatch {smaller}, because the recipe fails with {micro_batch}"
        self._on_out_of_memory(OutOfMemory(failure=refusal, micro_batch=failed, action=action))
        return smaller

    def _smaller_scale_may_help(self, result: UpdateResult) -> bool:
        """Return whether gradients may be finite with a smaller loss scale; not if the loss itself is not finite."""
        scaler = self._mixed_precision.scaler
        return scaler is not None and scaler.get_scale() >= MIN_LOSS_SCALE and math.isfinite(float(result.loss))


def reset_incomplete_scale(scaler: torch.amp.GradScaler) -> None:
    """Remove the scale of a scaler whose memory ran out between its scale and its counter of updates.

    The first loss creates both (`_lazy_init_scale_growth_tracker` in torch/amp/grad_scaler.py), but the next one would
    create neither, and the optimizer's step would fail.
    """
    if scaler._growth_tracker is None:
        scaler._scale = None


def discard_attempt(model: nn.Module, optimizer: Optimizer | None, mixed_precision: MixedPrecision) -> None:
    """Discard the gradients of an unfinished update, and the scaler's state of it."""
    model.zero_grad(set_to_none=True)
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    if mixed_precision.scaler:
        reset_incomplete_scale(mixed_precision.scaler)
        # Setting the scale to its current value is the only public way to clear the scaler's record that these
        # gradients were unscaled, and it clears nothing else (`update` in torch/amp/grad_scaler.py ends with a new
        # `_per_optimizer_states`). With the record, the next `unscale_` raises. A scaler that has not scaled anything
        # yet has none, and raises an AssertionError (`_check_scale_growth_tracker`).
        with contextlib.suppress(AssertionError):
            mixed_precision.scaler.update(new_scale=mixed_precision.scaler.get_scale())
