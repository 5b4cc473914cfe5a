"""The loss of direct preference optimization (DPO): pairs of answers, and a reference that is not trained.

The loss of a pair is `-logsigmoid(beta * ((p_chosen - r_chosen) - (p_rejected - r_rejected)))`, where p and r are the
log-probabilities of an answer under the model and under the reference (https://arxiv.org/abs/2305.18290, equation 7).
The reference is the model with its adapter switched off, or a second model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface.chunks import plain_head
from shoestring.integrations.huggingface.versions import without_head
from shoestring.techniques.loss import chunked_token_losses
from shoestring.training.engine.evaluation_mode import evaluation_mode

_ADAPTER = "train an adapter, which is switched off for the comparison: --set lora_r=16"

Pairs = dict[str, Tensor]
"""A batch of pairs. Its first half are the preferred answers, its second half the rejected ones:

- `input_ids` (2 * pairs, length) int64, padded on the right. The attention is causal, so no token sees the padding.
- `labels` (2 * pairs, length) int64: the tokens that are learned, each at its own position, and `IGNORED` elsewhere.
- `positions` (learned tokens,) int64: the positions of the learned tokens in the flattened labels. They are counted
  when the batch is made, because on a GPU their number would have to be waited for.
"""


def full_pairs(size: int, length: int) -> Pairs:
    """Return `size` pairs of sequences of `length` tokens, all of which are learned, for planning."""
    tokens = torch.zeros(2 * size, length, dtype=torch.int64)
    positions = torch.arange(tokens.numel()).view_as(tokens)[:, 1:].flatten()
    return {"input_ids": tokens, "labels": tokens.clone(), "positions": positions}


class WithReference(nn.Module):
    """A model that is trained, beside a frozen copy of it in evaluation mode."""

    def __init__(self, trained: nn.Module) -> None:
        super().__init__()
        self.trained, self.reference = trained, copy.deepcopy(trained)
        self.reference.requires_grad_(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.trained(*args, **kwargs)


def rewards(
    model: nn.Module, batch: Pairs, *, beta: float, loss_chunk: int | None, hint: str = _ADAPTER
) -> tuple[Tensor, Tensor]:
    """Return the rewards of the preferred and of the rejected answers, each (pairs,), in at least fp32.

    The reward of an answer is `beta` times the difference of its log-probabilities. Logits are computed for learned
    tokens only, for `loss_chunk` of them at a time; with None for all of them. A model that transforms its logits, or
    whose head has an adapter, computes those of all tokens.

    Raises UsageError with this `hint` for a model that has neither an adapter nor a second model.
    """
    trained = model.trained if isinstance(model, WithReference) else model
    # First, so that its activations are freed before those of the model are stored. In evaluation mode, because dropout
    # would be another one than in the model's forward.
    with torch.no_grad(), _reference(model, hint) as reference, evaluation_mode(reference):
        expected = _log_probabilities(reference, batch, loss_chunk)
    values = beta * (_log_probabilities(trained, batch, loss_chunk) - expected)
    chosen, rejected = values.chunk(2)
    return chosen, rejected


@contextmanager
def _reference(model: Any, hint: str) -> Iterator[nn.Module]:
    if isinstance(model, WithReference):
        yield model.reference
    elif hasattr(model, "disable_adapter"):
        if isinstance(model.get_base_model(), WithReference):
            raise UsageError(
                "second_model=yes: with adapters the reference is the model itself, with them switched off",
                hint="set second_model=no, or train all weights with lora_r=none",
            )
        with model.disable_adapter():
            yield model
    else:
        raise UsageError(
            "method=dpo compares the model with the one before training: when all weights are trained, that would be a "
            "second model in memory",
            hint=hint,
        )


def mean_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Return the mean loss of pairs with these rewards."""
    return -functional.logsigmoid(chosen - rejected).mean()


def _log_probabilities(model: Any, batch: Pairs, loss_chunk: int | None) -> Tensor:
    """Return the sum of the log-probabilities of the learned tokens of each sequence: (2 * pairs,)."""
    tokens, positions = batch["input_ids"], batch["positions"]
    labels = batch["labels"].flatten().index_select(0, positions)
    inputs = {"input_ids": tokens, "use_cache": False}
    base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = plain_head(base)
    if head is None:
        logits = base(**inputs).logits.flatten(0, 1).index_select(0, positions - 1)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        losses = functional.cross_entropy(logits.to(dtype), labels, reduction="none")
    else:
        # The position before a token predicts it.
        hidden = without_head(base)(**inputs).last_hidden_state.flatten(0, 1).index_select(0, positions - 1)
        losses = chunked_token_losses(hidden, head.weight, labels, loss_chunk or max(1, len(labels)), head.bias)
    by_position = losses.new_zeros(tokens.numel()).index_copy(0, positions, losses)
    return -by_position.view_as(tokens).sum(dim=1)
