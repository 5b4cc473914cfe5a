"""Direct preference optimization (DPO): the loss of pairs of answers, with the adapter switched off as the reference.

The loss of a pair is `-logsigmoid(beta * ((p_chosen - r_chosen) - (p_rejected - r_rejected)))`, where p and r are the
log-probabilities of an answer under the model and under the reference (https://arxiv.org/abs/2305.18290, equation 7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn import functional

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface.chunks import plain_head
from shoestring.integrations.huggingface.versions import without_head
from shoestring.techniques.loss import IGNORED, chunked_token_losses
from shoestring.training.engine.evaluation_mode import evaluation_mode
from shoestring_recipes.finetune.batches import padded_length
from shoestring_recipes.finetune.samples import PairSample

Pairs = dict[str, Tensor]
"""A batch of pairs. Its first half are the preferred answers, its second half the rejected ones:

- `input_ids` (2 * pairs, length) int64, padded on the right. The attention is causal, so no token sees the padding.
- `labels` (2 * pairs, length) int64: the tokens that are learned, each at its own position, and `IGNORED` elsewhere.
- `positions` (learned tokens,) int64: the positions of the learned tokens in the flattened labels. They are counted
  when the batch is made, because on a GPU their number would have to be waited for.
"""


def collate_pairs(samples: Sequence[PairSample]) -> Pairs:
    """Return the batch of these pairs. All sequences are padded to the longest one, a multiple of 8 tokens."""
    sequences = [*(sample.chosen for sample in samples), *(sample.rejected for sample in samples)]
    tokens = torch.zeros(len(sequences), padded_length(max(map(len, sequences))), dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORED)
    for row, sequence in enumerate(sequences):
        values = torch.from_numpy(sequence.tokens).long()
        tokens[row, : len(sequence)] = values
        labels[row, : len(sequence)] = values.where(torch.from_numpy(sequence.loss_mask), IGNORED)
    labels[:, 0] = IGNORED  # nothing predicts the first token
    return {"input_ids": tokens, "labels": labels, "positions": (labels.flatten() != IGNORED).nonzero().squeeze(1)}


def chosen_labels(batch: Pairs) -> tuple[Tensor, Tensor]:
    """Return the tokens and the labels of the preferred answers of a batch."""
    pairs = len(batch["input_ids"]) // 2
    return batch["input_ids"][:pairs], batch["labels"][:pairs]


def largest_pairs(size: int, seq_len: int) -> Pairs:
    """Return the largest batch of `size` pairs, for planning: all sequences have `seq_len` tokens, all are learned."""
    tokens = torch.zeros(2 * size, padded_length(seq_len), dtype=torch.int64)
    positions = torch.arange(tokens.numel()).view_as(tokens)[:, 1:].flatten()
    return {"input_ids": tokens, "labels": tokens.clone(), "positions": positions}


def preference_loss(model: nn.Module, batch: Pairs, *, beta: float, loss_chunk: int | None) -> tuple[Tensor, int]:
    """Return the sum of the losses over the pairs of a batch, and the number of pairs.

    Logits are computed for learned tokens only, for `loss_chunk` of them at a time; with None for all of them. A model
    that transforms its logits, or whose head has an adapter, computes those of all tokens.

    Raises UsageError for a model without an adapter.
    """
    chosen, rejected = _rewards(model, batch, beta=beta, loss_chunk=loss_chunk)
    return -functional.logsigmoid(chosen - rejected).sum(), len(chosen)


@torch.no_grad()
def evaluate_pairs(model: nn.Module, batch: Pairs, *, beta: float, loss_chunk: int | None) -> dict[str, Tensor]:
    """Return what a batch contributes to `combine_pairs`: the rewards `chosen` and `rejected`, each (pairs,).

    The reward of an answer is `beta` times the difference of its log-probabilities. Raises as `preference_loss` does.
    """
    chosen, rejected = _rewards(model, batch, beta=beta, loss_chunk=loss_chunk)
    return {"chosen": chosen, "rejected": rejected}


def combine_pairs(results: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return the metrics of all pairs.

    They are the mean `loss`, the `preference_accuracy` (the share of pairs whose preferred answer has the larger
    reward), and the means of the rewards and of their difference, the `reward_margin`.
    """
    chosen, rejected = (
        torch.cat([result[name] for result in results]).to(torch.float64) for name in ("chosen", "rejected")
    )
    margins = chosen - rejected
    return {
        "loss": float(-functional.logsigmoid(margins).mean()),
        "preference_accuracy": float((margins > 0).to(torch.float64).mean()),
        "reward_margin": float(margins.mean()),
        "chosen_reward": float(chosen.mean()),
        "rejected_reward": float(rejected.mean()),
    }


def _rewards(model: nn.Module, batch: Pairs, *, beta: float, loss_chunk: int | None) -> tuple[Tensor, Tensor]:
    """Return the rewards of the preferred and of the rejected answers, each (pairs,), in at least fp32."""
    if not isinstance(model, PeftModel):
        raise UsageError(
            "method=dpo compares the model with the one before training: when all weights are trained, that would be a "
            "second model in memory",
            hint="train an adapter, which is switched off for the comparison: --set lora_r=16",
        )
    # First, so that its activations are freed before those of the model are stored. In evaluation mode, because dropout
    # would be another one than in the model's forward.
    with torch.no_grad(), evaluation_mode(model), model.disable_adapter():
        reference = _log_probabilities(model, batch, loss_chunk)
    rewards = beta * (_log_probabilities(model, batch, loss_chunk) - reference)
    chosen, rejected = rewards.chunk(2)
    return chosen, rejected


def _log_probabilities(model: PeftModel, batch: Pairs, loss_chunk: int | None) -> Tensor:
    """Return the sum of the log-probabilities of the learned tokens of each sequence: (2 * pairs,)."""
    tokens, positions = batch["input_ids"], batch["positions"]
    labels = batch["labels"].flatten().index_select(0, positions)
    inputs = {"input_ids": tokens, "use_cache": False}
    base: Any = model.get_base_model()
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
