"""Deterministic backward passes of attention on a GPU.

The flash and the memory-efficient kernels add gradients in the order in which blocks of threads finish, which differs
from run to run: on an H200 the gradients of the recipe `legal` differed by 5e-5 in each of five repetitions. Both have
a deterministic variant. torch selects it only in the strict mode of `torch.use_deterministic_algorithms`, in which
every operator without a deterministic kernel is an error; in the mode with warnings, which training uses, it warns and
selects the other one (`attention_backward.cu`). So the strict mode is on while such an operator runs, and only then.

cuDNN's attention, which torch prefers on some GPUs, has no deterministic variant: it is disabled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_OPERATORS = (
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_flash_attention_backward",
    "_efficient_attention_backward",
)
"""The operators whose kernels have a deterministic variant; the last two are called by libraries directly."""

_replaced: set[tuple[str, str]] = set()
"""The operators, with their dispatch keys, that a context has replaced: torch refuses a second replacement."""

_STRICT = 2
"""torch's debug mode of determinism in which an operator without a deterministic kernel is an error."""


@contextmanager
def deterministic_attention(operators: Sequence[str] = _OPERATORS, key: str = "AutogradCUDA") -> Iterator[None]:
    """Select the deterministic kernels of attention within the context, which may be nested.

    The operators' kernels for the dispatch key are replaced, so it does not matter how a model calls attention.
    """
    cudnn_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    library = torch.library.Library("aten", "IMPL")
    new_operators = [name for name in operators if (name, key) not in _replaced]
    try:
        _replaced.update((name, key) for name in new_operators)
        for name in new_operators:
            library.impl(name, partial(_run_strictly, getattr(torch.ops.aten, name)), key)
        torch.backends.cuda.enable_cudnn_sdp(False)
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(cudnn_enabled)
        library._destroy()
        _replaced.difference_update((name, key) for name in new_operators)


def _run_strictly(operator: Any, *arguments: Any, **options: Any) -> Any:
    """Run the kernel of the device in the strict mode."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(_STRICT)
    try:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments, **options)
    finally:
        torch.set_deterministic_debug_mode(mode)
