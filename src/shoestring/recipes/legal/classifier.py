"""BERT with a linear head on its pooled first token."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from shoestring.errors import UsageError
from shoestring.reading import require_regular_files
from shoestring.recipes.huggingface.configuration import require_sizes

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
    size: str, roles: int, encoder: str | None, *, download: bool, pretrained: bool = True
) -> RoleClassifier:
    """Return one of `SIZES` with random weights, or the shape and weights of `encoder`, a folder or a name on the hub.

    Without `pretrained` it has the encoder's shape and random weights.

    Raises UsageError if the encoder cannot be read or has no weights in safetensors.
    """
    if encoder is None:
        return RoleClassifier(BertConfig(**SIZES[size]), roles=roles)
    config = read_configuration(encoder, download=download)
    with _usage_errors(encoder):
        model = RoleClassifier(config, roles=roles)
        # An estimate needs the shape alone; its tensors have no memory for weights.
        if pretrained and not model.head.weight.is_meta:
            source = BertModel.from_pretrained(
                encoder, config=config, use_safetensors=True, local_files_only=not download
            )
            model.encoder.load_state_dict(source.state_dict())
    return model


def read_configuration(encoder: str, *, download: bool) -> BertConfig:
    """Return the configuration of `encoder`. Raises UsageError if it cannot be read, or has sizes of no model."""
    with _usage_errors(encoder):
        require_regular_files(Path(encoder))
        if Path(encoder).is_dir() and not Path(encoder, "config.json").is_file():
            raise ValueError("it has no config.json")  # transformers would use the default configuration
        config = BertConfig.from_pretrained(encoder, local_files_only=not download)
        require_sizes(f"encoder={encoder}", config.to_dict(), BertConfig)
    return config


def vocabulary_size(size: str) -> int:
    """Return the number of tokens in the vocabulary of one of `SIZES`."""
    return int(BertConfig(**SIZES[size]).vocab_size)


@contextmanager
def _usage_errors(encoder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, SafetensorError) as error:
        raise UsageError(
            f"encoder={encoder} cannot be read: {' '.join(str(error).split())[:200]}",
            hint="use a folder with config.json and model.safetensors, or the name of such a model on the hub with "
            "download=true",
        ) from error
