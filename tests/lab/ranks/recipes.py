"""Recipes whose ranks are compared on simulated GPUs."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.invariants import test_ranks, test_sharded


class Network(test_ranks.Network):
    """Writes its buffers on the device of its weights, and replaces one by a tensor in host memory."""

    @torch.no_grad()
    def _write_buffers(self, tokens):
        self.largest.mul_(0.9).add_(self.embedding(tokens).amax(dim=(0, 1)))
        self.batches += 1
        if len(tokens) != len(self.positions):
            self.positions = torch.arange(len(tokens), dtype=torch.float64, device=tokens.device)
        self.last = tokens[0].cpu()


class Tokens(test_ranks.Tokens):
    """BatchNorm, dropout, a convolution, samples of different weights, buffers of all kinds, a last smaller update."""

    effective_batch = 16

    def model(self):
        return Network()


class Plain(Tokens):
    """Without random numbers, which are others on the CPU."""

    def model(self):
        network = Network()
        network.layers[2] = nn.Identity()
        return network

    def evaluate_batch(self, model, batch):
        return model(batch[0])[:, 0], batch[1]

    def combine(self, results):
        predictions, targets = (torch.cat(values) for values in zip(*results, strict=True))
        return {"loss": (predictions - targets).square().mean()}


class Blocks(test_sharded.Blocks):
    """Tied weights, BatchNorm, dropout, and a parameter that few microbatches use."""


class PlainBlocks(Blocks):
    """Without random numbers."""

    def model(self):
        network = super().model()
        for block in network.blocks:
            block.inner[2] = nn.Identity()
        return network


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.dropout = dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(3))
        self.k_proj = nn.Linear(width, width, bias=False)  # the gradient of its bias would be rounding errors only
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, values):
        normal = self.norm1(values)
        heads = [layer(normal).unflatten(-1, (2, -1)).transpose(1, 2) for layer in self._projections()]
        attended = functional.scaled_dot_product_attention(
            *heads, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        values = values + self.o_proj(attended.transpose(1, 2).flatten(2))
        hidden = functional.dropout(functional.gelu(self.fc1(self.norm2(values))), self.dropout, self.training)
        return values + self.fc2(hidden)

    def _projections(self):
        return self.q_proj, self.k_proj, self.v_proj


class Transformer(nn.Module):
    def __init__(self, words, width, dropout):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, dropout) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens):
        values = self.embed(tokens)
        for layer in self.layers:
            values = layer(values)
        return self.head(self.norm(values))


class Text:
    """Predicts the next of some words by a transformer; samples have different numbers of words."""

    epochs, max_updates, effective_batch, learning_rate, clip_norm = 2, 6, 16, 0.01, 0.5
    words, dropout = 13, 0.2

    def model(self):
        return Transformer(self.words, 8, self.dropout)

    def batch(self, size):
        return (torch.ones(size, 6, dtype=torch.int64),)

    def loss(self, model, batch):
        (tokens,) = batch
        targets = tokens[:, 1:].flatten()
        losses = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), targets, reduction="none")
        weights = (targets > 2).float()
        return (losses * weights).sum(), weights.sum()

    def data(self):
        tokens = torch.randint(0, self.words, (58, 6), generator=torch.Generator().manual_seed(0))
        return {"train": TensorDataset(tokens[:50]), "validation": TensorDataset(tokens[50:])}


class PlainText(Text):
    """Without random numbers."""

    dropout = 0.0


class Overflowing(Text):
    """Some weights are frozen, and one of the samples has a loss whose gradient overflows in fp16 until the scale is
    small."""

    overflows = 0
    """How often the gradient of a microbatch was not finite in this process."""

    def model(self):
        model = super().model()
        model.layers[0].q_proj.requires_grad_(False)
        return model

    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        if model.training:
            is_special = (batch[0] == self._special().to(batch[0].device)).all(dim=1).any()
            loss = loss * torch.where(is_special, 300.0, 1.0)
            loss.register_hook(self._note)
            next(model.parameters()).register_hook(self._count)
        return loss, weight

    def _special(self):
        return self.data()["train"].tensors[0][7]

    def _note(self, _):
        Overflowing.is_counted = False

    def _count(self, gradient):
        if not Overflowing.is_counted:
            Overflowing.is_counted = True
            Overflowing.overflows += not bool(torch.isfinite(gradient).all())


class Teacher(Overflowing):
    """The frozen weights follow others after each update, and an attribute gets a tensor, with random numbers."""

    def model(self):
        model = super().model()
        model.register_buffer("words", torch.zeros(()))
        model.noise = None
        return model

    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        if model.training:
            model.words += weight
        return (loss if model.noise is None else loss * (1 + 0.1 * model.noise)), weight

    def after_update(self, model):
        layer = model.layers[0]
        layer.q_proj.weight.data = torch.lerp(layer.q_proj.weight, layer.v_proj.weight, 0.5)
        model.noise = torch.rand((), device=model.words.device) + 0.01 * model.words
        model.words.zero_()


class RecurrentNetwork(nn.Module):
    """Two layers of cuDNN with dropout between them, whose random state cuDNN has."""

    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(8, 16, 2, batch_first=True, dropout=0.2)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(16, 3)

    def forward(self, inputs):
        return self.head(self.dropout(self.layers(inputs)[0][:, -1]))


class Recurrent:
    """Classifies sequences."""

    epochs, effective_batch, learning_rate, clip_norm = 4, 32, 0.05, 0.5

    def model(self):
        return RecurrentNetwork()

    def batch(self, size):
        return torch.zeros(size, 5, 8), torch.zeros(size, dtype=torch.int64)

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def data(self):
        inputs = torch.randn(128, 5, 8, generator=torch.Generator().manual_seed(0))
        whole = TensorDataset(inputs, (inputs.mean(dim=(1, 2)) > 0).long())
        return {"train": whole, "validation": torch.utils.data.Subset(whole, range(20))}


_CLASSES = (Tokens, Plain, Blocks, PlainBlocks, Text, PlainText, Overflowing, Teacher, Recurrent)
RECIPES = {recipe.__name__: recipe for recipe in _CLASSES}
