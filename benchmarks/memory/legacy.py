"""Training as before PyTorch 1.11, which some measurements were made with.

There was no fused attention and no optimizer for many tensors at once. `zero_grad` filled gradients with zeros, where
newer versions drop them, so backward added to gradients that had existed since the first one, in the memory that its
activations had left. `softmax` kept its input for backward, though it does not need it (pytorch/pytorch#64000, solved
by #65242).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from benchmarks.memory.cases import Row

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_VERSIONS = re.compile(r"NGC PyTorch 20\.|\btorch 1\.(?:\d|10)\b")
"""How rows name such versions: NVIDIA's containers of 2020 have 1.4 to 1.8."""

_ATTENTION = "before_torch_1_11"
"""The name under which transformers finds `attention`."""

_SOURCES = ("stanford-futuredata/gavel", "perf_train_gpu_one")
"""Sources without a version: times that are in Gavel's repository since 2020, and a page of transformers' documentation
that shows a terminal of January 2022 with CUDA 11.2."""


def is_legacy(row: Row) -> bool:
    """Return whether a row was measured with such a version."""
    texts = (row.get(name) or "" for name in ("notes", "other_versions"))
    return bool(_VERSIONS.search(" ".join(texts))) or any(name in (row.get("source") or "") for name in _SOURCES)


def keep_gradients(model: nn.Module, optimizer: Optimizer) -> None:
    """Keep each gradient from its first backward on: later ones are added to it, and it is zeroed after the step."""
    gradients: dict[Tensor, Tensor] = {}

    def accumulate(parameter: Tensor) -> None:
        assert parameter.grad is not None
        kept = gradients.setdefault(parameter, parameter.grad)
        if parameter.grad is not kept:
            parameter.grad = kept.add_(parameter.grad)

    def zero(*_: object) -> None:
        for gradient in gradients.values():
            gradient.zero_()

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(accumulate)
    optimizer.register_step_post_hook(zero)


def use_attention(model: nn.Module) -> None:
    """Let a transformers model compute attention operator by operator, where `softmax` keeps its input."""
    set_implementation: Any = getattr(model, "set_attn_implementation", None)
    if set_implementation is None:
        return
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_utils import AttentionInterface

    # An implementation is chosen by the model's configuration, so it is also that of recomputed blocks.
    AttentionInterface.register(_ATTENTION, attention)
    AttentionMaskInterface.register(_ATTENTION, eager_mask)
    set_implementation(_ATTENTION)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Return the attended values and the attention: fp32 under autocast, as `softmax` is."""
    import torch
    from torch.nn import functional

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, values: Tensor) -> Tensor:
            context.save_for_backward(values)
            return values.view_as(values)

        @staticmethod
        def backward(_context: Any, gradient: Tensor) -> Tensor:
            return gradient

    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    shares = functional.softmax(Keep.apply(scores.float()), dim=-1)
    attended = torch.matmul(functional.dropout(shares, dropout, module.training), value)
    return attended.transpose(1, 2).contiguous(), shares
