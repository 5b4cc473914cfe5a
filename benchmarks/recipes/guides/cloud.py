"""The guide's GLF-CR: whole batches in fp32, filters as published, and Adam states in the checkpoint.

Without its CUDA operator, a filter copies the neighborhood of every pixel beside its kernel; features are stored
channel by channel. The rest is the network of the recipe. Gradients are clipped, as in the guide's loop. Its error
handling (skipping the batch) and its validation after each epoch are left out.
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
from shoestring_recipes.cloud.attention import Pair
from shoestring_recipes.cloud.network import KERNEL, CloudRemoval, Fusion

CLIP_NORM = 1.0
WORKERS = 4
"""At most the number of CPU cores; each worker prefetches two batches."""


def train(loaded: LoadedRecipe, model: nn.Module, folder: Path, device: torch.device) -> None:
    """Train `model` in place and save the checkpoint in `folder`."""
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
    use_published_forwards(model)
    model.to(device).train()
    for _ in range(loaded.epochs):
        for batch in loader:
            loss = recipe.loss(model, tuple(tensor.to(device) for tensor in batch))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            schedule.step()
            loss.item()  # for the mean of the epoch
    states = {"model": model, "optimizer": optimizer, "scheduler": schedule}
    torch.save({name: part.state_dict() for name, part in states.items()}, folder / "checkpoint.pt")
    torch.backends.cudnn.benchmark = before


def use_published_forwards(model: nn.Module) -> None:
    """Replace forwards of the modules of `model` with the published implementation."""
    forwards: dict[type, Callable[..., Any]] = {CloudRemoval: removal_forward, Fusion: fusion_forward}
    for module in model.modules():
        if type(module) in forwards:
            module.forward = partial(forwards[type(module)], module)


def removal_forward(model: CloudRemoval, cloudy: Tensor, radar: Tensor) -> Tensor:
    first = Pair(*(shallow(model.shrink(image)) for shallow, image in zip(model.shallow, (cloudy, radar), strict=True)))
    images = Pair(*(deeper(image) for deeper, image in zip(model.deeper, first, strict=True)))
    optical = []
    for block, fuse in zip(model.blocks, model.fusions, strict=True):
        images = fuse(block(images))
        optical.append(images.optical)
    return model.enlarge(model.gather(torch.cat(optical, dim=1)) + first.optical) + cloudy


def fusion_forward(fusion: Fusion, images: Pair) -> Pair:
    optical_gate, radar_gate = fusion.gates
    filtered = filter_neighborhoods(images.radar, fusion.kernels(torch.cat(images, dim=1)))
    missing = filtered - images.optical
    optical = images.optical + torch.sigmoid(optical_gate(missing)) * missing
    difference = optical - filtered
    return Pair(optical, images.radar + torch.sigmoid(radar_gate(difference)) * difference)


def filter_neighborhoods(features: Tensor, kernels: Tensor) -> Tensor:
    """Filter `features` (n, c, h, w) with `kernels` (n, c*25, h, w) through copies of both as (n, h, w, c, 25)."""
    count, channels, height, width = features.shape
    padded = nn.functional.pad(features, (KERNEL // 2,) * 4, mode="replicate")
    neighborhoods = padded.unfold(2, KERNEL, 1).unfold(3, KERNEL, 1).permute(0, 2, 3, 1, 4, 5).reshape(
        count, height, width, channels, KERNEL**2
    )  # fmt: skip
    aligned_kernels = kernels.permute(0, 2, 3, 1).reshape(count, height, width, channels, KERNEL**2)
    return (neighborhoods * aligned_kernels).sum(dim=-1).permute(0, 3, 1, 2).contiguous()
