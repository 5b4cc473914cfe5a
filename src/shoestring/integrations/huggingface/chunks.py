"""The loss of a causal language model with the logits computed in chunks (`techniques/loss.py`)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface.versions import without_head
from shoestring.techniques.loss import IGNORED, chunked_cross_entropy

_SCALED = {
    "final_logit_softcapping": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "lm_head_multiplier": 1.0,
    "output_multiplier": 1.0,
}
"""Fields of configurations that transform the logits, and the value of each without an effect."""


CAUSAL = ("ForCausalLM", "LMHeadModel")
"""The endings of the names of causal language models."""


def require_causal(model_class: Any, option: str) -> None:
    """Raise UsageError for a model that is no causal language model, which `option` needs."""
    name = model_class.__name__
    if not name.endswith(CAUSAL):
        unset = "loss_chunk=none" if option == "loss_chunk" else "method=sft"
        raise UsageError(f"{option} cannot be used: {name} is no causal language model", hint=f"set {unset}")


def require_plain_head(model_class: Any, config: Any) -> None:
    """Raise UsageError for a model whose loss is not the cross-entropy of one linear layer."""
    require_causal(model_class, "loss_chunk")
    if transforms := _transforms(config.get_text_config()):
        raise UsageError(
            f"loss_chunk cannot be used: {model_class.__name__} transforms its logits ({transforms[0]})",
            hint="set loss_chunk=none",
        )


def plain_head(base: Any) -> nn.Linear | None:
    """Return the head of a causal language model if its logits are those of one linear layer, else None.

    An adapter, and a configuration that scales or caps the logits, make it another function.
    """
    head = base.get_output_embeddings()
    return head if type(head) is nn.Linear and not _transforms(base.config.get_text_config()) else None


def _transforms(text_config: Any) -> list[str]:
    """Return the fields of a configuration that transform the logits."""
    return [field for field, neutral in _SCALED.items() if getattr(text_config, field, None) not in (None, neutral)]


def chunked_loss(model: nn.Module, batch: dict[str, Tensor], chunk: int) -> Tensor:
    """Return the mean loss over the tokens that are not ignored.

    It equals `ForCausalLMLoss` of `transformers/loss/loss_utils.py` (5.23). Raises UsageError where the head is not a
    plain linear layer, for example because it has an adapter.
    """
    wrapped: Any = model
    base = wrapped.get_base_model() if hasattr(model, "get_base_model") else wrapped
    head = base.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise UsageError(
            f"loss_chunk cannot be used: the head is a {type(head).__name__}, not a plain linear layer",
            hint="set loss_chunk=none",
        )
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    hidden = without_head(base)(**inputs).last_hidden_state
    # Each position predicts the next token; the last position has no label.
    labels = functional.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:]
    total, token_count = chunked_cross_entropy(hidden.flatten(0, 1), head.weight, labels.flatten(), chunk, head.bias)
    return total / token_count
