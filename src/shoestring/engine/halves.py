"""Whether a loss depends on which samples share a batch: the loss of a microbatch, compared with that of its halves.

The loss of an update is a sum over its microbatches. It is the same for every split only if each sample contributes by
itself. A loss that compares the samples of its batch, such as InfoNCE with in-batch negatives, or a mean over something
other than samples, changes with the microbatch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean

import torch
from torch import nn

from shoestring.data.batches import to_device
from shoestring.data.loading import Loader
from shoestring.data.seeding import derive, seed_all
from shoestring.engine.memory import free_unused_memory, out_of_memory
from shoestring.engine.precision import MixedPrecision
from shoestring.engine.side_effects import Generators, without_side_effects
from shoestring.engine.update import LossFunction, mean_loss
from shoestring.recipe.microbatches import Member, flattened, split

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


def compare_with_halves(
    model: nn.Module,
    make_loss: Callable[[], LossFunction],
    loader: Loader,
    micro_batch: int,
    mixed_precision: MixedPrecision,
    device: torch.device,
    *,
    seed: int,
    poll: Callable[[], None] = lambda: None,
) -> LossDifference | None:
    """Compare the loss of the first microbatch of a run with the loss of its halves, combined as in an update.

    The model is in evaluation mode, without dropout and with the stored statistics of BatchNorm, and no gradients are
    computed. Training modes, buffers and random states are restored. `make_loss` returns the loss; `poll` is called
    between forward passes.

    Returns None if there is no difference beyond rounding, or if they cannot be compared: a single sample, a loss that
    is not finite, a recipe that raises an exception for half of the samples or without gradients, out-of-memory.
    """
    whole = loader.parts(0, micro_batch)[0]
    if len(flattened(whole)) < 2:
        return None
    # The samples of packed rows are compared one by one, so that a mask that does not separate them is noticed.
    samples = flattened(whole)
    halves: list[Sequence[Member]] = [*split(samples, min(-(-len(samples) // 2), len(whole)))]
    lacks_memory = False
    try:
        with without_side_effects(model, device), mixed_precision.autocast():
            batches = _Batches(model, make_loss(), loader, device, seed, poll)
            return _compare(batches, whole, halves, mixed_precision)
    except Exception as error:  # noqa: BLE001  (the recipe's code may raise anything)
        lacks_memory = out_of_memory(error)
    finally:
        if lacks_memory or device.type == "cuda":
            free_unused_memory()  # the first update finds the allocator's cache empty, as without this comparison
    return None


def _compare(
    batches: "_Batches", whole: Sequence[Member], halves: Sequence[Sequence[Member]], mixed_precision: MixedPrecision
) -> LossDifference | None:
    of_whole, of_halves = [batches.mean_loss([whole], 0)], [batches.mean_loss(halves, 0)]
    for attempt in range(1, _SEEDS if batches.is_random else 1):
        of_whole.append(batches.mean_loss([whole], attempt))
        of_halves.append(batches.mean_loss(halves, attempt))
    if not all(map(isfinite, (*of_whole, *of_halves))):
        return None
    tolerance = _relative_error(batches.model, mixed_precision) * max(_SMALL_LOSS, *map(abs, (*of_whole, *of_halves)))
    # The values of a loss without random numbers are single ones, and vary by 0.
    variation = max(max(values) - min(values) for values in (of_whole, of_halves))
    distance = max(min(of_whole) - max(of_halves), min(of_halves) - max(of_whole))
    if distance <= variation / 2 + tolerance:
        return None
    return LossDifference(samples=len(flattened(whole)), whole=mean(of_whole), halves=mean(of_halves))


class _Batches:
    """Computes mean losses over batches of chosen samples."""

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        loader: Loader,
        device: torch.device,
        seed: int,
        poll: Callable[[], None],
    ) -> None:
        self.model, self._loss, self._loader, self._device = model, loss, loader, device
        self._seed, self._poll = seed, poll
        self.is_random = False
        """Whether `collate` or the loss has drawn random numbers."""

    def mean_loss(self, parts: Sequence[Sequence[Member]], attempt: int) -> float:
        """Return the loss over the `parts`, each of which is a batch; other attempts draw other random numbers."""
        self._poll()
        batches, collate_draws = self._loader.batches(parts, epoch=attempt)
        seed_all(derive(self._seed, "halves", attempt))
        generators = Generators(self._device)
        sizes = (len(flattened(part)) for part in parts)
        value = mean_loss(
            self._loss,
            self.model,
            ((to_device(batch, self._device), size) for batch, size in zip(batches, sizes, strict=True)),
        )
        self.is_random = self.is_random or collate_draws or not generators.unchanged()
        return value


def _relative_error(model: nn.Module, mixed_precision: MixedPrecision) -> float:
    """Return the largest relative error that rounding explains, by the least accurate type of the computation."""
    types = {parameter.dtype for parameter in model.parameters()}
    # Packed weights (4 bits) are unpacked to 16 bits.
    epsilons = [torch.finfo(type_ if type_.is_floating_point else torch.bfloat16).eps for type_ in types]
    if mixed_precision.name != "fp32":
        epsilons.append(torch.finfo(torch.float16 if mixed_precision.name == "fp16" else torch.bfloat16).eps)
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    if on_gpu and (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32):
        epsilons.append(_TF32_EPSILON)
    return max(_SUM_ROUNDING, _ROUNDINGS * max(epsilons, default=0.0))
