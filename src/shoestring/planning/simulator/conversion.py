"""Convert recorded operators to those of a trace, whose time is estimated. Imports torch, which counts their FLOPs.

A trace has operators as autograd calls them; the simulated device sees those with kernels for CUDA that these call in
turn, such as `cudnn_convolution` for `convolution`. Such names are translated, so that the estimate knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shoestring.planning.simulator.recorded import RecordedList, RecordedTensor, Signature, Value
from shoestring.planning.trace import operators, recurrent
from shoestring.planning.trace.record import Op

_aten = torch.ops.aten

_TYPES: Mapping[str, torch.dtype] = {
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "UInt16": torch.uint16,
    "UInt32": torch.uint32,
    "UInt64": torch.uint64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
    "ComplexHalf": torch.complex32,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
    "Float8_e4m3fn": torch.float8_e4m3fn,
    "Float8_e5m2": torch.float8_e5m2,
}
"""By the names of the dispatcher; other types have one byte."""

_Arguments = dict[str, Any]
_Translation = Callable[[_Arguments], tuple[Any, _Arguments]]


def operator(signature: Signature) -> Op:
    """Return the operator of a trace that takes as long; `calls` and `python_calls` are not set.

    An operator that this version of torch lacks counts by the bytes that it moves.
    """
    name = signature.operator.name
    names = signature.operator.arguments
    arguments = {key: _plain(value) for key, value in zip(names, signature.arguments, strict=False)}
    results = [_plain(value) for value in signature.results]
    overwritten = _overwritten(signature)
    read = list(_on_gpu(value for index, value in enumerate(signature.arguments) if index not in overwritten))
    written = [
        *_on_gpu(signature.arguments[index] for index in sorted(signature.operator.written)),
        *_on_gpu(value for index, value in enumerate(signature.results) if index not in signature.operator.aliases),
    ]
    base = name.partition(".")[0]
    if base in _RECURRENT:
        return _recurrent(base, arguments, read, written)
    func, arguments = _translated(name, arguments)
    result = results[0] if len(results) == 1 else tuple(results)
    if func is not None:
        args, kwargs = _by_schema(func, arguments)
        try:
            return operators.operator(func, args, kwargs, result, read, written)
        except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            # A version of torch whose operator of this name has other arguments: only the FLOPs are lost.
            pass
    # Any operator without FLOPs has the record of one of which only the bytes are known.
    return replace(operators.operator(_aten.add.Tensor, (), {}, None, read, written), name=name)


_OVERWRITING = frozenset(
    f"aten::{name}"
    for name in (
        "copy_",
        "fill_",
        "zero_",
        "random_",
        "normal_",
        "uniform_",
        "bernoulli_",
        "exponential_",
        "log_normal_",
    )
)
"""Operators that write to an argument without reading it. A trace has others in place of most, such as `_to_copy`."""


def _overwritten(signature: Signature) -> frozenset[int]:
    """Return the indices of the arguments that are written to and not read."""
    operator = signature.operator
    if operator.name.partition(".")[0] in _OVERWRITING:
        return operator.written
    return frozenset(index for index in operator.written if operator.arguments[index].startswith("out"))


def _translated(name: str, arguments: _Arguments) -> tuple[Any, _Arguments]:
    """Return the operator of a trace and its arguments by name; None for an operator that this torch lacks."""
    base, _, overload = name.partition(".")
    translation = _TRANSLATIONS.get(base)
    if translation:
        return translation(arguments)
    namespace, _, short = base.partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), short, None)
    return getattr(packet, overload or "default", None), arguments


def _by_schema(func: Any, arguments: _Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional arguments and those by keyword."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in func._schema.arguments:
        value = arguments.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _convolution(*, transposed: bool = False, depthwise: bool = False) -> _Translation:
    """Return a translation to `convolution`, which calls the others."""

    def translate(arguments: _Arguments) -> tuple[Any, _Arguments]:
        values, weight = arguments["self"], arguments["weight"]
        unit = (1,) * (weight.dim() - 2)
        groups = values.shape[1] if depthwise else arguments.get("groups") or 1
        return _aten.convolution.default, {
            "input": values,
            "weight": weight,
            "bias": arguments.get("bias"),
            "stride": arguments.get("stride") or unit,
            "padding": arguments.get("padding") or (0,) * len(unit),
            "dilation": arguments.get("dilation") or unit,
            "transposed": transposed,
            "output_padding": arguments.get("output_padding") or (0,) * len(unit),
            "groups": groups,
        }

    return translate


def _named(func: Any) -> _Translation:
    """Return a translation to an operator with the same names of arguments."""
    return lambda arguments: (func, arguments)


_TRANSLATIONS: Mapping[str, _Translation] = {
    **dict.fromkeys(("aten::mm", "aten::_int_mm"), _named(_aten.mm.default)),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::_addmm_activation"), _named(_aten.addmm.default)),
    "aten::bmm": _named(_aten.bmm.default),
    **dict.fromkeys(("aten::baddbmm", "aten::baddbmm_"), _named(_aten.baddbmm.default)),
    **dict.fromkeys(
        (
            "aten::cudnn_convolution",
            "aten::cudnn_convolution_relu",
            "aten::cudnn_convolution_add_relu",
            "aten::_slow_conv2d_forward",
            "aten::slow_conv3d_forward",
            "aten::slow_conv_dilated2d",
            "aten::slow_conv_dilated3d",
        ),
        _convolution(),
    ),
    **dict.fromkeys(
        ("aten::cudnn_convolution_transpose", "aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d"),
        _convolution(transposed=True),
    ),
    **dict.fromkeys(("aten::_conv_depthwise2d", "aten::conv_depthwise3d"), _convolution(depthwise=True)),
    "aten::_scaled_dot_product_cudnn_attention": _named(_aten._scaled_dot_product_flash_attention.default),
    "aten::_scaled_dot_product_cudnn_attention_backward": _named(
        _aten._scaled_dot_product_flash_attention_backward.default
    ),
}
"""Translations by the operator's name without its overload."""

_RECURRENT = {"aten::_cudnn_rnn": recurrent.FORWARD, "aten::_cudnn_rnn_backward": recurrent.BACKWARD}


def _recurrent(name: str, arguments: _Arguments, read: list[Tensor], written: list[Tensor]) -> Op:
    """Return the fused operator that a trace has for a recurrent layer."""
    sequence = arguments["input"]
    # Each layer and direction has the weights of input and state first. Autocast makes matrices of biases too.
    stride = arguments["weight_stride0"]
    weights = [weight for index, weight in enumerate(arguments["weight"]) if index % stride < 2]
    batch_sizes = arguments.get("batch_sizes")
    if batch_sizes:  # packed: all samples of a step, with fewer samples in later ones
        sequence = sequence.new_empty(len(batch_sizes), -(-sequence.shape[0] // len(batch_sizes)), sequence.shape[1])
    elif arguments.get("batch_first"):
        sequence = sequence.transpose(0, 1)
    func = _RECURRENT[name]
    # Launches are counted by layers and directions, of which each has two weights here.
    states = [sequence.new_empty(len(weights) // 2, 0)]
    moved = operators.operator(func, (sequence, states, weights), {}, None, read, written)
    # The formula of `recurrent.py` is known to torch's counter only where the simulated device of traces is set up.
    products = (
        2 * sequence.shape[0] * sequence.shape[1] * sum(weight.numel() for weight in weights if weight.dim() == 2)
    )
    return replace(moved, flops=products * (2 if func is recurrent.BACKWARD else 1))


def _plain(value: Value) -> Any:
    """Return a recorded argument as torch's functions take it."""
    if isinstance(value, RecordedTensor):
        return _tensor(value)
    if isinstance(value, RecordedList):
        return [_tensor(tensor) if tensor else None for tensor, count in value.tensors for _ in range(count)]
    return value


def _on_gpu(values: Iterable[Value]) -> Iterator[Tensor]:
    """Yield the tensors on a GPU, with one more for those that a list has left out."""
    for value in values:
        if isinstance(value, RecordedTensor) and value.on_gpu:
            yield _tensor(value)
        elif isinstance(value, RecordedList):
            for tensor, count in value.tensors:
                if tensor and tensor.on_gpu:
                    yield from [_tensor(tensor)] * count
            if value.left_out_bytes:
                yield torch.empty(value.left_out_bytes, dtype=torch.uint8, device="meta")


def _tensor(recorded: RecordedTensor) -> Tensor:
    dtype = _TYPES.get(recorded.type, torch.uint8)
    if recorded.strides is not None:
        return torch.empty_strided(recorded.sizes, recorded.strides, dtype=dtype, device="meta")
    return torch.empty(recorded.sizes, dtype=dtype, device="meta")
