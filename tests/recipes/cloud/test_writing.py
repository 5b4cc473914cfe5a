import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.recipes.cloud.images import (
    GEO_TAGS,
    geo_tag_options,
    optical_image,
    read_geo_tags,
    write_image,
)

from shoestring_recipes.cloud import geotiff  # isort: skip
from shoestring_recipes.cloud.writing import encode_geotiff, encode_preview  # isort: skip


@pytest.mark.parametrize("kind", ["uint16", "float32"])
def test_a_written_image_has_the_pixels_and_the_georeference(tmp_path: Path, kind: str) -> None:
    source = write_image(tmp_path / "a.tif", optical_image(), extratags=geo_tag_options())
    counts = optical_image(1)[:, :20].astype(kind)
    path = tmp_path / "b.tif"
    path.write_bytes(encode_geotiff(counts, geotiff.read_geo_tags(source)))
    written = geotiff.read_pixels(path, 13)
    assert written.dtype == counts.dtype
    np.testing.assert_array_equal(written, counts)
    assert read_geo_tags(path) == read_geo_tags(source) and len(read_geo_tags(path)) == len(GEO_TAGS)
    assert encode_geotiff(counts, geotiff.read_geo_tags(path)) == path.read_bytes()


def test_only_a_valid_georeference_is_copied(tmp_path: Path) -> None:
    statistics = '<Item name="STATISTICS_MEAN" sample="0">712</Item>\n<Item name="AREA">Müritz</Item>'
    tags = {
        33550: (3, (10, 10, 0)),
        34736: (12, (1.0,) * (geotiff.MAX_TAG_VALUES + 1)),
        42112: (2, statistics.encode()),
        42113: (2, "-9999"),
    }
    source = write_image(tmp_path / "a.tif", optical_image(), extratags=geo_tag_options(tags))
    copied = geotiff.read_geo_tags(source)
    assert [(tag.code, tag.value) for tag in copied] == [(42112, '<Item name="AREA">Müritz</Item>'), (42113, "-9999")]
    (tmp_path / "b.tif").write_bytes(encode_geotiff(optical_image(), copied))
    assert read_geo_tags(tmp_path / "b.tif") == {tag.code: (2, tag.value) for tag in copied}
    assert geotiff.read_geo_tags(write_image(tmp_path / "c.tif", optical_image())) == ()


def test_a_preview_has_the_stretched_visible_bands() -> None:
    reflectance = np.zeros((13, 10, 20), dtype=np.float32)
    reflectance[3, :, 10:], reflectance[2], reflectance[1], reflectance[7] = 0.3, 0.15, 0.0, 1.0
    with Image.open(io.BytesIO(encode_preview(reflectance))) as preview:
        assert preview.size == (20, 10) and preview.format == "PNG"
        assert preview.getpixel((15, 5)) == (255, 128, 0) and preview.getpixel((5, 5)) == (0, 128, 0)
    black = encode_preview(np.zeros((13, 4, 4), dtype=np.float32))
    with Image.open(io.BytesIO(black)) as preview:
        assert preview.getpixel((0, 0)) == (0, 0, 0)
