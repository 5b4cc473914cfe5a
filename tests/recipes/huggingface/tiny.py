"""Configurations small enough to count by hand."""

import json
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}

BERT: dict[str, Any] = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}

LINEAR_WEIGHTS = 2 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 128 * 256)
"""Of LLAMA's blocks: query and output, key and value, and the three of the network."""

OTHER_WEIGHTS = 2 * 512 * 128 + 5 * 128
"""Embeddings, output layer, norms."""


def write(folder: Path, values: dict[str, Any], **changes: Any) -> Path:
    """A configuration's file."""
    path = folder / "config.json"
    path.write_text(json.dumps({**values, **changes}), encoding="utf-8")
    return path
