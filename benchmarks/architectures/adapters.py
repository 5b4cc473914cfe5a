"""Where LoRA's adapters are in every architecture of transformers with a causal head, and in all that `hf:` chooses.

    python benchmarks/architectures/adapters.py OUT

The class of an architecture is built with the library's default configuration, of four layers at most, on torch's meta
device. For each value
of `lora_targets` the result is the share of the weights of the model's blocks that has adapters, or the refusal. A
small model of the same class with random weights then makes a forward and a backward with the adapters of `linear`, in
which every adapter has to receive a gradient.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import heads
from shoestring.recipe.adaptation import Adaptation
from shoestring.techniques import lora, lora_targets

_SMALL: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "embedding_size"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_inner", "n_inner", "dense_attention_hidden_size"), 128),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "feed_forward_hidden_size"), 128),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_top_k"), 2),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions"), 512),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_channels"), 16),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
}
"""Values of a small configuration, by the names that architectures give them."""
_LAYERS = {name: 4 for name, size in _SMALL.items() if "layer" in name}
_FEW = {"vocab_size": 512, **{name: 2 for name, size in _SMALL.items() if "layer" in name}}
_MOST_PARAMETERS = 3e8
_TOKENS = 16


def main() -> None:
    """Print a row for each architecture and write all of them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="architectures; by default all")
    arguments = parser.parse_args()
    logging.disable()
    warnings.simplefilter("ignore")
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft")}
    rows = []
    for name, model_class, is_causal in _architectures():
        if not arguments.names or name in arguments.names:
            rows.append(_row(name, model_class, is_causal=is_causal))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    arguments.out.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _architectures() -> Iterator[tuple[str, Any, bool]]:
    """Yield the types of models, their classes, and whether these have a causal head: of others what `hf:` chooses."""
    tables = ["AutoModelForCausalLM", *(table for tables in heads.TASKS.values() for table in tables)]
    for name, config_class in transformers.CONFIG_MAPPING.items():
        table, model_class = _class_of(config_class, tables)
        # A class of another configuration is the same under another name.
        if model_class is not None and model_class.config_class in (None, config_class):
            yield name, model_class, table == tables[0]


def _class_of(config_class: Any, tables: Sequence[str]) -> tuple[str, Any]:
    """Return the first table that has the configuration, and the class of its model; None without one here."""
    for table in tables:
        with suppress(ImportError, RuntimeError, ValueError):  # of a library that its code needs
            model_class: Any = getattr(transformers, table)._model_mapping.get(config_class, None)
            model_class = model_class[0] if isinstance(model_class, tuple) else model_class
            if model_class is not None and hasattr(model_class, "config_class"):
                return table, model_class
    return "", None


def _row(name: str, model_class: Any, *, is_causal: bool) -> dict[str, Any]:
    start = time.monotonic()
    row: dict[str, Any] = {"type": name, "class": model_class.__name__, "causal": is_causal}
    try:
        config = _config(model_class, _LAYERS)
        with torch.device("meta"):
            base = model_class(config)
    except Exception as error:  # noqa: BLE001  (a default configuration from which the library itself makes no model)
        return {**row, "not_built": _text(error)}
    row["parameters"] = sum(weight.numel() for weight in base.parameters())
    row["stacked_experts"] = bool(lora_targets.stacked_experts(base))
    row["targets"] = {}
    for preset in lora_targets.PRESETS:
        row["targets"][preset], base = _target(base, preset)
    if is_causal:
        row["update"] = _update(model_class)
    return {**row, "seconds": round(time.monotonic() - start, 1)}


def _target(base: Any, preset: str) -> tuple[dict[str, Any], nn.Module]:
    """Return the share of the weights with adapters or the refusal, and the model without adapters again."""
    adaptation = Adaptation(lora_r=4, lora_targets=preset)
    try:
        with torch.device("meta"):
            adapted: Any = lora.with_adapters(base, adaptation)
    except UsageError as error:
        return {"refused": error.lines()}, base
    except Exception as error:  # noqa: BLE001  (an outcome that must not be)
        return {"exception": _text(error)}, base
    shares = lora.shares(adapted)
    return {"share": round(shares.adapted, 4), "without": shares.without}, adapted.unload()


def _update(model_class: Any) -> str:
    """Return what a forward and a backward of a small model with adapters came to: "ran", or why not.

    A class of which no model can be made with the small sizes is tried with its own, and fewer layers and tokens.
    """
    outcome = _update_of(model_class, _SMALL)
    return _update_of(model_class, _FEW) if outcome.startswith("not ") else outcome


def _update_of(model_class: Any, limits: Mapping[str, int]) -> str:
    try:
        config = _config(model_class, limits)
        with torch.device("meta"):
            size = sum(weight.numel() for weight in model_class(config).parameters())
        if size > _MOST_PARAMETERS:
            return f"not run: {size:,} parameters when small"
        torch.manual_seed(0)
        base = model_class(config).float()
    except Exception as error:  # noqa: BLE001  (not every configuration can be made small in this way)
        return f"not made small: {_text(error)}"
    try:
        base(input_ids=torch.arange(_TOKENS)[None] + 5)
    except Exception as error:  # noqa: BLE001
        return f"not run without adapters: {_text(error)}"
    try:
        adapted = lora.with_adapters(base, Adaptation(lora_r=4, lora_targets="linear")).train()
        adapted(input_ids=torch.arange(_TOKENS)[None] + 5).logits.float().sum().backward()
    except UsageError:
        return "refused"
    except Exception as error:  # noqa: BLE001  (an outcome that must not be)
        return f"failed: {_text(error)}"
    without = [name for name, weight in adapted.named_parameters() if weight.requires_grad and weight.grad is None]
    return f"ran; {len(without)} adapters had no gradient, {without[0]}" if without else "ran"


def _config(model_class: Any, limits: Mapping[str, int]) -> Any:
    """Return the library's default configuration, with numbers of at most these sizes."""
    config = model_class.config_class()
    for part in _parts(config):
        for name, limit in limits.items():
            value = getattr(part, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > limit:
                setattr(part, name, limit)
        if (getattr(part, "pad_token_id", None) or 0) >= (getattr(part, "vocab_size", None) or 0):
            part.pad_token_id = None
        layers = getattr(part, "num_hidden_layers", None)
        for name, value in vars(part).items():
            if "type" in name and isinstance(value, list) and isinstance(layers, int) and len(value) > layers:
                setattr(part, name, value[:layers])  # one type for each layer
    return config


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if isinstance(value, transformers.PretrainedConfig):
            yield from _parts(value)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:160]


if __name__ == "__main__":
    main()
