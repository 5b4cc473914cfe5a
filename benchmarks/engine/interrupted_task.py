"""What the contenders of `interrupted.py` train: a small network with dropout on samples in random order.

This file is also the recipe that `shoestring train` is given.
"""

import os
import signal

import torch
from torch import nn
from torch.utils.data import Dataset

SAMPLES, BATCH, EPOCHS, RATE = 80, 8, 3, 0.01
STOP_AT = 15
"""An update in the middle of the second epoch."""


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that are the same each time, or with new noise each time they are read."""

    def __init__(self, *, noise: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(SAMPLES, 16, generator=generator)
        self._noise = noise

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self._inputs[index]
        return row + 0.1 * torch.randn(16) if self._noise else row, row.sum()[None]


class Interrupted:
    epochs = EPOCHS
    effective_batch = BATCH
    learning_rate = RATE

    _losses = 0

    def model(self) -> nn.Module:
        return network()

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(size, 16), torch.zeros(size, 1)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        self._losses += 1
        if self._losses == int(os.environ.get("STOP_AT", 0)):
            os.kill(os.getpid(), signal.SIGTERM)
        return nn.functional.mse_loss(model(inputs), targets)

    def data(self) -> dict[str, Samples]:
        return {"train": Samples(noise=os.environ.get("NOISE") == "1")}
