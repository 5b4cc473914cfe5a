import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.cloud.images import (
    optical_image,
    radar_image,
    write_image,
    write_triplet,
)
from tests.recipes.cloud.unlabeled_tiles import TINY, predict, write_tile

from shoestring.base.errors import DataError, UsageError  # isort: skip
from shoestring_recipes.cloud import Cloud, Options  # isort: skip
from shoestring_recipes.cloud.unlabeled import unique_names  # isort: skip


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
