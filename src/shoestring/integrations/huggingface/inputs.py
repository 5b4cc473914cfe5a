"""The inputs of a model, by the name that transformers gives its main input: tokens, images, waveforms, spectra."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface.lengths import text_length
from shoestring.integrations.huggingface.library_errors import OWN_RECIPE

if TYPE_CHECKING:
    from shoestring.integrations.huggingface import Options

SAMPLING_RATE = 16_000
"""Samples of a waveform in a second: that of wav2vec2 and of all models like it."""


def build_inputs(model_class: Any, config: Any, size: int, options: Options) -> dict[str, Tensor]:
    """Return the inputs of `size` samples. Raises UsageError for an unknown kind of input."""
    main_input = getattr(model_class, "main_input_name", "input_ids")
    make_inputs = _INPUTS.get(main_input)
    if make_inputs is None:
        raise UsageError(
            f"{model_class.__name__} takes {main_input}, an input whose shape hf: does not know", hint=OWN_RECIPE
        )
    return make_inputs(config, size, options)


def make_tokens(config: Any, size: int, options: Options) -> dict[str, Tensor]:
    """Return (size, tokens) int64."""
    length, _ = text_length(config, options.seq_len)
    return {"input_ids": torch.zeros(size, length, dtype=torch.long)}


def make_images(config: Any, size: int, options: Options) -> dict[str, Tensor]:
    """Return (size, channels, height, width) float32 with the configuration's image size, by default 224 pixels."""
    height, width = image_sides(config, options)
    channels = getattr(getattr(config, "vision_config", config), "num_channels", 3)
    return {"pixel_values": torch.zeros(size, channels, height, width)}


def image_sides(config: Any, options: Options) -> tuple[int, int]:
    """Return the height and the width of an image in pixels."""
    side = options.image_size or getattr(getattr(config, "vision_config", config), "image_size", None) or 224
    height, width = (side, side) if isinstance(side, int) else side
    return height, width


def _make_spectra(config: Any, size: int, _options: Options) -> dict[str, Tensor]:
    """Return (size, frequencies, frames) float32 of the longest audio: Whisper's first layers halve the frames."""
    if not hasattr(config, "max_source_positions") or not hasattr(config, "num_mel_bins"):
        raise UsageError(f"hf: does not know the audio length of {config.model_type}", hint=OWN_RECIPE)
    return {"input_features": torch.zeros(size, config.num_mel_bins, 2 * config.max_source_positions)}


def _make_waveforms(config: Any, size: int, options: Options) -> dict[str, Tensor]:
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


_INPUTS: dict[str, Callable[[Any, int, Any], dict[str, Tensor]]] = {
    "input_ids": make_tokens,
    "pixel_values": make_images,
    "input_features": _make_spectra,
    "input_values": _make_waveforms,
}
"""Functions that make the inputs, by transformers' name of a model's main input."""
