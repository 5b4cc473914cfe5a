from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recipes.cloud.images import SIDE, optical, radar, tifffile, write

from shoestring.recipes.cloud.geotiff import UnusableImageError, look, read  # isort: skip


@pytest.mark.parametrize("kind", ["uint16", "int16", "float32"])
@pytest.mark.parametrize("planarconfig", ["contig", "separate"])
@pytest.mark.parametrize("how", [{}, {"compression": "deflate"}, {"compression": "deflate", "predictor": True}])
def test_bands_come_first_however_they_lie_in_the_file(
    tmp_path: Path, kind: str, planarconfig: str, how: dict[str, Any]
) -> None:
    image = (optical() // 2).astype(kind)
    if kind == "float32" and "predictor" in how:
        pytest.importorskip("imagecodecs")
    path = write(tmp_path / "a.tif", image, planarconfig=planarconfig, **how)
    assert look(path, 13) == (SIDE, SIDE)
    found = read(path, 13)
    assert found.dtype == image.dtype
    np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize("planarconfig", ["contig", "separate"])
def test_lzw_is_read_where_its_codec_is_installed(tmp_path: Path, planarconfig: str) -> None:
    pytest.importorskip("imagecodecs")
    path = write(tmp_path / "a.tif", optical(), planarconfig=planarconfig, compression="lzw", predictor=True)
    np.testing.assert_array_equal(read(path, 13), optical())


def test_a_crop_of_an_image_that_is_wider_than_high(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", optical()[:, :20])
    assert look(path, 13) == (20, SIDE)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    lost = radar()
    lost[0, :2, 0] = np.nan
    good = write(tmp_path / "good.tif", radar()).read_bytes()
    (tmp_path / "short.tif").write_bytes(good[:-1000])
    (tmp_path / "empty.tif").write_bytes(b"")
    (tmp_path / "text.tif").write_text("<VRTDataset/>")
    write(tmp_path / "lost.tif", lost)
    write(tmp_path / "complex.tif", radar().astype(np.complex64))
    tifffile.imwrite(tmp_path / "wide.tif", np.zeros((1, 5000, 2), np.uint16), planarconfig="contig")
    said = {
        "short": "ends .* bytes before its pixels do",
        "empty": "cannot be read",
        "text": "cannot be read",
        "absent": "No such file",
        "complex": "values of type complex64",
        "wide": "at most 4096 pixels",
    }
    for name, why in said.items():
        for how in (look, read):
            with pytest.raises(UnusableImageError, match=why):
                how(tmp_path / f"{name}.tif", 2)
    with pytest.raises(UnusableImageError, match="has 2 bands, not 13"):
        look(tmp_path / "good.tif", 13)
    assert look(tmp_path / "lost.tif", 2) == (SIDE, SIDE)
    with pytest.raises(UnusableImageError, match="2 of 2,048 values are no finite numbers"):
        read(tmp_path / "lost.tif", 2)


def test_no_damage_ends_in_another_error(tmp_path: Path) -> None:
    """Every byte of the header, and where the first directory lies, once as 0 and once as 255."""
    good = write(tmp_path / "good.tif", radar(side=16)).read_bytes()
    path, refused = tmp_path / "bad.tif", 0
    for place in (*range(0, 300, 3), *range(len(good) - 100, len(good), 5)):
        for value in (0, 255):
            path.write_bytes(good[:place] + bytes([value]) + good[place + 1 :])
            try:
                assert read(path, 2).shape[0] == 2
            except UnusableImageError:
                refused += 1
    assert refused > 20
