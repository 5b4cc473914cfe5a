from pathlib import Path

import numpy as np
import pytest
import torch

from tests.recipes.cloud.images import (
    geo_tag_options,
    optical_image,
    read_geo_tags,
    write_triplet,
)
from tests.recipes.cloud.unlabeled_tiles import TINY, predict, write_tile

from shoestring.base.errors import DataError  # isort: skip
from shoestring.recipe.contract import datasets  # isort: skip
from shoestring_recipes.cloud import Cloud, Options, geotiff  # isort: skip


def test_tiles_without_clear_images_become_geotiffs(tmp_path: Path) -> None:
    cloudy = optical_image(1, side=40)
    cloudy[:, :3] = 0  # no data
    write_tile(tmp_path, 1, optical=cloudy, extratags=geo_tag_options())
    write_tile(tmp_path, 2, side=37)
    write_tile(tmp_path, 30, side=9, optical=optical_image(side=9).astype("float32"))
    recipe = Cloud(Options(**TINY))
    inputs = recipe.inputs(tmp_path)
    assert len(inputs) == 3 and [source.id for source in inputs] == [None] * 3
    name = "ROIs2017_winter_s2_cloudy_102_p1"
    assert next(iter(inputs)).value == {
        "cloudy": f"ROIs2017_winter_s2_cloudy/s2_cloudy_102/{name}.tif",
        "radar": "ROIs2017_winter_s1/s1_102/ROIs2017_winter_s1_102_p1.tif",
    }
    rows = predict(recipe, inputs)
    assert [row["prediction"]["width"] for row in rows] == [40, 37, 9]
    assert [*rows[0]["files"]] == [f"{name}.tif", f"{name}.png"]
    for row in rows:
        for file, encode in row["files"].items():
            (tmp_path / file).write_bytes(encode())
    clear = geotiff.read_pixels(tmp_path / f"{name}.tif", 13)
    assert clear.dtype == np.uint16 and clear.shape == (13, 40, 40) and clear.max() <= 10_000
    assert not clear[:, :3].any() and clear[:, 3:].any()
    source = tmp_path / "ROIs2017_winter_s2_cloudy" / "s2_cloudy_102" / f"{name}.tif"
    assert read_geo_tags(tmp_path / f"{name}.tif") == read_geo_tags(source) != {}
    assert geotiff.read_pixels(tmp_path / "ROIs2017_winter_s2_cloudy_102_p30.tif", 13).dtype == np.float32
    summary = rows[1]["prediction"]
    assert (summary["height"], summary["bands"]) == (37, 13) and 0 < summary["mean_change"] < 1
    counts = geotiff.read_pixels(tmp_path / "ROIs2017_winter_s2_cloudy_102_p2.tif", 13)
    assert summary["mean_reflectance"] == pytest.approx(counts.mean() / 10_000, abs=1e-4)
    # A tile has the same prediction in every batch.
    single = predict(recipe, inputs, size=1)
    assert [row["prediction"] for row in single] == [row["prediction"] for row in rows]


def test_evaluation_of_test_tiles_alone(tmp_path: Path) -> None:
    rows = [f"3,{write_triplet(tmp_path, f'{name}.tif', seed, side=20)}" for seed, name in enumerate("ab")]
    (tmp_path / "data.csv").write_text("\n".join(rows))
    recipe = Cloud(Options(**TINY, data=tmp_path))
    with pytest.raises(DataError, match="no triplets to train on") as error:
        datasets(recipe)
    assert error.value.hint and "--whole" in error.value.hint
    whole = recipe.whole()
    assert [recipe.identify(whole, index) for index in range(len(whole))] == ["s2_cloudy/a.tif", "s2_cloudy/b.tif"]
    assert torch.equal(whole[1][0], whole[1][0]) and whole[1][0].shape == (13, 16, 16)
    batch = recipe.collate([whole[0], whole[1]])
    model = recipe.model().eval()
    with torch.no_grad():
        predictions = recipe.predict(model, batch)
        assert recipe.predict(model, [*batch[:2], torch.zeros_like(batch[2])]) == predictions
    targets = recipe.targets(batch)
    assert [row.keys() for row in targets] == [row.keys() for row in predictions]
    assert targets[1]["mean_change"] == pytest.approx(float((batch[2][1] - batch[0][1]).abs().mean()))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no tiles"):
        Cloud(Options(**TINY, data=tmp_path / "empty")).whole()


def test_synthetic_tiles_are_predicted_and_evaluated() -> None:
    recipe = Cloud(Options(size="tiny", crop=128))
    inputs = recipe.inputs(None)
    assert len(inputs) == 16 and "synthetic" in recipe.notes()[0]
    source = next(iter(inputs))
    assert source.value == "block 0 2 under cloud 0"
    (row,) = predict(recipe, [source])
    assert row["prediction"]["width"] == 256 and next(iter(row["files"])) == "block_0_2_under_cloud_0.tif"
    whole = recipe.whole()
    assert len(whole) == 80 and recipe.identify(whole, 64) == source.value


def test_prediction_is_planned_for_the_windows_at_once() -> None:
    recipe = Cloud(Options(size="tiny", crop=64))
    (state,) = recipe.inference(recipe.model(), recipe.batch(7))
    assert state.shape == (4, 13, 64, 64)


@pytest.mark.slow
def test_other_tiles_are_predicted_without_the_table_of_the_run_if_it_is_elsewhere(tmp_path: Path, run_command) -> None:
    rows = [f"{1 + seed // 2},{write_triplet(tmp_path / 'tiles', f'{seed}.tif', seed)}" for seed in range(4)]
    (tmp_path / "data.csv").write_text("\n".join(rows))
    options = [f"data={tmp_path / 'tiles'}", f"table={tmp_path / 'data.csv'}", "size=tiny", "crop=16", "max_updates=1"]
    options += ["micro_batch=2", "precision=fp32", "checkpointing=no"]
    settings = [word for option in options for word in ("--set", option)]
    status, _, err = run_command("train", "cloud", "--run", tmp_path / "run", "--on", "cpu", *settings)
    assert status == 0, err
    write_tile(tmp_path / "new", 1)
    arguments = ("predict", tmp_path / "run", "--set", f"data={tmp_path / 'new'}")
    status, out, err = run_command(*arguments)
    assert status == 1 and "0.tif" in out, err  # the table of the run, which is here, has other tiles
    (tmp_path / "data.csv").rename(tmp_path / "elsewhere.csv")
    status, out, err = run_command(*arguments)
    assert status == 0 and "ROIs2017_winter_s2_cloudy_102_p1" in out, err
    status, _, err = run_command(*arguments, "--set", f"table={tmp_path / 'data.csv'}")
    assert status == 2 and "data.csv cannot be read" in err
