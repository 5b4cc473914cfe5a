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
    hidden_dim: str = ""
    """The hyperparameter that the option `hidden_dim` sets; empty if there is none."""


# Published values.
MEMBERS = {
    "lstm": Architecture(
        learning_rate=5e-4,
        dropout=0.4,
        clip_norm=0.5,
        full={"hidden": 128, "head": 128},
        tiny={"hidden": 8, "head": 8},
        hidden_dim="hidden",
    ),
    "transformer": Architecture(
        learning_rate=3e-4,
        dropout=0.2,
        clip_norm=0.5,
        full={"width": 128, "heads": 8, "feedforward": 512, "head": 64},
        tiny={"width": 16, "heads": 2, "feedforward": 32, "head": 8},
        hidden_dim="width",
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


def build_network(
    name: str,
    size: Literal["full", "tiny"],
    *,
    seq_len: int,
    dropout: float | None,
    hidden_dim: int | None = None,
    layers: int | None = None,
) -> nn.Module:
    """Return a network that maps (n, seq_len, 29) to logits (n, 3).

    `dropout`, `hidden_dim` and `layers` apply to all networks of an ensemble that have them; None selects each default.
    """
    from shoestring.recipes.temporal import models
    from shoestring.recipes.temporal.ensemble import Ensemble
    from shoestring.recipes.temporal.windows import CLASSES

    architecture = ARCHITECTURES[name]
    widths: dict[str, Any] = getattr(architecture, size)
    if name == "ensemble":
        members = {
            member: build_network(member, size, seq_len=seq_len, dropout=dropout, hidden_dim=hidden_dim, layers=layers)
            for member in MEMBERS
        }
        return Ensemble(members, len(FEATURES), **widths)
    shape = {
        "features": len(FEATURES),
        "classes": len(CLASSES),
        "dropout": architecture.dropout if dropout is None else dropout,
        **widths,
    }
    if architecture.hidden_dim:
        chosen = {architecture.hidden_dim: hidden_dim, "layers": layers}
        shape |= {name: value for name, value in chosen.items() if value is not None}
    match name:
        case "lstm":
            return models.AttentiveLSTM(**shape)
        case "transformer":
            return models.TemporalTransformer(**shape, seq_len=seq_len)
        case _:
            return models.GatedMLP(**shape)


def size_problems(name: str, size: Literal["full", "tiny"], *, hidden_dim: int | None, layers: int | None) -> list[str]:
    """Return why these sizes cannot be used with a network."""
    chosen = {option: value for option, value in (("hidden_dim", hidden_dim), ("layers", layers)) if value is not None}
    problems = [f"{option}={value}: must be at least 1" for option, value in chosen.items() if value < 1]
    if name == "mlp":
        problems += [f"{option}={value}: the mlp has layers of other widths" for option, value in chosen.items()]
    heads = getattr(MEMBERS["transformer"], size)["heads"]
    if name in ("transformer", "ensemble") and hidden_dim is not None and hidden_dim % heads:
        problems.append(f"hidden_dim={hidden_dim}: must be a multiple of the transformer's {heads} heads")
    return problems


def parameter_groups(name: str, model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the optimizer's parameter groups with their learning rates; members of an ensemble keep their own rates."""
    parameters = dict(model.named_parameters())
    for member in MEMBERS if name == "ensemble" else ():
        member_parameters = [parameters.pop(key) for key in list(parameters) if f"members.{member}." in key]
        yield {"params": member_parameters, "lr": MEMBERS[member].learning_rate}
    yield {"params": list(parameters.values()), "lr": ARCHITECTURES[name].learning_rate}
