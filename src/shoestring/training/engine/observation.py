"""Watching one update while it is made: losses, gradients, outputs of modules, and values that are not finite.

Watching reads values and changes none, so the update has the same bits. It waits for the device after every module.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from shoestring.recipe.microbatches import Member, flattened
from shoestring.techniques import trees
from shoestring.training.engine.update import Microbatch, Weight, Work

ROOT = "(model)"
"""The name of the model itself among its modules."""


@dataclass(frozen=True, kw_only=True)
class NonFinite:
    """A tensor with values that are not finite."""

    kind: str
    """`input` (of the batch), `output` (of a module), `loss`, `gradient` or `weight` (of a parameter)."""
    name: str
    """The module or parameter, the path of the input in the batch, or empty."""
    count: int
    """The number of values that are not finite."""
    total: int
    microbatch: int | None = None
    """The microbatch, from 0; None for gradients and weights, which belong to the whole update."""
    samples: tuple[int, ...] = ()
    """The samples with such values, if the first dimension of the tensor is the samples."""


@dataclass(frozen=True, kw_only=True)
class ObservedMicrobatch:
    """A microbatch whose gradient was added."""

    samples: tuple[int, ...] | None
    """None if a library chose them and does not tell."""
    loss: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class ObservedOutput:
    """The outputs of a module in all microbatches."""

    type: str
    """The module's class."""
    largest: float
    """The largest absolute value; NaN if there is one."""
    microbatch: int
    """The microbatch with that value."""


@dataclass(kw_only=True)
class Attempt:
    """One attempt at an update; there are several on out-of-memory and on overflow in fp16."""

    micro_batch: int
    loss_scale: float | None
    parts: Sequence[Sequence[int]] | None
    """The samples of each microbatch, if they are known."""
    microbatches: list[ObservedMicrobatch] = field(default_factory=list)
    gradient_norms: dict[str, float] | None = None
    """The norm of the gradient of each module's own parameters, before clipping; None before they are complete."""
    outputs: dict[str, ObservedOutput] = field(default_factory=dict)
    """By module, in the order of the first forward pass."""
    not_finite: list[NonFinite] = field(default_factory=list)
    """In the order in which they appeared, each module once."""

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the whole gradient before clipping."""
        return None if self.gradient_norms is None else math.hypot(*self.gradient_norms.values())

    def samples_of(self, microbatch: int) -> Sequence[int] | None:
        return self.parts[microbatch] if self.parts and microbatch < len(self.parts) else None


class Observation:
    """Watches the attempts at one update of `model`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        parts: Callable[[int], Sequence[Sequence[Member]]] | None = None,
        loss_scale: Callable[[], float | None] = lambda: None,
        watches_modules: bool = True,
        watches_generation: bool = True,
    ) -> None:
        """`parts` returns the samples of each microbatch, given its size; `watches_modules` is False for compiled
        modules, whose code would change, `watches_generation` for a library that generates samples without gradients.
        """
        self._parts, self._loss_scale = parts, loss_scale
        self._watches_modules, self._watches_generation = watches_modules, watches_generation
        self.attempts: list[Attempt] = []
        self.watch_model(model)

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    def watch_model(self, model: nn.Module) -> None:
        """Watch this model in the following attempts."""
        self._model = model
        self._names = {id(module): name or ROOT for name, module in model.named_modules()}

    def begin(self, micro_batch: int) -> None:
        """Begin to watch an attempt."""
        parts = [flattened(part) for part in self._parts(micro_batch)] if self._parts else None
        self.attempts.append(Attempt(micro_batch=micro_batch, loss_scale=self._loss_scale(), parts=parts))

    def run(self, work: Work, batch: Any, expected: Weight | None, _: Hashable) -> Microbatch:
        """Run the work of a microbatch, as `engine.update.Runner`."""
        with self.watching(batch):
            microbatch = work(batch, expected)
        self.add(float(microbatch.loss_sum), float(microbatch.weight))
        return microbatch

    @contextmanager
    def watching(self, batch: Any) -> Iterator[None]:
        """Watch the inputs and the modules of the next microbatch."""
        number = len(self.attempts[-1].microbatches)
        for name, leaf in _named_leaves(batch):
            self._add_if_not_finite("input", name, leaf, number)
        if not self._watches_modules:
            yield
            return
        hook = register_module_forward_hook(lambda module, _, output: self._watch(module, output, number))
        try:
            yield
        finally:
            hook.remove()

    def add(self, loss_sum: float, weight: float, samples: Sequence[int] | None = None) -> None:
        """Add the result of the microbatch that was watched; `samples` are needed without `parts`."""
        attempt = self.attempts[-1]
        number = len(attempt.microbatches)
        samples = attempt.samples_of(number) if samples is None else samples
        loss = loss_sum / weight if weight else loss_sum
        attempt.microbatches.append(
            ObservedMicrobatch(samples=None if samples is None else tuple(samples), loss=loss, weight=weight)
        )
        if not math.isfinite(loss):
            attempt.not_finite.append(NonFinite(kind="loss", name="", count=1, total=1, microbatch=number))

    def gradients(self, scale: float = 1.0) -> None:
        """Record the gradients, which are complete, and not clipped yet; they are divided by `scale`."""
        attempt = self.attempts[-1]
        attempt.gradient_norms = {}
        known = set[int]()
        for module in self._model.modules():
            name = self._names[id(module)]
            norms = []
            for own_name, parameter in module.named_parameters(recurse=False):
                if parameter.grad is None or id(parameter) in known:
                    continue
                known.add(id(parameter))  # a tied parameter counts once
                gradient = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
                norms.append(float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) / scale)
                self._add_if_not_finite("gradient", own_name if name == ROOT else f"{name}.{own_name}", gradient)
            if norms:
                attempt.gradient_norms[name] = math.hypot(*norms)

    def weights(self) -> None:
        """Record the trained weights that are not finite, after the update."""
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                self._add_if_not_finite("weight", name, parameter)

    def _watch(self, module: nn.Module, output: Any, number: int) -> None:
        name = self._names.get(id(module))
        if name is None:  # not of the model, such as a loss function
            return
        if not (self._watches_generation or torch.is_grad_enabled()):
            return
        attempt = self.attempts[-1]
        for leaf in trees.leaves(output):
            largest = _largest(leaf)
            if largest is None:
                continue
            before = attempt.outputs.get(name)
            if before is None or largest > before.largest or (math.isnan(largest) and not math.isnan(before.largest)):
                output_type = type(module).__name__
                attempt.outputs[name] = ObservedOutput(type=output_type, largest=largest, microbatch=number)
            reported = {entry.name for entry in attempt.not_finite if entry.kind == "output"}
            if name not in reported:
                self._add_if_not_finite("output", name, leaf, number)

    def _add_if_not_finite(self, kind: str, name: str, value: Any, microbatch: int | None = None) -> None:
        largest = _largest(value)
        if largest is None or math.isfinite(largest):
            return
        attempt, not_finite = self.attempts[-1], ~torch.isfinite(value.detach())
        samples = None if microbatch is None else attempt.samples_of(microbatch)
        affected: tuple[int, ...] = ()
        if samples is not None and value.ndim and len(value) == len(samples):
            rows = not_finite.reshape(len(value), -1).any(dim=1).tolist()
            affected = tuple(sample for sample, is_affected in zip(samples, rows, strict=True) if is_affected)
        attempt.not_finite.append(
            NonFinite(
                kind=kind,
                name=name,
                count=int(not_finite.sum()),
                total=value.numel(),
                microbatch=microbatch,
                samples=affected,
            )
        )


def _largest(value: Any) -> float | None:
    """Return the largest absolute value, NaN if there is one; None for anything but a tensor of real numbers."""
    is_dense = isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested
    if not is_dense or not value.is_floating_point() or not value.numel() or value.element_size() < 2:
        return None
    low, high = torch.aminmax(value.detach())
    return float(torch.maximum(-low, high))


def _named_leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the members of a batch with their paths, such as `0.pixel_values`."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    if not members:
        yield name, value
    for key, member in members:
        yield from _named_leaves(member, f"{name}.{key}" if name else str(key))
