from pathlib import Path

import pytest
import torch

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.training.checkpoint.light import save_light
from shoestring_recipes.cloud import Cloud, Options
from shoestring_recipes.cloud.weights import load_weights


def test_weights_of_another_run_are_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = Cloud(Options(size="tiny")).model()
    save_light(tmp_path, trained, {})
    recipe = Cloud(Options(size="tiny", crop=16, weights_from=tmp_path))
    model = recipe.model()
    for name, parameter in trained.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
    assert recipe.notes() == [f"training starts from the weights in {tmp_path}"]


def test_random_initial_weights_are_noted() -> None:
    assert Cloud().notes() == ["training starts from random weights"]


def test_missing_or_mismatched_weights_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        Cloud(Options(size="tiny", weights_from=tmp_path / "absent")).model()
    save_light(tmp_path, torch.nn.Linear(2, 2), {})
    with pytest.raises(CheckpointError, match="another model"):
        Cloud(Options(size="tiny", weights_from=tmp_path)).model()


def test_a_meta_model_is_left_unchanged(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Cloud(Options(size="tiny")).model()
        load_weights(tmp_path, model)
        (tmp_path / "model.safetensors").write_bytes(b"damaged")
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            load_weights(tmp_path, model)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_an_estimate_says_that_the_weights_are_missing(tmp_path: Path) -> None:
    (note,) = Cloud(Options(size="tiny", weights_from=tmp_path)).notes()
    assert "but it cannot" in note and "0 files of weights" in note
