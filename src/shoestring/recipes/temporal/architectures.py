"""The networks that may be chosen, with what goes with each where the options leave it open."""

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
    """What goes with one of the networks. Of an ensemble rate and dropout are the gate's: members have their own."""

    learning_rate: float
    dropout: float
    clip_norm: float
    full: dict[str, Any]
    tiny: dict[str, Any]


# The published values.
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

# Of the ensemble the classifier's widths are published. It learns at the rate of the MLP, which it is like.
ARCHITECTURES = {
    **MEMBERS,
    "ensemble": Architecture(
        learning_rate=1e-3, dropout=0.0, clip_norm=0.5, full={"widths": (64, 32)}, tiny={"widths": (8, 4)}
    ),
}


def network(name: str, size: Literal["full", "tiny"], *, seq_len: int, dropout: float | None) -> nn.Module:
    """(n, seq_len, 29) -> (n, 3) logits; `dropout` of all its parts, or of each its own."""
    from shoestring.recipes.temporal import models
    from shoestring.recipes.temporal.ensemble import Ensemble
    from shoestring.recipes.temporal.windows import CLASSES

    own = ARCHITECTURES[name]
    widths: dict[str, Any] = getattr(own, size)
    if name == "ensemble":
        members = {member: network(member, size, seq_len=seq_len, dropout=dropout) for member in MEMBERS}
        return Ensemble(members, len(FEATURES), **widths)
    shape = {
        "features": len(FEATURES),
        "classes": len(CLASSES),
        "dropout": own.dropout if dropout is None else dropout,
        **widths,
    }
    match name:
        case "lstm":
            return models.AttentiveLSTM(**shape)
        case "transformer":
            return models.TemporalTransformer(**shape, seq_len=seq_len)
        case _:
            return models.GatedMLP(**shape)


def rates(name: str, model: nn.Module) -> Iterator[dict[str, Any]]:
    """The optimizer's parameter groups with their learning rates: in an ensemble each member keeps its own."""
    parameters = dict(model.named_parameters())
    for member in MEMBERS if name == "ensemble" else ():
        own = [parameters.pop(key) for key in list(parameters) if f"members.{member}." in key]
        yield {"params": own, "lr": MEMBERS[member].learning_rate}
    yield {"params": list(parameters.values()), "lr": ARCHITECTURES[name].learning_rate}
