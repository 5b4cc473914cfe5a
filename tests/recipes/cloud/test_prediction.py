import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.recipes.cloud.images import (
    geo_tag_options,
    optical_image,
    radar_image,
    read_geo_tags,
    write_image,
    write_triplet,
)

from shoestring.errors import DataError, UsageError  # isort: skip
from shoestring.recipe.contract import datasets  # isort: skip
from shoestring.recipes.cloud import Cloud, Options, geotiff  # isort: skip
from shoestring.recipes.cloud.unlabelled import unique_names  # isort: skip

TINY = {"size": "tiny", "crop": 16}


def write_tile(root: Path, patch: int, *, side: int = 40, roi: int = 102, optical: Any = None, **options: Any) -> None:
    """Write the radar and the cloudy image of a tile in SEN12MS-CR's layout, without a clear one."""
    for kind, image in (("s1", radar_image(patch, side)), ("s2_cloudy", optical)):
        path = root / f"ROIs2017_winter_{kind}" / f"{kind}_{roi}" / f"ROIs2017_winter_{kind}_{roi}_p{patch}.tif"
        write_image(path, optical_image(patch, side=side) if image is None else image, **options)


def predict(recipe: Cloud, inputs: Any, size: int = 2) -> list[Any]:
    """Return the row of each input, or its error."""
    torch.manual_seed(0)
    model = recipe.model().eval()
    rows: list[Any] = []
    tiles: list[Any] = []
    for source in inputs:
        try:
            tiles.append(source.load() if source.error is None else None)
            rows.append(source.error)
        except DataError as error:
            tiles.append(None)
            rows.append(str(error))
    usable = [index for index, tile in enumerate(tiles) if tile is not None]
    for start in range(0, len(usable), size):
        indices = usable[start : start + size]
        with torch.no_grad():
            predictions = recipe.predict(model, recipe.collate([tiles[index] for index in indices]))
        for index, row in zip(indices, predictions, strict=True):
            rows[index] = row
    return rows


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


def test_an_unusable_tile_is_one_error(tmp_path: Path) -> None:
    for patch in range(1, 6):
        write_tile(tmp_path, patch, side=16)
    folders = {kind: tmp_path / f"ROIs2017_winter_{kind}" / f"{kind}_102" for kind in ("s1", "s2_cloudy")}
    names = {kind: f"ROIs2017_winter_{kind}_102" for kind in folders}
    (folders["s1"] / f"{names['s1']}_p1.tif").unlink()
    (folders["s2_cloudy"] / f"{names['s2_cloudy']}_p2.tif").write_bytes(b"II*\0")
    write_image(folders["s1"] / f"{names['s1']}_p3.tif", radar_image(side=17))
    write_image(folders["s2_cloudy"] / f"{names['s2_cloudy']}_p4.tif", optical_image(bands=3, side=16))
    rows = predict(Cloud(Options(**TINY)), Cloud(Options(**TINY)).inputs(tmp_path))
    assert rows[0] == "this tile has no s1 image"
    assert "p2.tif cannot be read" in rows[1]
    assert "its images have different sizes: 16 x 16 and 17 x 17" in rows[2]
    assert "p4.tif has 3 bands, not 13" in rows[3] and rows[4]["prediction"]["width"] == 16


def test_a_table_may_name_clear_images_that_are_absent(tmp_path: Path) -> None:
    rows = [f"{split},{write_triplet(tmp_path, name, side=16)}" for split, name in ((3, "a.tif"), (1, "b.tif"))]
    for path in (tmp_path / "s2_cloudfree").iterdir():
        path.unlink()
    table = tmp_path / "mine.csv"
    table.write_text("\n".join([rows[0], "1,../s1,b,c,d.tif", rows[1], rows[0].replace("a.tif", "absent.tif")]))
    recipe = Cloud(Options(**TINY, data=tmp_path, table=table))
    result = predict(recipe, recipe.inputs(tmp_path))
    assert [*result[0]["files"], *result[2]["files"]] == ["a.tif", "a.png", "b.tif", "b.png"]
    assert result[1] == "'../s1/d.tif' is outside the data folder"
    assert "s2_cloudy/absent.tif cannot be read: No such file" in result[3]
    with pytest.raises(DataError, match="4 of 4 rows"):
        recipe.data()  # training needs the clear images


def test_rows_of_paths_have_their_own_identifiers(tmp_path: Path) -> None:
    write_triplet(tmp_path, "a.tif", side=16)
    row = {"cloudy": str(tmp_path / "s2_cloudy/a.tif"), "radar": str(tmp_path / "s1/a.tif")}
    bad_rows: list[Any] = ["text", {"cloudy": row["cloudy"]}, row | {"id": 1.5}, row | {"radar": "a\0"}]
    recipe = Cloud(Options(**TINY))
    inputs = list(recipe.inputs([row | {"id": "berlin"}, row, *bad_rows]))
    assert [source.id for source in inputs] == ["berlin", *[None] * 5]
    rows = predict(recipe, inputs)
    assert [[*row["files"]] for row in rows[:2]] == [["a.tif", "a.png"], ["a_1.tif", "a_1.png"]]
    assert [row.split(",")[0] for row in rows[2:5]] == [
        "is of type str",
        "has no paths cloudy and radar",
        "id is '1.5'",
    ]
    assert "null" in rows[5]
    with pytest.raises(UsageError, match="the folder does not exist"):
        recipe.inputs(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no tiles"):
        recipe.inputs(tmp_path / "empty")


def test_names_of_files_are_unique_and_valid() -> None:
    names = unique_names(["a", "A", "a_2", "../b c", "", ".hidden", "a", "a" * 300])
    assert names == ["a", "A_1", "a_2", "_b_c", "tile", "hidden", "a_6", "a" * 100]
    assert unique_names(["a_1", "a"] + ["a"] * 2) == ["a_1", "a", "a_2", "a_3"]
    assert unique_names(["a", "a_2", "a"]) == ["a", "a_2", "a_2_"]


def test_images_are_read_when_their_batch_is_due(tmp_path: Path) -> None:
    for patch in range(1, 4):
        write_tile(tmp_path, patch, side=256)
    lines = ["3,ROIs2017_winter_s1/s1_102,c,ROIs2017_winter_s2_cloudy/s2_cloudy_102,c.tif,"]
    names = ["ROIs2017_winter_s1_102_p1.tif,ROIs2017_winter_s2_cloudy_102_p1.tif"]
    (tmp_path / "data.csv").write_text(f"{lines[0]}{names[0]}\n" * 100)
    tracemalloc.start()
    inputs = Cloud(Options(**TINY)).inputs(tmp_path)
    count = sum(source.load().cloudy.shape == (13, 256, 256) for source in inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100 and peak < 20 << 20  # a tile has 1.7 MB


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
