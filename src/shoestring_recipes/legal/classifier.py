"""BERT with a linear head on its pooled first token."""

from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn
from transformers import BertConfig, BertModel

from shoestring.integrations.huggingface import pretrained
from shoestring.integrations.huggingface.configuration import require_sizes

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Token ids and mask (n, length) int64, roles (n,) int64."""

SIZES: dict[str, dict[str, Any]] = {
    # The defaults of BertConfig are BERT-base (Devlin et al., 2019), from which InLegalBERT was trained further.
    "full": {},
    "tiny": {
        "vocab_size": 4096,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    },
}


class RoleClassifier(nn.Module):
    """BERT of shape `config` with random weights; maps tokens and mask (n, length) to logits (n, roles)."""

    def __init__(self, config: BertConfig, *, roles: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = BertModel(config)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(config.hidden_size, roles)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        pooled = self.encoder(input_ids=tokens, attention_mask=mask).pooler_output
        logits: Tensor = self.head(self.dropout(pooled))
        return logits


def build_classifier(
    size: str, roles: int, encoder: str | None, *, download: bool, has_weights: bool = True
) -> RoleClassifier:
    """Return one of `SIZES` with random weights, or the shape and weights of `encoder`, a folder or a name on the hub.

    Without `has_weights` it has the encoder's shape and random weights.

    Raises UsageError if the encoder cannot be read.
    """
    if encoder is None:
        return RoleClassifier(BertConfig(**SIZES[size]), roles=roles)
    with pretrained.reading(f"encoder={encoder}"):
        find = pretrained.find_weights if has_weights else pretrained.find
        folder = find(encoder, download=download)
        config = load_configuration(folder)
        model = RoleClassifier(config, roles=roles)
        # An estimate needs the shape alone; its tensors have no memory for weights.
        if has_weights and not pretrained.is_planned():
            source, _ = pretrained.load_model(BertModel, folder, config=config)
            model.encoder.load_state_dict(source.state_dict())
    return model


def load_configuration(folder: Path) -> BertConfig:
    """Return the configuration of a BERT in a folder.

    Raises UsageError for sizes that no model has, and ValueError if there is none.
    """
    if not (folder / "config.json").is_file():
        raise ValueError("it has no config.json")  # transformers would use the default configuration
    config: BertConfig = BertConfig.from_pretrained(folder, local_files_only=True)
    require_sizes(str(folder), config.to_dict(), BertConfig)
    return config


def vocabulary_size(size: str) -> int:
    """Return the number of tokens in the vocabulary of one of `SIZES`."""
    return int(BertConfig(**SIZES[size]).vocab_size)
