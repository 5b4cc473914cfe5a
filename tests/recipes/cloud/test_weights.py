from pathlib import Path

import pytest
import torch

from shoestring.checkpoint.light import save_light
from shoestring.errors import CheckpointError, UsageError
from shoestring.recipes.cloud import Cloud, Options
from shoestring.recipes.cloud.weights import load


def test_training_begins_with_the_weights_of_another_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = Cloud(Options(size="tiny")).model()
    save_light(tmp_path, trained, {})
    recipe = Cloud(Options(size="tiny", crop=16, weights_from=tmp_path))
    begun = recipe.model()
    for name, parameter in trained.named_parameters():
        assert torch.equal(begun.get_parameter(name), parameter)
    assert recipe.notes() == [f"weights are those of {tmp_path}"]


def test_random_weights_are_said_to_be_so() -> None:
    assert Cloud().notes() == ["weights are random at first"]


def test_what_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is nothing"):
        Cloud(Options(size="tiny", weights_from=tmp_path / "absent")).model()
    save_light(tmp_path, torch.nn.Linear(2, 2), {})
    with pytest.raises(CheckpointError, match="another model"):
        Cloud(Options(size="tiny", weights_from=tmp_path)).model()


def test_a_model_that_is_only_looked_at_stays_without_memory(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Cloud(Options(size="tiny")).model()
        load(tmp_path, model)
    assert all(parameter.is_meta for parameter in model.parameters())
