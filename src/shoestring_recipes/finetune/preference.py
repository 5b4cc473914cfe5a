"""Direct preference optimization (DPO) of pairs of answers, with the adapter switched off as the reference.

The loss is in `integrations/huggingface/preference.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.integrations.huggingface.preference import Pairs, full_pairs, rewards
from shoestring.techniques.loss import IGNORED
from shoestring_recipes.finetune.batches import padded_length
from shoestring_recipes.finetune.samples import PairSample


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
    return full_pairs(size, padded_length(seq_len))


def preference_loss(model: nn.Module, batch: Pairs, *, beta: float, loss_chunk: int | None) -> tuple[Tensor, int]:
    """Return the sum of the losses over the pairs of a batch, and the number of pairs.

    Raises UsageError for a model without an adapter.
    """
    chosen, rejected = rewards(model, batch, beta=beta, loss_chunk=loss_chunk)
    return -functional.logsigmoid(chosen - rejected).sum(), len(chosen)


@torch.no_grad()
def evaluate_pairs(model: nn.Module, batch: Pairs, *, beta: float, loss_chunk: int | None) -> dict[str, Tensor]:
    """Return what a batch contributes to `combine_pairs`: the rewards `chosen` and `rejected`, each (pairs,).

    Raises as `preference_loss` does.
    """
    chosen, rejected = rewards(model, batch, beta=beta, loss_chunk=loss_chunk)
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
