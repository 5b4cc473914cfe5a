"""Recipes of 96 updates that log the samples of every microbatch and fail where the environment says so.

    shoestring train tests/crash/logging_recipe.py:Exact --run DIR

They run in processes of their own, which the state machine of `tests.crash.machine` starts and disturbs. SOAK_LOG is
the file of the log, SOAK_PACE the seconds of an update, and SOAK_FAULTS an object of JSON:
`{"memory": {"error": NAME, "update": N, "above": SIZE or null}, "slow": {"update": N, "seconds": S}}`; updates are
counted from 0 in each session.
"""

import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import Dataset

EPOCHS, UPDATES_PER_EPOCH, EFFECTIVE_BATCH = 8, 12, 8
UPDATES = EPOCHS * UPDATES_PER_EPOCH

# The updates of a probe, in a process of its own, are not of the run.
_SPEC = getattr(sys.modules["__main__"], "__spec__", None)
_VARIABLES = {} if _SPEC and _SPEC.name == "shoestring.runs.check.probe.child" else os.environ
_LOG = os.open(_VARIABLES["SOAK_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "SOAK_LOG" in _VARIABLES else None
_PACE = float(_VARIABLES.get("SOAK_PACE", "0"))
_FAULTS = json.loads(_VARIABLES.get("SOAK_FAULTS", "{}"))
_ERRORS = {"torch.OutOfMemoryError": torch.OutOfMemoryError, "MemoryError": MemoryError}
_logged_samples = 0


def log(text: str) -> None:
    if _LOG is not None:
        os.write(_LOG, f"{text}\n".encode())


def log_samples(numbers: torch.Tensor) -> None:
    """Log a microbatch of training, and cause the faults that are due in its update."""
    global _logged_samples
    if type(numbers) is not torch.Tensor or not torch.is_grad_enabled():  # a trace, or an evaluation
        return
    update = _logged_samples // EFFECTIVE_BATCH
    log(f"samples {','.join(map(str, numbers.tolist()))}")
    _logged_samples += len(numbers)
    time.sleep(_PACE * len(numbers) / EFFECTIVE_BATCH)
    if "slow" in _FAULTS and update >= _FAULTS["slow"]["update"]:
        time.sleep(_FAULTS.pop("slow")["seconds"])
    _cause_memory_error(update, len(numbers))


def _cause_memory_error(update: int, size: int) -> None:
    fault = _FAULTS.get("memory")
    if fault and update >= fault["update"] and size > (fault["above"] or 0):
        if fault["above"] is None:
            _FAULTS.pop("memory")
        log("memory")
        raise _ERRORS[fault["error"]]("out of memory. Tried to allocate 2.00 GiB")


class Numbered(Dataset):
    """Samples with their numbers. Inputs are multiples of 1/8, so that products and sums below have no rounding."""

    def __init__(self, first: int, count: int) -> None:
        inputs = torch.randint(-8, 9, (first + count, 4), generator=torch.Generator().manual_seed(0)) / 8
        self._inputs = inputs[first:]
        self._targets = (self._inputs * torch.tensor([1.0, -2.0, 0.5, 1.5])).sum(dim=1)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self._inputs[number], self._targets[number], number


class CountingModel(nn.Module):
    """A linear model with a buffer that counts its training samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("samples", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.samples += len(inputs)
        # Without a matrix product, whose rounding depends on the number of samples.
        return sum(inputs[:, column] * self.weight[column] for column in range(4))


class Exact:
    """A recipe whose bits do not depend on how an update is split into microbatches, since its sums are exact."""

    epochs = EPOCHS
    effective_batch = EFFECTIVE_BATCH
    learning_rate = 0.02

    def model(self):
        return CountingModel()

    def batch(self, size):
        return torch.zeros(size, 4), torch.zeros(size), torch.zeros(size, dtype=torch.long)

    def loss(self, model, batch):
        inputs, targets, numbers = batch
        log_samples(numbers)
        answers = model(inputs)
        residuals = ((answers.detach() - targets) * 64).round().clamp(-512, 512) / 64
        return (residuals * (answers if torch.is_grad_enabled() else residuals)).sum(), len(numbers)

    def data(self):
        log("data")
        return {
            "train": Numbered(0, UPDATES_PER_EPOCH * EFFECTIVE_BATCH),
            "validation": Numbered(1000, 32),
            "test": Numbered(2000, 32),
        }


class Noisy(Exact):
    """A recipe whose bits depend on random numbers, on the statistics of microbatches and on the kernels of the CPU."""

    def model(self):
        # Wide enough that other vector instructions add in another order.
        return nn.Sequential(
            nn.Linear(4, 48), nn.BatchNorm1d(48), nn.GELU(), nn.Dropout(0.3), nn.Linear(48, 48), nn.LayerNorm(48),
            nn.Sigmoid(), nn.Linear(48, 1),
        )  # fmt: skip

    def loss(self, model, batch):
        inputs, targets, numbers = batch
        log_samples(numbers)
        return nn.functional.mse_loss(model(inputs).squeeze(1), targets)
