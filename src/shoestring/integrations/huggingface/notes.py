"""What an estimate of `hf:` assumes: which model, which attention, which samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import transformers

from shoestring.integrations.huggingface import (
    attention,
    batches,
    build,
    chunks,
    configuration,
    diffusion,
    heads,
    loops,
)
from shoestring.integrations.huggingface.inputs import image_sides, takes_spectra
from shoestring.integrations.huggingface.lengths import text_length

if TYPE_CHECKING:
    from shoestring.integrations.huggingface import Options


def notes(source: str, options: Options) -> list[str]:
    """Return full sentences on what was chosen without being asked for, and on whose loop and loss are assumed."""
    config = configuration.read(source)
    if isinstance(config, diffusion.Configuration):
        return diffusion.notes(config)
    model_class = heads.find_model_class(config, options.head)
    name = model_class.__name__
    arguments = batches.arguments_of(model_class)
    main_input = getattr(model_class, "main_input_name", "input_ids")
    lines = heads.class_note(config, options.head, model_class)
    if main_input == "input_ids" or "input_ids" in arguments or "decoder_input_ids" in arguments:
        lines += text_length(config, options.seq_len)[1]
    lines += [
        f"transformers has no SDPA for {part}: the attention is eager, with a matrix of all pairs of positions"
        for part in build.eager_parts(model_class, config, options)
    ]
    lines += _attention(model_class, config, options)
    lines += _loop(name, options)
    if names := build.fix_random_parts(config):
        lines.append(f"{', '.join(names)}: no layer is skipped and no part of the input is masked in this estimate")
    if main_input == "input_values":
        lines.append(
            f"spectra of {config.max_length} frames"
            if takes_spectra(config)
            else f"waveforms of {options.audio_seconds:g} seconds (audio_seconds) at 16 kHz"
        )
    if hasattr(config, "feature_projection_input_dim") and main_input == "input_features":
        lines.append(f"spectra of {options.audio_seconds:g} seconds (audio_seconds)")
    if main_input == "pixel_values":
        lines.append("images of {} x {} pixels".format(*image_sides(config, options)))
    return [*lines, *_samples(name, arguments, main_input)]


def _attention(model_class: Any, config: Any, options: Options) -> list[str]:
    chosen = build.choose_attention(model_class, config, options)
    names = {chosen} if isinstance(chosen, str) else set(chosen.values())
    if attention.NAME not in names:
        return []
    return [
        "keys and values are repeated for the heads that share them, as transformers does with a padding mask; for a "
        "batch without padding it leaves that to torch, which then holds all scores on a GPU before compute capability "
        "8.0 and in fp32: attention=library"
    ]


def _loop(name: str, options: Options) -> list[str]:
    """Return whose loss and whose loop are assumed, where these were chosen."""
    lines = []
    if options.transformers is not None:
        older = name.endswith(chunks.CAUSAL) and loops.has_older_loss(options.transformers)
        memory = "copies the logits" if older else "has the memory of the installed one's"
        lines.append(
            f"the loss is that of transformers {options.transformers}, which {memory}; the model is that of "
            f"transformers {transformers.__version__}"
        )
    if options.trained_by in ("trainer", "accelerate"):
        version = options.transformers or f"{loops.SHIFTS_LABELS} and later"
        lines.append(
            f"trained_by={options.trained_by}: accelerate converts the logits to fp32 under autocast; the loss is that "
            f"of transformers {version}"
        )
    return lines


def _samples(name: str, arguments: set[str], main_input: str) -> list[str]:
    """Return what the samples and the loss are, where that is not the same for everyone."""
    if main_input == "input_values":
        return []
    if "return_loss" in arguments:
        return ["the loss is contrastive, over all pairs of the microbatch"]
    if "input_boxes" in arguments:
        return ["the loss compares one mask for each image with a box as its prompt; all weights are trained"]
    if name.endswith("Detection"):
        return [f"each image has {batches.OBJECTS} objects"]
    if not arguments & {"labels", "start_positions"}:
        loss = (
            "contrastive, over pairs of texts of seq_len tokens, as sentence encoders are trained"
            if main_input == "input_ids"
            else "of its features alone"
        )
        return [f"{name} has no head: the loss is {loss}; head= adds a head, such as head={_example(main_input)}"]
    if main_input == "input_ids" and arguments & {"pixel_values", "image_grid_thw", "input_features"}:
        return [f"the samples of {name} are text alone; images or audio in them need more memory"]
    return []


def _example(main_input: str) -> str:
    tasks: dict[str, Any] = {"input_ids": "text-classification", "pixel_values": "image-classification"}
    return str(tasks.get(main_input, "audio-classification"))
