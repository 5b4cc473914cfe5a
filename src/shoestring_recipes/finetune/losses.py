"""The loss of a causal language model over the learned tokens of a batch, without the logits of the others."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from shoestring.integrations.huggingface.chunks import plain_head
from shoestring.integrations.huggingface.versions import without_head
from shoestring.techniques.loss import chunked_cross_entropy
from shoestring_recipes.finetune.batches import Batch

_LARGEST_EXPONENT = 700.0
"""Of a number that a float can represent."""


def token_loss(model: nn.Module, batch: Batch, chunk: int | None) -> tuple[Tensor, float]:
    """Return the sum of the cross-entropies of the learned tokens, and their number.

    Logits are computed for learned tokens only, for `chunk` of them at a time. A head that is no plain linear layer, or
    whose logits the model transforms, computes those of all tokens.
    """
    wrapped: Any = model
    base = wrapped.get_base_model() if hasattr(model, "get_base_model") else wrapped
    places, targets = batch["places"], batch["targets"]
    # With a cache, transformers does not separate the samples of a packed row.
    inputs = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch} | {"use_cache": False}
    head = plain_head(base)
    if head is None:
        logits = base(**inputs).logits.flatten(0, 1).index_select(0, places)
        return functional.cross_entropy(logits.float(), targets, reduction="sum"), float(len(targets))
    hidden = without_head(base)(**inputs).last_hidden_state.flatten(0, 1).index_select(0, places)
    total, _ = chunked_cross_entropy(hidden, head.weight, targets, chunk or max(1, len(targets)), head.bias)
    return total, float(len(targets))


def mean_token_loss(results: Sequence[tuple[Tensor, float]]) -> dict[str, float]:
    """Return `loss`, the mean over all learned tokens of pairs of (sum, number), and `perplexity`, its exponential."""
    total = sum(float(loss) for loss, _ in results)
    loss = total / max(1.0, sum(count for _, count in results))
    return {"loss": loss, "perplexity": exp(min(loss, _LARGEST_EXPONENT))}
