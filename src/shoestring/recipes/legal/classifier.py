"""BERT with a linear head on its pooled first token: tokens and mask (n, length) -> logits of the roles (n, 7)."""

from typing import Any, TypeAlias

from torch import Tensor, nn
from transformers import BertConfig, BertModel

ROLES = 7

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Token ids and mask (n, length) int64, roles (n,) int64."""

SIZES: dict[str, dict[str, Any]] = {
    # BertConfig's defaults are BERT-base (Devlin et al., 2019), which InLegalBERT goes on training.
    "full": {},
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
}


class RoleClassifier(nn.Module):
    """`shape`: what differs from BERT-base in its configuration."""

    def __init__(self, shape: dict[str, Any], *, dropout: float = 0.1) -> None:
        super().__init__()
        config = BertConfig(**shape)
        self.encoder = BertModel(config)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(config.hidden_size, ROLES)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        pooled = self.encoder(input_ids=tokens, attention_mask=mask).pooler_output
        logits: Tensor = self.head(self.dropout(pooled))
        return logits
