"""The guide's student: whole forwards for each of the three texts, questions and texts as long as they may be.

Microbatches of 3 are accumulated to 9, the writer's layers are computed again in backward, two processes fetch, every
image is opened and resized each time; fp16 with a scaler on a GPU, fp32 elsewhere. BLIP has no fused attention in
transformers. It keeps the weights alone: its run is continued without AdamW's states.

Left out, because they change what is learnt: padding within the loss, heavier tokens of the format.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from torch.utils.data import DataLoader
from transformers.models.blip.modeling_blip import BlipAttention

from shoestring.recipe.options import LoadedRecipe

MICRO_BATCH = 3
WORKERS = 2
CLEANED_AFTER = 50
"""Microbatches."""


def train(loaded: LoadedRecipe, model: nn.Module, folder: Path, device: torch.device) -> None:
    """Train `model` in place; its weights lie in `folder`."""
    recipe, data = loaded.replace(forwards="guide").recipe, loaded.data()["train"]
    accumulated = loaded.effective_batch // MICRO_BATCH
    longest = recipe.batch(1)
    fills = {
        "questions": model.text.config.pad_token_id, "mask": 0, "whole": -100, "answer": -100, "reasoning": -100
    }  # fmt: skip

    def padded(samples: list[tuple[object, ...]]) -> Any:
        batch = recipe.collate(samples)
        return batch._replace(**{name: widened(batch, longest, name, fill) for name, fill in fills.items()})

    loader = DataLoader(
        data,
        batch_size=MICRO_BATCH,
        shuffle=True,
        collate_fn=padded,
        num_workers=WORKERS,
        prefetch_factor=2,
        persistent_workers=True,
    )
    for layer in model.vision.encoder.layers:
        layer.self_attn = whole_attention(model.vision.config, layer.self_attn)
    model.writer.activation_checkpointing_enable()
    model.to(device).train()
    optimizer = recipe.optimizer(model)
    updates = len(loader) // accumulated
    total = loaded.epochs * updates
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: recipe.schedule(update, updates, total))
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    torch.backends.cudnn.benchmark = True
    for epoch in range(loaded.epochs):
        cleaned()
        stage = recipe.stage(epoch * updates, updates, total)
        for step, batch in enumerate(loader, start=1):
            batch = batch._replace(
                **{n: each.to(device) for n, each in batch._asdict().items() if isinstance(each, torch.Tensor)}
            )
            with torch.autocast(device.type, torch.float16, enabled=scaler.is_enabled()):
                loss = recipe.loss(model, batch, stage) / accumulated
            scaler.scale(loss).backward()
            if step % accumulated == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                optimizer.zero_grad()
            loss.item()  # for its progress bar
            if step % CLEANED_AFTER == 0:
                cleaned()
    torch.save(model.state_dict(), folder / "model.pt")


def whole_attention(configuration: Any, fused: nn.Module) -> nn.Module:
    """transformers' own with the weights of ours."""
    found = BlipAttention(configuration)
    found.qkv, found.projection = fused.qkv, fused.projection
    return found


def widened(batch: Any, longest: Any, name: str, fill: int) -> torch.Tensor:
    """A field as wide as it may be."""
    field: torch.Tensor = getattr(batch, name)
    return pad(field, (0, getattr(longest, name).shape[1] - field.shape[1]), value=fill)


def cleaned() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
