"""timm: a vision transformer with Mixup, CutMix and soft targets, as timm's `train.py` puts them together."""

from typing import Any

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from torch.utils.data import default_collate

CLASSES, IMAGE = 10, 32


class Images:
    """Random images whose brightness is their class."""

    def __len__(self) -> int:
        return 192

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, IMAGE, IMAGE, generator=generator) + index % CLASSES, index % CLASSES


class ViT:
    epochs, effective_batch, clip_norm = 2, 16, 1.0

    def __init__(self) -> None:
        self.mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=CLASSES)

    def model(self) -> Any:
        return timm.create_model(
            "vit_tiny_patch16_224", img_size=IMAGE, patch_size=8, depth=2, num_classes=CLASSES, drop_path_rate=0.1
        )

    def batch(self, size: int) -> Any:
        return torch.zeros(size, 3, IMAGE, IMAGE), torch.zeros(size, CLASSES)

    def data(self) -> Any:
        return {"train": Images(), "validation": Images()}

    def collate(self, samples: Any) -> Any:
        return self.mixup(*default_collate(samples))

    def evaluation_collate(self, samples: Any) -> Any:
        return default_collate(samples)

    def loss(self, model: Any, batch: Any) -> Any:
        return SoftTargetCrossEntropy()(model(batch[0]), batch[1])

    def evaluate(self, model: Any, batches: Any) -> Any:
        correct = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches)
        return {"accuracy": correct / len(Images())}

    best = ("accuracy", "max")

    def optimizer(self, model: Any) -> Any:
        optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=25)
