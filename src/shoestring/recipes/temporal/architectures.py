"""The selectable networks, with their default hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shoestring.recipes.temporal.features import FEATURES

if TYPE_CHECKING:
    from torch import nn

WEIGHT_DECAY = 5e-4


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Default hyperparameters of a network.

    For the ensemble, learning rate and dropout apply to the gate alone, because its members have their own.
    """

    learning_rate: float
    dropout: float
    clip_norm: float
    full: dict[str, Any]
    tiny: dict[str, Any]


# Published values.
MEMBERS = {
    "lstm": Architecture(
        learning_rate=5e-4,
        dropout=0.4,
        clip_norm=0.5,
        full={"hidden": 128, "head": 128},
        tiny={"hidden": 8, "head": 8},
    ),
    "transformer": Architecture(
        learning_rate=3e-4,
        dropout=0.2,
        clip_norm=0.5,
        full={"width": 128, "heads": 8, "feedforward": 512, "head": 64},
        tiny={"width": 16, "heads": 2, "feedforward": 32, "head": 8},
    ),
    "mlp": Architecture(
        learning_rate=1e-3,
        dropout=0.3,
        clip_norm=1.0,
        full={"widths": (128, 96, 64, 32)},
        tiny={"widths": (32, 16, 16, 8)},
    ),
}

# For the ensemble, the widths of the classifier are published; its learning rate is that of the MLP, a similar network.
ARCHITECTURES = {
    **MEMBERS,
    "ensemble": Architecture(
        learning_rate=1e-3, dropout=0.0, clip_norm=0.5, full={"widths": (64, 32)}, tiny={"widths": (8, 4)}
    ),
}


def build_network(name: str, size: Literal["full", "tiny"], *, seq_len: int, dropout: float | None) -> nn.Module:
    """Return a network that maps (n, seq_len, 29) to logits (n, 3).

    `dropout` applies to all networks of an ensemble; None selects the default of each.
    """
    from shoestring.recipes.temporal import models
    from shoestring.recipes.temporal.ensemble import Ensemble
    from shoestring.recipes.temporal.windows import CLASSES

    architecture = ARCHITECTURES[name]
    widths: dict[str, Any] = getattr(architecture, size)
    if name == "ensemble":
        members = {member: build_network(member, size, seq_len=seq_len, dropout=dropout) for member in MEMBERS}
        return Ensemble(members, len(FEATURES), **widths)
    shape = {
        "features": len(FEATURES),
        "classes": len(CLASSES),
        "dropout": architecture.dropout if dropout is None else dropout,
        **widths,
    }
    match name:
        case "lstm":
            return models.AttentiveLSTM(**shape)
        case "transformer":
            return models.TemporalTransformer(**shape, seq_len=seq_len)
        case _:
            return models.GatedMLP(**shape)


def parameter_groups(name: str, model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the optimizer's parameter groups with their learning rates; members of an ensemble keep their own rates."""
    parameters = dict(model.named_parameters())
    for member in MEMBERS if name == "ensemble" else ():
        member_parameters = [parameters.pop(key) for key in list(parameters) if f"members.{member}." in key]
        yield {"params": member_parameters, "lr": MEMBERS[member].learning_rate}
    yield {"params": list(parameters.values()), "lr": ARCHITECTURES[name].learning_rate}
