"""Pretrained parts: random weights, saved in the format of the published models."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    BlipConfig,
    BlipForQuestionAnswering,
    RobertaConfig,
    RobertaForMaskedLM,
    T5ForConditionalGeneration,
)

from shoestring.base.errors import UsageError
from shoestring_recipes.vqa import VQA, Options
from shoestring_recipes.vqa.parts import PARTS
from shoestring_recipes.vqa.tokens import MARKERS
from tests.recipes.vqa.test_tokens import save_tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("pretrained")
    vision = {**PARTS["vision"].sizes["tiny"], "image_size": 24}
    text = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 50,
        "intermediate_size": 8,
    }
    torch.manual_seed(5)
    # A complete BLIP, which contains the vision transformer; PhoBERT with its masked LM head and without a pooler.
    BlipForQuestionAnswering(
        BlipConfig(vision_config=vision, text_config={**text, "encoder_hidden_size": 32})
    ).save_pretrained(root / "blip")
    RobertaForMaskedLM(RobertaConfig(**PARTS["text"].sizes["tiny"])).save_pretrained(root / "phobert")
    T5ForConditionalGeneration(PARTS["writer"].configuration(**PARTS["writer"].sizes["tiny"])).save_pretrained(
        root / "t5"
    )
    save_tokenizer(root / "phobert", sentinels=0)
    save_tokenizer(root / "t5", sentinels=len(MARKERS))
    return {f"{name}_from": str(root / folder) for name, folder in zip(PARTS, ("blip", "phobert", "t5"), strict=True)}


def test_pretrained_weights_are_loaded(folders: dict[str, str]) -> None:
    recipe = VQA(Options(size="tiny", **folders))
    torch.manual_seed(0)
    model = recipe.model()
    assert model.training and recipe.batch(2).images.shape == (2, 3, 24, 24)
    expected = {
        "vision": BlipForQuestionAnswering.from_pretrained(folders["vision_from"]).vision_model,
        "text": RobertaForMaskedLM.from_pretrained(folders["text_from"]).roberta,
        "writer": T5ForConditionalGeneration.from_pretrained(folders["writer_from"]),
    }
    for name, part in expected.items():
        loaded = getattr(model, name).state_dict()
        for key, value in part.state_dict().items():
            assert torch.equal(loaded[key], value), (name, key)
        assert set(loaded) - set(part.state_dict()) == (
            {f"pooler.dense.{x}" for x in ("weight", "bias")} if name == "text" else set()
        )
    assert recipe.notes() == []


def test_pretrained_tokenizer_is_used(folders: dict[str, str]) -> None:
    recipe = VQA(Options(size="tiny", writer_from=folders["writer_from"], a_len=96))
    train = recipe.data()["train"]
    batch = recipe.collate([train[0], train[1]])
    recipe.loss(recipe.model(), batch).backward()
    with torch.no_grad():
        metrics = recipe.evaluate(recipe.model().eval(), [batch])
    assert metrics["exact_match"] == 0.0


def test_random_weights_are_noted_at_full_size() -> None:
    (note,) = VQA(Options(vision_from="somewhere")).notes()
    assert note.startswith("random weights, not pretrained ones: text, writer")
    assert VQA(Options(size="tiny")).notes() == []


def test_missing_models_are_errors_and_never_downloaded(tmp_path: Path) -> None:
    for name in ("vision_from", "text_from", "writer_from"):
        for value in (str(tmp_path), "owner/no-such-model"):
            with pytest.raises(UsageError, match=f"{name}={value} cannot be read"):
                VQA(Options(size="tiny", **{name: value})).model()


def test_missing_weights_are_an_error(folders: dict[str, str], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in Path(folders["text_from"]).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if "word_embeddings" not in name},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(UsageError, match="lacks 1 of the weights"):
        VQA(Options(size="tiny", text_from=str(tmp_path))).model()


def test_pickled_weights_are_refused(folders: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((Path(folders["text_from"]) / "config.json").read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, match="cannot be read"):
        VQA(Options(size="tiny", text_from=str(tmp_path))).model()


def test_folders_become_absolute_paths(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(folders["vision_from"]).parent)
    assert Options(vision_from="blip").vision_from == folders["vision_from"]
    assert Options(vision_from="Salesforce/blip-vqa-base").vision_from == "Salesforce/blip-vqa-base"


def test_a_trained_model_needs_no_pretrained_folders(folders: dict[str, str], tmp_path: Path) -> None:
    generation = Path(folders["writer_from"]) / "generation_config.json"
    original = generation.read_text()
    generation.write_text(json.dumps({**json.loads(original), "length_penalty": -9.0}))
    recipe = VQA(Options(size="tiny", **folders, beams=3, a_len=24))
    recipe.save_preprocessing(tmp_path)
    model = recipe.model().eval()
    generation.write_text(original)
    gone = {name: f"gone-{name}" for name in folders}
    trained = VQA(Options(size="tiny", **gone, beams=3, a_len=24))
    trained.load_preprocessing(tmp_path)
    skeleton = trained.skeleton().eval()
    assert any(not torch.equal(a, b) for a, b in zip(skeleton.parameters(), model.parameters(), strict=True))
    skeleton.load_state_dict(model.state_dict())
    assert skeleton.writer.generation_config.length_penalty == -9.0
    batch = recipe.collate([item.load() for item, _ in zip(recipe.inputs(None), range(3), strict=False)])
    stored_batch = trained.collate([item.load() for item, _ in zip(trained.inputs(None), range(3), strict=False)])
    assert torch.equal(batch.questions, stored_batch.questions) and torch.equal(batch.images, stored_batch.images)
    with torch.no_grad():
        assert trained.predict(skeleton, stored_batch) == recipe.predict(model, batch)
    assert not any("random weights" in note for note in trained.notes())
