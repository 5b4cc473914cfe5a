"""What a run makes smaller when it runs out of memory, and in which order: one table, which the engine follows and a
plan prints. The effective batch never changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from shoestring.settings import Settings

Phase = Literal["update", "optimizer step", "evaluation"]

_SETTINGS = ("micro_batch", "checkpointing", "optimizer_kernel")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The settings that fallbacks change, as they are in force. They are stored in checkpoints, so that the next
    session does not run out of memory again; they only shrink, and are reset when a person changes these settings.
    """

    asked: str = ""
    """The settings that they began from, as text."""
    micro_batch: int = 1
    evaluation_batch: int | None = None
    """None until evaluation needs a smaller size than training."""
    checkpointing: str | None = None
    optimizer_kernel: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> Sizes:
        """The sizes that the settings ask for."""
        return cls(
            asked=" ".join(f"{name}={getattr(settings, name)}" for name in _SETTINGS),
            micro_batch=settings.micro_batch or 1,
            checkpointing=settings.checkpointing,
            optimizer_kernel=settings.optimizer_kernel,
        )

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def resumed(self, saved: object) -> Sizes:
        """The sizes of a checkpoint if it was saved under the same settings; never larger than these settings ask for.

        Trainer runs of version 0.1.0 stored the microbatch alone, without the settings.
        """
        if not isinstance(saved, Mapping) or saved.get("asked", self.asked) != self.asked:
            return self
        training, evaluating = saved.get("micro_batch"), saved.get("evaluation_batch")
        evaluation = (self.evaluation_batch, evaluating if isinstance(evaluating, int) and evaluating > 0 else None)
        return dataclasses.replace(
            self,
            micro_batch=training if self._is_size(training) else self.micro_batch,
            evaluation_batch=min(sizes) if (sizes := [each for each in evaluation if each]) else None,
            checkpointing="full" if saved.get("checkpointing") == "full" else self.checkpointing,
            optimizer_kernel="for-loop" if saved.get("optimizer_kernel") == "for-loop" else self.optimizer_kernel,
        )

    def _is_size(self, value: object) -> TypeGuard[int]:
        return isinstance(value, int) and 0 < value <= self.micro_batch


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What of a model and its optimizer decides which fallbacks there are."""

    least_micro_batch: int = 1
    blocks: int = 0
    """That activation checkpointing can recompute."""
    batched_step: bool = False
    """Whether the optimizer's step works on many tensors at once."""


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """One way to need less memory."""

    shrink: Callable[[Sizes, Limits], Sizes | None]
    """The smaller sizes; None if it cannot be applied (again)."""
    describe: Callable[[Sizes, Limits], str]
    """Given the smaller sizes."""


def least_micro_batch(*, batch_norm: bool) -> int:
    """2 for a model that trains a BatchNorm, since a lone sample has no statistics; 1 for any other."""
    return 2 if batch_norm else 1


def halved(micro_batch: int, least: int) -> int:
    """The next smaller microbatch: half, rounded up, and not below `least`; the same if there is none."""
    return max(-(-micro_batch // 2), least) if micro_batch > least else micro_batch


def _halve(sizes: Sizes, limits: Limits) -> Sizes | None:
    smaller = halved(sizes.micro_batch, limits.least_micro_batch)
    return dataclasses.replace(sizes, micro_batch=smaller) if smaller < sizes.micro_batch else None


def _recompute(sizes: Sizes, limits: Limits) -> Sizes | None:
    if not limits.blocks or sizes.checkpointing == "full":
        return None
    return dataclasses.replace(sizes, checkpointing="full")


def _go_one_by_one(sizes: Sizes, limits: Limits) -> Sizes | None:
    if not limits.batched_step or sizes.optimizer_kernel == "for-loop":
        return None
    return dataclasses.replace(sizes, optimizer_kernel="for-loop")


SMALLER_MICRO_BATCH = Fallback(shrink=_halve, describe=lambda sizes, _: f"microbatch {sizes.micro_batch}")
RECOMPUTE_BLOCKS = Fallback(
    shrink=_recompute,
    describe=lambda _, limits: f"activations of all {limits.blocks} blocks computed again in backward",
)
ONE_TENSOR_AT_A_TIME = Fallback(shrink=_go_one_by_one, describe=lambda *_: "one tensor after another")

FALLBACKS: Mapping[Phase, tuple[Fallback, ...]] = {
    "update": (SMALLER_MICRO_BATCH, RECOMPUTE_BLOCKS),
    "optimizer step": (ONE_TENSOR_AT_A_TIME, SMALLER_MICRO_BATCH, RECOMPUTE_BLOCKS),
    "evaluation": (SMALLER_MICRO_BATCH,),
}
"""By the phase that ran out of memory, the fallbacks in the order in which they are tried."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A fallback that can be applied."""

    fallback: Fallback
    sizes: Sizes
    """In force from now on."""
    description: str


def next_step(phase: Phase, sizes: Sizes, limits: Limits) -> Step | None:
    """The first fallback of the phase that can still be applied; None if nothing is left to try."""
    for fallback in FALLBACKS[phase]:
        if smaller := fallback.shrink(sizes, limits):
            return Step(fallback=fallback, sizes=smaller, description=fallback.describe(smaller, limits))
    return None


def descriptions(settings: Settings, limits: Limits) -> list[str]:
    """What happens on out-of-memory, from `settings` on, as a plan prints it; each step stays in force."""
    sizes, steps = Sizes.of(settings), list[Step]()
    while step := next_step("update", sizes, limits):
        steps.append(step)
        sizes = step.sizes
    micro_batches = [str(step.sizes.micro_batch) for step in steps if step.fallback is SMALLER_MICRO_BATCH]
    return [
        *([f"micro_batch {', '.join(micro_batches)}"] if micro_batches else []),
        *(step.description for step in steps if step.fallback is not SMALLER_MICRO_BATCH),
        *(
            f"in the optimizer's step: {step.description}"
            for step in [next_step("optimizer step", Sizes.of(settings), limits)]
            if step and step.fallback is ONE_TENSOR_AT_A_TIME
        ),
        "an error that says what takes the memory and what would fit",
    ]
