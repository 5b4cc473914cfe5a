"""Smaller microbatches for a library's trainer after out-of-memory: its update is repeated from its own start.

The library's loop fetches all microbatches of an update at once, and then makes their gradients one by one. When one of
them runs out of memory, the gradients so far are discarded, random numbers and buffers are those of the update's start
again, and the update is repeated up to this microbatch, with each microbatch in parts. All of that happens within one
call of `training_step`, so the loop, its counts and the effective batch do not change.

A part's loss needs the weight with which it adds up to the loss of its microbatch. The library has no one rule for
that, so it is measured: the loss of a microbatch is compared with those of its halves. A loss for which no rule holds,
such as one that compares the samples of its microbatch with each other, is not divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoestring.base.errors import RunError
from shoestring.integrations.arguments import recomputes
from shoestring.integrations.environment import precision_of
from shoestring.integrations.private_parts import accumulated_values, set_accumulated_values
from shoestring.integrations.session import TrainerSession
from shoestring.recipe.microbatches import split
from shoestring.techniques.norms import trains_batch_norm
from shoestring.training import oom
from shoestring.training.engine.buffers import BufferBackup
from shoestring.training.engine.halves import relative_error
from shoestring.training.engine.memory import Failure, catch_out_of_memory, free_unused_memory
from shoestring.training.engine.recovery import OutOfMemory, discard_attempt, reset_incomplete_scale
from shoestring.training.engine.side_effects import without_side_effects

_IGNORED_LABEL = -100
_EQUAL_WEIGHTS = 1e-9
RULES = ("sum", "samples", "labels", "shifted labels")
"""How the losses of parts add up to that of their microbatch: as they are, because the library divides each by a number
of the whole update; or as means over samples, over labels, or over all labels but the first of each sample."""


def make_splitting_class(base: Any) -> Any:
    """Return a subclass of the trainer class `base` whose microbatches can be made in parts.

    It has to be the base of classes that count calls of `training_step`.
    """

    class Splitting(base):  # type: ignore[misc]
        split_updates: SplitUpdates | None = None
        """Divides the microbatches, once it is set."""

        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            """Return the microbatches of an update, and the number of their items."""
            fetched = super().get_batch_samples(*args, **kwargs)
            if self.split_updates:
                self.split_updates.begin_update(fetched[0])
            return fetched

        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            """Return the loss of a microbatch, after its backward."""
            make = super().training_step
            if self.split_updates is None:
                return make(model, inputs, *args, **kwargs)
            items = args[0] if args else kwargs.get("num_items_in_batch")
            compute = partial(self.compute_loss, num_items_in_batch=items)
            return self.split_updates.make(
                inputs,
                lambda part: make(model, part, *args, **kwargs),
                lambda part: float(compute(model, self._prepare_inputs(part))),
            )

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            """Return the loss of a microbatch, or that of a part with its weight."""
            rows = _rows(inputs) if self.split_updates else None  # before the library removes the labels from them
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            return self.split_updates.weighted(loss, rows) if self.split_updates else loss

    return Splitting


class IndivisibleError(Exception):
    """The microbatches of a trainer cannot be divided, with the reason."""


@dataclass
class _Part:
    """A part of a microbatch whose gradient is being made."""

    weight: float
    rows: int
    """The length of its tensors."""
    losses: int = 0
    """How many losses were computed for it."""


Make = Callable[[Any], Any]
"""Makes the gradient of a microbatch, and returns its loss."""
ComputeLoss = Callable[[Any], float]
"""Returns the loss of a microbatch, without its gradient."""


class SplitUpdates:
    """Makes the updates of a script's trainer, in microbatches that fit."""

    def __init__(self, trainer: Any, trainer_session: TrainerSession, seed: Callable[[], None]) -> None:
        """`seed` sets the random numbers of the start of the present update."""
        self._trainer, self._trainer_session, self._seed = trainer, trainer_session, seed
        self._state = trainer_session.state
        self._buffers = BufferBackup(self._state.model)
        self._accumulated: Any = None
        self._batches: Sequence[Any] = ()
        self._losses: list[Any] = []
        """Those of the microbatches of this update so far."""
        self._part: _Part | None = None
        self._failure = ""
        """The last out-of-memory error."""

    def begin_update(self, batches: Sequence[Any]) -> None:
        """Begin an update of these microbatches."""
        self._batches, self._losses = batches, []

    def make(self, inputs: Any, make: Make, compute: ComputeLoss) -> Any:
        """Return the loss of the next microbatch, whose gradient `make` adds to the others of the update.

        Raises RunError if the memory is not enough and the microbatches cannot be smaller.
        """
        if not self._losses:
            self._buffers.save()
            self._accumulated = accumulated_values(self._trainer)
        batches, returned = [inputs], self._losses
        while True:
            attempt = partial(self._make_all, batches, make, compute)
            result = catch_out_of_memory(attempt)
            if not isinstance(result, Failure):
                break
            # Outside of the handler: the exception, which holds the tensors of the failed attempt, is gone.
            self._failure = result.message
            self._discard()
            batches = list(self._batches[: len(returned) + 1])
            self._shrink(batches, inputs, compute)
            self._discard()
            self._seed()
        if len(batches) == 1:
            self._losses = [*returned, *result] if self._batches else []
            return result[0]
        # The library has added the losses of the first attempt. Those of this one take their place.
        self._losses = result
        return sum(result) - sum(returned)

    def weighted(self, loss: Any, rows: int | None) -> Any:
        """Return the loss of the present part with its weight; `rows` is the length of the tensors it was made of."""
        part = self._part
        if part is None:
            return loss
        part.losses += 1
        if rows != part.rows:
            raise self._error("its loss is not computed from the microbatch that its training_step is given")
        if isinstance(loss, tuple):
            return (part.weight * loss[0], *loss[1:])
        return part.weight * loss

    def _make_all(self, batches: Sequence[Any], make: Make, compute: ComputeLoss) -> list[Any]:
        return [self._make_one(batch, make, compute) for batch in batches]

    def _make_one(self, batch: Any, make: Make, compute: ComputeLoss) -> Any:
        size, requested = self._state.sizes.micro_batch, self._trainer.args.per_device_train_batch_size
        if size >= requested:
            return make(batch)
        try:
            parts = self._parts(batch, size)
            weights = self._weights(batch, parts, compute) if len(parts) > 1 else [1.0]
        except IndivisibleError as error:
            raise self._error(str(error)) from None
        if len(parts) == 1:
            return make(batch)
        # The mean over the labels of a part that has none is not a number.
        return sum(self._make_part(make, part, weight) for part, weight in zip(parts, weights, strict=True) if weight)

    def _make_part(self, make: Make, part: Any, weight: float) -> Any:
        present = self._part = _Part(weight, _rows(part) or 0)
        try:
            loss = make(part)
        finally:
            self._part = None
        if present.losses != 1:
            raise self._error(f"its training_step computes {present.losses} losses for a microbatch")
        return loss

    def _discard(self) -> None:
        """Discard the gradients of the update, and restore what else it has changed."""
        discard_attempt(self._state.model, self._trainer.optimizer, self._state.mixed_precision)
        if scaler := self._trainer.accelerator.scaler:
            reset_incomplete_scale(scaler)
        free_unused_memory()
        self._buffers.restore()
        set_accumulated_values(self._trainer, self._accumulated)

    def _shrink(self, batches: Sequence[Any], inputs: Any, compute: ComputeLoss) -> None:
        """Set the next smaller microbatch, after a failure in one of the `batches`, of which `inputs` is the last.

        Raises RunError if there is none.
        """
        session, state = self._trainer_session.session, self._state
        try:
            if not batches or batches[-1] is not inputs:
                raise IndivisibleError("its loop does not fetch the microbatches of an update at once")
            size = min(state.sizes.micro_batch, max(self._samples(batch) for batch in batches))
            if size > 1:
                largest = max(batches, key=self._samples)
                self._weights(largest, self._parts(largest, -(-self._samples(largest) // 2)), compute)
        except IndivisibleError as error:
            raise self._error(str(error)) from None
        try:
            step = oom.fallback("update", state, session.request, self._failure, size=size)
        except RunError as error:
            if recomputes(self._trainer.args):
                raise
            hint = f"set gradient_checkpointing=True; or {error.hint}"
            raise RunError(error.message, problems=error.problems, hint=hint) from None
        is_first = state.sizes.micro_batch >= self._trainer.args.per_device_train_batch_size
        event = OutOfMemory(failure=self._failure, micro_batch=size, action=step.description)
        session.record.out_of_memory("update", event, update=state.update)
        if is_first and trains_batch_norm(state.model):
            session.record.note(
                "BatchNorm computes its statistics over each microbatch, so the smaller ones change what is learnt"
            )
        state.sizes = step.sizes

    def _error(self, reason: str) -> RunError:
        """Return the error for microbatches that do not fit and cannot be divided."""
        args = self._trainer.args
        microbatches = f"microbatches of {args.per_device_train_batch_size}"
        return RunError(
            f"out of memory with {microbatches}: {self._failure}"
            if self._failure
            else f"out of memory in an earlier session, and {microbatches} cannot be divided",
            problems=[f"a smaller microbatch is not possible within this trainer: {reason}"],
            hint="halve per_device_train_batch_size, double gradient_accumulation_steps, and continue with "
            "surviving(..., allow_inexact=True): the effective batch stays the same"
            + ("" if recomputes(args) else "; gradient_checkpointing=True needs less memory as well"),
        )

    def _samples(self, batch: Any) -> int:
        """Return the number of samples in a microbatch. Raises IndivisibleError if its parts cannot be told apart."""
        if getattr(self._trainer.args, "steps_per_generation", None):
            raise IndivisibleError("its completions are generated for several microbatches at a time")
        if getattr(self._trainer, "padding_free", False):
            raise IndivisibleError("its samples are joined to one row without padding (packing or padding_free)")
        if getattr(self._trainer.args, "activation_offloading", False):
            raise IndivisibleError("activation_offloading=True keeps activations of the failed attempt")
        rows = _rows(batch)
        if rows is None:
            raise IndivisibleError(f"its microbatches are of the type {type(batch).__name__}, not a dict of tensors")
        samples = rows // self._tensors_of_sample
        lengths = {rows, samples}
        for name, value in batch.items():
            if value is None or isinstance(value, bool | str):
                continue
            if not isinstance(value, Tensor | list | tuple) or _length(value) not in lengths:
                length = _length(value)
                description = f"a length of {length}" if length is not None else f"the type {type(value).__name__}"
                raise IndivisibleError(f"the input {name!r} of a microbatch of {samples} samples has {description}")
        return samples

    @property
    def _tensors_of_sample(self) -> int:
        """2 if a sample is a pair: TRL's collators for preferences append all rejected answers to the chosen ones."""
        name = type(self._trainer.data_collator).__name__
        return 2 if "Preference" in name and "Unpaired" not in name else 1

    def _parts(self, batch: Any, size: int) -> list[Any]:
        """Return the microbatch in parts of at most `size` samples, as equal as possible.

        A lone sample has no statistics for BatchNorm, so the parts of such a model may have one sample more.
        """
        samples = self._samples(batch)
        parts = split(range(samples), size)
        least = self._state.limits().least_micro_batch
        if len(parts) > 1 and len(parts[-1]) < least:
            parts = split(range(samples), -(-samples // max(1, samples // least)))
        return [self._slice(batch, part[0], part[-1] + 1) for part in parts]

    def _slice(self, batch: Any, start: int, end: int) -> Any:
        samples = self._samples(batch)
        return type(batch)({name: _sliced(value, samples, start, end) for name, value in batch.items()})

    def _weights(self, batch: Any, parts: Sequence[Any], compute: ComputeLoss) -> list[float]:
        """Return the weights with which the losses of the parts add up to that of the microbatch.

        They are measured if the rules that are possible so far have different weights for this microbatch. Raises
        IndivisibleError if no rule holds.
        """
        counts = [self._samples(part) for part in parts]
        rules = tuple(rule for rule in self._state.loss_rules if rule in RULES) or RULES
        weights = {rule: _weights(rule, parts, counts) for rule in rules}
        first, *alternatives = weights.values()
        if all(_are_equal(first, alternative) for alternative in alternatives) and self._state.loss_rules:
            return first
        best = self._measure(batch, rules, compute)
        return weights[best]

    def _measure(self, batch: Any, rules: Sequence[str], compute: ComputeLoss) -> str:
        """Compare the loss of the microbatch with those of its halves, and return the rule that holds.

        If the whole does not fit even without gradients, its first half is compared.
        """
        model, device = self._state.model, self._trainer.args.device
        samples = self._samples(batch)
        while samples > 1:
            middle = samples // 2
            places = ((0, samples), (0, middle), (middle, samples))
            whole, *halves = (self._slice(batch, start, end) for start, end in places)
            with without_side_effects(model, device), self._accumulating_nothing():
                result = catch_out_of_memory(lambda: [compute(dict(part)) for part in (whole, *halves)])  # noqa: B023
            if not isinstance(result, Failure):
                return self._fitting_rule(result, halves, [middle, samples - middle], rules)
            free_unused_memory()
            samples //= 2
        raise IndivisibleError("there is no memory to compare the loss of two samples with those of one each")

    def _fitting_rule(
        self, losses: Sequence[float], halves: Sequence[Any], counts: Sequence[int], rules: Sequence[str]
    ) -> str:
        whole, *of_halves = losses
        if not math.isfinite(whole) or not any(losses):
            raise IndivisibleError(f"its loss is {whole:g}, so it is not known how the losses of parts add up to it")
        tolerance = relative_error(self._state.model, precision_of(self._trainer.args)) * abs(whole)
        weights = {rule: _weights(rule, halves, counts) for rule in rules}
        errors = {rule: abs(whole - _weighted_sum(weights[rule], of_halves)) for rule in rules}
        fitting = tuple(rule for rule in rules if errors[rule] <= tolerance)
        if not fitting:
            raise IndivisibleError(
                f"its loss depends on which samples share a microbatch: it is {whole:.6g} for {sum(counts)} samples, "
                f"and {' and '.join(f'{loss:.6g}' for loss in of_halves)} for their halves"
            )
        self._state.loss_rules = fitting
        return min(fitting, key=lambda rule: errors[rule])

    @contextmanager
    def _accumulating_nothing(self) -> Iterator[None]:
        """Let the library accumulate nothing for its log."""
        before = accumulated_values(self._trainer)
        try:
            yield
        finally:
            set_accumulated_values(self._trainer, before)


def _weights(rule: str, parts: Sequence[Any], counts: Sequence[int]) -> list[float]:
    """Return the weights of parts with `counts` samples, by one of the `RULES`."""
    if rule == "sum":
        return [1.0] * len(parts)
    if rule != "samples":
        labels = [part.get("labels") for part in parts]
        if all(isinstance(values, Tensor) for values in labels):
            first = 1 if rule == "shifted labels" and labels[0].ndim > 1 else 0
            by_label = [int((values[..., first:] != _IGNORED_LABEL).sum()) for values in labels]
            counts = by_label if any(by_label) else counts
    return [count / sum(counts) for count in counts]


def _weighted_sum(weights: Sequence[float], losses: Sequence[float]) -> float:
    return sum(weight * loss for weight, loss in zip(weights, losses, strict=True) if weight)


def _are_equal(weights: Sequence[float], alternative: Sequence[float]) -> bool:
    return all(abs(a - b) < _EQUAL_WEIGHTS for a, b in zip(weights, alternative, strict=True))


def _rows(batch: Any) -> int | None:
    """Return the length of the longest tensor of a microbatch; None if it is not a mapping with tensors."""
    if not isinstance(batch, Mapping):
        return None
    lengths = [len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim]
    return max(lengths, default=None)


def _length(value: Any) -> int | None:
    if isinstance(value, Tensor):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, list | tuple) else None


def _sliced(value: Any, samples: int, start: int, end: int) -> Any:
    """Return the samples from `start` to `end` of an input; for pairs, those of the chosen and of the rejected ones."""
    length = _length(value)
    if length is None:
        return value
    if length == samples:
        return value[start:end]
    return torch.cat([value[start:end], value[samples + start : samples + end]])
