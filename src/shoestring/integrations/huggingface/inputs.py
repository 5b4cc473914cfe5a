"""The inputs of a model, by the name that transformers gives its main input: tokens, images, waveforms, spectra."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface.lengths import text_length
from shoestring.integrations.huggingface.library_errors import OWN_RECIPE

if TYPE_CHECKING:
    from shoestring.integrations.huggingface import Options

SAMPLING_RATE = 16_000
"""Samples of a waveform in a second: that of wav2vec2 and of all models like it."""

_FRAMES_PER_SECOND = 100
"""Of a spectrum, in the feature extractors of transformers."""


def build_inputs(model_class: Any, config: Any, size: int, options: Options) -> dict[str, Any]:
    """Return the inputs of `size` samples. Raises UsageError for an unknown kind of input."""
    main_input = getattr(model_class, "main_input_name", "input_ids")
    make_inputs = _INPUTS.get(main_input)
    if make_inputs is None:
        raise UsageError(
            f"{model_class.__name__} takes {main_input}, an input whose shape hf: does not know", hint=OWN_RECIPE
        )
    return make_inputs(config, size, options)


def make_tokens(config: Any, size: int, options: Options) -> dict[str, Any]:
    """Return (size, tokens) int64."""
    length, _ = text_length(config, options.seq_len)
    return {"input_ids": torch.zeros(size, length, dtype=torch.long)}


def make_images(config: Any, size: int, options: Options) -> dict[str, Any]:
    """Return (size, channels, height, width) float32 with the configuration's image size, by default 224 pixels; of
    models that take an image as a sequence of patches (size, patches, values), a mask and their numbers of patches.
    """
    height, width = image_sides(config, options)
    vision = getattr(config, "vision_config", config)
    channels = getattr(vision, "num_channels", 3)
    if takes_patches(config):
        rows, columns = height // vision.patch_size, width // vision.patch_size
        return {
            "pixel_values": torch.zeros(size, rows * columns, channels * vision.patch_size**2),
            "pixel_attention_mask": torch.ones(size, rows * columns, dtype=torch.long),
            "spatial_shapes": np.full((size, 2), (rows, columns)),  # its numbers are read, so it stays on the host
        }
    return {"pixel_values": torch.zeros(size, channels, height, width)}


def image_sides(config: Any, options: Options) -> tuple[int, int]:
    """Return the height and the width of an image in pixels."""
    vision = getattr(config, "vision_config", config)
    prompts = getattr(config, "prompt_encoder_config", None)  # SAM 2: of the image, while `vision` has none
    own_side = getattr(vision, "image_size", None) or getattr(prompts, "image_size", None)
    if takes_patches(config):
        own_side = math.isqrt(vision.num_patches) * vision.patch_size
    side = options.image_size or own_side or 224
    height, width = (side, side) if isinstance(side, int) else side
    return height, width


def takes_patches(config: Any) -> bool:
    """Return whether an image is a sequence of patches, as of SigLIP 2 (`Siglip2VisionConfig` in transformers)."""
    vision = getattr(config, "vision_config", config)
    return getattr(vision, "model_type", "").startswith("siglip2_vision") and hasattr(vision, "num_patches")


def _make_spectra(config: Any, size: int, options: Options) -> dict[str, Any]:
    """Return (size, frequencies, frames) float32 of the longest audio: Whisper's first layers halve the frames. Models
    that take pairs of frames, as wav2vec2-BERT, get (size, pairs, frequencies of both).
    """
    if hasattr(config, "feature_projection_input_dim"):
        pairs = int(options.audio_seconds * _FRAMES_PER_SECOND / 2)
        return {"input_features": torch.zeros(size, pairs, config.feature_projection_input_dim)}
    if not hasattr(config, "max_source_positions") or not hasattr(config, "num_mel_bins"):
        raise UsageError(f"hf: does not know the audio length of {config.model_type}", hint=OWN_RECIPE)
    return {"input_features": torch.zeros(size, config.num_mel_bins, 2 * config.max_source_positions)}


def _make_waveforms(config: Any, size: int, options: Options) -> dict[str, Any]:
    """Return (size, samples of a waveform) float32; of models that take a spectrum under this name (size, frames,
    frequencies), with the frames of the configuration."""
    if takes_spectra(config):
        return {"input_values": torch.zeros(size, config.max_length, config.num_mel_bins)}
    return {"input_values": torch.zeros(size, int(options.audio_seconds * SAMPLING_RATE))}


def takes_spectra(config: Any) -> bool:
    """Return whether `input_values` are spectra with a fixed number of frames, as of the audio spectrogram transformer.

    (`ASTConfig` in transformers' `models/audio_spectrogram_transformer`.)
    """
    return hasattr(config, "num_mel_bins") and hasattr(config, "frequency_stride") and hasattr(config, "max_length")


_INPUTS: dict[str, Callable[[Any, int, Any], dict[str, Any]]] = {
    "input_ids": make_tokens,
    "pixel_values": make_images,
    "input_features": _make_spectra,
    "input_values": _make_waveforms,
}
"""Functions that make the inputs, by transformers' name of a model's main input."""
