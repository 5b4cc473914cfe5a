"""Small recipes with each kind of model that can be traced."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Linears:
    """Two linear layers without bias, small enough to count by hand."""

    optimizer_kind: Any = torch.optim.AdamW

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(256, 512, bias=False), nn.Linear(512, 128, bias=False))

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, 256)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).mean()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.optimizer_kind(model.parameters(), lr=0.1)


class LinearsSgd(Linears):
    optimizer_kind = torch.optim.SGD


class LinearsWithTeacher(LinearsSgd):
    """A copy of the weights follows them after each update, as a mean over a temporary tensor."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("teacher", torch.zeros(512, 256))
        return model

    def after_update(self, model: Any) -> None:
        model.teacher.copy_((torch.stack([model.teacher] * 9 + [model[0].weight])).mean(0))


class Mlp:
    """A model with batch normalization and dropout, gradient clipping and data."""

    clip_norm = 1.0

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(size, 20), torch.zeros(size, dtype=torch.long)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def data(self) -> dict[str, list[int]]:
        return {"train": [0] * 70, "test": [0] * 30}


class Convolutions:
    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(10)
        )[:-1].append(nn.Linear(16 * 15 * 15, 10))

    def batch(self, size: int) -> dict[str, Tensor]:
        return {"pixels": torch.zeros(size, 3, 32, 32), "labels": torch.zeros(size, dtype=torch.long)}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch["pixels"]), batch["labels"])


class Attended(nn.Module):
    """A bidirectional LSTM whose outputs are weighted by additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(30, 32, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)
        self.score = nn.Linear(64, 1)
        self.head = nn.Linear(64, 1)

    def forward(self, steps: Tensor) -> Tensor:
        outputs, _ = self.lstm(steps)
        weights = self.score(torch.tanh(outputs)).softmax(1)
        result: Tensor = self.head((weights * outputs).sum(1))
        return result


class Recurrent:
    def model(self) -> nn.Module:
        return Attended()

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(size, 24, 30), torch.zeros(size, 1)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


class Encoder:
    """torch's own transformer layers, which use scaled_dot_product_attention."""

    dropout = 0.1

    def model(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=self.dropout, batch_first=True)
        return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 2))

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(size, 128, 64), torch.zeros(size, dtype=torch.long)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0])[:, 0], batch[1])


class Language(nn.Module):
    """Embedding and output share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.norm = nn.LayerNorm(64)
        self.output = nn.Linear(64, 1000, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.output(self.norm(self.embedding(tokens)))
        return result


class Tied:
    def model(self) -> nn.Module:
        return Language()

    def batch(self, size: int) -> dict[str, Tensor]:
        return {"tokens": torch.zeros(size, 33, dtype=torch.long), "mask": torch.ones(size, 32)}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        scores = model(batch["tokens"][:, :-1]).flatten(0, 1)
        losses = functional.cross_entropy(scores, batch["tokens"][:, 1:].flatten(), reduction="none")
        weights = batch["mask"].flatten()
        return (losses * weights).sum(), weights.sum()


class Deciding(Mlp):
    """Reads values, which fake tensors do not have."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if batch[0].sum().item() > 0:
            return model(batch[0]).sum()
        return model(batch[0]).mean()


class Projected(nn.Module):
    """Recurrent layers of every other kind: projected, gated, plain."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(30, 32, proj_size=16), nn.GRU(16, 8, bidirectional=True), nn.RNN(16, 4)])

    def forward(self, steps: Tensor) -> Tensor:
        for layer in self.layers:
            steps, _ = layer(steps)
        return steps


class OtherRecurrent(Recurrent):
    def model(self) -> nn.Module:
        return Projected()

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0].transpose(0, 1)).mean()


class EncoderWithoutDropout(Encoder):
    dropout = 0.0


class Repeated(Linears):
    """One layer, used twice."""

    def model(self) -> nn.Module:
        return nn.Linear(256, 256, bias=False)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        result: Tensor = model(model(batch)).mean()
        return result


class Biased(nn.Module):
    """Attention with a trained bias of its scores, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, 2, 16, 16))

    def forward(self, values: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(values, values, values, attn_mask=self.bias)


class BiasedAttention(Linears):
    def model(self) -> nn.Module:
        return Biased()

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, 2, 16, 32)


class MovingInPlace:
    """A batch that moves its tensor itself, as those of transformers and PyTorch Geometric do."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def to(self, device: object) -> None:
        self.values = self.values.to(device)


@dataclass(frozen=True)
class Wrapping:
    inputs: tuple[MovingInPlace, str]


class Wrapped(Linears):
    """The same work as `Linears`, with another form of its batch."""

    def batch(self, size: int) -> Any:
        return Wrapping((MovingInPlace(super().batch(size)), "text"))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch.inputs[0].values)


class Staged(Linears):
    """Trains one of two layers in each stage and freezes the other; the second stage makes twice the work."""

    stages = (0, 1)

    def model(self) -> nn.Module:
        return nn.ModuleList([nn.Linear(256, 512, bias=False) for _ in range(2)])

    def stage(self, update: int, updates_per_epoch: int, total_updates: int) -> int:
        return update % 2

    def loss(self, model: Any, batch: Tensor, stage: int) -> Tensor:
        model[1 - stage].requires_grad_(False)
        return sum(model[stage](batch).mean() for _ in range(1 + stage))
