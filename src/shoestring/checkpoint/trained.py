"""What training changes of a model. Frozen weights come from where the model comes from and need no place on a disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_LOOKED_AT = 64
"""Values at either end of a frozen weight that tell it from another."""


def trained_state(model: nn.Module) -> dict[str, Any]:
    """The model's `state_dict` without its frozen weights and what belongs to them (the scales of one in 4 bits)."""
    frozen = _frozen(model)
    within = tuple(f"{name}." for name in frozen)
    return {
        name: value
        for name, value in model.state_dict().items()
        if name not in frozen and not (within and name.startswith(within))
    }


def frozen_digest(model: nn.Module) -> str | None:
    """What tells the frozen weights from others: names, shapes and their first and last values; None without any.

    Not all of their values: reading billions of them takes longer than a resume should.
    """
    frozen = _frozen(model)
    if not frozen:
        return None
    digest = hashlib.sha256()
    for name, weight in sorted(frozen.items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        digest.update(_ends(weight))
    return digest.hexdigest()[:16]


def _frozen(model: nn.Module) -> dict[str, Tensor]:
    """Parameters that are not trained, by each of their names; one that is tied to a trained one is trained."""
    every = list(_named(model))
    trained = {id(parameter) for _, parameter in every if parameter.requires_grad}
    return {name: parameter for name, parameter in every if id(parameter) not in trained}


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)


def _ends(weight: Tensor) -> bytes:
    flat = weight.detach().flatten()
    ends = torch.cat([flat[:_LOOKED_AT], flat[-_LOOKED_AT:]]).cpu().contiguous()
    return bytes(ends.view(torch.uint8).numpy().tobytes())
