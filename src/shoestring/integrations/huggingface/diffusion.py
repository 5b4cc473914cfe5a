"""Models of diffusers, whose configurations name a class in `_class_name`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface.library_errors import OWN_RECIPE

TEXT_TOKENS = 77
"""The length of CLIP's texts, by which images are generated."""


@dataclass(frozen=True)
class Configuration:
    """The values of a configuration of diffusers."""

    class_name: str
    values: dict[str, Any]


def build_model(config: Configuration) -> nn.Module:
    """Build the model with random weights. Raises UsageError if diffusers is not installed or lacks the class."""
    if find_spec("diffusers") is None:
        raise UsageError(
            f"{config.class_name} is a model of diffusers, which is not installed",
            hint="pip install diffusers, then start again",
        )
    diffusers: Any = import_module("diffusers")
    model_class: Any = getattr(diffusers, config.class_name, None)
    is_model = isinstance(model_class, type) and issubclass(model_class, nn.Module)
    if not is_model:
        raise UsageError(
            f"diffusers {diffusers.__version__} has no model {config.class_name}",
            hint="give the config.json of one model, such as unet/config.json, not that of a pipeline",
        )
    model: nn.Module = model_class.from_config(config.values).float()
    return model


def build_batch(config: Configuration, size: int) -> dict[str, Tensor]:
    """Return noisy samples, their times, the noise to predict and, with attention to a text, its embedding."""
    side = config.values.get("sample_size")
    channels = config.values.get("in_channels")
    if "UNet2D" not in config.class_name or side is None or not isinstance(channels, int):
        raise UsageError(
            f"hf: does not know the inputs of {config.class_name}; of diffusers it knows UNet2DModel and"
            " UNet2DConditionModel with sample_size and in_channels",
            hint=OWN_RECIPE,
        )
    height, width = (side, side) if isinstance(side, int) else side
    outputs = config.values.get("out_channels", channels)
    batch = {
        "sample": torch.zeros(size, channels, height, width),
        "timestep": torch.zeros(size, dtype=torch.long),
        "noise": torch.zeros(size, outputs, height, width),
    }
    if "Condition" in config.class_name:
        text_width = config.values.get("cross_attention_dim") or 1280
        text_width = text_width if isinstance(text_width, int) else text_width[0]
        batch["encoder_hidden_states"] = torch.zeros(size, TEXT_TOKENS, text_width)
    return batch


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean squared error of the predicted noise."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "noise"}
    predicted: Tensor = model(**inputs).sample
    return nn.functional.mse_loss(predicted.float(), batch["noise"])


def notes(config: Configuration) -> list[str]:
    """Return what the samples are."""
    side = config.values.get("sample_size")
    text = f", attending to {TEXT_TOKENS} tokens of text" if "Condition" in config.class_name else ""
    return [
        f"samples of {side} x {side}{text}, already encoded: the autoencoder and the text encoder are not part of"
        " this estimate"
    ]
