"""A causal language model's loss without all of its logits: the head's product in pieces (`techniques/loss.py`)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from shoestring.errors import UsageError
from shoestring.techniques.loss import IGNORED, chunked_cross_entropy

_SCALED = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}
"""What some models do to their logits, by its name in the configuration, and the value that does nothing."""


def require_plain_head(kind: Any, settings: Any) -> None:
    """Raises UsageError for a model whose loss is not the cross-entropy of one linear layer."""
    text = settings.get_text_config()
    if not kind.__name__.endswith(("ForCausalLM", "LMHeadModel")):
        raise UsageError(f"loss_chunk: {kind.__name__} is no causal language model", hint="loss_chunk=none")
    changed = [name for name, plain in _SCALED.items() if getattr(text, name, None) not in (None, plain)]
    if changed:
        raise UsageError(f"loss_chunk: {kind.__name__} changes its logits by {changed[0]}", hint="loss_chunk=none")


def loss(model: nn.Module, batch: dict[str, Tensor], chunk: int) -> Tensor:
    """The mean over the tokens that count, as `transformers/loss/loss_utils.py: ForCausalLMLoss` (5.23) has it.

    Raises UsageError where the head is no plain linear layer (an adapter on it, for one).
    """
    wrapped: Any = model
    base = wrapped.get_base_model() if hasattr(model, "get_base_model") else wrapped
    head = base.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise UsageError(f"loss_chunk: the head is a {type(head).__name__}", hint="loss_chunk=none")
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    hidden = base.base_model(**inputs).last_hidden_state
    # Each place foretells the next token, and the last one nothing.
    labels = functional.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:]
    total, counted = chunked_cross_entropy(hidden.flatten(0, 1), head.weight, labels.flatten(), chunk, head.bias)
    return total / counted
