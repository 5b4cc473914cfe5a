"""The fallbacks on out-of-memory and their order: one table, which the engine executes and a plan prints. The effective
batch never changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from shoestring.base.settings import Settings

Phase = Literal["update", "optimizer step", "evaluation"]

_SETTINGS = ("micro_batch", "checkpointing", "optimizer_kernel")

_FURTHER = 8
"""One of so many blocks is streamed in addition after each attempt without memory."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The current values of the settings that fallbacks change. Checkpoints store them, so that the next session does
    not run out of memory again; they only shrink, and are reset when the user changes these settings.
    """

    requested: str = ""
    """The user's values of these settings, as text."""
    micro_batch: int = 1
    evaluation_batch: int | None = None
    """None until evaluation needs a smaller size than training."""
    checkpointing: str | None = None
    optimizer_kernel: str | None = None
    streamed_blocks: int | None = None
    stream_group: int | None = None
    """The number of microbatches that use each copy of a streamed block, where several do; None: all of an update; 1:
    they no longer do."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Sizes:
        """Return the sizes that the settings request."""
        # Checkpoints of runs without streamed blocks were saved before they could be streamed.
        names = (*_SETTINGS, *(name for name in ("streamed_blocks", "stream_group") if getattr(settings, name)))
        return cls(
            requested=" ".join(f"{name}={getattr(settings, name)}" for name in names),
            micro_batch=settings.micro_batch or 1,
            checkpointing=settings.checkpointing,
            optimizer_kernel=settings.optimizer_kernel,
            streamed_blocks=settings.streamed_blocks or None,
            stream_group=settings.stream_group,
        )

    def json(self) -> dict[str, Any]:
        """Return the sizes as JSON; checkpoints have `requested` under the key "asked"."""
        values = dataclasses.asdict(self)
        return {"asked": values.pop("requested"), **values}

    def resumed(self, saved: object, *, whole_batch: bool = False) -> Sizes:
        """Return a checkpoint's sizes if it was saved under the same settings; they never exceed those of `self`.

        The batches of a recipe with `whole_batch` stay those of `self`.

        Trainer runs of version 0.1.0 stored only the microbatch, without the settings.
        """
        if not isinstance(saved, Mapping) or saved.get("asked", self.requested) != self.requested:
            return self
        micro_batch, saved_evaluation = saved.get("micro_batch"), saved.get("evaluation_batch")
        if whole_batch:
            micro_batch, saved_evaluation = self.micro_batch, self.evaluation_batch
        return dataclasses.replace(
            self,
            micro_batch=micro_batch if self._is_size(micro_batch) else self.micro_batch,
            evaluation_batch=_smaller(self.evaluation_batch, saved_evaluation),
            checkpointing="full" if saved.get("checkpointing") == "full" else self.checkpointing,
            optimizer_kernel="for-loop" if saved.get("optimizer_kernel") == "for-loop" else self.optimizer_kernel,
            streamed_blocks=self._most_streamed(saved.get("streamed_blocks")),
            stream_group=_smaller(self.stream_group, saved.get("stream_group")),
        )

    def _most_streamed(self, saved: object) -> int | None:
        if self.streamed_blocks is None or type(saved) is not int:
            return self.streamed_blocks
        return max(self.streamed_blocks, saved)

    def _is_size(self, value: object) -> TypeGuard[int]:
        return type(value) is int and 0 < value <= self.micro_batch


def _smaller(*sizes: object) -> int | None:
    """Return the smallest of the sizes; None if none of them is one."""
    return min((size for size in sizes if type(size) is int and size > 0), default=None)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The properties of a model and its optimizer that decide which fallbacks are possible."""

    least_micro_batch: int = 1
    blocks: int = 0
    """The number of blocks that activation checkpointing can recompute."""
    batched_step: bool = False
    """Whether the optimizer step updates many tensors at once."""
    streamable: int = 0
    """The number of blocks that can be streamed, with those that are; those that the host has memory for."""
    sharing: int = 0
    """The number of microbatches that use each copy of a streamed block; 0 if each has copies of its own."""


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """A change that reduces memory."""

    shrink: Callable[[Sizes, Limits], Sizes | None]
    """Returns the smaller sizes, or None if the fallback cannot be applied (again)."""
    describe: Callable[[Sizes, Limits], str]
    """Returns a description for the user, given the smaller sizes."""


def least_micro_batch(*, batch_norm: bool, whole_batch: int | None = None) -> int:
    """Return 2 for a model that trains a BatchNorm, because a single sample has no statistics, and 1 otherwise.

    `whole_batch` is the microbatch of a recipe whose updates are never split.
    """
    return whole_batch or (2 if batch_norm else 1)


def halved(micro_batch: int, least: int) -> int:
    """Return half of the microbatch, rounded up and at least `least`; the same microbatch if it cannot be halved."""
    return max(-(-micro_batch // 2), least) if micro_batch > least else micro_batch


def _halve_micro_batch(sizes: Sizes, limits: Limits) -> Sizes | None:
    smaller = halved(sizes.micro_batch, limits.least_micro_batch)
    return dataclasses.replace(sizes, micro_batch=smaller) if smaller < sizes.micro_batch else None


def _recompute_blocks(sizes: Sizes, limits: Limits) -> Sizes | None:
    if not limits.blocks or sizes.checkpointing == "full":
        return None
    return dataclasses.replace(sizes, checkpointing="full")


def _update_single_tensors(sizes: Sizes, limits: Limits) -> Sizes | None:
    if not limits.batched_step or sizes.optimizer_kernel == "for-loop":
        return None
    return dataclasses.replace(sizes, optimizer_kernel="for-loop")


def _stream_further(sizes: Sizes, limits: Limits) -> Sizes | None:
    if not sizes.streamed_blocks or limits.streamable <= sizes.streamed_blocks:
        return None
    further = max(1, limits.streamable // _FURTHER)
    return dataclasses.replace(sizes, streamed_blocks=min(sizes.streamed_blocks + further, limits.streamable))


def _halve_group(sizes: Sizes, limits: Limits) -> Sizes | None:
    group = min(sizes.stream_group or limits.sharing, limits.sharing)
    return dataclasses.replace(sizes, stream_group=-(-group // 2)) if group > 1 else None


def _describe_group(sizes: Sizes, _: Limits) -> str:
    if sizes.stream_group == 1:
        return "one microbatch after the other (stream_order=microbatch)"
    return f"each copy of a streamed block is used by {sizes.stream_group} microbatches"


# It comes before fewer samples: the streamed blocks are copied for each microbatch, so half of it doubles all copies.
STREAM_FURTHER = Fallback(
    shrink=_stream_further,
    describe=lambda sizes, limits: f"{sizes.streamed_blocks} of {limits.blocks} blocks streamed",
)
SMALLER_MICRO_BATCH = Fallback(shrink=_halve_micro_batch, describe=lambda sizes, _: f"microbatch {sizes.micro_batch}")
SMALLER_GROUP = Fallback(shrink=_halve_group, describe=_describe_group)
RECOMPUTE_BLOCKS = Fallback(
    shrink=_recompute_blocks,
    describe=lambda _, limits: f"the activations of all {limits.blocks} blocks are recomputed in backward",
)
ONE_TENSOR_AT_A_TIME = Fallback(
    shrink=_update_single_tensors, describe=lambda *_: "the optimizer updates one tensor at a time"
)

FALLBACKS: Mapping[Phase, tuple[Fallback, ...]] = {
    "update": (STREAM_FURTHER, SMALLER_MICRO_BATCH, SMALLER_GROUP, RECOMPUTE_BLOCKS),
    "optimizer step": (ONE_TENSOR_AT_A_TIME, STREAM_FURTHER, SMALLER_MICRO_BATCH, RECOMPUTE_BLOCKS),
    "evaluation": (SMALLER_MICRO_BATCH,),
}
"""The fallbacks of each phase that can run out of memory, in the order in which they are tried."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A fallback that can be applied."""

    fallback: Fallback
    sizes: Sizes
    """The sizes after the step."""
    description: str


def next_step(phase: Phase, sizes: Sizes, limits: Limits) -> Step | None:
    """Return the first fallback of the phase that can still be applied, or None."""
    for fallback in FALLBACKS[phase]:
        if smaller := fallback.shrink(sizes, limits):
            return Step(fallback=fallback, sizes=smaller, description=fallback.describe(smaller, limits))
    return None


def descriptions(settings: Settings, limits: Limits) -> list[str]:
    """Describe the steps on out-of-memory, starting from `settings`, for a plan; each step remains in effect."""
    sizes, steps = Sizes.from_settings(settings), list[Step]()
    while step := next_step("update", sizes, limits):
        steps.append(step)
        sizes = step.sizes
    micro_batches = [str(step.sizes.micro_batch) for step in steps if step.fallback is SMALLER_MICRO_BATCH]
    streamed = [str(step.sizes.streamed_blocks) for step in steps if step.fallback is STREAM_FURTHER]
    groups = [str(step.sizes.stream_group) for step in steps if step.fallback is SMALLER_GROUP]
    return [
        *([f"{', '.join(streamed)} of {limits.blocks} blocks are streamed"] if streamed else []),
        *([f"micro_batch is reduced to {', '.join(micro_batches)}"] if micro_batches else []),
        *([f"each copy of a streamed block is used by {', '.join(groups)} microbatches"] if groups else []),
        *(step.description for step in steps if step.fallback is RECOMPUTE_BLOCKS),
        *(
            f"if the optimizer step runs out of memory, {step.description}"
            for step in [next_step("optimizer step", Sizes.from_settings(settings), limits)]
            if step and step.fallback is ONE_TENSOR_AT_A_TIME
        ),
        "the run stops with an error that lists what takes the memory and which settings would fit",
    ]
