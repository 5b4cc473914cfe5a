"""The guide's forecasters: every sequence a copy of its bars, gathered one by one in two processes; fp16 on a GPU.

Its MLP has the last bars on the device instead and shuffles them there. Loss and accuracy are asked for after each
step. What it keeps are the weights alone, so nothing of it can be resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shoestring.recipe.options import LoadedRecipe

WORKERS = 2


def train(loaded: LoadedRecipe, model: nn.Module, folder: Path, device: torch.device) -> None:
    """Train `model` in place; its weights lie in `folder`."""
    recipe, data = loaded.recipe, loaded.data()["train"]
    # A recipe's samples are views of one table; the guide copies all of them before it begins.
    sequences, labels = (torch.stack(column) for column in zip(*(data[i] for i in range(len(data))), strict=True))
    batches: Iterable[tuple[Tensor, Tensor]]
    if recipe.options.architecture == "mlp":
        # The network sees the last bar alone, and so does the guide's table.
        batches = Shuffled(sequences[:, -1:].contiguous().to(device), labels.to(device), loaded.effective_batch)
    else:
        batches = DataLoader(
            TensorDataset(sequences, labels),
            batch_size=loaded.effective_batch,
            shuffle=True,
            num_workers=WORKERS,
            persistent_workers=True,
            pin_memory=device.type == "cuda",
        )
    model.to(device).train()
    optimizer = recipe.optimizer(model)
    updates = len(data) // loaded.effective_batch
    total = loaded.epochs * updates
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: recipe.schedule(update, updates, total))
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    criterion = nn.CrossEntropyLoss(label_smoothing=recipe.options.label_smoothing)
    torch.backends.cudnn.benchmark = True
    for _ in range(loaded.epochs):
        for inputs, truth in batches:
            inputs, truth = inputs.to(device, non_blocking=True), truth.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16, enabled=scaler.is_enabled()):
                logits = model(inputs)
                loss = criterion(logits, truth)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            loss.item()
            (logits.argmax(dim=1) == truth).sum().item()
    torch.save(model.state_dict(), folder / "model.pth")


class Shuffled:
    """Batches of tables that lie on the device, all of them shuffled there for each epoch."""

    def __init__(self, inputs: Tensor, labels: Tensor, size: int) -> None:
        self._inputs, self._labels, self._size = inputs, labels, size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._labels), device=self._labels.device)
        return zip(self._inputs[order].split(self._size), self._labels[order].split(self._size), strict=True)
