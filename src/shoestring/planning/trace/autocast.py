"""Automatic mixed precision on the simulated device, with the casts of `torch.autocast("cuda")` for each operator.

The lists are CUDA's policies in torch's `aten/src/ATen/autocast_mode.h`. As in torch, the cast of a trainable fp32 leaf
is cached until the outermost autocast region ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from shoestring.base.settings import Precision
from shoestring.planning.trace.simulated_device import DEVICE, KEY
from shoestring.techniques import trees

_AUTOCAST: str = f"Autocast{KEY}"
_AUTOCAST_KEY: Any = torch._C._parse_dispatch_key(_AUTOCAST)
_AUTOCAST_KEYS = torch._C.DispatchKeySet(_AUTOCAST_KEY)

_library = torch.library.Library("aten", "IMPL")
_fallback = torch.library.Library("_", "IMPL")
cached_casts: dict[int, Tensor] = {}
"""Casts of weights by the weight's identity, cached until the outermost autocast region ends."""


def set_up() -> None:
    """Register CUDA's autocast policies for the simulated device, once per process."""
    if KEY != "CPU":  # the CPU's own key falls through already
        _fallback.fallback(torch.library.fallthrough_kernel, _AUTOCAST)
    for policy, names in _POLICIES.items():
        for name in names.split():
            packet, _, overload = name.partition(".")
            # Some torch versions lack some of these operators.
            operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if operator is not None:
                _library.impl(name, _kernel(operator, policy), _AUTOCAST)
    _wrap_clear_autocast_cache()


def _wrap_clear_autocast_cache() -> None:
    """Clear the cached casts together with torch's own autocast cache.

    torch clears its cache at the end of the outermost region, including one that recomputation opens in backward.
    """
    clear_torch_cache = torch.clear_autocast_cache

    def clear_both_caches() -> None:
        cached_casts.clear()
        clear_torch_cache()

    torch_module: Any = torch
    torch_module.clear_autocast_cache = clear_both_caches


@contextmanager
def region(precision: Precision) -> Iterator[None]:
    """Enter an autocast region of `precision`; do nothing for fp32."""
    if precision == "fp32":
        yield
        return
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    with torch.autocast(DEVICE, dtype=dtype):
        yield


@contextmanager
def in_other_thread() -> Iterator[None]:
    """Compute a deferred backward as in torch's threads for the backward on GPUs, each of which counts its own regions.

    The end of a region that recomputation opens then clears the cache, also within the forward of another microbatch.
    The region that `techniques/pipeline/crossing.py` opens around the backward does not count either.
    """
    regions = torch.autocast_increment_nesting()
    for _ in range(regions + 1):
        torch.autocast_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(regions):
            torch.autocast_increment_nesting()


def _kernel(operator: Any, policy: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        # As in C++, operators called by this operator are not cast again.
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return policy(operator, args, kwargs)

    return kernel


def _to_lower(operator: Any, args: Any, kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype(DEVICE)
    return _call_cast(operator, args, kwargs, dtype)


def _to_fp32(operator: Any, args: Any, kwargs: Any) -> Any:
    return _call_cast(operator, args, kwargs, torch.float32)


def _to_fp32_result(operator: Any, args: Any, kwargs: Any) -> Any:
    first = args[0]
    names = [argument.name for argument in operator._schema.arguments]
    requested_dtype = {**dict(zip(names, args, strict=False)), **kwargs}.get("dtype")
    if not _is_eligible(first) or requested_dtype is not None:
        # As `fp32_set_opt_dtype`: an operator that is told its type is left as it is.
        return operator(*args, **kwargs)
    if operator in _SOFTMAX and first.dtype == torch.float16:
        # CUDA's softmax reads fp16 and writes fp32 without an intermediate copy.
        return _SOFTMAX[operator](first, args[1], True)
    if "dtype" in names[: len(args)]:
        args = tuple(torch.float32 if name == "dtype" else x for name, x in zip(names, args, strict=False))
        return operator(*args, **kwargs)
    return operator(*args, **{**kwargs, "dtype": torch.float32})


_SOFTMAX = {
    torch.ops.aten.softmax.int: torch.ops.aten._softmax,
    torch.ops.aten.log_softmax.int: torch.ops.aten._log_softmax,
}


def _to_widest(operator: Any, args: Any, kwargs: Any) -> Any:
    leaves = [x for x in trees.leaves((args, kwargs)) if _is_eligible(x)]
    dtype = torch.float32 if any(x.dtype == torch.float32 for x in leaves) else torch.get_autocast_dtype(DEVICE)
    return _call_cast(operator, args, kwargs, dtype)


def _call_cast(operator: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """Call the operator with cast arguments, the last one first.

    In C++ the casts are arguments of the call of the operator (`WrapFunction_` in `aten/src/ATen/autocast_mode.h`),
    which gcc, with which PyTorch is built, evaluates from the last to the first.
    """
    options = {name: _cast(value, dtype) for name, value in reversed(kwargs.items())}
    positional = [_cast(value, dtype) for value in reversed(args)]
    return operator(*reversed(positional), **options)


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    if isinstance(tree, Tensor):
        return _cast_tensor(tree, dtype) if _is_eligible(tree) and tree.dtype != dtype else tree
    if isinstance(tree, dict):
        return {key: _cast(value, dtype) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_cast(value, dtype) for value in tree)
    return tree


def _cast_tensor(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    cacheable = (
        dtype != torch.float32
        and tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not cacheable:
        return tensor.to(dtype)
    if id(tensor) not in cached_casts:
        cached_casts[id(tensor)] = tensor.to(dtype)
    return cached_casts[id(tensor)]


def _is_eligible(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == DEVICE
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


_POLICIES = {
    _to_lower: """
        _convolution _convolution.deprecated conv1d conv2d conv3d
        conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr
        matmul mm mv linalg_vecdot linear addbmm baddbmm bmm einsum chain_matmul linalg_multi_dot lstm_cell gru_cell
        rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell scaled_dot_product_attention
        _scaled_dot_product_flash_attention
    """,
    _to_fp32: """
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
        pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm
        nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
        hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
        multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss dist pdist cdist renorm logsumexp
        binary_cross_entropy_with_logits upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d
        upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d rms_norm
    """,
    _to_fp32_result: """
        prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
        linalg_matrix_norm.str_ord sum sum.dim_IntList
    """,
    _to_widest: """
        addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
    """,
}
