"""The number of tokens in a sample: `seq_len`, or fewer where the model has fewer positions."""

from __future__ import annotations

from typing import Any

from shoestring.integrations.huggingface import versions

_FIRST_POSITION_AFTER_PADDING = frozenset(
    {
        *("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "data2vec-text"),
        *("longformer", "mpnet", "xmod", "esm", "luke", "mluke"),
    }
)
"""Types of models whose first position is that after the index of padding (`create_position_ids_from_input_ids`)."""


def text_length(config: Any, seq_len: int) -> tuple[int, list[str]]:
    """Return the number of tokens in a sample, with a note if it is less than `seq_len`.

    Learned positions limit it; rotary positions have no limit, and neither have relative ones.
    """
    positions = _positions(config)
    if positions is None or seq_len <= positions:
        return seq_len, []
    note = f"seq_len={seq_len} is more than the {positions} positions of the model: samples have {positions} tokens"
    return positions, [note]


def _positions(config: Any) -> int | None:
    """Return the number of learned positions, or None without a limit. XLNet has -1, which means none."""
    text = config.get_text_config()
    if versions.has_rotary_positions(text):
        return None
    # An encoder of other inputs, such as Whisper's, has positions of its own; the text is the decoder's.
    names = ("max_target_positions", "max_position_embeddings")
    count = next((value for name in names if isinstance(value := getattr(text, name, None), int)), 0)
    if text.model_type in _FIRST_POSITION_AFTER_PADDING and isinstance(text.pad_token_id, int):
        count -= text.pad_token_id + 1
    return count if count > 0 else None
