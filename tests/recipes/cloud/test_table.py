from pathlib import Path

import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.cloud.table import read
from shoestring_recipes.cloud.triplets import Triplet, shared_scenes_notes
from shoestring_recipes.rows import BadRows


def write_table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "data.csv"
    path.write_text("\n".join(lines))
    return path


def test_published_format_has_one_name_for_all_images(tmp_path: Path) -> None:
    path = write_table(tmp_path, "1,s1,s2_cloudfree,s2_cloudy,a.tif", "", "3,s1,s2_cloudfree,s2_cloudy,b.tif")
    listing = read(path, tmp_path, BadRows("refuse"))
    assert listing.root == tmp_path and listing.file == path and listing.row_count == 2
    assert listing.parts == {
        "train": [Triplet("s1/a.tif", "s2_cloudfree/a.tif", "s2_cloudy/a.tif", 1)],
        "validation": [],
        "test": [Triplet("s1/b.tif", "s2_cloudfree/b.tif", "s2_cloudy/b.tif", 3)],
    }


def test_later_format_has_the_clear_image_first(tmp_path: Path) -> None:
    row = "2,W_s1/s1_9,W_s2/s2_9,W_s2_cloudy/s2_cloudy_9,W_s2_9_p1.tif,W_s1_9_p1.tif,W_s2_cloudy_9_p1.tif"
    (triplet,) = read(write_table(tmp_path, row), tmp_path, BadRows("refuse")).parts["validation"]
    assert triplet == Triplet(
        "W_s1/s1_9/W_s1_9_p1.tif", "W_s2/s2_9/W_s2_9_p1.tif", "W_s2_cloudy/s2_cloudy_9/W_s2_cloudy_9_p1.tif", 1
    )


def test_all_unusable_rows_are_reported_with_their_lines(tmp_path: Path) -> None:
    path = write_table(
        tmp_path,
        "split,s1,s2,s2_cloudy,name",
        "1,s1,s2,s2_cloudy,a.tif",
        "4,s1,s2,s2_cloudy,b.tif",
        "1,s1,s2,s2_cloudy",
        "1,s1,../s2,s2_cloudy,c.tif",
        "1,/s1,s2,s2_cloudy,d.tif",
        "3,s1,s2,s2_cloudy,a.tif",
    )
    bad_rows = BadRows("refuse")
    listing = read(path, tmp_path, bad_rows)
    with pytest.raises(DataError, match="6 of 7 rows") as error:
        bad_rows.finish(listing.row_count)
    problems = [problem.removeprefix(f"{path}, ") for problem in error.value.problems]
    assert problems == [
        "line 1: split is 'split', not 1 (train), 2 (validation) or 3 (test)",
        "line 3: split is '4', not 1 (train), 2 (validation) or 3 (test)",
        "line 4: has 4 fields, not 5 (one name for all images) or 7 (a name for each)",
        "line 5: '../s2/c.tif' is outside the data folder",
        "line 6: '/s1/d.tif' is outside the data folder",
        "line 7: s2/a.tif is already in line 2, train",
    ]
    assert [triplet.line for triplet in listing.parts["train"]] == [2] and not listing.parts["test"]


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"1,\xff\xfe\n")
    with pytest.raises(DataError, match=r"data\.csv cannot be read"):
        read(path, tmp_path, BadRows("skip"))


def test_scenes_shared_by_two_parts_are_reported(tmp_path: Path) -> None:
    lines = [
        "1,a,b,c,ROIs2017_winter_102_p30.tif",
        "2,a,b,c,ROIs2017_winter_103_p30.tif",
        "3,a,b,c,ROIs2017_winter_102_p31.tif",
        "3,a,b,c,other.tif",
    ]
    (note,) = shared_scenes_notes(read(write_table(tmp_path, *lines), tmp_path, BadRows("refuse")))
    assert note.startswith("parts share tiles of the same scenes (train and test ROIs2017_winter_102); neighbouring")
    assert not shared_scenes_notes(read(write_table(tmp_path, *lines[:2], lines[3]), tmp_path, BadRows("refuse")))
