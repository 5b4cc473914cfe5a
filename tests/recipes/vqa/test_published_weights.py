"""The guide's checkpoint of a student has the same tensors under other names."""

from pathlib import Path

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.training.checkpoint.light import save_light
from shoestring_recipes.vqa import VQA, Options
from shoestring_recipes.vqa.published_weights import load_student

GUIDE = {"vision": "vision_encoder", "text": "text_encoder", "writer": "decoder", "fusion": "fusion"}


def test_the_guides_names_are_translated(tmp_path: Path) -> None:
    recipe = VQA(Options(size="tiny"))
    trained, file = recipe.model().state_dict(), tmp_path / "vqa_student_best.pt"
    state = {GUIDE[name.partition(".")[0]] + "." + name.partition(".")[2]: value for name, value in trained.items()}
    torch.save({**state, "text_encoder.embeddings.position_ids": torch.arange(3)[None]}, file)
    model = recipe.model()
    load_student(file, model, has_tokenizers=True)
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())
    with pytest.raises(UsageError, match="need their tokenizers"):
        recipe.pretrained(file)


def test_weights_of_a_run(tmp_path: Path) -> None:
    recipe = VQA(Options(size="tiny"))
    model = recipe.model()
    save_light(tmp_path, model, {})
    loaded = recipe.pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
