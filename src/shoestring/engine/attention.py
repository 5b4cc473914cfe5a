"""Deterministic backward passes of attention on a GPU.

The flash and the memory-efficient kernels add gradients in the order in which blocks of threads finish, which differs
from run to run. Both have a deterministic variant. torch selects it only in the strict mode of
`torch.use_deterministic_algorithms`, in which every operator without a deterministic kernel is an error; in the mode
with warnings, which training uses, it warns and selects the other one (`attention_backward.cu`). So the strict mode is
on while the backward pass of attention runs, and only then.

cuDNN's attention, which torch prefers on some GPUs, has no deterministic variant: it is disabled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_NODES = ("ScaledDotProductFlashAttentionBackward0", "ScaledDotProductEfficientAttentionBackward0")
"""The nodes of autograd's graph whose kernels have a deterministic variant."""

_SEARCHED_NODES = 3
"""Attention may pad its inputs and slice its output, which are further nodes of the graph."""

_WARN, _STRICT = 1, 2
"""torch's debug modes of determinism."""


@contextmanager
def deterministic_attention() -> Iterator[None]:
    """Select the deterministic kernels of attention within the context, in which torch's mode is the one with warnings.

    Only calls of `torch.nn.functional.scaled_dot_product_attention` by that name are found: a module that has imported
    the function itself keeps torch's kernels, and torch's warning.
    """
    functional: Any = torch.nn.functional
    attention = functional.scaled_dot_product_attention
    cudnn_enabled = torch.backends.cuda.cudnn_sdp_enabled()

    def scaled_dot_product_attention(*arguments: Any, **options: Any) -> Tensor:
        output: Tensor = attention(*arguments, **options)
        if output.is_cuda and not torch.compiler.is_compiling():
            run_strictly(output)
        return output

    torch.backends.cuda.enable_cudnn_sdp(False)
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = attention
        torch.backends.cuda.enable_cudnn_sdp(cudnn_enabled)


def run_strictly(output: Tensor) -> None:
    """Run the backward pass of attention with this output in the strict mode."""
    node: Any = output.grad_fn
    for _ in range(_SEARCHED_NODES):
        if node is None:
            return
        if node.name() in _NODES:
            node.register_prehook(lambda _: torch.set_deterministic_debug_mode(_STRICT))
            node.register_hook(lambda *_: end_strict_mode())
            return
        node = node.next_functions[0][0] if node.next_functions else None


def end_strict_mode() -> None:
    """Return to the mode with warnings, also after a backward pass that failed within attention."""
    if torch.get_deterministic_debug_mode() == _STRICT:
        torch.set_deterministic_debug_mode(_WARN)
