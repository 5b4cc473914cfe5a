"""The models of the configurations: published shapes, without weights, as data for transformers' classes."""

from typing import Any

from benchmarks.gpu.cases import CONFIGURATIONS


def _model(kind: str, head: str, **values: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [head], **values}


_DECODER = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "max_position_embeddings": 32768}


def _qwen(
    layers: int, hidden: int, intermediate: int, heads: int, key_value_heads: int, **values: Any
) -> dict[str, Any]:
    shape = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": intermediate}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": key_value_heads}
    return _model("qwen2", "Qwen2ForCausalLM", **{**_DECODER, **shape, **values})


_UNTIED = {"vocab_size": 152064, "tie_word_embeddings": False}

QWEN: dict[str, dict[str, Any]] = {
    "qwen2.5-1.5b": _qwen(28, 1536, 8960, 12, 2, vocab_size=151936),
    "qwen2.5-3b": _qwen(36, 2048, 11008, 16, 2, vocab_size=151936),
    "qwen2.5-7b": _qwen(28, 3584, 18944, 28, 4, **_UNTIED),
    "qwen2.5-14b-cut": _qwen(8, 5120, 13824, 40, 8, **_UNTIED),
    "qwen2.5-32b-cut": _qwen(8, 5120, 27648, 40, 8, **_UNTIED),
}
"""The larger models of Qwen2.5, by the `config.json` of each. Those that are cut have 8 of 48 and of 64 layers."""

ARCHITECTURES: dict[str, dict[str, Any]] = {
    **CONFIGURATIONS,
    **QWEN,
    "gpt2-tiny": _model("gpt2", "GPT2LMHeadModel", vocab_size=512, n_positions=64, n_embd=64, n_layer=4, n_head=4),
    "resnet-tiny": _model(
        "resnet", "ResNetForImageClassification", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1],
        layer_type="basic",
    ),
    "flan-t5-base": _model(
        "t5", "T5ForConditionalGeneration", d_model=768, d_ff=2048, d_kv=64, num_heads=12, num_layers=12,
        feed_forward_proj="gated-gelu", decoder_start_token_id=0,
    ),
    "bart-base": _model(
        "bart", "BartForConditionalGeneration", d_model=768, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=3072,
        decoder_ffn_dim=3072, encoder_attention_heads=12, decoder_attention_heads=12, decoder_start_token_id=2,
    ),
    "deberta-v3-base": _model(
        "deberta-v2", "DebertaV2ForSequenceClassification", hidden_size=768, intermediate_size=3072,
        num_hidden_layers=12, num_attention_heads=12, vocab_size=128100, pos_att_type=["p2c", "c2p"],
        position_buckets=256, relative_attention=True, share_att_key=True, norm_rel_ebd="layer_norm",
        max_relative_positions=-1, position_biased_input=False, type_vocab_size=0,
    ),
    "whisper-small": _model(
        "whisper", "WhisperForConditionalGeneration", d_model=768, encoder_layers=12, decoder_layers=12,
        encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    ),
    "qwen3-0.6b": _model(
        "qwen3", "Qwen3ForCausalLM", vocab_size=151936, hidden_size=1024, intermediate_size=3072, head_dim=128,
        num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, **_DECODER,
    ),
    "gemma3-cut": _model(
        "gemma3_text", "Gemma3ForCausalLM", vocab_size=65536, hidden_size=1152, intermediate_size=6912, head_dim=256,
        num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=1, sliding_window=256,
    ),
    "dinov2-base": _model("dinov2", "Dinov2ForImageClassification", image_size=224, patch_size=14),
    "resnet-50": _model("resnet", "ResNetForImageClassification"),
    "wav2vec2-base": _model("wav2vec2", "Wav2Vec2ForCTC"),
    "segformer-b0": _model("segformer", "SegformerForSemanticSegmentation"),
    "clip-vit-b32": _model("clip", "CLIPModel"),
    "convnext-tiny": _model("convnext", "ConvNextForImageClassification"),
    "swin-tiny": _model("swin", "SwinForImageClassification", depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24]),
    "mixtral-cut": _model(
        "mixtral", "MixtralForCausalLM", vocab_size=32000, hidden_size=768, intermediate_size=1536,
        num_hidden_layers=6, num_attention_heads=12, num_key_value_heads=4, num_local_experts=4,
    ),
}  # fmt: skip
"""`gemma3-cut` and `mixtral-cut` have fewer layers and tokens than what is published, to be as large as the others."""
