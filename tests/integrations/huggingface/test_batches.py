"""Batches for models of several kinds, and their losses."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface.library_errors import explained, hint_at_samples
from shoestring.recipe.finding import load
from tests.integrations.huggingface.test_huggingface import forked, trace_recipe

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
DETECTOR = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 4,
        "hidden_sizes": [4],
        "depths": [1],
        "out_features": ["stage1"],
    },
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_queries": 12,
}
SPEECH = {
    **{name: TEXT[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
    "intermediate_size": 32,
    "conv_dim": [8, 8],
    "conv_kernel": [10, 8],
    "conv_stride": [80, 40],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
MASKS = {
    "vision_config": {
        **{name: IMAGE[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
        "image_size": 32,
        "patch_size": 8,
        "output_channels": 8,
        "num_pos_feats": 4,
        "window_size": 2,
        "global_attn_indexes": [0],
        "mlp_dim": 16,
    },
    "prompt_encoder_config": {"hidden_size": 8, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": {"hidden_size": 8, "num_attention_heads": 1, "mlp_dim": 16, "iou_head_hidden_dim": 8},
}
BOTH = {"text_config": TEXT, "vision_config": {**IMAGE, "image_size": 16}}
PATCHES = {
    name: IMAGE[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
}
SIGLIP_2 = {
    "text_config": {**TEXT, "projection_size": 16},
    "vision_config": {**PATCHES, "patch_size": 4, "num_patches": 16},
}
MOONSHINE = {
    **{name: TEXT[name] for name in ("vocab_size", "hidden_size", "intermediate_size")},
    **{f"{part}_num_hidden_layers": 1 for part in ("encoder", "decoder")},
    **{f"{part}_num_attention_heads": 2 for part in ("encoder", "decoder")},
    "pad_token_id": None,
}
SPEECH_PAIRS = {
    **{name: TEXT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
    "intermediate_size": 32,
    "vocab_size": None,
    "feature_projection_input_dim": 8,
}
DETECTOR_2 = {
    "backbone_config": {
        "model_type": "rt_detr_resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 8, 8],
        "depths": [1, 1, 1, 1],
        "out_features": ["stage2", "stage3", "stage4"],
    },
    **dict.fromkeys(("encoder_hidden_dim", "d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16),
    "encoder_in_channels": [8, 8, 8],
    "decoder_in_channels": [16, 16, 16],
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    "decoder_layers": 2,
    "num_queries": 12,
    "num_denoising": 20,
}
DETECTOR_3 = {
    **DETECTOR_2,
    "backbone_config": {
        "model_type": "hgnet_v2",
        "stem_channels": [3, 8, 8],
        **{f"stage_{name}_channels": [8] * 4 for name in ("in", "mid", "out")},
        **dict.fromkeys(("stage_num_blocks", "stage_numb_of_layers"), [1] * 4),
        "hidden_sizes": [8] * 4,
        "depths": [1] * 4,
        "out_features": ["stage2", "stage3", "stage4"],
    },
}
EXPERTS = {**TEXT, "num_key_value_heads": 1, "num_local_experts": 2}
LAYERS = {**TEXT, "num_hidden_layers": 2}
"""transformers 5.15 refuses a ModernBERT without layers of both kinds, global and local attention."""
T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}

TOKENS = (3, 12)
KINDS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    ("vit", "ViTForImageClassification"): (IMAGE, {"pixel_values": (3, 3, 24, 16), "labels": (3,)}),
    ("clip", "CLIPModel"): (BOTH, {"input_ids": TOKENS, "pixel_values": (3, 3, 16, 16), "return_loss": ()}),
    ("whisper", "WhisperForConditionalGeneration"): (SOUND, {"input_features": (3, 8, 40), "labels": TOKENS}),
    ("gpt2", "GPT2LMHeadModel"): ({"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2}, {"labels": TOKENS}),
    ("mixtral", "MixtralForCausalLM"): (EXPERTS, {"input_ids": TOKENS, "labels": TOKENS}),
    ("modernbert", "ModernBertForMaskedLM"): (LAYERS, {"input_ids": TOKENS, "labels": TOKENS}),
    ("bert", "BertForTokenClassification"): (TEXT, {"input_ids": TOKENS, "labels": TOKENS}),
    ("bert", "BertForQuestionAnswering"): (TEXT, {"start_positions": (3,), "end_positions": (3,)}),
    ("bert", "BertForPreTraining"): (TEXT, {"labels": TOKENS, "next_sentence_label": (3,)}),
    ("t5", "T5ForConditionalGeneration"): (T5, {"labels": TOKENS}),
    ("bert", "BertModel"): (TEXT, {"input_ids": TOKENS, "other_input_ids": TOKENS}),
    ("clip_vision_model", "CLIPVisionModel"): ({**IMAGE, "image_size": 16}, {"pixel_values": (3, 3, 16, 16)}),
    ("dinov2", "Dinov2Model"): ({**IMAGE, "image_size": 16}, {"pixel_values": (3, 3, 16, 16)}),
    ("wav2vec2", "Wav2Vec2ForCTC"): (SPEECH, {"input_values": (3, 160_000), "labels": TOKENS}),
    ("wav2vec2", "Wav2Vec2ForSequenceClassification"): (SPEECH, {"input_values": (3, 160_000), "labels": (3,)}),
    ("audio-spectrogram-transformer", "ASTForAudioClassification"): (
        {**IMAGE, "num_mel_bins": 32, "max_length": 48},
        {"input_values": (3, 48, 32), "labels": (3,)},
    ),
    ("detr", "DetrForObjectDetection"): (DETECTOR, {"pixel_values": (3, 3, 224, 224)}),
    ("siglip2", "Siglip2Model"): (
        SIGLIP_2,
        {"input_ids": TOKENS, "pixel_values": (3, 16, 48), "pixel_attention_mask": (3, 16), "spatial_shapes": (3, 2)},
    ),
    ("moonshine", "MoonshineForConditionalGeneration"): (MOONSHINE, {"input_values": (3, 160_000), "labels": TOKENS}),
    ("wav2vec2-bert", "FromTomorrow"): (SPEECH_PAIRS, {"input_features": (3, 500, 8), "labels": (3,)}),
    ("sam", "SamModel"): (MASKS, {"pixel_values": (3, 3, 32, 32), "input_boxes": (3, 1, 4)}),
}
"""The configuration and the shapes of some entries of the batch, by model type and head."""


def load_recipe(folder: Path, kind: str, name: str, values: dict[str, Any], **options: Any) -> Any:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, "architectures": [name], **values}), "utf-8")
    return load(f"hf:{path}", {"seq_len": 12, **options}).recipe


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
        ("bert", "BertForMultipleChoice", TEXT, "BertForMultipleChoice has no loss"),
        ("vjepa2", "VJEPA2Model", {}, "takes pixel_values_videos"),
    ],
)
def test_unsupported_models_are_rejected(
    tmp_path: Path, kind: str, head: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_recipe(tmp_path, kind, head, values).batch(3)
    assert caught.value.hint and "recipe of your own" in caught.value.hint


def is_traceable_detector() -> bool:
    """Return whether DETR has no layer that looks for infinite values, as in transformers 4.56 and 5.0."""
    from transformers.models.detr import modeling_detr

    return "torch.isinf" not in inspect.getsource(modeling_detr)


def test_values_that_only_a_gpu_has_do_not_stop_a_trace(tmp_path: Path) -> None:
    """DETR matches objects on the host, and wav2vec2's CTC loss depends on the lengths of its labels."""
    kinds = [
        ("detr", "DetrForObjectDetection"),
        ("rt_detr_v2", "RTDetrV2ForObjectDetection"),
        ("d_fine", "DFineForObjectDetection"),
    ]
    detector = kinds if is_traceable_detector() else []
    values = {"rt_detr_v2": DETECTOR_2, "d_fine": DETECTOR_3, **{kind: KINDS[kind, head][0] for kind, head in KINDS}}
    values["wav2vec2"] = SPEECH
    for kind, head in (*detector, ("wav2vec2", "Wav2Vec2ForCTC")):
        load_recipe(tmp_path, kind, head, values[kind])
        trace = trace_recipe(forked(load(f"hf:{tmp_path}/config.json", {"seq_len": 12, "audio_seconds": 2.0})))
        assert trace.events
        frames = 2 * 16_000 // (80 * 40)
        tables = [storage for storage in trace.storages if storage.bytes == 4 * 2 * frames * (2 * frames + 1)]
    # In both updates: the table of forward, and that of backward.
    assert len(tables) == 2 * 2


def test_a_head_is_chosen_by_task_or_class(tmp_path: Path) -> None:
    for head, expected in (
        ("text-classification", "BertForSequenceClassification"),
        ("BertForTokenClassification", "BertForTokenClassification"),
        (None, "BertForMaskedLM"),
    ):
        recipe = load_recipe(tmp_path, "bert", "FromTomorrow", TEXT, head=head)
        assert type(recipe.model()).__name__ == expected
        assert any(f"the model is {expected}" in note for note in recipe.notes()) == (head is None)
    for head in ("object-detection", "LlamaForCausalLM"):
        with pytest.raises(UsageError, match="bert has no such head") as caught:
            load_recipe(tmp_path, "bert", "BertModel", TEXT, head=head).batch(1)
        assert "masked-lm" in str(caught.value.hint)


def test_what_was_chosen_is_a_note(tmp_path: Path) -> None:
    notes = {
        "BertModel has no head": load_recipe(tmp_path, "bert", "BertModel", TEXT).notes(),
        "16 x 16 pixels": load_recipe(tmp_path, "dinov2", "Dinov2Model", {**IMAGE, "image_size": 16}).notes(),
        "layerdrop": load_recipe(tmp_path, "wav2vec2", "Wav2Vec2ForCTC", SPEECH).notes(),
        "64 positions": load_recipe(tmp_path, "clip", "CLIPModel", BOTH, seq_len=65).notes(),
        "448 positions": load_recipe(
            tmp_path, "whisper", "WhisperForConditionalGeneration", SOUND, seq_len=512
        ).notes(),
        "GptOssForCausalLM: the attention is eager": load_recipe(
            tmp_path, "gpt_oss", "GptOssForCausalLM", TEXT
        ).notes(),
    }
    assert all(any(text in note for note in lines) for text, lines in notes.items())
    assert load_recipe(tmp_path, "modernbert", "ModernBertForMaskedLM", LAYERS).notes() == []


def test_a_part_that_refuses_sdpa_has_eager_attention(tmp_path: Path) -> None:
    # PaliGemma sets the second field of its Gemma.
    text = {
        "model_type": "gpt_oss",
        "use_bidirectional_attention": False,
        **TEXT,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    values = {"text_config": text, "vision_config": {**IMAGE, "image_size": 16, "model_type": "siglip_vision_model"}}
    recipe = load_recipe(tmp_path, "paligemma", "PaliGemmaForConditionalGeneration", values)
    config = recipe.model().config
    assert config.text_config._attn_implementation == "eager" != config.vision_config._attn_implementation
    assert any("text_config of PaliGemma" in note and "eager" in note for note in recipe.notes())


@pytest.mark.parametrize(
    ("kind", "head", "values", "message"),
    [
        ("bert", "BertForMaskedLM", {**TEXT, "num_attention_heads": 3}, "BertForMaskedLM cannot be built: ValueError"),
        ("bert", "BertForMaskedLM", {**TEXT, "hidden_act": "none"}, "BertForMaskedLM cannot be built: KeyError"),
        ("vit", "ViTForImageClassification", {**IMAGE, "image_size": -1}, "no samples can be made for ViT"),
        ("vit", "ViTForImageClassification", {**IMAGE, "patch_size": 0}, "ViTForImageClassification cannot be built"),
        ("clip", "CLIPModel", {**BOTH, "text_config": {**TEXT, "hidden_size": "x"}}, "(?i)clip.*: .*TypeError: "),
    ],
)
def test_what_a_library_refuses_is_one_sentence(
    tmp_path: Path, kind: str, head: str, values: dict[str, Any], message: str
) -> None:
    def use() -> None:
        recipe = load_recipe(tmp_path, kind, head, values)
        recipe.model()
        recipe.batch(1)

    with pytest.raises(UsageError, match=message) as caught:
        use()
    assert "\n" not in caught.value.message and caught.value.hint
    with pytest.raises(UsageError, match="it needs timm") as caught, explained("DETR cannot be built", "config.json"):
        raise ImportError("TimmBackbone requires the timm library.\nInstall it with pip: `pip install timm`.")
    assert "pip install timm" in str(caught.value.hint)


def test_an_error_of_a_model_that_runs_names_its_samples_and_not_its_file(tmp_path: Path) -> None:
    """A published SigLIP 2 takes patches and their shapes: its file is right."""
    recipe = load_recipe(tmp_path, "bert", "BertForMaskedLM", TEXT)
    batch = {"input_ids": torch.zeros(2, 12, dtype=torch.long), "labels": torch.zeros(2, 11, dtype=torch.long)}
    with pytest.raises(UsageError, match="BertForMaskedLM cannot be run with the samples of hf:") as caught:
        recipe.loss(recipe.model(), batch)
    assert "input_ids 2×12, labels 2×11" in caught.value.hint and "of your own" in caught.value.hint
    assert "correct" not in caught.value.hint and "quantization" not in caught.value.hint
    packed = torch.nn.Linear(2, 2)
    packed.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False)
    assert "quantization=nf4" in hint_at_samples(packed, {})
