from pathlib import Path

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.cloud import Cloud
from shoestring_recipes.cloud.layout import TEST, VALIDATION, read
from shoestring_recipes.cloud.triplets import Triplet
from shoestring_recipes.rows import BadRows


def create_tile(
    root: Path, season: str, roi: int, patch: int, *, kinds: tuple[str, ...] = ("s1", "s2", "s2_cloudy")
) -> None:
    for kind in kinds:
        path = root / f"{season}_{kind}" / f"{kind}_{roi}" / f"{season}_{kind}_{roi}_p{patch}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def clear_names(triplets: list[Triplet]) -> list[str]:
    return [Path(triplet.clear).name for triplet in triplets]


def test_scenes_are_sorted_into_their_official_parts(tmp_path: Path) -> None:
    for season, roi, patch in (
        ("ROIs2017_winter", 108, 5),
        ("ROIs1158_spring", 1, 100),
        ("ROIs1158_spring", 1, 30),
        ("ROIs1158_spring", 17, 2),
        ("ROIs1970_fall", 139, 7),
        ("ROIs1970_fall", 106, 7),
    ):
        create_tile(tmp_path, season, roi, patch)
    (tmp_path / "ROIs1158_spring_s1" / "s1_1" / "notes.txt").touch()
    listing = read(tmp_path, BadRows("refuse"))
    assert clear_names(listing.parts["train"]) == [
        "ROIs1158_spring_s2_1_p30.tif",
        "ROIs1158_spring_s2_1_p100.tif",
        "ROIs1970_fall_s2_106_p7.tif",
    ]
    assert clear_names(listing.parts["validation"]) == ["ROIs1158_spring_s2_17_p2.tif"]
    assert clear_names(listing.parts["test"]) == ["ROIs1970_fall_s2_139_p7.tif", "ROIs2017_winter_s2_108_p5.tif"]
    assert listing.parts["train"][0] == Triplet(
        "ROIs1158_spring_s1/s1_1/ROIs1158_spring_s1_1_p30.tif",
        "ROIs1158_spring_s2/s2_1/ROIs1158_spring_s2_1_p30.tif",
        "ROIs1158_spring_s2_cloudy/s2_cloudy_1/ROIs1158_spring_s2_cloudy_1_p30.tif",
        None,
    )


def test_nested_season_folders_are_read(tmp_path: Path) -> None:
    create_tile(tmp_path / "deep" / "deeper", "ROIs2017_winter", 8, 1)
    (triplet,) = read(tmp_path, BadRows("refuse")).parts["train"]
    assert triplet.radar == "deep/deeper/ROIs2017_winter_s1/s1_8/ROIs2017_winter_s1_8_p1.tif"


def test_a_tile_with_missing_images_is_reported(tmp_path: Path) -> None:
    create_tile(tmp_path, "ROIs2017_winter", 8, 1)
    create_tile(tmp_path, "ROIs2017_winter", 8, 2, kinds=("s2",))
    bad_rows = BadRows("refuse")
    listing = read(tmp_path, bad_rows)
    with pytest.raises(DataError, match="1 of 2 rows") as error:
        bad_rows.finish(listing.row_count)
    (problem,) = error.value.problems
    assert problem.endswith("ROIs2017_winter_s2_8_p2.tif: this tile has no s1 and no s2_cloudy image")


def test_official_parts_have_ten_different_scenes_each() -> None:
    assert sum(map(len, TEST.values())) == 10
    assert sum(map(len, VALIDATION.values())) == 10
    assert not any(TEST[season] & VALIDATION[season] for season in TEST)


def test_complete_tiles_are_counted_by_the_names_of_files(tmp_path: Path) -> None:
    create_tile(tmp_path / "deep", "ROIs2017_winter", 8, 1)
    create_tile(tmp_path, "ROIs1158_spring", 17, 2)
    create_tile(tmp_path, "ROIs2017_winter", 8, 2, kinds=("s2",))
    (tmp_path / "deep" / "notes.txt").touch()
    files = {path.relative_to(tmp_path).as_posix(): 1 for path in tmp_path.rglob("*") if path.is_file()}
    assert Cloud().count_rows(files) == 2
    assert Cloud().count_rows({**files, "data.csv": 1}) is None  # the table says which tiles are used
    assert Cloud().count_rows({"a.txt": 1}) is None
