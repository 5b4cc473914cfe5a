"""The guide's classifier of sentences: every one padded to 512 tokens, one microbatch of 16 an update, in fp32.

Its checkpoint has the weights and AdamW's states, as its code writes them whatever its settings say.
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
    """Train `model` in place; the checkpoint lies in `folder`."""
    recipe = loaded.recipe

    def padded(samples: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        rows = [tuple(pad(each, (0, LENGTH - len(each))) for each in (tokens, mask)) for tokens, mask, _ in samples]
        tokens, mask = (torch.stack(column) for column in zip(*rows, strict=True))
        return tokens, mask, torch.stack([role for *_, role in samples])

    loader = DataLoader(loaded.data()["train"], batch_size=loaded.effective_batch, shuffle=True, collate_fn=padded)
    optimizer = recipe.optimizer(model)
    total = loaded.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: recipe.schedule(update, len(loader), total))
    model.to(device).train()
    for _ in range(loaded.epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = recipe.loss(model, tuple(each.to(device) for each in batch))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
            optimizer.step()
            schedule.step()
            loss.item()  # for its progress bar
    states = {"model": model, "optimizer": optimizer, "scheduler": schedule}
    torch.save({name: each.state_dict() for name, each in states.items()}, folder / "checkpoint.pt")
