"""The three networks, trained one after another in one run, of which the best by the validation loss is used.

The run consists of three phases of equal length. Weights that were saved after an epoch are for the use of the network
that was trained in it, so the best weights of the run are those of the best network at its best epoch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Alternatives(nn.Module):
    """Networks of which one is used: the one that was trained last.

    Maps (n, seq_len, features) to the logits (n, classes) of that network.
    """

    current: Tensor

    def __init__(self, members: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleDict(members)
        self.register_buffer("current", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        # All are computed, because to read which one is used the host would have to wait for the GPU.
        logits = torch.stack([member(x) for member in self.members.values()])
        return logits.index_select(0, self.current[None])[0]

    def train_member(self, name: str) -> nn.Module:
        """Return a network that is to be trained, and store that it is in use."""
        self.current.fill_([*self.members].index(name))
        return self.members[name]

    @property
    def name(self) -> str:
        """The name of the network in use."""
        names: list[str] = [*self.members]
        return names[int(self.current)]

    @property
    def member(self) -> nn.Module:
        """The network in use."""
        return self.members[self.name]


def phase_at(update: int, updates_per_epoch: int, total_updates: int, phases: int) -> tuple[int, int, int]:
    """Return the number of an update's phase (from 0), its number in the phase, and how many updates the phase has.

    Phases have equal numbers of whole epochs; the last one may be cut.
    """
    epochs = -(-total_updates // updates_per_epoch)
    length = -(-epochs // phases) * updates_per_epoch
    phase = min(update // length, phases - 1)
    return phase, update - phase * length, min(length, total_updates - phase * length)


def best_by_architecture(history: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each network its best epoch, counted from the beginning of the run, with the metrics of that epoch."""
    best: dict[str, dict[str, Any]] = {}
    for entry in history:
        metrics = {name: value for name, value in entry["metrics"].items() if isinstance(value, int | float)}
        name = str(entry["metrics"].get("architecture"))
        if "loss" in metrics and (name not in best or metrics["loss"] < best[name]["loss"]):
            best[name] = {"epoch": entry["epoch"], **metrics}
    return best
