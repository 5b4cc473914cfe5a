"""One update: the gradient of the effective batch from its microbatches, then one optimizer step.

The loss of an update is the sum over all microbatches divided by their total weight, so it does not depend on how the
batch is split.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoestring.base.errors import RunError, UsageError
from shoestring.recipe.losses import scalar_loss
from shoestring.techniques.pipeline.blocks import crossing_of
from shoestring.techniques.pipeline.clipping import clip_gradients
from shoestring.training.checkpoint.divided import whole
from shoestring.training.engine import foreach
from shoestring.training.engine.memory import HalfDoneError, out_of_memory_message
from shoestring.training.engine.precision import MixedPrecision

LossFunction = Callable[[nn.Module, Any], Any]
Weight = float | Tensor
"""A float, or a float64 tensor if the loss returned it on a GPU: reading it there would synchronize the device."""


class Microbatch(NamedTuple):
    """The result of a microbatch, or of several, whose gradient has been added."""

    loss_sum: Tensor
    weight: Weight
    expected: Weight
    """The expected weight of the whole effective batch, by which the gradient was divided."""


Work = Callable[[Any, Weight | None], Microbatch]
"""Adds the gradient of a microbatch. Arguments: the batch, and `Microbatch.expected` of the update's first microbatch
or None for the first one itself."""
ExpectedWeight = Callable[[Weight, int, int], Weight]
"""(weight of the first microbatch, its samples, samples of the effective batch) -> the weight by which losses are
divided."""
Backward = Callable[[Tensor], None]
"""Computes the gradient of a loss, now or later."""
OrderedWork = Callable[[Backward], Microbatch]
"""Computes the loss of a microbatch, and begins its backward."""
RunAll = Callable[[Iterable[OrderedWork]], list[Microbatch]]
"""Runs all microbatches of an update in an order of its own. Each is loaded when the iterable yields it."""
Runner = Callable[[Work, Any, Weight | None, Hashable], Microbatch]
"""Runs a `Work` in another way, such as a CUDA graph. Calls with equal keys differ only in the values of tensors."""


@dataclass(kw_only=True)
class UpdateResult:
    """The result of an update. Tensors stay on the device until they are read, so that a GPU does not have to wait."""

    loss: Tensor
    """The sum over the effective batch divided by its total weight, scalar."""
    gradient_norm: Tensor | None
    """The norm before clipping, scalar; None without clipping."""
    skipped: int
    """How often the optimizer's step was skipped and the loss scale lowered because fp16 overflowed."""
    stepped: bool
    """Whether the step was finally made."""


class RepeatedUpdate:
    """An attempt that has to be made again as it was."""


def update(
    model: nn.Module,
    optimizer: Optimizer,
    loss: LossFunction,
    microbatches: Iterable[tuple[Any, int]],
    *,
    samples: int,
    mixed_precision: MixedPrecision,
    clip_norm: float | None = None,
    run: Runner | None = None,
    on_gradients: Callable[[], None] | None = None,
) -> UpdateResult:
    """Run one update over `microbatches`, pairs of (batch on the device, its number of samples), and return its result.

    The gradients of the microbatches are summed, and the optimizer makes one step, which may be skipped in fp16: the
    result's `stepped` is False then. `clip_norm` is the largest norm of the whole gradient; None: no clipping.

    `samples` is the size of the effective batch. `loss(model, batch)` returns a mean over the batch's samples, or
    (sum, weight). Gradients must be clear on entry and are clear on return. `run` runs the work of each microbatch, by
    default eagerly. `on_gradients` is called when the gradient is complete, before it is clipped.

    Raises RunError if the total weight is zero, and HalfDoneError if the optimizer's step runs out of memory; an
    out-of-memory error before the step has changed only gradients and buffers.
    """
    total = add_gradients(model, loss, microbatches, samples=samples, mixed_precision=mixed_precision, run=run)
    assert total is not None, "an update needs at least one microbatch"
    return step(optimizer, total, mixed_precision=mixed_precision, clip_norm=clip_norm, on_gradients=on_gradients)


def add_gradients(
    model: nn.Module,
    loss: LossFunction,
    microbatches: Iterable[tuple[Any, int]],
    *,
    samples: int,
    mixed_precision: MixedPrecision,
    run: Runner | None = None,
    expect: ExpectedWeight | None = None,
    run_all: RunAll | None = None,
) -> Microbatch | None:
    """Add the gradient of each microbatch to those of the parameters, and return the sums of losses and weights.

    Returns None without any microbatch. The other arguments are those of `update`; `expect` extrapolates the weight of
    the effective batch from that of the first microbatch. `run_all` runs the microbatches instead of `run`.
    """
    if run_all:
        return _sum(run_all(_works(model, loss, microbatches, samples, mixed_precision, expect or _expected_weight)))
    total_sum: Tensor | None = None
    total_weight: Weight = 0.0
    expected_weight: Weight | None = None
    # The loss of a stage of the run is a partial, with the stage among its keywords.
    stage = (*getattr(loss, "keywords", {}).items(),)
    crossing = crossing_of(model)
    with crossing.deferring() if crossing else nullcontext(torch.autograd.backward) as backward:
        for batch, size in microbatches:
            work = partial(
                _add_gradient, model, loss, size, samples, mixed_precision, expect or _expected_weight, backward
            )
            loss_sum, weight, expected_weight = (
                run(work, batch, expected_weight, (stage, size, samples)) if run else work(batch, expected_weight)
            )
            total_weight = weight if total_sum is None else total_weight + weight
            total_sum = loss_sum if total_sum is None else total_sum + loss_sum
    if total_sum is None or expected_weight is None:
        return None
    return Microbatch(total_sum, total_weight, expected_weight)


def _works(
    model: nn.Module,
    loss: LossFunction,
    microbatches: Iterable[tuple[Any, int]],
    samples: int,
    mixed_precision: MixedPrecision,
    expect: ExpectedWeight,
) -> Iterator[OrderedWork]:
    """Yield what adds the gradient of each microbatch. The losses have to be computed in this order."""
    expected: list[Weight] = []

    def expect_once(weight: Weight, size: int, samples: int) -> Weight:
        if not expected:
            expected.append(expect(weight, size, samples))
        return expected[0]

    def work(batch: Any, size: int, backward: Backward) -> Microbatch:
        return _add_gradient(model, loss, size, samples, mixed_precision, expect_once, backward, batch, None)

    return (partial(work, batch, size) for batch, size in microbatches)


def _sum(microbatches: Sequence[Microbatch]) -> Microbatch | None:
    if not microbatches:
        return None
    (loss_sum, weight, expected), *further = microbatches
    for microbatch in further:
        loss_sum, weight = loss_sum + microbatch.loss_sum, weight + microbatch.weight
    return Microbatch(loss_sum, weight, expected)


def add_zero_gradients(
    model: nn.Module, loss: LossFunction, microbatches: Iterable[tuple[Any, int]], *, mixed_precision: MixedPrecision
) -> None:
    """Compute forward and backward of `microbatches` with the weight zero, for the collectives within them.

    Backward begins with zero, so the value of the loss, which may be infinite, does not matter.
    """
    for batch, size in microbatches:
        with passing(model, batch), mixed_precision.autocast():
            loss_sum, _ = loss_sum_and_weight(loss(model, batch), size)
        torch.autograd.backward(loss_sum, torch.zeros_like(loss_sum))


def step(
    optimizer: Optimizer,
    total: Microbatch,
    *,
    mixed_precision: MixedPrecision,
    clip_norm: float | None = None,
    on_gradients: Callable[[], None] | None = None,
) -> UpdateResult:
    """Make the optimizer's step with the gradient of the effective batch, which was divided by `total.expected`.

    The errors are those of `update`.
    """
    total_sum, total_weight, expected_weight = total
    # A single microbatch needs no correction, and its weight on a GPU is not waited for. That of several is read once.
    correction = 1.0 if total_weight is expected_weight else _ratio(expected_weight, total_weight)
    if math.isinf(correction) or (isinstance(total_weight, float) and total_weight == 0):
        raise RunError(
            "the total weight of an update's samples is zero", hint="check whether all of their targets are padding"
        )

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if mixed_precision.scaler:
        mixed_precision.scaler.unscale_(optimizer)
    if correction != 1:
        foreach.multiply(gradients, correction)
    if on_gradients:
        on_gradients()
    norm = whole(clip_gradients(parameters, clip_norm)) if clip_norm is not None else None
    mean = total_sum / total_weight
    stepped = _step(optimizer, mixed_precision)
    optimizer.zero_grad(set_to_none=True)
    return UpdateResult(loss=mean, gradient_norm=norm, skipped=int(not stepped), stepped=stepped)


def _ratio(expected: Weight, total: Weight) -> float:
    """Return the factor that corrects gradients, which were divided by `expected`; infinite for a `total` of zero."""
    return float(expected / total) if isinstance(total, Tensor) or total else math.inf


def _add_gradient(
    model: nn.Module,
    loss: LossFunction,
    size: int,
    samples: int,
    mixed_precision: MixedPrecision,
    expect: ExpectedWeight,
    backward: Backward,
    batch: Any,
    expected: Weight | None,
) -> Microbatch:
    """Add the gradient of a microbatch of `size` to those of the parameters, when `backward` computes it."""
    with passing(model, batch), mixed_precision.autocast():
        loss_sum, weight = loss_sum_and_weight(loss(model, batch), size)
    if not loss_sum.requires_grad:
        raise UsageError(
            "loss() returned a tensor without a gradient, so nothing can be trained",
            hint="compute the loss from the model's outputs without .detach(), .item() or torch.no_grad(); some "
            "parameters must have requires_grad",
        )
    if expected is None:
        expected = expect(weight, size, samples)
    mean = loss_sum / expected
    if mixed_precision.scaler:
        # A variable refers to what backward begins with: how long an argument lives depends on the interpreter.
        mean = mixed_precision.scaler.scale(mean)
    backward(mean)
    return Microbatch(loss_sum.detach(), weight, expected)


def _expected_weight(weight: Weight, size: int, samples: int) -> Weight:
    """Extrapolate the total weight of `samples` from the `weight` of the first microbatch, of `size` samples.

    The total is known only at the end, but fp16 gradients must have about their final magnitude while they are summed.
    So they are divided by this estimate and corrected at the end.
    """
    if size >= samples:
        return weight
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, weight * samples / size, float(samples))
    return weight * samples / size if weight > 0 else float(samples)


def passing(model: nn.Module, batch: Any) -> AbstractContextManager[None]:
    """Return the context in which the loss of a batch is computed; it matters for a model on two GPUs."""
    crossing = crossing_of(model)
    return crossing.passing(batch, trains=True) if crossing else nullcontext()


def loss_sum_and_weight(value: Any, size: int) -> tuple[Tensor, Weight]:
    """Return the pair (sum in fp32, weight) for the `value` that a recipe's loss returned for `size` samples.

    Raises UsageError for anything other than a scalar or (scalar, weight).
    """
    loss, own_weight = scalar_loss(value)
    loss_sum: Tensor = loss.float().reshape(())
    weight: Any = size if own_weight is None else own_weight
    if isinstance(weight, Tensor) and weight.device.type != "cpu":
        weight = weight.detach().to(loss_sum.device, torch.float64).reshape(())
    else:
        weight = float(weight)
    return (loss_sum * size if own_weight is None else loss_sum), weight


def mean_loss(loss: LossFunction, model: nn.Module, batches: Iterable[tuple[Any, int]]) -> float:
    """Return the loss over pairs of (batch, its number of samples): its sum divided by the total weight."""

    def sum_and_weight(batch: Any, size: int) -> tuple[Tensor, Weight]:
        with passing(model, batch):
            return loss_sum_and_weight(loss(model, batch), size)

    return mean_of_sums(sum_and_weight(batch, size) for batch, size in batches)


def mean_of_sums(sums: Iterable[tuple[Any, Any]]) -> float:
    """Return the mean loss of batches from their pairs (sum, weight)."""
    total, total_weight = 0.0, 0.0
    for loss_sum, weight in sums:
        total += float(loss_sum)
        total_weight += float(weight)
    return total / total_weight if total_weight else float("nan")


def _step(optimizer: Optimizer, mixed_precision: MixedPrecision) -> bool:
    """Make one optimizer step. Returns False if the scaler skipped it because of an overflow in fp16."""
    scaler = mixed_precision.scaler
    scale = scaler.get_scale() if scaler else 0.0
    try:
        if scaler is None:
            optimizer.step()
            return True
        scaler.step(optimizer)
        scaler.update()
    except Exception as error:
        message = out_of_memory_message(error)
        if message is None:
            raise
        raise HalfDoneError(message, hint="weights may be partly updated: resume from the last checkpoint") from error
    # `scaler.step` does not tell whether it has skipped the step; `scaler.update` lowers the scale only if it has.
    return scaler.get_scale() >= scale
