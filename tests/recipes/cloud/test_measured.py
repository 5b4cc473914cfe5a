from pathlib import Path

import numpy as np
import pytest

from tests.recipes.cloud.images import optical, radar, triplet, write

from shoestring.errors import DataError, UsageError  # isort: skip
from shoestring.recipes.cloud.measured import Measured, parts  # isort: skip
from shoestring.recipes.cloud.looking import Look  # isort: skip
from shoestring.recipes.cloud.scale import backscatter, reflectance  # isort: skip
from shoestring.recipes.cloud.tiles import Window  # isort: skip
from shoestring.recipes.rows import Rows  # isort: skip


def listed(tmp_path: Path, *rows: str) -> Path:
    (tmp_path / "data.csv").write_text("\n".join(rows))
    return tmp_path


def found(
    data: Path, look: Look = "headers", *, table: Path | None = None, skip: bool = False, crop: int = 16
) -> dict[str, Measured]:
    return parts(data, table, look, crop, Rows("skip" if skip else "refuse"))[0]


def test_a_window_of_all_three_images_scaled(tmp_path: Path) -> None:
    data = listed(tmp_path, "1," + triplet(tmp_path, "a.tif", 1), "3," + triplet(tmp_path, "b.tif", 2))
    tiles = found(data)
    assert {part: len(them) for part, them in tiles.items()} == {"train": 1, "test": 1}
    cloudy, sar, clear = tiles["test"].cut(0, lambda height, width: Window(height - 20, width - 24, 16))
    np.testing.assert_array_equal(clear, reflectance(optical(2))[:, 12:28, 8:24])
    np.testing.assert_array_equal(cloudy, reflectance(optical(102))[:, 12:28, 8:24])
    np.testing.assert_array_equal(sar, backscatter(radar(2))[:, 12:28, 8:24])


def test_the_table_may_lie_elsewhere(tmp_path: Path) -> None:
    row = "1," + triplet(tmp_path / "images", "a.tif")
    table = tmp_path / "mine.csv"
    table.write_text(row)
    assert len(found(tmp_path / "images", table=table)["train"]) == 1
    with pytest.raises(DataError, match=r"absent\.csv cannot be read"):
        found(tmp_path / "images", table=tmp_path / "absent.csv")


def bad_triplets(tmp_path: Path) -> Path:
    """One good row, and one each with an image that is absent, cut short, too small, of another size, without bands."""
    rows = [f"1,{triplet(tmp_path, f'{number}.tif', number)}" for number in range(6)]
    (tmp_path / "s1" / "1.tif").unlink()
    path = tmp_path / "s2_cloudy" / "2.tif"
    path.write_bytes(path.read_bytes()[:-1])
    triplet(tmp_path, "3.tif", 3, side=15)
    write(tmp_path / "s2_cloudy" / "4.tif", optical(side=64))
    write(tmp_path / "s2_cloudfree" / "5.tif", optical(bands=3))
    return listed(tmp_path, *rows)


def test_every_image_that_cannot_be_used_is_named_with_its_row(tmp_path: Path) -> None:
    data = bad_triplets(tmp_path)
    with pytest.raises(DataError, match="5 of 6 rows cannot be used") as refused:
        found(data)
    said = [problem.removeprefix(f"{data / 'data.csv'}, ") for problem in refused.value.problems]
    assert said == [
        "line 2: s1/1.tif: there is no such file",
        "line 3: s2_cloudy/2.tif ends 1 bytes before its pixels do",
        "line 4: its images are smaller than the crop of 16: 15 x 15",
        "line 5: its images are of different sizes: 32 x 32, 64 x 64",
        "line 6: s2_cloudfree/5.tif has 3 bands, not 13",
    ]


def test_what_is_skipped_is_counted(tmp_path: Path) -> None:
    data = bad_triplets(tmp_path)
    tiles, notes = parts(data, None, "headers", 16, Rows("skip"))
    assert len(tiles["train"]) == 1
    (note,) = notes
    assert note.startswith("5 of 6 rows cannot be used and were skipped") and "line 4" in note
    assert len(found(data, "names", skip=True)["train"]) == 5


def test_a_value_that_is_no_number_is_found_before_or_named_when_it_is_read(tmp_path: Path) -> None:
    data = listed(tmp_path, *(f"1,{triplet(tmp_path, f'{name}.tif')}" for name in "ab"))
    lost = radar()
    lost[1, 3, 4] = np.inf
    write(tmp_path / "s1" / "b.tif", lost)
    with pytest.raises(DataError) as refused:
        found(data, "pixels")
    assert refused.value.problems[0].endswith("line 2: s1/b.tif 1 of 2,048 values are no finite numbers")
    assert len(found(data, "pixels", skip=True)["train"]) == 1
    tiles = found(data)["train"]
    with pytest.raises(DataError, match=r"data\.csv, line 2: s1/b\.tif 1 of 2,048 values") as unread:
        tiles.cut(1, lambda *_: Window(0, 0, 16))
    assert unread.value.hint and "look=pixels" in unread.value.hint


def test_an_image_that_changed_since_it_was_looked_at_is_named(tmp_path: Path) -> None:
    data = listed(tmp_path, "1," + triplet(tmp_path, "a.tif"))
    tiles = found(data)["train"]
    write(tmp_path / "s1" / "a.tif", radar(side=16))
    with pytest.raises(DataError, match="different sizes: 16 x 16, 32 x 32"):
        tiles.cut(0, lambda *_: Window(0, 0, 16))


def test_nothing_to_train_on_is_an_error_that_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tiles to train on") as nothing:
        found(tmp_path)
    assert nothing.value.hint and "ROIs1158_spring_s1" in nothing.value.hint
    for place in (tmp_path / "absent", Path(__file__)):
        with pytest.raises(UsageError, match="there is no such folder"):
            found(place)
    data = listed(tmp_path, "3," + triplet(tmp_path, "a.tif"))
    with pytest.raises(DataError, match="0 of train, 0 of validation, 1 of test"):
        found(data)


def test_no_image_is_read_before_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoestring.recipes.cloud import geotiff

    data = listed(tmp_path, *(f"1,{triplet(tmp_path, f'{number}.tif')}" for number in range(3)))
    read: list[str] = []
    whole = geotiff.read
    monkeypatch.setattr(geotiff, "read", lambda path, bands: read.append(path.name) or whole(path, bands))
    tiles = found(data)["train"]
    assert not read
    tiles.cut(1, lambda *_: Window(0, 0, 16))
    assert read == ["1.tif"] * 3
