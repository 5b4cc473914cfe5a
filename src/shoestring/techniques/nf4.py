"""Linear layers with 4-bit weights: bitsandbytes' layers for training, and for estimates placeholders with the same
stored tensors and temporaries.

The layout is that of `Linear4bit` and `MatMul4Bit` of bitsandbytes 0.45 (`nn/modules.py`, `autograd/_functions.py`): a
weight is one column of bytes with two values in each byte, one scale for every 64 values, and a table of the 16 values
that are multiplied by the scale. Forward and backward each unpack the weight for one product; no unpacked weight is
saved for backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.base.errors import UsageError
from shoestring.base.packages import requirements
from shoestring.base.units import bytes_text, plural
from shoestring.techniques import deferred_casts

EXTRA = "bitsandbytes"

BLOCK = 64
"""The number of values that share a scale (bitsandbytes' default `blocksize`)."""
_LARGE_SHARE = 0.05
"""The share of the weights from which those that stay unpacked are worth a note."""
SCALES_BLOCK = 256
"""The number of scales that share a second-level scale under double quantization."""
SCALES = ("scales", "scales_of_scales")
"""The buffers of a placeholder with the scales of its weight, of which there are many; its tables are small."""


@dataclass(frozen=True, kw_only=True)
class PackedInFiles:
    """The attribute `packed_in_files` of a model whose files have 4-bit weights: they stay as they are.

    The model that is trained has bitsandbytes' layers with these weights; that of an estimate has linear layers.
    """

    layers: frozenset[str]
    """The names of the layers."""
    double: bool
    """Whether the scales are in 8 bits."""


def packed_in_files(model: nn.Module) -> PackedInFiles | None:
    """Return what the files of the recipe's model have in 4 bits; None if they have nothing."""
    packed: PackedInFiles | None = getattr(model, "packed_in_files", None)
    return packed


class Nf4Linear(nn.Linear):
    """A frozen linear layer with packed weights, for estimates; its weights have no meaningful values."""

    def __init__(self, original: Any, *, compute: torch.dtype, double: bool) -> None:
        """Replace `original`, an `nn.Linear` or GPT-2's transposed layer, with the same shape and its bias."""
        nn.Module.__init__(self)
        shape: tuple[int, int] = tuple(original.weight.shape)
        self.out_features, self.in_features = shape[::-1] if is_transposed(original) else shape
        self.compute = compute
        self.unpacked: torch.dtype = original.weight.dtype
        """The type of the weight on the device before it is packed there."""
        self.is_packed_in_files = False
        device = original.weight.device
        count = original.weight.numel()
        packed = nn.Parameter(torch.zeros(-(-count // 2), 1, dtype=torch.uint8, device=device), requires_grad=False)
        untyped_parameter: Any = packed
        untyped_parameter.unpacked_numel = count
        deferred_casts.stand_for(original.weight, packed, is_copied=is_transposed(original))
        self.weight = packed
        self.bias = original.bias
        blocks = -(-count // BLOCK)
        self.register_buffer("table", torch.zeros(16, device=device))
        self.register_buffer(
            "scales", torch.zeros(blocks, dtype=torch.uint8 if double else torch.float32, device=device)
        )
        if double:
            self.register_buffer("scales_of_scales", torch.zeros(-(-blocks // SCALES_BLOCK), device=device))
            self.register_buffer("scales_table", torch.zeros(256, device=device))
            self.register_buffer("offset", torch.zeros((), device=device))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name of the argument
        """Compute the product in the compute type and return it in the type of `input`."""
        bias = None if self.bias is None else self.bias.to(self.compute)
        scales = [self._buffers[name] for name in (*SCALES, "offset") if name in self._buffers]
        product: Any = _Product.apply
        # A variable, because bitsandbytes' layer has one: the copy is there until the result has its type.
        values = input.to(self.compute)
        result: Tensor = product(values, self.weight, bias, (self.out_features, self.in_features), scales)
        return result.to(input.dtype)


def scales_and_tables(model: nn.Module) -> list[Tensor]:
    """Return what the packed weights of a model's placeholders need besides their values. It is frozen as they are."""
    layers = (module for module in model.modules() if isinstance(module, Nf4Linear))
    return [value for layer in layers for value in layer.buffers(recurse=False)]


MakeLayer = Callable[[Any, torch.dtype, bool], nn.Module]
"""Makes a layer's replacement, given the original layer, the compute type, and whether scales are in 8 bits."""


def placeholder_layer(original: Any, compute: torch.dtype, double: bool) -> nn.Module:
    """Return the replacement of a linear layer for estimates."""
    return Nf4Linear(original, compute=compute, double=double)


def real_layer(original: Any, compute: torch.dtype, double: bool) -> nn.Module:
    """Return the replacement of a linear layer for training: bitsandbytes' layer, which packs its weight on the device.

    Its `state_dict` has only named tensors, and it is loaded like that of any other module. Raises UsageError if
    bitsandbytes is not installed. An `original` that is bitsandbytes' layer keeps its packed weight.
    """
    requirements.require(EXTRA, "bitsandbytes")
    from bitsandbytes.nn import Linear4bit, Params4bit

    if isinstance(original, Linear4bit):
        original.compute_dtype, original.compute_type_is_set = compute, True
        original.weight.quant_state.dtype = compute  # unpacked in this type, as a weight that is packed here
        return _prepared(original, original.bias)
    if is_transposed(original):
        deferred_casts.convert(original.weight)
    weight = original.weight.detach()
    weight = weight.T.contiguous() if is_transposed(original) else weight
    outputs, inputs = weight.shape
    # On the meta device no random numbers are drawn for the initial weight, which is replaced.
    layer: Any = Linear4bit(inputs, outputs, bias=False, compute_dtype=compute, device="meta")
    layer.weight = Params4bit(
        weight, requires_grad=False, compress_statistics=double, quant_type="nf4", blocksize=BLOCK, module=layer
    )
    deferred_casts.carry_over(original.weight, layer.weight)
    return _prepared(layer, original.bias)


def _prepared(layer: Any, bias: Tensor | None) -> nn.Module:
    """Return bitsandbytes' layer with this bias, which is saved and loaded as any other module is."""
    if bias is not None:
        # The first forward casts the bias; casting it here makes checkpoints from before and after that compatible.
        layer.bias = nn.Parameter(bias.detach().to(layer.compute_dtype), requires_grad=False)
    # Disables another packing of the weight, which replaces this one when a CPU evaluates.
    layer.support_avx512bf16_for_cpu = False
    layer.register_state_dict_post_hook(_add_scales)
    layer.register_load_state_dict_pre_hook(_load_scales)
    prepared: nn.Module = layer
    return prepared


def quantize(
    model: nn.Module,
    make_layer: MakeLayer,
    *,
    compute: torch.dtype,
    double: bool,
    casts_others: bool = True,
    deferred: Set[nn.Parameter] = frozenset(),
) -> None:
    """Replace all linear layers except the output layer by 4-bit layers, and freeze all other parameters. If the
    model's files have 4-bit weights, these layers are the only ones, and scales are as in the files, not `double`.

    Other parameters are norms, embeddings and the output layer. With `casts_others` they are cast to fp32, as in peft's
    `prepare_model_for_kbit_training`, the `deferred` ones when they are moved; otherwise they keep their type, as
    transformers loads them.
    """
    in_files, output = packed_in_files(model), _output_layer(model)
    layers = [
        (parent, name, layer)
        for path, parent in model.named_modules()
        for name, layer in parent.named_children()
        if (
            f"{path}.{name}".removeprefix(".") in in_files.layers
            if in_files
            else (type(layer) is nn.Linear or is_transposed(layer)) and layer is not output
        )
    ]
    if not layers:
        raise UsageError("quantization=nf4: the model has no linear layers besides its output layer")
    packed_parameters: set[nn.Parameter] = set()
    for parent, name, layer in layers:
        packed = make_layer(layer, compute, in_files.double if in_files else double)
        if in_files and isinstance(packed, Nf4Linear):
            packed.is_packed_in_files = True
        packed_parameters |= set(packed.parameters())
        setattr(parent, name, packed)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if casts_others and parameter.is_floating_point() and parameter not in packed_parameters:
            deferred_casts.cast(parameter, torch.float32, is_deferred=parameter in deferred)


def notes(model: nn.Module) -> list[str]:
    """Return that weights are packed in the files, and which weights of a quantized model stay unpacked although they
    could be large: stacked matrices.

    Those are the experts of a mixture in transformers 5, one tensor for all of a layer, which bitsandbytes does not
    pack (https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1849); Unsloth does
    (https://github.com/unslothai/unsloth-zoo/pull/527). Embeddings, norms and the output layer, which nobody packs, are
    not mentioned.
    """
    unpacked = {name: weight for name, weight in model.named_parameters() if weight.dim() > 2}
    count = sum(weight.numel() for weight in unpacked.values())
    total = sum(getattr(weight, "unpacked_numel", weight.numel()) for weight in model.parameters())
    lines = []
    if in_files := packed_in_files(model):
        scales = ", with scales in 8 bits" if in_files.double else ""
        lines.append(
            f"quantization=nf4: the files of the model have {plural(len(in_files.layers), 'layer')} in 4 bits{scales}, "
            "which stay as they are"
        )
    if count < _LARGE_SHARE * total:
        return lines
    name, weight = max(unpacked.items(), key=lambda item: item[1].numel())
    size, packed_size = count * weight.element_size(), count // 2 + 4 * -(-count // BLOCK)
    return [
        *lines,
        f"quantization=nf4 packs linear layers: {count / total:.0%} of the weights are no such layers and stay in"
        f" {str(weight.dtype).removeprefix('torch.')}, {bytes_text(size)} ({name} and others, experts stacked in one"
        f" tensor), as with peft and bitsandbytes on transformers 5. A tool that packs experts too, such as Unsloth,"
        f" stores them in {bytes_text(packed_size)}, so its peak is about {bytes_text(size - packed_size)} lower; with"
        f" quantization=none, weights=bf16 would store them in {bytes_text(2 * count)}. Published weights in MXFP4 or"
        " another packed type are not simulated",
    ]


def _scale_attributes(layer: Any) -> dict[str, tuple[Any, str]]:
    """Return the owner and attribute of each tensor that unpacks the weight, by its name in bitsandbytes' state."""
    state = layer.weight.quant_state
    if state is None:
        return {}
    attributes = {"absmax": (state, "absmax"), "quant_map": (state, "code")}
    if state.nested:
        attributes |= {
            "nested_absmax": (state.state2, "absmax"),
            "nested_quant_map": (state.state2, "code"),
            "nested_offset": (state, "offset"),
        }
    return attributes


def _add_scales(layer: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """Replace the numbers that bitsandbytes saves as JSON in a byte tensor, whose length depends on their values. All
    but the offset follow from the layer; the offset is saved as a tensor."""
    for name in [name for name in state if name.startswith(f"{prefix}weight.")]:
        del state[name]
    state.update({f"{prefix}weight.{name}": getattr(*owner) for name, owner in _scale_attributes(layer).items()})


def _load_scales(
    layer: Any,
    state: dict[str, Any],
    prefix: str,
    _metadata: Any,
    _strict: bool,
    missing: list[str],
    _unexpected: list[str],
    errors: list[str],
) -> None:
    for name, (owner, attribute) in _scale_attributes(layer).items():
        key, own = f"{prefix}weight.{name}", getattr(owner, attribute)
        saved = state.pop(key, None)
        if saved is None:
            missing.append(key)
        elif saved.shape != own.shape or saved.dtype != own.dtype:
            errors.append(
                f"{key}: the saved tensor is {tuple(saved.shape)} of {saved.dtype}, the layer's is {tuple(own.shape)} "
                f"of {own.dtype}"
            )
        else:
            # Not copied in place, because layers share tables.
            setattr(owner, attribute, saved.to(own.device, copy=True))


def is_transposed(layer: nn.Module) -> bool:
    """Return whether the layer is GPT-2's `Conv1D`, which only exists if transformers is loaded."""
    loaded: Any = sys.modules.get("transformers.pytorch_utils")
    return loaded is not None and type(layer) is loaded.Conv1D


def _output_layer(model: nn.Module) -> nn.Module | None:
    """Return the layer that transformers does not quantize: the output embedding, or a head, the last linear layer."""
    find: Any = getattr(model, "get_output_embeddings", None)
    output: nn.Module | None = find() if find else None
    if output is None:
        layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
        output = layers[-1] if layers else None
    return output


class _Product(torch.autograd.Function):
    library_calls = (105, 100)
    """What bitsandbytes' `Linear4bit` and `MatMul4Bit` execute beside a product and a module's functions, in forward
    and in backward: as many Python functions as take the same time. Measured with bitsandbytes 0.50 and tiny layers on
    a CPU: 62 and 59 us more than `nn.Linear`, where the three functions of `nn.GELU` take 1.7 us, less 2 us to unpack.
    They call only 36 functions, but their operators are written in Python too, and call a C library."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, packed: Tensor, bias: Tensor | None, shape: Any, scales: Any) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape, ctx.scales = shape, scales
        # As in `_dequant_linear_fallback`, the scales in fp32 and their sum with the offset are there until the end.
        fp32_scales = _fp32(scales)
        _with_offset = fp32_scales + scales[-1] if len(scales) > 1 else None
        return functional.linear(values, _unpacked(packed, shape, values.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (packed,) = ctx.saved_tensors
        # As in `dequantize_4bit`, the scales in fp32 are released before the product.
        fp32_scales = _fp32(ctx.scales)
        if len(ctx.scales) > 1:
            fp32_scales += ctx.scales[-1]
        weight = _unpacked(packed, ctx.shape, gradients[0].dtype)
        del fp32_scales
        return gradients[0] @ weight, None, None, None, None


def _fp32(scales: list[Tensor]) -> Tensor:
    """Return the scales in fp32: those in 8 bits, which others follow, are unpacked."""
    return torch.empty_like(scales[0], dtype=torch.float32) if len(scales) > 1 else scales[0]


def _unpacked(packed: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return the weight in `dtype`."""
    # Stands for the kernel that unpacks: it writes the weight, and therefore takes the same time.
    return packed.new_empty(shape, dtype=dtype).zero_()
