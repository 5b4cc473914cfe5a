"""One update: the gradient of the effective batch from its microbatches, then one optimizer step.

The update's loss is the sum over all microbatches divided by their total weight, so how it was split does not matter.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoestring.engine import foreach
from shoestring.engine.memory import HalfDoneError, error_message, out_of_memory
from shoestring.engine.precision import MixedPrecision
from shoestring.errors import RunError, UsageError

LossFunction = Callable[[nn.Module, Any], Any]
Weight = float | Tensor
"""A float, or float64 on the device where the loss left it there: a GPU is not asked for a number before its time."""


class Microbatch(NamedTuple):
    """What is known of a microbatch when its gradient is there."""

    loss_sum: Tensor
    weight: Weight
    expected: Weight
    """The weight of the whole effective batch, by which the gradient was divided."""


Work = Callable[[Any, Weight | None], Microbatch]
"""Adds a microbatch's gradient, given the batch and, from an update's second microbatch on, `Microbatch.expected`."""
Runner = Callable[[Work, Any, Weight | None, Hashable], Microbatch]
"""Does such work in another way. What is asked for under an equal key differs in tensors' values alone."""


@dataclass(kw_only=True)
class UpdateResult:
    """What an update did; tensors stay on the device until somebody reads them, so that a GPU need not wait."""

    loss: Tensor
    """Sum over the effective batch divided by its total weight, scalar."""
    gradient_norm: Tensor | None
    """Before clipping, scalar; None where nothing is clipped."""
    skipped: int
    """How often the optimizer's step was left out and the loss scale lowered, because fp16 overflowed."""
    stepped: bool
    """Whether the step was made in the end."""


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
) -> UpdateResult:
    """Run one update over `microbatches`, pairs of (batch on the device, its number of samples).

    `samples` is the size of the effective batch. `loss(model, batch)` gives a mean over the batch's samples, or
    (sum, weight). Gradients must be clear on entry and are clear on return. `run` does the work of each microbatch,
    which is otherwise done as Python comes to it.

    Raises RunError when all samples together weigh nothing, and HalfDoneError where memory ran out within the step;
    where it ran out before, nothing has changed but gradients and buffers.
    """
    total_sum: Tensor | None = None
    total_weight: Weight = 0.0
    expected_weight: Weight | None = None
    # A loss that is in some stage of the run is a partial of it.
    stage = (*getattr(loss, "keywords", {}).items(),)
    for batch, size in microbatches:
        work = partial(_gradient, model, loss, size, samples, mixed_precision)
        loss_sum, weight, expected_weight = (
            run(work, batch, expected_weight, (stage, size, samples)) if run else work(batch, expected_weight)
        )
        total_weight = weight if total_sum is None else total_weight + weight
        total_sum = loss_sum if total_sum is None else total_sum + loss_sum
    assert total_sum is not None and expected_weight is not None, "an update of nothing"
    # Where one microbatch is all of it nothing needs correcting, and a weight on a GPU is not waited for.
    correct = total_weight is not expected_weight
    if (correct or isinstance(total_weight, float)) and total_weight == 0:
        raise RunError("the samples of an update weigh nothing together", hint="is every target padding?")

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if mixed_precision.scaler:
        mixed_precision.scaler.unscale_(optimizer)
    if correct and total_weight != expected_weight:
        foreach.multiply(gradients, float(expected_weight / total_weight))
    norm = nn.utils.clip_grad_norm_(parameters, clip_norm) if clip_norm is not None else None
    mean = total_sum / total_weight
    stepped = _step(optimizer, mixed_precision)
    optimizer.zero_grad(set_to_none=True)
    return UpdateResult(loss=mean, gradient_norm=norm, skipped=int(not stepped), stepped=stepped)


def _gradient(
    model: nn.Module,
    loss: LossFunction,
    size: int,
    samples: int,
    mixed_precision: MixedPrecision,
    batch: Any,
    expected: Weight | None,
) -> Microbatch:
    """Add the gradient of a microbatch of `size` to those of the parameters."""
    with mixed_precision.autocast():
        loss_sum, weight = as_sum(loss(model, batch), size)
    if expected is None:
        expected = _expected(weight, size, samples)
    backward = loss_sum / expected
    torch.autograd.backward(mixed_precision.scaler.scale(backward) if mixed_precision.scaler else backward)
    return Microbatch(loss_sum.detach(), weight, expected)


def _expected(weight: Weight, size: int, samples: int) -> Weight:
    """The total weight of `samples`, as far as the first microbatch of `size` with its `weight` promises it.

    It is known only at the end, yet fp16 gradients must have about their final size while they are summed. So they are
    divided by this and corrected at the end.
    """
    if size >= samples:
        return weight
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, weight * samples / size, float(samples))
    return weight * samples / size if weight > 0 else float(samples)


def as_sum(value: Any, size: int) -> tuple[Tensor, Weight]:
    """What a recipe's loss returned for `size` samples as the pair (sum in fp32, weight).

    Raises UsageError for anything but a scalar, or (scalar, weight).
    """
    pair = isinstance(value, tuple) and len(value) == 2
    loss_sum, weight = value if pair else (value, size)
    many = isinstance(weight, Tensor) and weight.numel() != 1
    if not isinstance(loss_sum, Tensor) or loss_sum.numel() != 1 or many:
        shape = tuple(loss_sum.shape) if isinstance(loss_sum, Tensor) else type(loss_sum).__name__
        raise UsageError(
            f"loss() returned {shape}", hint="return the mean over the batch as a scalar, or the pair (sum, weight)"
        )
    loss_sum = loss_sum.float().reshape(())
    if isinstance(weight, Tensor) and weight.device.type != "cpu":
        weight = weight.detach().double().reshape(())
    else:
        weight = float(weight)
    return (loss_sum if pair else loss_sum * size), weight


def _step(optimizer: Optimizer, mixed_precision: MixedPrecision) -> bool:
    """One optimizer step; False where fp16 overflow made the scaler leave it out."""
    scaler = mixed_precision.scaler
    scale = scaler.get_scale() if scaler else 0.0
    try:
        if scaler is None:
            optimizer.step()
            return True
        scaler.step(optimizer)
        scaler.update()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise HalfDoneError(
            error_message(error), hint="weights may be half updated: go on from the last checkpoint"
        ) from error
    return scaler.get_scale() >= scale
