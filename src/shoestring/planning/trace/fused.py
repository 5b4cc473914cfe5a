"""Meta kernels that torch lacks for fused optimizers, which update their operands in place and allocate nothing.

torch has them for Adam and AdamW (`_meta_registrations.py`, 2.13), not for SGD and Adagrad, and none for a learning
rate that is a tensor.
"""

from __future__ import annotations

from typing import Any

import torch

_OPERATORS = ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")

_library = torch.library.Library("aten", "IMPL")


def set_up() -> None:
    """Register a meta kernel for each fused optimizer, once per process."""
    for operator in _OPERATORS:
        for overload in ("default", "tensor_lr"):
            # Some torch versions lack some of these operators.
            if not hasattr(getattr(torch.ops.aten, operator, None), overload):
                continue
            name = operator if overload == "default" else f"{operator}.{overload}"
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
                _library.impl(name, _do_nothing, "Meta")


def _do_nothing(*_: Any, **__: Any) -> None:
    return None
