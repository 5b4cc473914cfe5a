"""`legal`: which part does a sentence play in a judgment?

BERT-base over a sentence and the one before it, and one of seven roles out of the pooled first token. Needs
`pip install 'shoestring[legal]'`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from shoestring.config import too_small
from shoestring.errors import QuestionError
from shoestring.extras import require

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipes.legal.classifier import Batch

WEIGHT_DECAY = 0.01


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen."""

    size: Annotated[Literal["full", "tiny"], "BERT-base, or some ten thousand parameters to try things with"] = "full"
    epochs: Annotated[int, "passes over the training data"] = 5
    effective_batch: Annotated[int, "samples in one update"] = 16
    seed: Annotated[int, "decides initialisation, sample order and dropout"] = 42
    seq_len: Annotated[int, "tokens that a sentence and its context have at most, up to 512"] = 512
    learning_rate: Annotated[float, "peak"] = 2e-5

    def __post_init__(self) -> None:
        problems = too_small(vars(self), {"seq_len": 1})
        if self.seq_len > 512:
            problems.append(f"seq_len={self.seq_len}: BERT-base has positions for 512 tokens")
        if self.learning_rate <= 0:
            problems.append(f"learning_rate={self.learning_rate}: must be more than 0")
        if problems:
            raise QuestionError("options of legal cannot be used", problems=problems)


class Legal:
    """Seven-class classification of the sentences of judgments.

    It can be estimated and planned; its data, and with it training, come later.
    """

    clip_norm = 1.0

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()

    def model(self) -> nn.Module:
        """Raises QuestionError where the extra is not installed."""
        require("legal", "transformers")
        from shoestring.recipes.legal.classifier import SIZES, RoleClassifier

        return RoleClassifier(SIZES[self.options.size])

    def batch(self, size: int) -> Batch:
        """(size, seq_len) int64 token ids, their mask (size, seq_len) int64 and roles (size,) int64."""
        import torch

        tokens = torch.ones(size, self.options.seq_len, dtype=torch.int64)
        mask = tokens.clone()
        # Sentences differ in length, and without any padding attention would take a path that no real batch takes.
        mask[0, -1] = 0
        return tokens, mask, torch.zeros(size, dtype=torch.int64)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy over the sentences."""
        from torch.nn.functional import cross_entropy

        tokens, mask, roles = batch
        return cross_entropy(model(tokens, mask), roles)

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        return torch.optim.AdamW(model.parameters(), lr=self.options.learning_rate, weight_decay=WEIGHT_DECAY)
