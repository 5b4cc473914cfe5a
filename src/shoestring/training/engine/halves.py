"""Whether a loss depends on anything but its samples: on which of them share a batch, on its own earlier calls, or on
random numbers that cannot be seeded.

The loss of an update is a sum over its microbatches. It is the same for every split only if each sample contributes by
itself. A loss that compares the samples of its batch, such as InfoNCE with in-batch negatives, or a mean over something
other than samples, changes with the microbatch: the loss of a microbatch is compared with that of its halves.

All values that are compared are those of the same tensors, each from the same state of the model and of the objects
that the loss uses. So neither samples that cannot be repeated nor a loss that changes its state look like that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.recipe.microbatches import Member, flattened, split
from shoestring.techniques import nested
from shoestring.training.data.seeding import derive
from shoestring.training.engine.first_microbatch import FirstMicrobatch
from shoestring.training.engine.loss_state import LossState
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


@dataclass(kw_only=True)
class LossReport:
    """What was noticed of a loss before the first update."""

    difference: LossDifference | None = None
    """Samples depend on each other."""
    is_unseeded: bool = False
    """The loss of the same microbatch differs, although generators were seeded and the state was restored."""
    changed: list[str] = field(default_factory=list)
    """What the loss changes, if its next value depends on that."""

    @property
    def unseeded_text(self) -> str:
        """What it means that the loss is not seeded; empty if it is."""
        if not self.is_unseeded:
            return ""
        return (
            "the loss has random numbers that Shoestring does not seed: it differs for the same microbatch with the "
            "same seeds. This run cannot be repeated bit for bit, and a resumed run differs from one without an "
            "interruption. Draw them from the global generators of torch, numpy or random, or from a generator in an "
            "attribute of the recipe or the model; these are seeded for each update"
        )

    @property
    def changed_text(self) -> str:
        """What it means that the loss depends on its earlier calls; empty if it does not."""
        if not self.changed:
            return ""
        further = f" and {len(self.changed) - 3} more" if len(self.changed) > 3 else ""
        return (
            f"the loss depends on its earlier calls, because it changes {', '.join(self.changed[:3])}{further}: "
            "training with another microbatch would differ, since it calls the loss more or less often in an update. "
            "Only parameters and buffers of the model are saved: keep such a state in a buffer, and change it in "
            "after_update(model), which is called once after each update"
        )


def examine_loss(first: FirstMicrobatch) -> LossReport:
    """Compare losses of the first microbatch of a run: repeated, and with its halves, combined as in an update.

    Nothing is noticed where losses cannot be compared: a single sample has no halves, a loss may not be finite, and a
    recipe may raise an exception for half of the samples or without gradients, or run out of memory.
    """
    report = LossReport()
    # The samples of packed rows are compared one by one, so that a mask that does not separate them is noticed.
    whole = first.loader.parts(0, first.micro_batch)[0]
    samples = flattened(whole)
    count = min(-(-len(samples) // 2), len(whole))
    halves = [] if len(samples) < 2 else [*split(samples, count)]

    def examine() -> None:
        with first.mixed_precision.autocast():
            _examine(first, whole, halves, report)

    first.without_side_effects(examine)
    return report


def _examine(
    first: FirstMicrobatch, whole: Sequence[Member], halves: Sequence[Sequence[Member]], report: LossReport
) -> None:
    losses = _Losses(first)
    try:
        _repeat(losses, whole, report)
        if halves:
            report.difference = _compare(losses, whole, halves)
    finally:
        losses.state.restore()
        losses.state.restore_generators()


def _repeat(losses: "_Losses", whole: Sequence[Member], report: LossReport) -> None:
    """Compute the loss of a microbatch twice, and a third time from the state of the first time if they differ."""
    error = relative_error(losses.first.model, losses.first.mixed_precision.name)
    (batch,), _ = losses.first.loader.same_samples([whole], epoch=0)

    def differs(a: float, b: float) -> bool:
        return isfinite(a) and isfinite(b) and abs(a - b) > error * max(_SMALL_LOSS, abs(a), abs(b))

    before = losses.compute([batch], [whole], 0)
    if losses.state.has_new_generators():
        before = losses.compute([batch], [whole], 0)
    changed = losses.state.changed()
    repeated = losses.compute([batch], [whole], 0, restores=not changed)
    if not differs(before, repeated):
        return
    if changed:
        repeated = losses.compute([batch], [whole], 0)
        report.changed = [] if differs(before, repeated) else changed
    if not report.changed:
        report.is_unseeded = losses.is_random = True


def _compare(losses: "_Losses", whole: Sequence[Member], halves: Sequence[Sequence[Member]]) -> LossDifference | None:
    of_whole, of_halves = list[float](), list[float]()
    while len(of_whole) < (_SEEDS if losses.is_random else 1):
        attempt = len(of_whole)
        batches, collate_draws = losses.first.loader.same_samples([whole, *halves], epoch=attempt)
        losses.is_random = losses.is_random or collate_draws
        of_whole.append(losses.compute(batches[:1], [whole], attempt))
        of_halves.append(losses.compute(batches[1:], halves, attempt))
    if not all(map(isfinite, (*of_whole, *of_halves))):
        return None
    error = relative_error(losses.first.model, losses.first.mixed_precision.name)
    tolerance = error * max(_SMALL_LOSS, *map(abs, (*of_whole, *of_halves)))
    # The values of a loss without random numbers are single ones, and vary by 0.
    variation = max(max(values) - min(values) for values in (of_whole, of_halves))
    distance = max(min(of_whole) - max(of_halves), min(of_halves) - max(of_whole))
    if distance <= variation / 2 + tolerance:
        return None
    return LossDifference(samples=len(flattened(whole)), whole=mean(of_whole), halves=mean(of_halves))


class _Losses:
    """Computes losses, each from the same state of the model and of what the loss uses."""

    def __init__(self, first: FirstMicrobatch) -> None:
        self.first, self._loss = first, first.make_loss()
        self.state = LossState(first.model, self._loss)
        self.is_random = False
        """Whether `collate` or the loss has drawn random numbers."""

    def compute(
        self, batches: Sequence[Any], parts: Sequence[Sequence[Member]], attempt: int, *, restores: bool = True
    ) -> float:
        """Return the mean loss over the samples of `parts`, whose `batches` are on the host.

        Other attempts draw other random numbers. The state is restored before each batch, unless it `restores` none.
        """
        first = self.first
        first.poll()
        own = self.state.generators
        own.seed_all(derive(first.seed, "halves", attempt))
        generators, own_states = Generators(first.device), own.states()

        def on_device() -> Iterator[tuple[Any, int]]:
            for batch, part in zip(batches, parts, strict=True):
                if restores:
                    self.state.restore()
                yield (
                    first.loader.to_device(nested.replaced(batch, Tensor.clone, lambda value: value)),
                    len(flattened(part)),
                )

        loss = mean_loss(self._loss, first.model, on_device())
        self.is_random = self.is_random or not (generators.unchanged() and own.unchanged(own_states))
        return loss


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
