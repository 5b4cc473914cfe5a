"""The guide's student: full forwards for each of the three texts, with questions and texts padded to their maximum.

Microbatches of 3 are accumulated to 9, the decoder layers are recomputed in backward, two processes fetch data, and
every image is opened and resized each time; fp16 with a scaler on a GPU, fp32 elsewhere. BLIP has no fused attention in
transformers. Only the weights are saved, so that a run continues without AdamW states.

Left out, because they change the training result: padding within the loss and higher weights of format tokens.
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
CLEAN_UP_INTERVAL = 50
"""In microbatches."""


def train(loaded: LoadedRecipe, model: nn.Module, folder: Path, device: torch.device) -> None:
    """Train `model` in place and save its weights in `folder`."""
    recipe, data = loaded.replace(forwards="guide").recipe, loaded.data()["train"]
    accumulation_steps = loaded.effective_batch // MICRO_BATCH
    longest_batch = recipe.batch(1)
    fills = {
        "questions": model.text.config.pad_token_id, "mask": 0, "whole": -100, "answer": -100, "reasoning": -100
    }  # fmt: skip

    def collate(samples: list[tuple[object, ...]]) -> Any:
        batch = recipe.collate(samples)
        return batch._replace(**{name: pad_field(batch, longest_batch, name, fill) for name, fill in fills.items()})

    loader = DataLoader(
        data,
        batch_size=MICRO_BATCH,
        shuffle=True,
        collate_fn=collate,
        num_workers=WORKERS,
        prefetch_factor=2,
        persistent_workers=True,
    )
    for layer in model.vision.encoder.layers:
        layer.self_attn = unfused_attention(model.vision.config, layer.self_attn)
    model.writer.activation_checkpointing_enable()
    model.to(device).train()
    optimizer = recipe.optimizer(model)
    updates = len(loader) // accumulation_steps
    total = loaded.epochs * updates
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: recipe.schedule(update, updates, total))
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    torch.backends.cudnn.benchmark = True
    for epoch in range(loaded.epochs):
        free_memory()
        stage = recipe.stage(epoch * updates, updates, total)
        for step, batch in enumerate(loader, start=1):
            batch = batch._replace(
                **{name: value.to(device) for name, value in batch._asdict().items() if isinstance(value, torch.Tensor)}
            )
            with torch.autocast(device.type, torch.float16, enabled=scaler.is_enabled()):
                loss = recipe.loss(model, batch, stage) / accumulation_steps
            scaler.scale(loss).backward()
            if step % accumulation_steps == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                optimizer.zero_grad()
            loss.item()  # for its progress bar
            if step % CLEAN_UP_INTERVAL == 0:
                free_memory()
    torch.save(model.state_dict(), folder / "model.pt")


def unfused_attention(configuration: Any, fused: nn.Module) -> nn.Module:
    """Return the attention of transformers with the weights of the recipe's fused attention."""
    attention = BlipAttention(configuration)
    attention.qkv, attention.projection = fused.qkv, fused.projection
    return attention


def pad_field(batch: Any, longest_batch: Any, name: str, fill: int) -> torch.Tensor:
    """Pad a field of the batch to its maximum length."""
    field: torch.Tensor = getattr(batch, name)
    return pad(field, (0, getattr(longest_batch, name).shape[1] - field.shape[1]), value=fill)


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
