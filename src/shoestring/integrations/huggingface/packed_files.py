"""Models whose files have linear layers that bitsandbytes has packed in 4 bits, such as Unsloth's `*-bnb-4bit`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from shoestring.techniques.nf4 import PackedInFiles, is_transposed

_NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": "uint8"}
"""What a configuration says of files whose layers are as those that are packed here."""
_DEFAULTS = {"bnb_4bit_quant_type": "fp4", "bnb_4bit_quant_storage": "uint8"}
"""What transformers takes for a field that a configuration lacks."""


def quantization_of(config: Any) -> Mapping[str, Any]:
    """Return what a configuration says about packed weights; empty for a model in its original types."""
    quantization = getattr(config, "quantization_config", None) or {}
    return quantization if isinstance(quantization, Mapping) else quantization.to_dict()


def describe(quantization: Mapping[str, Any]) -> str:
    """Return what has packed the weights, and how: "gptq", "bitsandbytes, 8 bits"."""
    method = str(quantization.get("quant_method", ""))
    if method != "bitsandbytes":
        return method
    kind = quantization.get("bnb_4bit_quant_type", _DEFAULTS["bnb_4bit_quant_type"])
    storage = quantization.get("bnb_4bit_quant_storage", _DEFAULTS["bnb_4bit_quant_storage"])
    stored = "" if storage == _NF4["bnb_4bit_quant_storage"] else f" stored as {storage}"
    return f"{method}, {kind}{stored}" if quantization.get("load_in_4bit") else f"{method}, 8 bits"


def is_nf4(quantization: Mapping[str, Any]) -> bool:
    """Return whether adapters can be trained on the packed weights as they are."""
    values = {name: quantization.get(name, _DEFAULTS.get(name)) for name in _NF4}
    return quantization.get("quant_method", "bitsandbytes") == "bitsandbytes" and values == _NF4


def mark(model: Any, quantization: Mapping[str, Any]) -> None:
    """Let the model say which of its layers its files have in 4 bits, by the rule of transformers.

    That is `get_modules_to_not_convert` and `should_convert_module` of `transformers/quantizers` (5.23).
    """
    skipped = quantization.get("llm_int8_skip_modules")
    if skipped is None:
        output = model.get_output_embeddings()
        skipped = [name for name, module in model.named_modules() if module is output]
    skipped = [*skipped, *(getattr(model, "_keep_in_fp32_modules", None) or ())]
    layers = frozenset(
        name
        for name, module in model.named_modules()
        if (isinstance(module, nn.Linear) or is_transposed(module))
        and not any(re.match(rf"(?:{key})(?:(?<=\.)|(?=\.|$))", name) or name.endswith(key) for key in skipped)
    )
    model.packed_in_files = PackedInFiles(layers=layers, double=bool(quantization.get("bnb_4bit_use_double_quant")))


def mark_loaded(model: Any) -> None:
    """As `mark`, for a model with bitsandbytes' layers that transformers has loaded."""
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is not None:  # by which transformers would pack plain weights again to save them, and cannot
        model._weight_conversions = [value for value in conversions if not _is_of_bitsandbytes(value)]
    from bitsandbytes.nn import Linear4bit

    packed = {name: module for name, module in model.named_modules() if isinstance(module, Linear4bit)}
    double = any(module.weight.quant_state.nested for module in packed.values())
    model.packed_in_files = PackedInFiles(layers=frozenset(packed), double=double)


def _is_of_bitsandbytes(conversion: Any) -> bool:
    operations = getattr(conversion, "operations", ())
    return any(type(operation).__module__.endswith("integrations.bitsandbytes") for operation in operations)
