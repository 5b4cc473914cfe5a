"""A recipe of one's own, as small as they come."""

import torch
from torch import nn


class Mine:
    """Of this process alone: no file, no name."""

    epochs = 3
    effective_batch = 4

    def model(self):
        return nn.Linear(3, 1)

    def batch(self, size):
        return torch.zeros(size, 3)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def data(self):
        return torch.ones(10, 3)
