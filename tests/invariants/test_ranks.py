"""A run has the same bits on any number of processes that divides its logical shards."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.ranks import run_ranks
from tests.sessions import final_bits, session

SHARDS = 4


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.layers = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
        self.sometimes = nn.Parameter(torch.ones(3))

    def forward(self, tokens):
        embedded = self.embedding(tokens).sum(dim=1)
        return self.layers(embedded) * (self.sometimes.sum() if int(tokens[0, 0]) == 3 else 1)


class Tokens:
    """Samples of different weights; a model with BatchNorm, dropout and a parameter that few shards use."""

    epochs = 3
    effective_batch = 12
    learning_rate = 0.05
    clip_norm = 0.5

    def model(self):
        return Network()

    def batch(self, size):
        return torch.ones(size, 5, dtype=torch.int64), torch.ones(size)

    def loss(self, model, batch):
        tokens, targets = batch
        weights = (tokens > 1).sum(dim=1)
        return ((model(tokens)[:, 0] - targets).square() * weights).sum(), weights.sum()

    def data(self):
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, 7, (61, 5), generator=generator)
        dataset = TensorDataset(tokens, tokens.float().mean(dim=1))
        return {"train": torch.utils.data.Subset(dataset, range(50)), "validation": dataset}


def train_with(size, run, tmp_path, *, recipe=Tokens, **arguments):
    values = {"logical_shards": SHARDS, "micro_batch": 3, "save_every_updates": 3, **arguments.pop("values", {})}
    statuses = run_ranks(size, lambda rank: session(recipe(), run, values, **arguments), tmp_path)
    assert statuses == [0] * size


def test_numbers_of_processes_have_equal_bits(tmp_path):
    for size in (1, 2, 4):
        train_with(size, tmp_path / str(size), tmp_path)
    assert final_bits(tmp_path / "2") == final_bits(tmp_path / "1")
    assert final_bits(tmp_path / "4") == final_bits(tmp_path / "1")
