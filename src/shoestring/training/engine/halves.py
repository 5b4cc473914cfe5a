"""Whether a loss depends on which samples share a batch: the loss of a microbatch, compared with that of its halves.

The loss of an update is a sum over its microbatches. It is the same for every split only if each sample contributes by
itself. A loss that compares the samples of its batch, such as InfoNCE with in-batch negatives, or a mean over something
other than samples, changes with the microbatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean

import torch
from torch import nn

from shoestring.recipe.microbatches import Member, flattened, split
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.engine.first_microbatch import FirstMicrobatch
from shoestring.training.engine.side_effects import Generators
from shoestring.training.engine.update import mean_loss

_SEEDS = 6
"""How often a loss that draws random numbers is compared. Its values for the whole and for the halves must then be
apart by more than half of the range of either: for equal distributions the probability of that is 1 in 20,000, by
simulation of normal and exponential ones."""

_SUM_ROUNDING = 3e-5
"""The largest relative error of a mean loss in fp32: sums of thousands of terms, added in another order."""
_ROUNDINGS = 2
"""In 16 bits and TF32, the epsilons by which two mean losses may differ: each may be rounded by half of one, and other
kernels may have rounded its terms, whose errors have both signs and nearly cancel in a mean. (In bf16 this
is the tolerance of `torch.testing`. The recipes of this package differ by at most 2e-7 on a CPU, in any precision.)"""
_TF32_EPSILON = 2.0**-10
_SMALL_LOSS = 0.1
"""A loss below it may be the difference of larger terms, so that its error is compared with that of this value."""


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """A loss that differs between a microbatch and its halves by more than rounding explains."""

    samples: int
    whole: float
    halves: float

    @property
    def text(self) -> str:
        return (
            f"the loss depends on which samples share a microbatch: it is {self.whole:.6g} for the first microbatch of "
            f"{self.samples}, but {self.halves:.6g} for the same samples in two halves, so training with another "
            "microbatch would differ. If the loss compares the samples of an update with each other, set "
            "whole_batch = True in the recipe, so that no update is split; if it is a mean over something other than "
            "samples, return the pair (sum, weight)"
        )


def compare_with_halves(first: FirstMicrobatch) -> LossDifference | None:
    """Compare the loss of the first microbatch of a run with the loss of its halves, combined as in an update.

    Returns None if there is no difference beyond rounding, or if they cannot be compared: a single sample, a loss that
    is not finite, a recipe that raises an exception for half of the samples or without gradients, out-of-memory.
    """
    whole = first.loader.parts(0, first.micro_batch)[0]
    if len(flattened(whole)) < 2:
        return None
    # The samples of packed rows are compared one by one, so that a mask that does not separate them is noticed.
    samples = flattened(whole)
    halves: list[Sequence[Member]] = [*split(samples, min(-(-len(samples) // 2), len(whole)))]

    def compare() -> LossDifference | None:
        with first.mixed_precision.autocast():
            return _compare(_Batches(first), whole, halves)

    return first.without_side_effects(compare)


def _compare(batches: "_Batches", whole: Sequence[Member], halves: Sequence[Sequence[Member]]) -> LossDifference | None:
    of_whole, of_halves = [batches.mean_loss([whole], 0)], [batches.mean_loss(halves, 0)]
    for attempt in range(1, _SEEDS if batches.is_random else 1):
        of_whole.append(batches.mean_loss([whole], attempt))
        of_halves.append(batches.mean_loss(halves, attempt))
    if not all(map(isfinite, (*of_whole, *of_halves))):
        return None
    error = relative_error(batches.first.model, batches.first.mixed_precision.name)
    tolerance = error * max(_SMALL_LOSS, *map(abs, (*of_whole, *of_halves)))
    # The values of a loss without random numbers are single ones, and vary by 0.
    variation = max(max(values) - min(values) for values in (of_whole, of_halves))
    distance = max(min(of_whole) - max(of_halves), min(of_halves) - max(of_whole))
    if distance <= variation / 2 + tolerance:
        return None
    return LossDifference(samples=len(flattened(whole)), whole=mean(of_whole), halves=mean(of_halves))


class _Batches:
    """Computes mean losses over batches of chosen samples."""

    def __init__(self, first: FirstMicrobatch) -> None:
        self.first, self._loss = first, first.make_loss()
        self.is_random = False
        """Whether `collate` or the loss has drawn random numbers."""

    def mean_loss(self, parts: Sequence[Sequence[Member]], attempt: int) -> float:
        """Return the loss over the `parts`, each of which is a batch; other attempts draw other random numbers."""
        first = self.first
        first.poll()
        batches, collate_draws = first.loader.batches(parts, epoch=attempt)
        seed_all(derive(first.seed, "halves", attempt))
        generators = Generators(first.device)
        sizes = (len(flattened(part)) for part in parts)
        value = mean_loss(
            self._loss,
            first.model,
            ((first.loader.to_device(batch), size) for batch, size in zip(batches, sizes, strict=True)),
        )
        self.is_random = self.is_random or collate_draws or not generators.unchanged()
        return value


def relative_error(model: nn.Module, precision: str) -> float:
    """Return the largest relative error that rounding explains, by the least accurate type of the computation."""
    types = {parameter.dtype for parameter in model.parameters()}
    # Packed weights (4 bits) are unpacked to 16 bits.
    epsilons = [torch.finfo(type_ if type_.is_floating_point else torch.bfloat16).eps for type_ in types]
    if precision != "fp32":
        epsilons.append(torch.finfo(torch.float16 if precision == "fp16" else torch.bfloat16).eps)
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    if on_gpu and (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32):
        epsilons.append(_TF32_EPSILON)
    return max(_SUM_ROUNDING, _ROUNDINGS * max(epsilons, default=0.0))
