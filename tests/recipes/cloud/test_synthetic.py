import numpy as np
import torch

from shoestring.recipes.cloud.land import BLOCK, SIDE, layers
from shoestring.recipes.cloud.metrics import psnr
from shoestring.recipes.cloud.sky import sky
from shoestring.recipes.cloud.synthetic import CLOUD, HELD_OUT, MIX, SKIES, Synthetic, _others, parts
from shoestring.recipes.cloud.tiles import Crops, Window


def whole(part: str, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return Crops(parts()[part], BLOCK, anywhere=False)[index]


def test_tiles_have_the_bands_and_bounds_of_real_ones() -> None:
    cloudy, radar, clear = whole("train", 0)
    assert cloudy.shape == clear.shape == (13, 256, 256) and radar.shape == (2, 256, 256)
    for image in (cloudy, radar, clear):
        assert image.dtype == torch.float32
        assert image.min() >= 0 and image.max() <= 1 and image.std() > 0.02
    assert MIX.shape == (13, 5) and CLOUD.shape == (13,)


def test_no_two_parts_share_land() -> None:
    blocks = [*_others(), *(block for held in HELD_OUT.values() for block in held)]
    assert len(blocks) == len(set(blocks)) == (SIDE // BLOCK) ** 2
    assert {part: len(tiles) for part, tiles in parts().items()} == {"train": 48, "validation": 16, "test": 16}
    assert len({(block, number) for tiles in parts().values() for block, number in tiles._tiles}) == 80


def test_the_same_land_lies_under_each_of_its_skies() -> None:
    one, other = whole("train", 0), whole("train", SKIES["train"] - 1)
    assert torch.equal(one[2], other[2]) and torch.equal(one[1], other[1])
    assert not torch.equal(one[0], other[0])


def test_a_crop_is_a_part_of_its_tile() -> None:
    tiles = Synthetic("test")
    cut = tiles.cut(3, lambda *_: Window(100, 60, 32))
    for image, all_of_it in zip(cut, whole("test", 3), strict=True):
        np.testing.assert_allclose(image, all_of_it[:, 100:132, 60:92], rtol=1e-5)


def test_tiles_are_as_cloudy_as_real_ones() -> None:
    """The copies of the two real triplets that GLF-CR brings along have 16.0 and 20.4 dB."""
    found = [
        float(psnr(cloudy[None], clear[None]))
        for cloudy, _, clear in (whole("train", index) for index in range(0, 48, 5))
    ]
    assert min(found) > 11 and max(found) < 20 and 13 < np.mean(found) < 16


def test_clouds_are_bright_and_shadows_dark() -> None:
    above = sky(7, BLOCK)
    assert above.cover.min() >= 0 and 0.9 < above.cover.max() <= 1
    assert 0.1 < (above.cover > 0.9).mean() < 0.6
    assert above.lit.min() < 0.5 and above.lit.max() == 1
    cloudy, _, clear = (image.numpy() for image in whole("train", 5))
    assert cloudy[:4].mean() > 1.3 * clear[:4].mean()
    assert (cloudy[5:9] < 0.8 * clear[5:9]).all(axis=0).mean() > 0.04


def test_the_radar_sees_what_a_cloud_hides() -> None:
    """Under thick cloud nothing of the optical image follows the slopes, the echo still does."""
    east = layers()[3]
    tiles = Synthetic("train")
    radar = np.concatenate([tiles.cut(index, lambda *_: Window(0, 0, BLOCK))[1][0].ravel() for index in (0, 8)])
    slopes = np.concatenate([east[:BLOCK, :BLOCK].ravel(), east[:BLOCK, 3 * BLOCK :].ravel()])
    assert tiles._tiles[0][0] == (0, 0) and tiles._tiles[8][0] == (0, 3)
    assert np.corrcoef(radar, slopes)[0, 1] > 0.4


def test_they_are_the_same_everywhere() -> None:
    """What decodes the photograph may differ by a level, so three digits and not bits."""
    cloudy, radar, clear = (image.double() for image in whole("train", 5))
    digits = [f"{image.mean():.3f} {image.std():.3f}" for image in (cloudy, radar, clear)]
    assert digits == ["0.280 0.151", "0.478 0.162", "0.187 0.149"]


def test_a_sky_is_the_same_each_time() -> None:
    first = sky(3, 64)
    sky.cache_clear()
    again = sky(3, 64)
    assert first is not again
    np.testing.assert_array_equal(first.cover, again.cover)
