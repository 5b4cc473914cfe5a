"""The guide's forecasters: every sequence copies its bars, two processes fetch the samples, fp16 on a GPU.

The MLP keeps the last bars on the device instead and shuffles them there. Loss and accuracy are read after each step.
Only the weights are saved, so that a run cannot be resumed.
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
    """Train `model` in place and save its weights in `folder`."""
    recipe, data = loaded.recipe, loaded.data()["train"]
    # The samples of the recipe are views of one table; the guide copies all of them before training.
    sequences, labels = (torch.stack(column) for column in zip(*(data[i] for i in range(len(data))), strict=True))
    batches: Iterable[tuple[Tensor, Tensor]]
    if recipe.options.architecture == "mlp":
        # The network uses only the last bar, so the guide's table contains only that.
        batches = ShuffledBatches(sequences[:, -1:].contiguous().to(device), labels.to(device), loaded.effective_batch)
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


class ShuffledBatches:
    """Batches of tables that are stored on the device and shuffled there for each epoch."""

    def __init__(self, inputs: Tensor, labels: Tensor, size: int) -> None:
        self._inputs, self._labels, self._size = inputs, labels, size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._labels), device=self._labels.device)
        return zip(self._inputs[order].split(self._size), self._labels[order].split(self._size), strict=True)
