"""A recipe's model and optimizer after it has made them: weights in another type, in 4 bits, with adapters, fewer bytes
of states. The same where it is estimated and where it is trained; each changes what is learnt.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from shoestring.errors import UsageError
from shoestring.recipe.contract import build_optimizer
from shoestring.recipe.options import Adaptation, LoadedRecipe
from shoestring.settings import Settings
from shoestring.techniques import eightbit, lora, nf4, norms, uncompiled

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def model(made: nn.Module, wanted: Adaptation) -> nn.Module:
    """`made` as `wanted` has it, in place as far as that goes; 4-bit layers only show what bitsandbytes' would store.

    Types first, then 4 bits, then adapters, which are in fp32 whatever the base has. 4-bit weights compute in the type
    of `weights`.
    """
    return _adapted(made, wanted, nf4.pretended)


def trained_model(made: nn.Module, wanted: Adaptation, settings: Settings) -> nn.Module:
    """As `model`, to train with: 4-bit layers are bitsandbytes' own, and packed when they come to their device.

    Raises UsageError where bitsandbytes is not installed, and for weights that 4 bits cannot be.
    """
    if wanted.quantization != "none" and settings.offload == "parameters":
        raise UsageError(
            "quantization=nf4: offload=parameters brings weights, not the scales that 4-bit ones have",
            hint="offload=no: 4-bit weights take an eighth of their bytes",
        )
    uncompiled.spare_the_compiler()
    return _adapted(made, wanted, nf4.real)


def _adapted(made: nn.Module, wanted: Adaptation, layer: nf4.MakeLayer) -> nn.Module:
    dtype = _DTYPES[wanted.weights]
    if dtype != torch.float32:
        _cast(made, dtype)
    if wanted.quantization == "nf4":
        nf4.quantize(made, layer, compute=dtype, double=wanted.double_quantization)
    return made if wanted.lora_r is None else lora.with_adapters(made, wanted)


def optimizer(loaded: LoadedRecipe, made: nn.Module) -> Optimizer:
    """The recipe's optimizer over the model, or one that only shows what bitsandbytes' would store in its place."""
    own = build_optimizer(loaded.recipe, made)
    states = loaded.adaptation.optimizer_states
    return own if states == "own" else eightbit.pretended(own, states)


def trained_optimizer(loaded: LoadedRecipe, made: nn.Module, device: torch.device) -> Optimizer:
    """The optimizer to train with.

    Raises UsageError for weights that cannot be trained in their type, and where bitsandbytes or the GPU that its
    paged states need is not there.
    """
    half = [name for name, weight in made.named_parameters() if weight.requires_grad and weight.dtype == torch.float16]
    if half:
        raise UsageError(
            f"weights that are trained are fp16: {half[0]} and {len(half) - 1} more",
            problems=["AdamW's eps and small steps are 0 in fp16, and its loss scaler needs gradients in fp32"],
            hint="weights=bf16, or weights=fp32 with precision=fp16, or lora.r=8, which leaves the weights as they are",
        )
    own = build_optimizer(loaded.recipe, made)
    eightbit.require_real(own)
    states = loaded.adaptation.optimizer_states
    return own if states == "own" else eightbit.real(own, states, device)


def _cast(made: nn.Module, dtype: torch.dtype) -> None:
    """Parameters alone, and none of a norm with running statistics, which its kernels want in its own type."""
    for module in made.modules():
        for parameter in () if isinstance(module, norms.RUNNING) else module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
