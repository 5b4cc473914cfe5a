"""Three small networks over the same features; each maps (n, seq_len, 29) to logits of the three classes (n, 3)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class AttentiveLSTM(nn.Module):
    """A bidirectional LSTM with additive attention (Bahdanau et al., 2015) over its outputs in time."""

    def __init__(self, features: int, classes: int, *, hidden: int, head: int, layers: int = 2, dropout: float) -> None:
        super().__init__()
        width = 2 * hidden
        self.norm = nn.LayerNorm(features)
        # A multi-layer nn.LSTM would prevent CUDA graphs: on a GPU its dropout has a separate random state, which torch
        # reinitializes after each seed while synchronizing with the GPU (aten/native/cudnn/RNN.cpp).
        self.layers = nn.ModuleList(
            nn.LSTM(inputs, hidden, batch_first=True, bidirectional=True)
            for inputs in (features, *[width] * (layers - 1))
        )
        self.dropout = nn.Dropout(dropout)
        self.lstm_norm = nn.LayerNorm(width)
        self.score = nn.Sequential(nn.Linear(width, head), nn.Tanh(), nn.Linear(head, 1))
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, head), nn.ReLU(), nn.LayerNorm(head), nn.Linear(head, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.norm(x)
        for number, layer in enumerate(self.layers):
            states = layer(self.dropout(states) if number else states)[0]
        states = self.lstm_norm(states)
        weights = self.score(states).softmax(dim=1)
        logits: Tensor = self.head((weights * states).sum(dim=1))
        return logits


class TemporalTransformer(nn.Module):
    """A pre-norm Transformer encoder with sinusoidal positions (Vaswani et al., 2017), averaged over time."""

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        seq_len: int,
        width: int,
        heads: int,
        feedforward: int,
        head: int,
        layers: int = 3,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(features, width), nn.LayerNorm(width))
        self.register_buffer("positions", sinusoids(seq_len, width), persistent=False)
        self.encoder = nn.Sequential(
            # nn.TransformerEncoder copies one layer, so all of its layers would start with the same weights.
            *(
                nn.TransformerEncoderLayer(
                    width, heads, feedforward, dropout, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(layers)
            ),
            nn.LayerNorm(width),
        )
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, head), nn.GELU(), nn.LayerNorm(head), nn.Linear(head, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.embed(x) + self.positions).mean(dim=1))
        return logits


class GatedMLP(nn.Module):
    """An MLP with batch normalization over the last bar alone, whose output is multiplied by a learned gate."""

    def __init__(self, features: int, classes: int, *, widths: Sequence[int], dropout: float) -> None:
        super().__init__()
        pairs = zip((features, *widths), widths, strict=False)
        self.norm = nn.BatchNorm1d(features)
        self.layers = nn.Sequential(*(_dense_layer(inputs, outputs, dropout) for inputs, outputs in pairs))
        last = widths[-1]
        self.gate = nn.Sequential(nn.Linear(last, last // 2), nn.ReLU(), nn.Linear(last // 2, last), nn.Sigmoid())
        self.head = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers(self.norm(x[:, -1]))
        logits: Tensor = self.head(hidden * self.gate(hidden))
        return logits


def sinusoids(length: int, width: int) -> Tensor:
    """Return (length, width): sines in the even columns and cosines in the odd ones, from fast to slow."""
    log_frequencies = torch.arange(0, width, 2) * (-math.log(10_000.0) / width)
    angles = torch.arange(length)[:, None] * log_frequencies.exp()
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def _dense_layer(inputs: int, outputs: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(dropout))
