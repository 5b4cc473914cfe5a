"""What the code that makes the updates does with a model's outputs, and the loss of older versions of transformers.

Under autocast accelerate converts all outputs to fp32 (`convert_outputs_to_fp32` in `accelerate/utils/operations.py`,
applied by `Accelerator.prepare_model`): the logits of a language model exist once more. transformers' Trainer releases
the outputs when it has the loss; a script with `outputs = model(**batch)` holds them until the next ones.

Before 4.49 `ForCausalLMLoss` copied the logits in fp32 to shift them by one token
(https://github.com/huggingface/transformers/pull/35646); before 4.46 models converted their logits to fp32 themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.base.packages.requirements import parse_version
from shoestring.integrations.huggingface import Loop
from shoestring.integrations.huggingface.chunks import CAUSAL
from shoestring.techniques import trees
from shoestring.techniques.loss import IGNORED

_HALF = (torch.float16, torch.bfloat16)
SHIFTS_LABELS = "4.49"
"""The first version whose loss shifts the labels in place of the logits."""
_RETURNS_HALF = "4.46"
"""The first version whose models return logits in the type that they compute in."""


def has_older_loss(version: str | None) -> bool:
    """Return whether this version of transformers has another loss than the installed one."""
    return version is not None and parse_version(version) < parse_version(SHIFTS_LABELS)


def outputs(model: nn.Module, batch: Mapping[str, Any], loop: Loop, version: str | None) -> Any:
    """Return the model's outputs, with their `loss`, as the code around the model sees them."""
    untyped_model: Any = model
    is_causal = "labels" in batch and _is_causal(model)
    result = _of_older_version(untyped_model, batch, version or "") if is_causal and has_older_loss(version) else None
    if result is None:
        result = untyped_model(**batch)
    return _in_fp32(result) if loop in ("trainer", "accelerate") else result


def _is_causal(model: Any) -> bool:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return type(base).__name__.endswith(CAUSAL)


def _of_older_version(model: Any, batch: Mapping[str, Any], version: str) -> Any:
    result = model(**{name: value for name, value in batch.items() if name != "labels"})
    if parse_version(version) < parse_version(_RETURNS_HALF):
        result.logits = result.logits.float()
    result["loss"] = _loss_of_shifted_logits(result.logits, batch["labels"])
    return result


def _loss_of_shifted_logits(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.float()
    shifted, targets = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
    return functional.cross_entropy(shifted.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=IGNORED)


def _in_fp32(result: Any) -> Any:
    """Return the outputs converted to fp32 under autocast, as accelerate does, which leaves other runs as they are."""
    values = dict(result)
    tensors = [leaf for leaf in trees.leaves(values) if isinstance(leaf, Tensor)]
    if not tensors or not torch.is_autocast_enabled(tensors[0].device.type):
        return result
    converted = trees.mapped(lambda leaf: leaf.float() if getattr(leaf, "dtype", None) in _HALF else leaf, values)
    return type(result)(**converted)
