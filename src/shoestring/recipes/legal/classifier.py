"""BERT with a linear head on its pooled first token: tokens and mask (n, length) -> logits of the roles (n, roles)."""

from typing import Any, TypeAlias

from torch import Tensor, nn
from transformers import BertConfig, BertModel

from shoestring.errors import UsageError

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Token ids and mask (n, length) int64, roles (n,) int64."""

SIZES: dict[str, dict[str, Any]] = {
    # BertConfig's defaults are BERT-base (Devlin et al., 2019), which InLegalBERT goes on training.
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
    """BERT as `config` has it, with random weights."""

    def __init__(self, config: BertConfig, *, roles: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = BertModel(config)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(config.hidden_size, roles)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        pooled = self.encoder(input_ids=tokens, attention_mask=mask).pooler_output
        logits: Tensor = self.head(self.dropout(pooled))
        return logits


def classifier(size: str, roles: int, encoder: str | None, *, download: bool) -> RoleClassifier:
    """One of `SIZES` with random weights, or with the shape and the weights of `encoder`, a folder or a hub's name.

    Raises UsageError where those cannot be had as safetensors.
    """
    if encoder is None:
        return RoleClassifier(BertConfig(**SIZES[size]), roles=roles)
    try:
        config = BertConfig.from_pretrained(encoder, local_files_only=not download)
        model = RoleClassifier(config, roles=roles)
        # An estimate asks for the shape alone: its tensors have no memory to put weights in.
        if not model.head.weight.is_meta:
            source = BertModel.from_pretrained(
                encoder, config=config, use_safetensors=True, local_files_only=not download
            )
            model.encoder.load_state_dict(source.state_dict())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"encoder={encoder} cannot be read: {str(error).splitlines()[0]}",
            hint="give a folder with config.json and model.safetensors, or the name of such a model on the hub with "
            "download=true",
        ) from error
    return model


def vocabulary(size: str) -> int:
    """How many tokens one of `SIZES` tells apart."""
    return int(BertConfig(**SIZES[size]).vocab_size)
