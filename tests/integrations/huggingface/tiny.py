"""Configurations small enough to count their parameters by hand."""

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
"""Parameters of LLAMA's blocks: query and output, key and value, and the three layers of the MLP."""

OTHER_WEIGHTS = 2 * 512 * 128 + 5 * 128
"""Parameters of LLAMA's embeddings, output layer and norms."""


def write(folder: Path, values: dict[str, Any], **changes: Any) -> Path:
    """Write a configuration with `changes` as config.json in `folder`, and return its path."""
    path = folder / "config.json"
    path.write_text(json.dumps({**values, **changes}), encoding="utf-8")
    return path
