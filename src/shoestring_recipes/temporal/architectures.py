"""The selectable networks, with their default hyperparameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from shoestring_recipes.temporal.features import FEATURES

if TYPE_CHECKING:
    from torch import nn

WEIGHT_DECAY = 5e-4


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the user has chosen of a network; None selects its default."""

    dropout: float | None = None
    hidden_dim: int | None = None
    layers: int | None = None
    heads: int | None = None
    widths: str | None = None
    """Of the mlp's layers, such as 128,96,64,32."""

    def values(self) -> dict[str, Any]:
        """Return the chosen sizes of layers by name."""
        names = ("hidden_dim", "layers", "heads", "widths")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


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
    in_proportion: tuple[str, ...] = ()
    """The hyperparameters that change in proportion to it."""
    sizes: tuple[str, ...] = ()
    """The options of sizes that the network has."""


# Published values.
MEMBERS = {
    "lstm": Architecture(
        learning_rate=5e-4,
        dropout=0.4,
        clip_norm=0.5,
        full={"hidden": 128, "head": 128},
        tiny={"hidden": 8, "head": 8},
        hidden_dim="hidden",
        in_proportion=("head",),
        sizes=("hidden_dim", "layers"),
    ),
    "transformer": Architecture(
        learning_rate=3e-4,
        dropout=0.2,
        clip_norm=0.5,
        full={"width": 128, "heads": 8, "feedforward": 512, "head": 64},
        tiny={"width": 16, "heads": 2, "feedforward": 32, "head": 8},
        hidden_dim="width",
        in_proportion=("feedforward", "head"),
        sizes=("hidden_dim", "layers", "heads"),
    ),
    "mlp": Architecture(
        learning_rate=1e-3,
        dropout=0.3,
        clip_norm=1.0,
        full={"widths": (128, 96, 64, 32)},
        tiny={"widths": (32, 16, 16, 8)},
        sizes=("widths",),
    ),
}

# For the ensemble, the widths of the classifier are published; its learning rate is that of the MLP, a similar network.
ARCHITECTURES = {
    **MEMBERS,
    "ensemble": Architecture(
        learning_rate=1e-3,
        dropout=0.0,
        clip_norm=0.5,
        full={"widths": (64, 32)},
        tiny={"widths": (8, 4)},
        sizes=("hidden_dim", "layers", "heads", "widths"),
    ),
}

ALL = "all"
"""The architecture of a run that trains the `MEMBERS` one after another."""

_WIDTHS = re.compile(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*")


def build_network(name: str, size: Literal["full", "tiny"], sizes: Sizes, *, seq_len: int) -> nn.Module:
    """Return a network that maps (n, seq_len, 29) to logits (n, 3).

    `sizes` apply to all networks of an ensemble, or of `ALL`, that have them.
    """
    from shoestring_recipes.temporal import models
    from shoestring_recipes.temporal.alternatives import Alternatives
    from shoestring_recipes.temporal.ensemble import Ensemble
    from shoestring_recipes.temporal.windows import CLASSES

    if name in ("ensemble", ALL):
        members = {member: build_network(member, size, sizes, seq_len=seq_len) for member in MEMBERS}
        if name == ALL:
            return Alternatives(members)
        return Ensemble(members, len(FEATURES), **getattr(ARCHITECTURES[name], size))
    shape = {"features": len(FEATURES), "classes": len(CLASSES), **_shape(name, size, sizes)}
    match name:
        case "lstm":
            return models.AttentiveLSTM(**shape)
        case "transformer":
            return models.TemporalTransformer(**shape, seq_len=seq_len)
        case _:
            return models.GatedMLP(**shape)


def _shape(name: str, size: Literal["full", "tiny"], sizes: Sizes) -> dict[str, Any]:
    """Return the hyperparameters of one of the `MEMBERS`."""
    architecture = MEMBERS[name]
    shape: dict[str, Any] = {**getattr(architecture, size)}
    chosen = {option: value for option, value in sizes.values().items() if option in architecture.sizes}
    if width := chosen.pop("hidden_dim", None):
        usual = shape[architecture.hidden_dim]
        shape |= {key: max(1, shape[key] * width // usual) for key in architecture.in_proportion}
        shape[architecture.hidden_dim] = width
    if "widths" in chosen:
        chosen["widths"] = tuple(map(int, chosen["widths"].split(",")))
    return {**shape, **chosen, "dropout": architecture.dropout if sizes.dropout is None else sizes.dropout}


def size_problems(name: str, size: Literal["full", "tiny"], sizes: Sizes) -> list[str]:
    """Return why these sizes cannot be used with a network."""
    chosen = sizes.values()
    available = ARCHITECTURES["ensemble" if name == ALL else name].sizes
    problems = [
        f"{option}={value}: must be at least 1" for option, value in chosen.items() if option != "widths" and value < 1
    ]
    widths = chosen.get("widths")
    if widths is not None and not (_WIDTHS.fullmatch(widths) and int(widths.split(",")[-1]) > 1):
        problems.append(f"widths={widths}: must be numbers from 1, such as 128,96,64,32, the last one from 2")
    problems += [
        f"{option}={value}: the {name} has no such size" for option, value in chosen.items() if option not in available
    ]
    if not problems and "heads" in available:
        shape = _shape("transformer", size, replace(sizes, dropout=0.0))
        width, heads = shape["width"], shape["heads"]
        if width % heads:
            problems.append(f"hidden_dim={width}: must be a multiple of the transformer's {heads} heads")
    return problems


def parameter_groups(name: str, model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the optimizer's parameter groups with their learning rates; the members of several keep their own rates."""
    parameters = dict(model.named_parameters())
    for member in MEMBERS if name in ("ensemble", ALL) else ():
        member_parameters = [parameters.pop(key) for key in list(parameters) if f"members.{member}." in key]
        yield {"params": member_parameters, "lr": MEMBERS[member].learning_rate}
    if parameters:
        yield {"params": list(parameters.values()), "lr": ARCHITECTURES[name].learning_rate}
