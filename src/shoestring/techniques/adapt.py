"""Adaptations of a recipe's model and optimizer: another type of weights, 4-bit weights, LoRA adapters, and optimizer
states with fewer bytes. Estimates and training apply the same ones; each changes the training result.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.optimizers import BuiltOptimizer, build_optimizer, build_with_schedulers
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import deferred_casts, deferred_compiler, eightbit, lora, nf4, norms

_DTYPES = {"auto": torch.float32, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def model(base: nn.Module, adaptation: Adaptation, *, keeps_stored_type: bool = False) -> nn.Module:
    """Adapt `base` for an estimate, in place as far as possible; 4-bit layers only have the memory of bitsandbytes'.

    The order is: types, 4-bit weights, adapters. With `keeps_stored_type` the base has the type of its files, and is
    converted to `weights` whatever that is; otherwise fp32 means the base's own type. Adapters have the type
    `lora_dtype` whatever that of the base is. 4-bit weights compute in the type given by `weights`.
    """
    # Others than those on the meta device may be read.
    deferred = {weight for weight in _deferrable(base, adaptation) if weight.is_meta}
    return _adapt(base, adaptation, nf4.placeholder_layer, keeps_stored_type, deferred)


def planned_model(loaded: LoadedRecipe) -> nn.Module:
    """Return the recipe's model, adapted for an estimate."""
    return model(loaded.recipe.model(), loaded.adaptation, keeps_stored_type=loaded.parts.learning.keeps_stored_type)


def trained_model(
    base: nn.Module, adaptation: Adaptation, settings: Settings, *, keeps_stored_type: bool = False
) -> nn.Module:
    """Adapt `base` for training: 4-bit layers are those of bitsandbytes, which pack their weights on the device.

    With adapters, frozen weights are cast when the model is moved (`deferred_casts`), one after the other. DoRA reads
    them before. What does not move the model calls `deferred_casts.convert_all`.

    Raises UsageError if bitsandbytes is not installed, and for weights that cannot be quantized to 4 bits.
    """
    if adaptation.quantization != "none" and settings.offload == "parameters":
        raise UsageError(
            "quantization=nf4: offload=parameters moves weights to the device, but not the scales of 4-bit weights",
            hint="offload=no: 4-bit weights take an eighth of the bytes of fp32 weights",
        )
    deferred_compiler.defer_compiler()
    return _adapt(base, adaptation, nf4.real_layer, keeps_stored_type, _deferrable(base, adaptation))


def _deferrable(base: nn.Module, adaptation: Adaptation) -> set[nn.Parameter]:
    """Return the weights whose casts wait until the model is moved: frozen ones that no adapter reads before."""
    if adaptation.lora_r is None or adaptation.lora_dora:
        return set()
    return deferred_casts.deferrable(base)


def _adapt(
    base: nn.Module,
    adaptation: Adaptation,
    make_layer: nf4.MakeLayer,
    keeps_stored_type: bool,
    deferred: Set[nn.Parameter],
) -> nn.Module:
    dtype, in_files = _DTYPES[adaptation.weights], nf4.packed_in_files(base)
    if in_files:
        _require_packed(adaptation, in_files)
    if dtype != torch.float32 or keeps_stored_type:
        packed = [base.get_submodule(name).weight for name in in_files.layers] if in_files else []
        _cast(base, dtype, deferred, unchanged={id(weight) for weight in packed})
    if adaptation.quantization == "nf4":
        nf4.quantize(
            base,
            make_layer,
            compute=dtype,
            double=adaptation.double_quantization,
            casts_others=adaptation.unquantized == "fp32",
            deferred=deferred,
        )
    return base if adaptation.lora_r is None else lora.with_adapters(base, adaptation)


def _require_packed(adaptation: Adaptation, in_files: nf4.PackedInFiles) -> None:
    """Raise UsageError for options with which the 4-bit weights of the model's files would not be trained on."""
    if adaptation.quantization != "nf4":
        scales = " with scales in 8 bits (double quantization)" if in_files.double else ""
        raise UsageError(
            f"quantization={adaptation.quantization}: the files of the model have weights that bitsandbytes has packed "
            f"in 4 bits, nf4{scales}: adapters can be trained on these as they are, and nothing else",
            hint="--set quantization=nf4 with lora_r=16; or give the folder of the original model",
        )


def notes(model: nn.Module, loaded: LoadedRecipe) -> list[str]:
    """Return what the adaptations reach in the adapted model, and what they do not."""
    adaptation = loaded.adaptation
    return [
        *(nf4.notes(model) if adaptation.quantization == "nf4" else []),
        *(lora.notes(model, adaptation) if hasattr(model, "peft_config") else []),
    ]


def optimizer(loaded: LoadedRecipe, model: nn.Module) -> Optimizer:
    """Return the recipe's optimizer for an estimate, or a placeholder with the memory of bitsandbytes' optimizer."""
    own = build_optimizer(loaded.recipe, model)
    states = loaded.adaptation.optimizer_states
    return own if states == "own" else eightbit.placeholder_optimizer(own, states)


def trained_optimizer(loaded: LoadedRecipe, model: nn.Module, device: torch.device) -> BuiltOptimizer:
    """Return the optimizer for training, with its schedulers, which belong to the recipe's own optimizer.

    Raises UsageError for trainable weights in fp16, if bitsandbytes is not installed, and for paged states without a
    GPU.
    """
    half = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.dtype == torch.float16]
    if half:
        raise UsageError(
            f"weights that are trained are fp16: {half[0]} and {len(half) - 1} more",
            problems=["in fp16 AdamW's eps and small steps round to 0, and the loss scaler needs gradients in fp32"],
            hint="weights=bf16, or weights=fp32 with precision=fp16, or lora.r=8, which does not train these weights",
        )
    built = build_with_schedulers(loaded.recipe, model)
    eightbit.require_real(built.optimizer)
    states = loaded.adaptation.optimizer_states
    if states == "own":
        return built
    return replace(built, optimizer=eightbit.real_optimizer(built.optimizer, states, device))


def _cast(model: nn.Module, dtype: torch.dtype, deferred: Set[nn.Parameter], unchanged: Set[int]) -> None:
    """Cast the parameters, except those of norms with running statistics, whose kernels need their original type, and
    those whose `id` is in `unchanged`."""
    for module in model.modules():
        for parameter in () if isinstance(module, norms.RUNNING) else module.parameters(recurse=False):
            if parameter.is_floating_point() and id(parameter) not in unchanged:
                deferred_casts.cast(parameter, dtype, is_deferred=parameter in deferred)
