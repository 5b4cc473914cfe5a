"""Linear layers with 4-bit weights: bitsandbytes' own to train with, and ones that have their memory, to estimate with:
what is stored and what is made on the way.

After `Linear4bit` and `MatMul4Bit` of bitsandbytes 0.45 (`nn/modules.py`, `autograd/_functions.py`): a weight is one
column of bytes with two values in each, one scale for each 64 of them, and the table of the 16 values that a scale
multiplies. Forward and backward each unpack the weight for one product; nothing unpacked is kept between them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.errors import UsageError
from shoestring.recipe import extras

EXTRA = "bitsandbytes"

BLOCK = 64
"""Values that share a scale (bitsandbytes' default `blocksize`)."""
SCALES_BLOCK = 256
"""Scales that share a scale of their own under double quantisation."""


class Nf4Linear(nn.Linear):
    """A frozen linear layer with packed weights; its values do not matter, there are none to load."""

    def __init__(self, like: Any, *, compute: torch.dtype, double: bool) -> None:
        """In the place of `like`, an `nn.Linear` or GPT-2's transposed one: the same shape, and its bias."""
        nn.Module.__init__(self)
        shape: tuple[int, int] = tuple(like.weight.shape)
        self.out_features, self.in_features = shape[::-1] if _is_transposed(like) else shape
        self.compute = compute
        device = like.weight.device
        count = like.weight.numel()
        packed = nn.Parameter(torch.zeros(-(-count // 2), 1, dtype=torch.uint8, device=device), requires_grad=False)
        unpacked: Any = packed
        unpacked.unpacked_numel = count
        self.weight = packed
        self.bias = like.bias
        blocks = -(-count // BLOCK)
        self.register_buffer("table", torch.zeros(16, device=device))
        self.register_buffer(
            "scales", torch.zeros(blocks, dtype=torch.uint8 if double else torch.float32, device=device)
        )
        if double:
            self.register_buffer("scales_of_scales", torch.zeros(-(-blocks // SCALES_BLOCK), device=device))
            self.register_buffer("scales_table", torch.zeros(256, device=device))
            self.register_buffer("offset", torch.zeros((), device=device))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name for it
        """The product in the compute type, returned in the type of `input`."""
        bias = None if self.bias is None else self.bias.to(self.compute)
        scales = [self._buffers[name] for name in ("scales", "scales_of_scales") if name in self._buffers]
        product: Any = _Product.apply
        result: Tensor = product(
            input.to(self.compute), self.weight, bias, (self.out_features, self.in_features), scales
        )
        return result.to(input.dtype)


MakeLayer = Callable[[Any, torch.dtype, bool], nn.Module]
"""What takes the place of a layer, given the type to compute in and whether scales are in 8 bits."""


def pretended(like: Any, compute: torch.dtype, double: bool) -> nn.Module:
    """What takes the place of a linear layer where memory is estimated."""
    return Nf4Linear(like, compute=compute, double=double)


def real(like: Any, compute: torch.dtype, double: bool) -> nn.Module:
    """What takes its place where it is trained: bitsandbytes' layer, packed when it comes to its device.

    Its `state_dict` has tensors alone, each by its name, and it is loaded like any other module's. Raises UsageError
    without bitsandbytes.
    """
    extras.require(EXTRA, "bitsandbytes")
    from bitsandbytes.nn import Linear4bit, Params4bit

    weight = like.weight.detach()
    weight = weight.T.contiguous() if _is_transposed(like) else weight
    outputs, inputs = weight.shape
    # On the meta device no random numbers are drawn for a weight that is not kept.
    layer: Any = Linear4bit(inputs, outputs, bias=False, compute_dtype=compute, device="meta")
    layer.weight = Params4bit(
        weight, requires_grad=False, compress_statistics=double, quant_type="nf4", blocksize=BLOCK, module=layer
    )
    if like.bias is not None:
        # As its first forward would leave it; a checkpoint from before that would not fit one from after.
        layer.bias = nn.Parameter(like.bias.detach().to(compute), requires_grad=False)
    # Another packing, in the place of this one and for as long as nothing is saved, where a CPU evaluates.
    layer.support_avx512bf16_for_cpu = False
    layer.register_state_dict_post_hook(_add_scales)
    layer.register_load_state_dict_pre_hook(_take_scales)
    made: nn.Module = layer
    return made


def quantize(model: nn.Module, make: MakeLayer, *, compute: torch.dtype, double: bool) -> None:
    """Put 4-bit layers in the place of all linear ones but the output's, and have fp32 in all that is left.

    The latter is peft's `prepare_model_for_kbit_training`: norms, embeddings and the output layer.
    """
    output = _output(model)
    layers = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if (type(layer) is nn.Linear or _is_transposed(layer)) and layer is not output
    ]
    if not layers:
        raise UsageError("quantization=nf4: the model has no linear layers besides its output")
    made: set[nn.Parameter] = set()
    for parent, name, layer in layers:
        packed = make(layer, compute, double)
        made |= set(packed.parameters())
        setattr(parent, name, packed)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.is_floating_point() and parameter not in made:
            parameter.data = parameter.data.float()


def _scales(layer: Any) -> dict[str, tuple[Any, str]]:
    """Where a packed layer has what its weight is unpacked with, by the names that bitsandbytes saves it under."""
    state = layer.weight.quant_state
    if state is None:
        return {}
    found = {"absmax": (state, "absmax"), "quant_map": (state, "code")}
    if state.nested:
        found |= {
            "nested_absmax": (state.state2, "absmax"),
            "nested_quant_map": (state.state2, "code"),
            "nested_offset": (state, "offset"),
        }
    return found


def _add_scales(layer: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """bitsandbytes saves numbers as JSON in a tensor of bytes, whose length depends on them. All but the offset follow
    from the layer; that one is saved as what it is."""
    for name in [name for name in state if name.startswith(f"{prefix}weight.")]:
        del state[name]
    state.update({f"{prefix}weight.{name}": getattr(*place) for name, place in _scales(layer).items()})


def _take_scales(
    layer: Any,
    state: dict[str, Any],
    prefix: str,
    _metadata: Any,
    _strict: bool,
    missing: list[str],
    _unexpected: list[str],
    errors: list[str],
) -> None:
    for name, (owner, attribute) in _scales(layer).items():
        key, own = f"{prefix}weight.{name}", getattr(owner, attribute)
        saved = state.pop(key, None)
        if saved is None:
            missing.append(key)
        elif saved.shape != own.shape or saved.dtype != own.dtype:
            errors.append(f"{key}: {tuple(saved.shape)} of {saved.dtype}, here {tuple(own.shape)} of {own.dtype}")
        else:
            # Not into its place: layers share tables.
            setattr(owner, attribute, saved.to(own.device, copy=True))


def _is_transposed(layer: nn.Module) -> bool:
    """Whether it is GPT-2's layer; without transformers there is none."""
    loaded: Any = sys.modules.get("transformers.pytorch_utils")
    return loaded is not None and type(layer) is loaded.Conv1D


def _output(model: nn.Module) -> nn.Module | None:
    """The layer that transformers keeps as it is: the output embedding, or a head, which is the last linear layer."""
    find: Any = getattr(model, "get_output_embeddings", None)
    output: nn.Module | None = find() if find else None
    if output is None:
        layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
        output = layers[-1] if layers else None
    return output


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, packed: Tensor, bias: Tensor | None, shape: Any, scales: Any) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape, ctx.scales = shape, scales
        return functional.linear(values, _unpacked(packed, shape, scales, values.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (packed,) = ctx.saved_tensors
        weight = _unpacked(packed, ctx.shape, ctx.scales, gradients[0].dtype)
        return gradients[0] @ weight, None, None, None, None


def _unpacked(packed: Tensor, shape: tuple[int, int], scales: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The weight in `dtype`; scales in 8 bits are themselves unpacked to fp32 first and dropped after."""
    plain = torch.empty_like(scales[0], dtype=torch.float32) if len(scales) > 1 else scales[0]
    # In the place of the kernel that unpacks: an operator that writes the weight, and so takes its time.
    weight = packed.new_empty(shape, dtype=dtype).zero_()
    del plain
    return weight
