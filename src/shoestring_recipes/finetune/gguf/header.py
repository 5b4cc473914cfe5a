"""The facts about a model in the header of its GGUF file, as llama.cpp's converter writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoestring_recipes.finetune.gguf.families import head_size, rope

if TYPE_CHECKING:
    from gguf import GGUFWriter


def write_facts(writer: GGUFWriter, config: Any, *, rows: int, file_type: int, name: str) -> None:
    """Add the model's facts to a file. `rows` is the number of tokens that the embedding has."""
    import gguf

    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(rows)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size(config))
    writer.add_value_length(head_size(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(float(rope(config)["rope_theta"]))
    writer.add_rope_dimension_count(head_size(config))
