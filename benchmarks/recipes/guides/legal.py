"""The guide's sentence classifier: padding to 512 tokens, one microbatch of 16 per update, fp32.

Its checkpoint contains the weights and the AdamW states, as the guide's code writes them regardless of its settings.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from shoestring.recipe.options import LoadedRecipe

LENGTH = 512


def train(loaded: LoadedRecipe, model: nn.Module, folder: Path, device: torch.device) -> None:
    """Train `model` in place and save the checkpoint in `folder`."""
    recipe = loaded.recipe

    def collate(samples: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        rows = [
            tuple(pad(tensor, (0, LENGTH - len(tensor))) for tensor in (tokens, mask)) for tokens, mask, _ in samples
        ]
        tokens, mask = (torch.stack(column) for column in zip(*rows, strict=True))
        return tokens, mask, torch.stack([role for *_, role in samples])

    loader = DataLoader(loaded.data()["train"], batch_size=loaded.effective_batch, shuffle=True, collate_fn=collate)
    optimizer = recipe.optimizer(model)
    total = loaded.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: recipe.schedule(update, len(loader), total))
    model.to(device).train()
    for _ in range(loaded.epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = recipe.loss(model, tuple(tensor.to(device) for tensor in batch))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
            optimizer.step()
            schedule.step()
            loss.item()  # for its progress bar
    states = {"model": model, "optimizer": optimizer, "scheduler": schedule}
    torch.save({name: part.state_dict() for name, part in states.items()}, folder / "checkpoint.pt")
