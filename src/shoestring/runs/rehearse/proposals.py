"""What would have made a script fit, by what held the memory when it ran out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoestring.base.units import bytes_text
from shoestring.runs.rehearse.rehearsal import Holder, OutOfMemory

_SMALL_SHARE = 0.05
"""A part of the memory below this share is not worth a change."""

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def proposals(error: OutOfMemory, holders: Sequence[Holder], capacity: int) -> tuple[str, ...]:
    """Return what frees most of the memory first, with the bytes that it frees at that point."""
    ranked = sorted(_candidates(error, holders), key=lambda candidate: -candidate[0])
    texts = [text for freed, text in ranked if freed > _SMALL_SHARE * capacity]
    late = _is_late(error)
    return (*([late] if late else []), *texts)


def _candidates(error: OutOfMemory, holders: Sequence[Holder]) -> Iterator[tuple[float, str]]:
    """Yield each proposal with the bytes that it would free."""
    sizes: dict[str, int] = {}
    for holder in holders:
        sizes[holder.kind] = sizes.get(holder.kind, 0) + holder.bytes
    weights, gradients, states = (sizes.get(kind, 0) for kind in ("weights", "gradients", "optimizer states"))
    activations = max(0, error.allocated_bytes - weights - gradients - states)
    if error.phase == "evaluation":
        yield activations / 2, f"a smaller evaluation batch: half of it frees about {bytes_text(activations // 2)}"
    elif error.phase == "generation":
        yield activations / 2, f"fewer or shorter generations at once: half of them free about {_half(activations)}"
    else:
        yield (
            0.6 * activations,
            "activation checkpointing (gradient_checkpointing in Trainer and TRL, torch.utils.checkpoint elsewhere): "
            f"activations and temporaries are {bytes_text(activations)} of the memory",
        )
        yield (
            activations / 2,
            f"a microbatch of half the size, with twice the accumulation steps: frees about {_half(activations)}",
        )
    yield (
        0.75 * states,
        f"an optimizer with 8-bit states (bitsandbytes): the states are {bytes_text(states)}",
    )
    yield (
        gradients + states,
        f"LoRA: gradients and optimizer states of the whole model are {bytes_text(gradients + states)}",
    )
    unused = error.reserved_bytes - error.allocated_bytes
    if unused >= error.requested_bytes:
        yield unused, f"{EXPANDABLE}: {bytes_text(unused)} are reserved but unused, in pieces that are too small"


def _half(size: int) -> str:
    return bytes_text(size // 2)


def _is_late(error: OutOfMemory) -> str:
    """Return what to do about an error that earlier updates did not have; empty for one at the beginning."""
    if error.phase != "training" or error.update <= 3:
        return ""
    return (
        f"{error.update - 1} updates fitted before this one, so its samples are larger: limit their length, or form "
        "microbatches by length, so that the largest has fewer samples"
    )
