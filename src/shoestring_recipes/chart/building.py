"""The policy that is trained: base weights with adapters, and its tokenizer.

The base is a pretrained Qwen2.5-VL, or has random weights, which torch's generator decides; the tokenizer of random
weights is trained on the charts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import pretrained, versions
from shoestring_recipes.chart.policy import DTYPES, SIZES, lora_config
from shoestring_recipes.chart.processing import build_processor, load_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from shoestring_recipes.chart.data import Charts
    from shoestring_recipes.chart.options import Options


def build_tokenizer(options: Options, charts: Charts | None) -> Any:
    """Return the tokenizer of the pretrained weights, or one that is trained on `charts`."""
    if options.weights_from:
        with pretrained.reading(f"weights_from={options.weights_from}: the tokenizer"):
            return load_tokenizer(pretrained.find(options.weights_from, download=options.download))
    if charts is None:
        raise UsageError(
            "the tokenizer of a policy with random weights is not known: it was trained on the charts of its run",
            hint="set weights_from, or use the directory of the run; in Python call data() first",
        )
    return train_tokenizer(charts, SIZES[options.size].text["vocab_size"])


def build_policy(options: Options, charts: Charts) -> tuple[Any, Any]:
    """Return Qwen2.5-VL without adapters and its tokenizer: pretrained, or random with one trained on `charts`."""
    tokenizer = build_tokenizer(options, charts)
    return build_base(options, tokenizer), tokenizer


def build_base(options: Options, tokenizer: Any) -> Any:
    """Return Qwen2.5-VL without adapters, pretrained or random."""
    versions.permit_image_token_at_the_end()
    return _load_pretrained(options) if options.weights_from else _build_random(options, tokenizer)


def reader(options: Options, charts: Charts) -> Any:
    """Return the processor of the policy's texts and images."""
    return options_processor(options, build_tokenizer(options, charts))


def options_processor(options: Options, tokenizer: Any) -> Any:
    """Return the processor of texts and images with these options."""
    return build_processor(tokenizer, SIZES[options.size].tokens, keeps_aspect=options.keep_aspect)


def build_learner(options: Options, tokenizer: Any) -> Any:
    """Return the policy with its adapters, as the trainer trains it."""
    return add_adapters(build_base(options, tokenizer), lora_config(options.lora_r))


def check_weights(options: Options) -> None:
    """Raise UsageError if the pretrained weights of a plan cannot be read, as far as can be seen without values."""
    if options.weights_from:
        with pretrained.reading(f"weights_from={options.weights_from}"):
            pretrained.find_weights(options.weights_from, download=options.download)


def save_preprocessing(options: Options, tokenizer: Any, folder: Path) -> None:
    """Write the tokenizer, the image processor's configuration and the base model's."""
    # Not beside config.json, because transformers would choose the tokenizer's class by the type of the model.
    tokenizer.save_pretrained(folder / "tokenizer")
    options_processor(options, tokenizer).image_processor.save_pretrained(folder)
    _load_configuration(options).save_pretrained(folder)


def restore_tokenizer(folder: Path) -> Any:
    """Return the tokenizer that `save_preprocessing` has written."""
    with pretrained.reading(str(folder), expected="the files of tokenizer/"):
        return load_tokenizer(pretrained.find(folder / "tokenizer", download=False))


@contextmanager
def without_deprecations() -> Iterator[None]:
    """Silence deprecation warnings of peft and TRL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def silence(function: Any) -> Any:
    """Return a function without these warnings."""
    return without_deprecations()(function)


@silence
def add_adapters(base: Any, config: Any) -> Any:
    """Return `base` with new adapters."""
    import peft

    return peft.get_peft_model(base, config)


def _load_configuration(options: Options) -> Any:
    from transformers import AutoConfig

    from shoestring.integrations.huggingface.configuration import require_read_positions

    if not options.weights_from:
        return SIZES[options.size].config()
    with pretrained.reading(f"weights_from={options.weights_from}"):
        folder = pretrained.find(options.weights_from, download=options.download)
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    require_read_positions(f"weights_from={options.weights_from}", config)
    return config


def _load_pretrained(options: Options) -> Any:
    """Load the weights from a folder or, by name, from the hub's cache or the hub."""
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    four_bits: Any = BitsAndBytesConfig
    quantization = {
        "quantization_config": four_bits(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=DTYPES[options.weights],
            bnb_4bit_use_double_quant=options.double_quantization,
        )
    }
    with pretrained.reading(f"weights_from={options.weights_from}"):
        assert options.weights_from is not None
        folder = pretrained.find_weights(options.weights_from, download=options.download)
        model, missing = pretrained.load_model(
            AutoModelForImageTextToText,
            folder,
            dtype=DTYPES[options.weights],
            **(quantization if options.quantization == "nf4" else {}),
        )
    if missing:
        raise UsageError(
            f"weights_from={options.weights_from} lacks {len(missing)} of the weights, for example {missing[0]}; they "
            "would be random",
            hint="give the complete weights of a Qwen2.5-VL",
        )
    return model


def _build_random(options: Options, tokenizer: Any) -> Any:
    from transformers import AutoModelForImageTextToText

    from_config: Any = AutoModelForImageTextToText.from_config
    model = from_config(SIZES[options.size].config(), dtype=DTYPES[options.weights])
    # Without a cache, generation would process all preceding tokens again for each token.
    model.config.use_cache = model.generation_config.use_cache = True
    # Otherwise transformers' trainer sets them, and writes a warning about each.
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        for configuration in (model.config, model.generation_config):
            setattr(configuration, name, getattr(tokenizer, name))
    return model
