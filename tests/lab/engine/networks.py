"""Small networks of each kind that has kernels of its own on a GPU, as recipes that classify.

With `Masked` dropout the CPU computes the same values; torch's own dropout draws other numbers on a GPU. No weight has
a gradient that is zero but for rounding, as the bias before a BatchNorm has: Adam would make a whole step of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

CLASSES = 3


class Masked(nn.Module):
    """Dropout by masks that are a function of the values' shape alone."""

    def forward(self, values):
        if not self.training:
            return values
        numbers = torch.arange(values[0].numel(), device=values.device).reshape(values.shape[1:])
        return values * ((numbers * 7 % 5) > 0) / 0.8


def dropout(share):
    """Return torch's dropout for a share of the values, or the one by masks for 0."""
    return nn.Dropout(share) if share else Masked()


class Dense(nn.Module):
    """Linear layers with BatchNorm."""

    def __init__(self, share):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)
        self.dropout = dropout(share)

    def forward(self, values):
        return self.outer(self.dropout(torch.relu(self.norm(self.inner(values)))))


class Convolutional(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.inner, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.outer, self.dropout, self.head = nn.Conv2d(8, 4, 3, stride=2), dropout(share), nn.Linear(4, CLASSES)

    def forward(self, images):
        hidden = self.dropout(functional.relu(self.norm(self.inner(images))))
        return self.head(self.outer(hidden).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(20, 8), nn.LSTM(8, 12, batch_first=True)
        self.dropout, self.head = dropout(share), nn.Linear(12, CLASSES)

    def forward(self, tokens):
        return self.head(self.dropout(self.layer(self.embedding(tokens))[0][:, -1]))


class Block(nn.Module):
    """Attention and a perceptron, both with dropout."""

    def __init__(self, width, share):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.projections, self.share = nn.Linear(width, 3 * width, bias=False), share
        self.inner, self.dropout, self.outer = nn.Linear(width, 2 * width), dropout(share), nn.Linear(2 * width, width)

    def forward(self, values):
        parts = self.projections(self.norms[0](values)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts, dropout_p=self.share if self.training else 0.0)
        values = values + attended.transpose(1, 2).flatten(2)
        return values + self.outer(self.dropout(functional.gelu(self.inner(self.norms[1](values)))))


class Attending(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.blocks = nn.Sequential(*(Block(16, share) for _ in range(3)))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)).mean(1))


NETWORKS = {"dense": Dense, "convolutional": Convolutional, "recurrent": Recurrent, "attending": Attending}


@dataclass(kw_only=True)
class Classifier:
    """Eight samples an update, in the last of an epoch six: with microbatches of four, the last one has two."""

    network: str
    epochs = 2
    effective_batch = 8
    learning_rate = 0.01
    clip_norm: float | None = 1.0
    share: float = 0.0
    """The share of the values that dropout sets to zero."""
    optimizer: Callable[[nn.Module], Any] | None = None
    """By default the one that Shoestring chooses for a learning rate, AdamW."""

    def model(self):
        return NETWORKS[self.network](self.share)

    def batch(self, size):
        return self._inputs(size), torch.zeros(size, dtype=torch.long)

    def schedule(self, update, _updates_per_epoch, total):
        return 1 - update / (2 * total)

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def data(self):
        inputs = self._inputs(30)
        labels = torch.randint(0, CLASSES, (30,), generator=_generator(1))
        return {
            "train": TensorDataset(inputs[:22], labels[:22]),
            "validation": TensorDataset(inputs[22:], labels[22:]),
        }

    def _inputs(self, count):
        if self.network in ("recurrent", "attending"):
            return torch.randint(0, 20, (count, 5), generator=_generator(0))
        shape = (count, 6) if self.network == "dense" else (count, 3, 9, 9)
        return torch.randn(shape, generator=_generator(0))


def _generator(seed):
    return torch.Generator().manual_seed(seed)
