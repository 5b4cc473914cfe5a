"""The fine-tuned model and its tokenizer: from a folder, a GGUF file or the hub, or small with random weights."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.reading import real_path, regular_file_size
from shoestring.integrations.huggingface import Options as ModelOptions
from shoestring.integrations.huggingface import attention, configuration, packed_files, pretrained
from shoestring.integrations.huggingface.build import choose_attention, fix_random_parts
from shoestring_recipes.finetune import vocabulary
from shoestring_recipes.finetune.options import Options

_GGUF = ".gguf"
_UNPACKED_BY_TRANSFORMERS = "mxfp4"
"""The form of gpt-oss, whose weights transformers unpacks where no kernel computes with packed ones."""
_IGNORES_POSITIONS = ("falcon", "gpt_oss", "opt")
"""Types of models whose masks do not follow the positions (transformers 5.23): packed logits were wrong by 40% to 64%
of the largest (`benchmarks/finetune/packing.py`)."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The place of a model's files."""

    label: str
    """The option with its value, for messages."""
    folder: Path
    gguf: str | None = None
    """The name of a GGUF file in the folder, which then has all parts of the model."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the functions `from_pretrained`."""
        place = {} if self.gguf is None else {"gguf_file": self.gguf}
        return {"local_files_only": True, "trust_remote_code": False, **place}


def find_source(options: Options, *, weights: bool = False) -> Source:
    """Return the files of the option `model`, with those of the `weights` if they are needed.

    Raises UsageError for a model that is not there, or cannot be read.
    """
    assert options.model is not None
    label = f"model={options.model}"
    if isinstance(options.model, Path) and options.model.suffix == _GGUF:
        try:
            regular_file_size(real_path(options.model))
        except (OSError, ValueError) as error:
            raise UsageError(f"{label} cannot be read: {error}", hint="give the path of a GGUF file") from error
        return Source(label=label, folder=options.model.parent, gguf=options.model.name)
    find = pretrained.find_weights if weights else pretrained.find
    with pretrained.reading(label):
        return Source(label=label, folder=find(options.model, download=options.download))


def read_configuration(source: Source) -> Any:
    """Return the configuration of a causal language model.

    Raises UsageError for that of another model, and for weights that are packed in another way than
    `quantization=nf4` packs them.
    """
    import transformers

    if source.gguf is None:
        config = configuration.read(str(source.folder))
        _require_trainable(config, source.label)
    else:
        with pretrained.reading(source.label), warnings.catch_warnings(action="ignore"):
            config = transformers.AutoConfig.from_pretrained(source.folder, **source.arguments)
        configuration.require_sizes(source.label, config.to_dict(), type(config))
    _model_class(config, source.label)
    return config


def _require_trainable(config: Any, label: str) -> None:
    quantization = packed_files.quantization_of(config)
    method = packed_files.describe(quantization)
    if quantization and method != _UNPACKED_BY_TRANSFORMERS and not packed_files.is_nf4(quantization):
        raise UsageError(
            f"{label}: its weights are quantized already{f' ({method})' if method else ''}, and only those of the "
            "original model, or packed by bitsandbytes as nf4, can be trained, merged and exported",
            hint="give the folder of the original model; --set quantization=nf4 packs its weights in 4 bits",
        )


def load_tokenizer(source: Source) -> Any:
    """Return the tokenizer. Raises UsageError if it cannot be read."""
    import transformers

    expected = "tokenizer.json and tokenizer_config.json"
    with (
        pretrained.reading(f"{source.label}: the tokenizer", expected=expected),
        warnings.catch_warnings(action="ignore"),
    ):
        return transformers.AutoTokenizer.from_pretrained(source.folder, **source.arguments)


def load_model(source: Source, *, rows: int | None = None) -> nn.Module:
    """Return the model with its weights in their stored type, enlarged to `rows` of its embedding if that has fewer.

    Layers that its files have in 4 bits stay so (`packed_files`). Raises UsageError if some weights are missing.
    """
    config = read_configuration(source)
    quantization = packed_files.quantization_of(config)
    is_packed = packed_files.is_nf4(quantization)
    model_class = _model_class(config, source.label)
    attention.register()
    arguments = {**source.arguments, "attn_implementation": choose_attention(model_class, config, ModelOptions())}
    with pretrained.reading(source.label), warnings.catch_warnings(action="ignore"):
        if pretrained.is_planned():
            planned = build_random(vocabulary.with_rows(config, rows), stored_rows=vocabulary.rows_of(config))
            if is_packed:
                packed_files.mark(planned, quantization)
            return planned
        if source.gguf:  # dequantized; its stored type has fewer bits than any that torch computes in
            model = model_class.from_pretrained(source.folder, dtype=torch.float32, **arguments)
            missing: list[str] = []
        else:
            del arguments["local_files_only"], arguments["trust_remote_code"]
            if is_packed:
                arguments["device_map"] = {"": "cpu"}  # transformers would load them to the GPU
            model, missing = pretrained.load_model(model_class, source.folder, dtype=_stored_type(config), **arguments)
    if missing:
        raise UsageError(
            f"{source.label} lacks {len(missing)} of the weights, for example {missing[0]}; they would be random",
            hint="give the complete weights of a causal language model",
        )
    if is_packed:
        packed_files.mark_loaded(model)
    return vocabulary.enlarge(_prepared(model), rows)


def read_generation_config(source: Source) -> Any:
    """Return the configuration of generations, which has the tokens that end an answer; None without one."""
    import transformers

    if source.gguf is not None or not (source.folder / "generation_config.json").is_file():
        return None
    with pretrained.reading(source.label):
        return transformers.GenerationConfig.from_pretrained(source.folder, local_files_only=True)


def separates_samples(config: Any) -> bool:
    """Return whether the samples of a packed row do not attend to each other.

    transformers makes a mask from positions that begin anew. A model with a recurrent state or convolutions carries
    values from one sample to the next whatever the mask is. What this does not know is found before the first update
    (`training/split_loss.py`).
    """
    from transformers import masking_utils

    model_class = _model_class(config, "the configuration")
    layer_types = getattr(config.get_text_config(), "layer_types", None) or ()
    return (
        hasattr(masking_utils, "find_packed_sequence_indices")
        and config.get_text_config().model_type not in _IGNORES_POSITIONS
        and not getattr(model_class, "_is_stateful", False)
        and all("attention" in kind for kind in layer_types)
        and "position_ids" in inspect.signature(model_class.forward).parameters
    )


def build_random(config: Any, *, stored_rows: int | None = None) -> nn.Module:
    """Return the model of a configuration with random weights, in the type of its files.

    `stored_rows` is the number of rows that its embedding has without those that are added.
    """
    model_class = _model_class(config, "the configuration")
    attention.register()
    implementation = choose_attention(model_class, config, ModelOptions())
    model = model_class._from_config(config, dtype=_stored_type(config), attn_implementation=implementation)
    return vocabulary.mark_added(_prepared(model), stored_rows)


def _prepared(model: Any) -> nn.Module:
    """Return the model without what GGUF files leave on it, and without a cache of keys and values."""
    fix_random_parts(model.config)
    # With a cache, transformers does not separate the samples of a packed row.
    model.config.use_cache = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    model.is_loaded_in_4bit = False  # peft's adapters are those of layers that are packed later
    trained: nn.Module = model.train()
    return trained


def _stored_type(config: Any) -> torch.dtype:
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    stored = getattr(torch, stored) if isinstance(stored, str) else stored
    return stored if isinstance(stored, torch.dtype) and stored.is_floating_point else torch.float32


def _model_class(config: Any, label: str) -> Any:
    import transformers

    model_class = transformers.AutoModelForCausalLM._model_mapping.get(type(config), None)
    if model_class is None:
        raise UsageError(
            f"{label} is a {config.model_type}, which is no causal language model",
            hint="give a language model that continues text, such as Qwen3 or Llama",
        )
    masks_tokens = type(config) in transformers.AutoModelForMaskedLM._model_mapping
    is_encoder = masks_tokens and not getattr(config, "is_decoder", False)
    if is_encoder or getattr(config, "is_encoder_decoder", False):
        raise UsageError(
            f"{label} is a {config.model_type}, which has an encoder: it does not only continue text",
            hint="give a language model that continues text, such as Qwen3 or Llama",
        )
    return model_class[0] if isinstance(model_class, tuple) else model_class
