"""Recipes that ask for memory at as many places as possible, and remember which samples they were given."""

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

EFFECTIVE = 8
UPDATES = 2
WIDTH = 8


class Small:
    """BatchNorm, dropout, clipping, a schedule and averages: their bits change with an additional forward."""

    epochs = 1
    effective_batch = EFFECTIVE
    clip_norm = 0.1
    loss_factor = 1.0
    """Scales the loss."""
    block_count = 1

    def __init__(self, stop_after: int | None = None) -> None:
        """The session stops after so many updates."""
        self.stop_after = stop_after
        self.samples: list[list[int]] = []
        """The numbers of the samples of each training microbatch."""

    def schedule(self, update: int, updates_per_epoch: int, total_updates: int) -> float:
        if update + 1 == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
        return 1 / (1 + update)

    def model(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, WIDTH), *(self.block() for _ in range(self.block_count)), nn.Linear(WIDTH, 1))

    def block(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=0.3), nn.Dropout(0.4))

    def blocks(self, model: Any) -> list[nn.Module]:
        return list(model[1:-1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def batch(self, size: int) -> tuple[Tensor, ...]:
        return torch.zeros(size, 3), torch.zeros(size, 1), torch.zeros(size, dtype=torch.int64)

    def loss(self, model: Any, batch: Any) -> Any:
        inputs, targets, numbers = batch
        self.remember(model, numbers)
        return nn.functional.mse_loss(model(inputs), targets) * self.loss_factor

    def predict(self, model: Any, batch: Any) -> Any:
        return model(batch[0])[:, 0].tolist()

    def remember(self, model: nn.Module, numbers: Tensor) -> None:
        """Remember the samples of a microbatch that is trained on; those of a CUDA graph cannot be read."""
        if model.training and numbers.is_cuda and not torch.cuda.is_current_stream_capturing():
            self.samples.append(numbers.tolist())

    def data(self) -> dict[str, TensorDataset]:
        generator = torch.Generator().manual_seed(0)
        train, held_out = UPDATES * self.effective_batch, 6
        inputs = torch.randn(train + held_out, 3, generator=generator)
        data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True), torch.arange(len(inputs)))
        parts = {"train": range(train), "validation": range(train, train + 4), "test": range(train + 4, len(inputs))}
        return {name: TensorDataset(*data[part.start : part.stop]) for name, part in parts.items()}


class Scaled(Small):
    """A loss whose gradients overflow in fp16 until its scale was halved a few times."""

    loss_factor = 0.1


class Taught(nn.Module):
    """A student, its teacher, whose answers the loss sums up, and a centre that the first update creates."""

    def __init__(self, student: nn.Module, teacher: nn.Module) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher.requires_grad_(requires_grad=False)
        self.register_buffer("sum", torch.zeros(1))
        self.centre: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.student(inputs)
        return answers


class Following(Scaled):
    """After each update the teacher takes half a step towards the student, and the centre is made anew."""

    def model(self) -> Any:
        return Taught(super().model(), super().model())

    def blocks(self, model: Any) -> list[nn.Module]:
        return super().blocks(model.student)

    def loss(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            answers = model.teacher(batch[0]).float()
            if model.training:
                model.sum += answers.sum(0)
        inputs, targets, numbers = batch
        centred = answers if model.centre is None else answers - model.centre
        return super().loss(model, (inputs, targets + 0.1 * centred, numbers))

    def after_update(self, model: Any) -> None:
        for follower, leader in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            follower.data.add_(0.5 * (leader - follower))  # without a trace that torch counts
        model.centre = 0.01 * model.sum + 0.1 * torch.rand(1).to(model.sum.device)
        model.sum.zero_()


class Adapted(Small):
    """Frozen blocks with trained adapters, whose weights can be streamed."""

    block_count = 6

    def block(self) -> nn.Module:
        return Adapter()


class Adapter(nn.Module):
    """A frozen layer and a small one beside it that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.adapter, self.dropout = nn.Linear(WIDTH, WIDTH, bias=False), nn.Dropout(0.4)

    def forward(self, values: Tensor) -> Tensor:
        return values + torch.tanh(self.frozen(values)) + self.adapter(self.dropout(values))


class Whole(Small):
    """A loss that compares all samples of an update."""

    whole_batch = True


class Weighted(Small):
    """Layers without BatchNorm, a loss as a sum and a weight on the device, and an evaluation of batches."""

    effective_batch = 4

    def block(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh())

    def loss(self, model: Any, batch: Any) -> Any:
        inputs, targets, numbers = batch
        self.remember(model, numbers)
        weights = (inputs[:, :1] > -1).float()
        return ((model(inputs) - targets).square() * weights).sum(), weights.sum()

    def evaluate_batch(self, model: Any, batch: Any) -> Any:
        return model(batch[0]) - batch[1], batch[2]

    def combine(self, results: Any) -> dict[str, Any]:
        errors = torch.cat([error for error, _ in results])
        return {"loss": float(errors.square().mean()), "samples": len(errors)}


class Wide(Small):
    """Activations of more than 10 MiB, which have segments of their own in PyTorch's allocator."""

    def block(self) -> nn.Module:
        return Elementwise()


class Elementwise(nn.Module):
    """A layer with much memory for its arithmetic: 3 MiB for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.dropout = nn.Dropout(0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        wide = inputs.mean(dim=1, keepdim=True).expand(-1, 3 << 18) * self.weight
        dropped: Tensor = self.dropout(wide)
        return inputs + dropped.mean(dim=1, keepdim=True)


class Captured(Wide):
    """One whose samples cannot be read while a CUDA graph of its microbatches is replayed."""

    def remember(self, model: nn.Module, numbers: Tensor) -> None:
        pass


class Generating(Weighted):
    """A recurrent model that predicts number after number, each from a cache of all before."""

    def model(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))

    def blocks(self, model: Any) -> list[nn.Module]:
        return []

    def loss(self, model: Any, batch: Any) -> Any:
        inputs, targets, numbers = batch
        self.remember(model, numbers)
        return nn.functional.mse_loss(self._generate(model, inputs, 2)[:, -1:], targets)

    def predict(self, model: Any, batch: Any) -> Any:
        return self._generate(model, batch[0], 6).tolist()

    def _generate(self, model: Any, inputs: Tensor, steps: int) -> Tensor:
        first, key, last = model
        hidden, cache, numbers = first(inputs), None, []
        for _ in range(steps):
            keys = key(hidden)[:, None]
            cache = keys if cache is None else torch.cat([cache, keys], dim=1)
            weights = (cache * hidden[:, None]).sum(dim=2).softmax(dim=1)
            hidden = hidden + (weights[:, :, None] * cache).sum(dim=1)
            numbers.append(last(hidden))
        return torch.cat(numbers, dim=1)
