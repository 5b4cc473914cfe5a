"""The guide's GLF-CR: whole batches in fp32, filters as published, Adam's states in its checkpoint.

Without its CUDA operator a filter copies every pixel's square and its kernel next to each other; features lie channel
by channel. The rest is the recipe's own network. Beside the recipe, gradients are clipped, as its loop does. What its
loop does after errors (goes on without the batch) and at the end of an epoch (validates) is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from shoestring.recipe.options import LoadedRecipe
from shoestring.recipes.cloud.attention import Pair
from shoestring.recipes.cloud.network import KERNEL, CloudRemoval, Fusion

CLIP_NORM = 1.0
WORKERS = 4
"""Fewer where there are not as many cores; two batches each are fetched ahead."""


def train(loaded: LoadedRecipe, model: nn.Module, folder: Path, device: torch.device) -> None:
    """Train `model` in place; the checkpoint lies in `folder`."""
    on_gpu, before = device.type == "cuda", torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        loaded.data()["train"],
        batch_size=loaded.effective_batch,
        shuffle=True,
        num_workers=min(WORKERS, os.cpu_count() or 1),
        pin_memory=on_gpu,
        persistent_workers=True,
        prefetch_factor=2,
    )
    recipe = loaded.recipe
    optimizer = recipe.optimizer(model)
    total = loaded.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: recipe.schedule(update, len(loader), total))
    as_published(model)
    model.to(device).train()
    for _ in range(loaded.epochs):
        for batch in loader:
            loss = recipe.loss(model, tuple(each.to(device) for each in batch))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            schedule.step()
            loss.item()  # for the epoch's mean
    states = {"model": model, "optimizer": optimizer, "scheduler": schedule}
    torch.save({name: each.state_dict() for name, each in states.items()}, folder / "checkpoint.pt")
    torch.backends.cudnn.benchmark = before


def as_published(model: nn.Module) -> None:
    """Have the modules of `model` do what they do in the published way."""
    ways: dict[type, Callable[..., Any]] = {CloudRemoval: removed, Fusion: fused}
    for module in model.modules():
        if type(module) in ways:
            module.forward = partial(ways[type(module)], module)


def removed(model: CloudRemoval, cloudy: Tensor, radar: Tensor) -> Tensor:
    first = Pair(*(shallow(model.shrink(image)) for shallow, image in zip(model.shallow, (cloudy, radar), strict=True)))
    images = Pair(*(deeper(image) for deeper, image in zip(model.deeper, first, strict=True)))
    optical = []
    for block, fuse in zip(model.blocks, model.fusions, strict=True):
        images = fuse(block(images))
        optical.append(images.optical)
    return model.enlarge(model.gather(torch.cat(optical, dim=1)) + first.optical) + cloudy


def fused(fusion: Fusion, images: Pair) -> Pair:
    of_optical, of_radar = fusion.gates
    filtered = filtered_by_squares(images.radar, fusion.kernels(torch.cat(images, dim=1)))
    missing = filtered - images.optical
    optical = images.optical + torch.sigmoid(of_optical(missing)) * missing
    unlike = optical - filtered
    return Pair(optical, images.radar + torch.sigmoid(of_radar(unlike)) * unlike)


def filtered_by_squares(features: Tensor, kernels: Tensor) -> Tensor:
    """(n, c, h, w) of `features` (n, c, h, w) and `kernels` (n, c*25, h, w), by copies of (n, h, w, c, 25) of both."""
    count, channels, height, width = features.shape
    padded = nn.functional.pad(features, (KERNEL // 2,) * 4, mode="replicate")
    squares = padded.unfold(2, KERNEL, 1).unfold(3, KERNEL, 1).permute(0, 2, 3, 1, 4, 5).reshape(
        count, height, width, channels, KERNEL**2
    )  # fmt: skip
    beside = kernels.permute(0, 2, 3, 1).reshape(count, height, width, channels, KERNEL**2)
    return (squares * beside).sum(dim=-1).permute(0, 3, 1, 2).contiguous()
