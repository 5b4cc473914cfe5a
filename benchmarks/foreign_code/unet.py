"""diffusers: a UNet that learns to remove noise, as in the example `unconditional_image_generation`."""

from typing import Any

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.nn.functional import mse_loss

IMAGE = 16


class Images:
    """Random smooth images."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 1, 1, generator=generator).expand(3, IMAGE, IMAGE) * 2 - 1


class UNet:
    epochs, effective_batch, clip_norm = 2, 8, 1.0

    def model(self) -> Any:
        return UNet2DModel(
            sample_size=IMAGE,
            layers_per_block=1,
            block_out_channels=(32, 32),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=8,
        )

    def batch(self, size: int) -> Any:
        return torch.zeros(size, 3, IMAGE, IMAGE)

    def data(self) -> Any:
        return {"train": Images()}

    def loss(self, model: Any, batch: Any) -> Any:
        noise = torch.randn_like(batch)
        scheduler = DDPMScheduler(num_train_timesteps=1000)
        timesteps = torch.randint(0, 1000, (len(batch),), device=batch.device)
        return mse_loss(model(scheduler.add_noise(batch, noise, timesteps), timesteps).sample, noise)

    def optimizer(self, model: Any) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)
        return optimizer, get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=4, num_training_steps=24)
