from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recipes.cloud.images import SIDE, optical_image, radar_image, tifffile, write_image

from shoestring_recipes.cloud.geotiff import UnusableImageError, read_pixels, read_size  # isort: skip


@pytest.mark.parametrize("kind", ["uint16", "int16", "float32"])
@pytest.mark.parametrize("planarconfig", ["contig", "separate"])
@pytest.mark.parametrize("options", [{}, {"compression": "deflate"}, {"compression": "deflate", "predictor": True}])
def test_bands_come_first_for_every_file_layout(
    tmp_path: Path, kind: str, planarconfig: str, options: dict[str, Any]
) -> None:
    image = (optical_image() // 2).astype(kind)
    if kind == "float32" and "predictor" in options:
        pytest.importorskip("imagecodecs")
    path = write_image(tmp_path / "a.tif", image, planarconfig=planarconfig, **options)
    assert read_size(path, 13) == (SIDE, SIDE)
    pixels = read_pixels(path, 13)
    assert pixels.dtype == image.dtype
    np.testing.assert_array_equal(pixels, image)


@pytest.mark.parametrize("planarconfig", ["contig", "separate"])
def test_lzw_is_read_if_its_codec_is_installed(tmp_path: Path, planarconfig: str) -> None:
    pytest.importorskip("imagecodecs")
    path = write_image(
        tmp_path / "a.tif", optical_image(), planarconfig=planarconfig, compression="lzw", predictor=True
    )
    np.testing.assert_array_equal(read_pixels(path, 13), optical_image())


def test_size_of_an_image_that_is_not_square(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.tif", optical_image()[:, :20])
    assert read_size(path, 13) == (20, SIDE)


def test_unusable_images_are_rejected_with_the_reason(tmp_path: Path) -> None:
    with_nan = radar_image()
    with_nan[0, :2, 0] = np.nan
    good = write_image(tmp_path / "good.tif", radar_image()).read_bytes()
    (tmp_path / "short.tif").write_bytes(good[:-1000])
    (tmp_path / "empty.tif").write_bytes(b"")
    (tmp_path / "text.tif").write_text("<VRTDataset/>")
    write_image(tmp_path / "nan.tif", with_nan)
    write_image(tmp_path / "complex.tif", radar_image().astype(np.complex64))
    tifffile.imwrite(tmp_path / "wide.tif", np.zeros((1, 5000, 2), np.uint16), planarconfig="contig")
    reasons = {
        "short": "is truncated: .* bytes of pixels are missing",
        "empty": "cannot be read",
        "text": "cannot be read",
        "absent": "No such file",
        "complex": "values of type complex64",
        "wide": "at most 4096 pixels",
    }
    for name, reason in reasons.items():
        for function in (read_size, read_pixels):
            with pytest.raises(UnusableImageError, match=reason):
                function(tmp_path / f"{name}.tif", 2)
    with pytest.raises(UnusableImageError, match="has 2 bands, not 13"):
        read_size(tmp_path / "good.tif", 13)
    assert read_size(tmp_path / "nan.tif", 2) == (SIDE, SIDE)
    with pytest.raises(UnusableImageError, match="2 of 2,048 values are not finite"):
        read_pixels(tmp_path / "nan.tif", 2)


def test_damaged_files_raise_unusable_image_error_only(tmp_path: Path) -> None:
    """Bytes of the header and of the first directory are set to 0 and to 255 in turn."""
    good = write_image(tmp_path / "good.tif", radar_image(side=16)).read_bytes()
    path, rejected_count = tmp_path / "bad.tif", 0
    for offset in (*range(0, 300, 3), *range(len(good) - 100, len(good), 5)):
        for value in (0, 255):
            path.write_bytes(good[:offset] + bytes([value]) + good[offset + 1 :])
            try:
                assert read_pixels(path, 2).shape[0] == 2
            except UnusableImageError:
                rejected_count += 1
    assert rejected_count > 20
