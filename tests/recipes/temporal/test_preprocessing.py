import json
from pathlib import Path

import pytest
import torch

from shoestring.base.errors import CheckpointError, DataError
from shoestring_recipes.temporal import Options, Temporal
from shoestring_recipes.temporal.preprocessing import NAME, load

from .market import random_bars, write_csv


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with what was fitted on the sample bars."""
    folder = tmp_path_factory.mktemp("preprocessing")
    recipe = Temporal()
    recipe.data()
    recipe.save_preprocessing(folder)
    return folder


def test_loaded_features_have_the_bits_of_training(folder: Path) -> None:
    recipe, trained = Temporal(), Temporal().data()
    recipe.load_preprocessing(folder)
    for name, part in recipe.data().items():
        assert part is not trained[name]  # not those that training has cached
        assert torch.equal(part.features, trained[name].features) and torch.equal(part.ends, trained[name].ends)
    (folder / "again").mkdir()
    recipe.save_preprocessing(folder / "again")
    assert (folder / "again" / NAME).read_bytes() == (folder / NAME).read_bytes()


def test_another_file_is_standardized_as_in_training(folder: Path, tmp_path: Path) -> None:
    # Bars that double in scale; only their own scaler would hide that from the model.
    path = write_csv(tmp_path / "bars.csv", random_bars(600, spacing="1D"))
    recipe, refitted = Temporal(Options(data=path)), Temporal(Options(data=path)).data()["train"]
    recipe.load_preprocessing(folder)
    part = recipe.data()["train"]
    assert not torch.equal(part.features, refitted.features)
    trained = Temporal()
    trained.data()
    trained_scaler = load(folder)
    fitted = Temporal(Options(data=path))
    fitted.data()
    fitted.save_preprocessing(tmp_path)
    own_scaler = load(tmp_path)
    mean, deviation = (torch.tensor(values) for values in (own_scaler.mean, own_scaler.deviation))
    trained_mean, trained_deviation = (
        torch.tensor(values) for values in (trained_scaler.mean, trained_scaler.deviation)
    )
    unclipped = (refitted.features.abs() < 10) & (part.features.abs() < 10)
    expected = (refitted.features * deviation + mean - trained_mean) / trained_deviation
    torch.testing.assert_close(part.features[unclipped], expected[unclipped], rtol=1e-3, atol=1e-3)


def test_the_whole_has_every_labeled_bar_and_its_position(folder: Path, tmp_path: Path) -> None:
    options = Options(data=write_csv(tmp_path / "bars.csv", random_bars(72 + 29)), seq_len=20, horizon=8)
    recipe = Temporal(options)
    recipe.load_preprocessing(folder)
    with pytest.raises(DataError, match="too few rows"):
        recipe.data()
    recipe = Temporal()
    parts, whole = recipe.data(), recipe.whole()
    assert len(whole) == 1047 - 51 - 19 - 8 > sum(map(len, parts.values()))
    assert [recipe.identify(whole, index) for index in (0, len(whole) - 1)] == [51 + 19, 1047 - 9]
    part = parts["test"]
    index = next(index for index in range(len(whole)) if recipe.identify(whole, index) == recipe.identify(part, 5))
    assert torch.equal(whole[index][0], part[5][0]) and whole[index][1] == part[5][1]
    assert recipe.notes()[0].endswith(f"samples: all {len(whole)}")
    assert recipe.targets(recipe.collate([whole[0]]))[0] in ("down", "flat", "up")


def test_a_damaged_file_is_an_error(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / NAME).read_text())
    scaler = content["scaler"]
    damaged = {
        "there is no": None,
        "a pair of": content | {"timeframes": ["1 week"]},
        "its features are not": content | {"scaler": dict(reversed(scaler.items()))},
        "a positive deviation": content | {"scaler": scaler | {"macd": {"mean": 0.0, "deviation": 0.0}}},
        "the keys timeframes and scaler": [],
    }
    for problem, value in damaged.items():
        if value is not None:
            (tmp_path / NAME).write_text(json.dumps(value))
        with pytest.raises(CheckpointError) as error:
            Temporal().load_preprocessing(tmp_path)
        assert problem in str(error.value) or value is None
