"""The part of a model's state that training changes. Frozen weights come from the model's source and are not saved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.training.checkpoint.divided import whole

_SAMPLED_VALUES = 64
"""The number of values at either end of a frozen weight that enter its digest."""


def trained_state(model: nn.Module) -> dict[str, Any]:
    """Return the `state_dict` without frozen weights and their companions (such as the scales of a 4-bit weight)."""
    frozen = _frozen_parameters(model)
    prefixes = tuple(f"{name}." for name in frozen)
    return {
        name: value
        for name, value in model.state_dict().items()
        if name not in frozen and not (prefixes and name.startswith(prefixes))
    }


def frozen_digest(model: nn.Module) -> str | None:
    """Return a digest of the frozen weights: names, shapes, and first and last values; None if there are none.

    It leaves out the other values because reading billions of them would delay a resume.
    """
    frozen = _frozen_parameters(model)
    if not frozen:
        return None
    digest = hashlib.sha256()
    for name, weight in sorted(frozen.items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        digest.update(_end_values(weight))
    return digest.hexdigest()[:16]


def _frozen_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are not trained, under each of their names; one tied to a trained one is trained."""
    named_parameters = list(_named_parameters(model))
    trained = {id(parameter) for _, parameter in named_parameters if parameter.requires_grad}
    return {name: parameter for name, parameter in named_parameters if id(parameter) not in trained}


def _named_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)


def _end_values(weight: Tensor) -> bytes:
    flat = whole(weight.detach()).flatten()
    ends = torch.cat([flat[:_SAMPLED_VALUES], flat[-_SAMPLED_VALUES:]]).cpu().contiguous()
    return bytes(ends.view(torch.uint8).numpy().tobytes())
