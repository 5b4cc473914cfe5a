"""Batches for models of several kinds, and their losses."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch

from shoestring.errors import UsageError
from shoestring.recipe.finding import load

TEXT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
IMAGE = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": [24, 16],
    "patch_size": 8,
}
SOUND = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 1,
}
BOTH = {"text_config": TEXT, "vision_config": {**IMAGE, "image_size": 16}}
EXPERTS = {**TEXT, "num_key_value_heads": 1, "num_local_experts": 2}
T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}

TOKENS = (3, 12)
KINDS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    ("vit", "ViTForImageClassification"): (IMAGE, {"pixel_values": (3, 3, 24, 16), "labels": (3,)}),
    ("clip", "CLIPModel"): (BOTH, {"input_ids": TOKENS, "pixel_values": (3, 3, 16, 16), "return_loss": ()}),
    ("whisper", "WhisperForConditionalGeneration"): (SOUND, {"input_features": (3, 8, 40), "labels": TOKENS}),
    ("gpt2", "GPT2LMHeadModel"): ({"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2}, {"labels": TOKENS}),
    ("mixtral", "MixtralForCausalLM"): (EXPERTS, {"input_ids": TOKENS, "labels": TOKENS}),
    ("modernbert", "ModernBertForMaskedLM"): (TEXT, {"input_ids": TOKENS, "labels": TOKENS}),
    ("bert", "BertForTokenClassification"): (TEXT, {"input_ids": TOKENS, "labels": TOKENS}),
    ("bert", "BertForQuestionAnswering"): (TEXT, {"start_positions": (3,), "end_positions": (3,)}),
    ("bert", "BertForPreTraining"): (TEXT, {"labels": TOKENS, "next_sentence_label": (3,)}),
    ("t5", "T5ForConditionalGeneration"): ({**T5, "decoder_start_token_id": 0}, {"labels": TOKENS}),
}
"""The configuration and the shapes of some entries of the batch, by model type and head."""


def load_recipe(folder: Path, kind: str, head: str, values: dict[str, Any]) -> Any:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, "architectures": [head], **values}), "utf-8")
    return load(f"hf:{path}", {"seq_len": 12}).recipe


@pytest.mark.parametrize(("kind", "head"), KINDS, ids=lambda value: value)
def test_batch_matches_the_model_class(tmp_path: Path, kind: str, head: str) -> None:
    values, shapes = KINDS[kind, head]
    recipe = load_recipe(tmp_path, kind, head, values)
    batch = recipe.batch(3)
    assert {name: tuple(getattr(batch[name], "shape", ())) for name in shapes} == shapes
    loss = recipe.loss(recipe.model(), batch)
    assert loss.ndim == 0 and torch.isfinite(loss)


@pytest.mark.parametrize(
    ("kind", "head", "values", "message"),
    [
        ("bert", "BertModel", TEXT, "BertModel has no loss"),
        ("bert", "BertForMultipleChoice", TEXT, "BertForMultipleChoice has no loss"),
        ("clip_vision_model", "CLIPVisionModel", IMAGE, "CLIPVisionModel has no loss"),
        ("wav2vec2", "Wav2Vec2ForCTC", {}, "takes input_values"),
    ],
)
def test_unsupported_models_are_rejected(
    tmp_path: Path, kind: str, head: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_recipe(tmp_path, kind, head, values).batch(3)
    assert caught.value.hint and "recipe of your own" in caught.value.hint
