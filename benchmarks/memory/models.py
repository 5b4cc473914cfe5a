"""Small models of public timings and measurements, reimplemented from their descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


class WordLSTM(nn.Module):
    """The language model of PyTorch's examples (`word_language_model`) with its default sizes, on WikiText-2."""

    VOCABULARY = 33_278

    def __init__(self, *, width: int = 200, layers: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(self.VOCABULARY, width)
        self.rnn = nn.LSTM(width, width, layers, dropout=dropout)
        self.decoder = nn.Linear(width, self.VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of tokens and targets, both (time, samples)."""
        output, _ = self.rnn(self.drop(self.encoder(tokens)))
        logits = self.decoder(self.drop(output)).view(-1, self.VOCABULARY)
        return functional.nll_loss(functional.log_softmax(logits, dim=1), targets.flatten())


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, values: Tensor) -> Tensor:
        inner = functional.relu(self.bn1(self.conv1(values)))
        return functional.relu(self.bn2(self.conv2(inner)) + self.shortcut(values))


class CifarResNet18(nn.Module):
    """ResNet-18 for images of 32x32: a 3x3 stem and no pooling before the blocks."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layers = nn.Sequential(
            *(_Residual(64, 64, 1), _Residual(64, 64, 1), _Residual(64, 128, 2), _Residual(128, 128, 1)),
            *(_Residual(128, 256, 2), _Residual(256, 256, 1), _Residual(256, 512, 2), _Residual(512, 512, 1)),
        )
        self.linear = nn.Linear(512, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of images (samples, 3, 32, 32) and labels (samples,)."""
        values = self.layers(functional.relu(self.bn1(self.conv1(images))))
        return functional.cross_entropy(self.linear(functional.avg_pool2d(values, 4).flatten(1)), labels)


@dataclass(frozen=True)
class GPTShape:
    """Layers, heads, width and maximum sequence length of a GPT."""

    layers: int
    heads: int
    width: int
    positions: int = 512
    vocabulary: int = 256


class _Block(nn.Module):
    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.ln1 = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.ln2 = nn.LayerNorm(shape.width)
        self.fc = nn.Linear(shape.width, 4 * shape.width)
        self.out = nn.Linear(4 * shape.width, shape.width)

    def forward(self, values: Tensor) -> Tensor:
        parts = self.qkv(self.ln1(values)).split(values.shape[-1], dim=2)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.proj(attended.transpose(1, 2).reshape(values.shape))
        return values + self.out(functional.gelu(self.fc(self.ln2(values))))


class GPT(nn.Module):
    """A decoder on bytes in plain PyTorch; its output layer is not tied to the embedding."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.tok = nn.Embedding(shape.vocabulary, shape.width)
        self.pos = nn.Embedding(shape.positions, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.ln = nn.LayerNorm(shape.width)
        self.lm = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of tokens and targets, both (samples, positions)."""
        values = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            values = block(values)
        logits = self.lm(self.ln(values))
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
