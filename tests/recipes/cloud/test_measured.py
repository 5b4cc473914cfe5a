from pathlib import Path

import numpy as np
import pytest

from tests.recipes.cloud.images import optical_image, radar_image, write_image, write_triplet

from shoestring.base.errors import DataError, UsageError  # isort: skip
from shoestring_recipes.cloud.measured import MeasuredTiles, load_parts, load_whole  # isort: skip
from shoestring_recipes.cloud.inspection import InspectionLevel  # isort: skip
from shoestring_recipes.cloud.scale import to_backscatter, to_reflectance  # isort: skip
from shoestring_recipes.cloud.tiles import Window  # isort: skip
from shoestring_recipes.rows import BadRows  # isort: skip


def write_table(folder: Path, *rows: str) -> Path:
    (folder / "data.csv").write_text("\n".join(rows))
    return folder


def load(
    data: Path, look: InspectionLevel = "headers", *, table: Path | None = None, skip: bool = False, crop: int = 16
) -> dict[str, MeasuredTiles]:
    return load_parts(data, table, look, crop, BadRows("skip" if skip else "refuse"))[0]


def test_a_window_of_three_images_is_cut_and_scaled(tmp_path: Path) -> None:
    data = write_table(tmp_path, "1," + write_triplet(tmp_path, "a.tif", 1), "3," + write_triplet(tmp_path, "b.tif", 2))
    tiles = load(data)
    assert {part: len(part_tiles) for part, part_tiles in tiles.items()} == {"train": 1, "test": 1}
    cloudy, sar, clear = tiles["test"].cut(0, lambda height, width: Window(height - 20, width - 24, 16))
    np.testing.assert_array_equal(clear, to_reflectance(optical_image(2))[:, 12:28, 8:24])
    np.testing.assert_array_equal(cloudy, to_reflectance(optical_image(102))[:, 12:28, 8:24])
    np.testing.assert_array_equal(sar, to_backscatter(radar_image(2))[:, 12:28, 8:24])


def test_table_may_be_outside_the_data_folder(tmp_path: Path) -> None:
    row = "1," + write_triplet(tmp_path / "images", "a.tif")
    table = tmp_path / "mine.csv"
    table.write_text(row)
    assert len(load(tmp_path / "images", table=table)["train"]) == 1
    with pytest.raises(DataError, match=r"absent\.csv cannot be read"):
        load(tmp_path / "images", table=tmp_path / "absent.csv")


def write_bad_triplets(tmp_path: Path) -> Path:
    """Write a good row, and rows with an image that is absent, truncated, too small, of another size or has 3 bands."""
    rows = [f"1,{write_triplet(tmp_path, f'{number}.tif', number)}" for number in range(6)]
    (tmp_path / "s1" / "1.tif").unlink()
    path = tmp_path / "s2_cloudy" / "2.tif"
    path.write_bytes(path.read_bytes()[:-1])
    write_triplet(tmp_path, "3.tif", 3, side=15)
    write_image(tmp_path / "s2_cloudy" / "4.tif", optical_image(side=64))
    write_image(tmp_path / "s2_cloudfree" / "5.tif", optical_image(bands=3))
    return write_table(tmp_path, *rows)


def test_all_unusable_images_are_reported_with_their_rows(tmp_path: Path) -> None:
    data = write_bad_triplets(tmp_path)
    with pytest.raises(DataError, match="5 of 6 rows cannot be used") as error:
        load(data)
    problems = [problem.removeprefix(f"{data / 'data.csv'}, ") for problem in error.value.problems]
    assert problems == [
        "line 2: s1/1.tif does not exist",
        "line 3: s2_cloudy/2.tif is truncated: 1 bytes of pixels are missing",
        "line 4: its images are smaller than the crop of 16: 15 x 15",
        "line 5: its images have different sizes: 32 x 32, 64 x 64",
        "line 6: s2_cloudfree/5.tif has 3 bands, not 13",
    ]


def test_skipped_rows_are_counted(tmp_path: Path) -> None:
    data = write_bad_triplets(tmp_path)
    tiles, notes = load_parts(data, None, "headers", 16, BadRows("skip"))
    assert len(tiles["train"]) == 1
    (note,) = notes
    assert note.startswith("5 of 6 rows cannot be used and were skipped") and "line 4" in note
    assert len(load(data, "names", skip=True)["train"]) == 5


def test_non_finite_values_are_reported(tmp_path: Path) -> None:
    data = write_table(tmp_path, *(f"1,{write_triplet(tmp_path, f'{name}.tif')}" for name in "ab"))
    with_infinity = radar_image()
    with_infinity[1, 3, 4] = np.inf
    write_image(tmp_path / "s1" / "b.tif", with_infinity)
    with pytest.raises(DataError) as error:
        load(data, "pixels")
    assert error.value.problems[0].endswith("line 2: s1/b.tif 1 of 2,048 values are not finite")
    assert len(load(data, "pixels", skip=True)["train"]) == 1
    tiles = load(data)["train"]
    with pytest.raises(DataError, match=r"data\.csv, line 2: s1/b\.tif 1 of 2,048 values") as read_error:
        tiles.cut(1, lambda *_: Window(0, 0, 16))
    assert read_error.value.hint and "look=pixels" in read_error.value.hint


def test_an_image_changed_after_inspection_is_reported(tmp_path: Path) -> None:
    data = write_table(tmp_path, "1," + write_triplet(tmp_path, "a.tif"))
    tiles = load(data)["train"]
    write_image(tmp_path / "s1" / "a.tif", radar_image(side=16))
    with pytest.raises(DataError, match="different sizes: 16 x 16, 32 x 32"):
        tiles.cut(0, lambda *_: Window(0, 0, 16))


def test_data_without_training_tiles_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tiles to train on") as empty_error:
        load(tmp_path)
    assert empty_error.value.hint and "ROIs1158_spring_s1" in empty_error.value.hint
    for path in (tmp_path / "absent", Path(__file__)):
        with pytest.raises(UsageError, match="the folder does not exist"):
            load(path)
    data = write_table(tmp_path, "3," + write_triplet(tmp_path, "a.tif"))
    with pytest.raises(DataError, match="train 0, validation 0, test 1"):
        load(data)
    name = "ROIs2017_winter_{}_108_p5.tif"
    for kind, image in (("s1", radar_image()), ("s2", optical_image()), ("s2_cloudy", optical_image())):
        write_image(tmp_path / "official" / f"{kind}_108" / name.format(kind), image)
    with pytest.raises(DataError, match="no tiles to train on") as test_error:
        load(tmp_path / "official")
    assert test_error.value.hint and "--whole" in test_error.value.hint
    assert len(load_whole(tmp_path / "official", None, "headers", 16, BadRows("refuse"))[0]) == 1


def test_images_are_read_on_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoestring_recipes.cloud import geotiff

    data = write_table(tmp_path, *(f"1,{write_triplet(tmp_path, f'{number}.tif')}" for number in range(3)))
    read_names: list[str] = []
    original = geotiff.read_pixels
    monkeypatch.setattr(
        geotiff, "read_pixels", lambda path, bands: read_names.append(path.name) or original(path, bands)
    )
    tiles = load(data)["train"]
    assert not read_names
    tiles.cut(1, lambda *_: Window(0, 0, 16))
    assert read_names == ["1.tif"] * 3
