"""The trained model as a plain model of transformers: adapters merged and 4-bit weights unpacked, layer by layer.

Every layer is replaced as soon as its merged weight is known, so that at no time more than one layer exists twice; or
its weight is computed when it is written (`merged_files.py`). A merged weight is computed in fp32 and rounded once, to
the dtype of the frozen weights; a 4-bit weight becomes fp16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import RunError, UsageError
from shoestring.integrations.huggingface.packed import is_packed, unpacked_weight, without_adapters

_UNKNOWN_KINDS = (*("lora_bias", "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config", "kasa_config"),)
"""Fields of peft's LoRA configuration that change more than, or other than, `W + BA` of a layer."""


def is_adapted(model: nn.Module) -> bool:
    """Return whether the model has adapters of peft."""
    return hasattr(model, "peft_config")


def plain_base(model: Any) -> Any:
    """Return the model of transformers that peft has put adapters into, or the model itself."""
    return model.get_base_model() if is_adapted(model) else model


def stored_dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype of the exported weights: that of most weights of the base, or fp16 if some are in 4 bits."""
    counts: dict[torch.dtype, int] = {}
    for module_name, module in plain_base(model).named_modules():
        if is_packed(module):
            return torch.float16
        if not _is_of_adapter(module_name):
            for weight in module.parameters(recurse=False):
                counts[weight.dtype] = counts.get(weight.dtype, 0) + weight.numel()
    return max(counts, key=lambda dtype: counts[dtype])


def merged_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the merged model by its name; of tied weights only the first.

    The model may be on the meta device or simulated, and may have placeholders of 4-bit layers.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    known: set[tuple[int, bool]] = set()
    for module_name, module in plain_base(model).named_modules():
        if _is_of_adapter(module_name):
            continue
        has_adapter = module_name.endswith("base_layer")
        for name, weight in module.named_parameters(recurse=False):
            # A tied layer with an adapter of its own is no longer tied after merging.
            if (id(weight), has_adapter) in known:
                continue
            known.add((id(weight), has_adapter))
            is_packed_weight = name == "weight" and is_packed(module)
            shape = (module.out_features, module.in_features) if is_packed_weight else tuple(weight.shape)
            shapes[_merged_name(f"{module_name}.{name}")] = shape
    return shapes


Place = Callable[[torch.Size, torch.dtype, Callable[[], Tensor]], Tensor]
"""Returns the weight of a merged layer, given its shape, its type and what computes it."""


def merge(model: Any, place: Place = lambda _shape, _dtype, compute: compute()) -> Any:
    """Turn the trained model into a plain model of transformers, in one dtype, and return it; `model` is used up.

    The weights of merged and unpacked layers are those that `place` returns.

    Raises UsageError for adapters that are not LoRA, rsLoRA or DoRA of layers or LoRA of parameters, and RunError if a
    weight is beyond the range of fp16.
    """
    base, dtype = plain_base(model), stored_dtype(model)
    adapter = _require_mergeable(model) if is_adapted(model) else None
    with torch.no_grad():
        is_tied = base.config.tie_word_embeddings and _has_one_embedding(base)
        _replace_layers(base, adapter, dtype, place)
        if is_tied:
            base.get_output_embeddings().weight = base.get_input_embeddings().weight
        for name, weight in base.named_parameters():
            weight.requires_grad_(False)
            weight.data = _rounded(weight.data, dtype, name)
    inputs, outputs = base.get_input_embeddings(), base.get_output_embeddings()
    if outputs is not None and inputs.weight is not outputs.weight:
        base.config.tie_word_embeddings = False
    # Loading from a GGUF file leaves a mark by which transformers refuses to save, although all weights are plain.
    if getattr(base, "hf_quantizer", None) is not None:
        base.hf_quantizer = None
        base.is_quantized = False
    if hasattr(base.config, "quantization_config"):
        del base.config.quantization_config
    _drop_unused_sampling(base)
    return base


def _has_one_embedding(base: Any) -> bool:
    """Return whether rows that are trained are those of the embedding and of the head, which has the same weight."""
    layers = base.get_input_embeddings(), base.get_output_embeddings()
    return all(hasattr(layer, "token_adapter") for layer in layers) and bool(layers[1].token_adapter.tied_adapter)


def _drop_unused_sampling(model: Any) -> None:
    """Drop parameters of sampling if the model does not sample: transformers refuses to save them."""
    generation = getattr(model, "generation_config", None)
    if generation is None or generation.do_sample:
        return
    for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"):
        if getattr(generation, name, None) is not None:
            setattr(generation, name, None)


def _is_of_adapter(module_name: str) -> bool:
    return any(part in module_name for part in (".lora_", ".original_module", ".trainable_tokens_"))


def _merged_name(name: str) -> str:
    head, separator, tail = name.partition(".modules_to_save.")
    if separator:
        name = f"{head}.{tail.partition('.')[2]}"  # without the adapter's name
    return without_adapters(name)


def _require_mergeable(model: Any) -> str:
    """Return the name of the adapter. Raises UsageError for kinds of adapters that `_merged_weight` does not know."""
    name: str = model.active_adapter
    config = model.peft_config[name]
    kind = getattr(config.peft_type, "value", config.peft_type)
    problems = [] if kind == "LORA" else [f"their type is {kind}"]
    problems += [f"they have {field}" for field in _UNKNOWN_KINDS if getattr(config, field, None)]
    if problems:
        raise UsageError(
            "the adapters cannot be merged: only LoRA, rsLoRA and DoRA of layers can",
            problems=problems,
            hint="export the adapters alone: --to adapter",
        )
    return name


def _replace_layers(parent: nn.Module, adapter: str | None, dtype: torch.dtype, place: Place) -> None:
    layer: Any
    for name, layer in list(parent.named_children()):
        if hasattr(layer, "modules_to_save"):
            setattr(parent, name, layer.modules_to_save[adapter])
        elif hasattr(layer, "token_adapter"):
            setattr(parent, name, _merged_tokens(layer, adapter))
        elif hasattr(layer, "parameter_name"):
            assert adapter is not None
            setattr(parent, name, _merged_parameters(layer, adapter, dtype, name))
        elif hasattr(layer, "base_layer"):
            assert adapter is not None
            base = layer.get_base_layer()
            merged = partial(_merged_weight, layer, adapter, _current_weight(base))
            setattr(parent, name, _with_weight(base, _placed(base, merged, dtype, name, place)))
        elif is_packed(layer):
            setattr(parent, name, _with_weight(layer, _placed(layer, _current_weight(layer), dtype, name, place)))
        else:
            _replace_layers(layer, adapter, dtype, place)


def _merged_tokens(layer: Any, adapter: str | None) -> nn.Module:
    """Return an embedding or a head with the trained rows of single tokens in place of its own."""
    base: nn.Module = layer.token_adapter.base_layer
    weight: Any = layer.token_adapter.get_merged_weights([adapter])
    base.weight = nn.Parameter(weight.detach(), requires_grad=False)
    return base


def _merged_parameters(layer: Any, adapter: str, dtype: torch.dtype, name: str) -> nn.Module:
    """Return the module around whose parameters, such as stacked experts, peft has put `layer`: one for each parameter,
    one inside the other."""
    base: nn.Module = layer.get_base_layer()
    while id(layer) != id(base):
        weight: nn.Parameter = getattr(base, layer.parameter_name)
        weight.data = weight.data.float()  # the change then has this type as well
        weight.data = _rounded(weight.data + layer.get_delta_weight(adapter).float(), dtype, name)
        layer = layer.base_layer
    return base


def _placed(layer: Any, weight: Callable[[], Tensor], dtype: torch.dtype, name: str, place: Place) -> Tensor:
    shape = torch.Size((layer.out_features, layer.in_features)) if is_packed(layer) else layer.weight.shape
    return place(shape, dtype, lambda: _rounded(weight(), dtype, name))


def _current_weight(layer: Any) -> Callable[[], Tensor]:
    """Return what returns the unpacked weight that the layer has now, also if it is given another one later."""
    if is_packed(layer):  # a new layer takes its place
        return partial(unpacked_weight, layer)
    weight: Tensor = layer.weight.detach()
    return lambda: weight


@torch.no_grad()
def _merged_weight(layer: Any, adapter: str, base_weight: Callable[[], Tensor]) -> Tensor:
    """Return the weight, in fp32, by which the layer without its adapter does the same."""
    change: Tensor = layer.get_delta_weight(adapter).float()
    weight: Tensor = base_weight().float() + change
    magnitudes = getattr(layer, "lora_magnitude_vector", None)
    if magnitudes is None or adapter not in magnitudes:
        return weight
    # DoRA scales each output to a learned length. Embeddings and GPT-2's layers have their outputs in columns.
    dimension = 0 if isinstance(layer.get_base_layer(), nn.Embedding) or layer.fan_in_fan_out else 1
    magnitude: Tensor = magnitudes[adapter].weight.float().flatten().unsqueeze(dimension)
    lengths: Tensor = torch.linalg.norm(weight, dim=dimension, keepdim=True)
    return weight * (magnitude / lengths)


def _with_weight(layer: Any, weight: Tensor) -> nn.Module:
    """Return the layer with another weight; for a 4-bit layer a linear one. A weight that was tied is not any more."""
    if is_packed(layer):
        bias = layer.bias
        layer = nn.Linear(layer.in_features, layer.out_features, bias=bias is not None, device="meta")
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    plain: nn.Module = layer
    return plain


def _rounded(weight: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    if dtype == torch.float16 and weight.dtype != dtype:
        largest = float(weight.abs().max())
        if largest > torch.finfo(dtype).max:
            raise RunError(
                f"{name} has a weight of {largest:.3g} after merging, which is beyond the range of fp16",
                hint="export the adapters alone: --to adapter",
            )
    return weight.to(dtype)
