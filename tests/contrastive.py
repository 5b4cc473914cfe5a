"""A recipe whose loss compares the samples of a batch: InfoNCE with in-batch negatives."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset


class InfoNCE:
    """Two views of a sample are close, those of other samples in the batch are far."""

    epochs, effective_batch, learning_rate = 1, 32, 1e-2

    def model(self):
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 8))

    def batch(self, size):
        return torch.zeros(size, 4), torch.zeros(size, 4)

    def loss(self, model, batch):
        first, second = (F.normalize(model(view), dim=-1) for view in batch)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(len(first), device=first.device))

    def data(self):
        generator = torch.Generator().manual_seed(0)
        samples = torch.randn(96, 4, generator=generator)
        views = [samples + 0.3 * torch.randn(96, 4, generator=generator) for _ in range(2)]
        return {
            "train": TensorDataset(*(view[:48] for view in views)),
            "validation": TensorDataset(*(view[48:] for view in views)),
        }


class Whole(InfoNCE):
    """The same with updates that are never split."""

    whole_batch = True
