import numpy as np
import torch

from shoestring_recipes.cloud.clouds import generate_clouds
from shoestring_recipes.cloud.metrics import psnr
from shoestring_recipes.cloud.synthetic import (
    BAND_MIX,
    CLOUD_SPECTRUM,
    CLOUDS_PER_BLOCK,
    HELD_OUT_BLOCKS,
    SyntheticTiles,
    _training_blocks,
    load_parts,
)
from shoestring_recipes.cloud.terrain import BLOCK_SIDE, SIDE, load_layers
from shoestring_recipes.cloud.tiles import Crops, Window


def whole_tile(part: str, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return Crops(load_parts()[part], BLOCK_SIDE, random_position=False)[index]


def test_tiles_have_the_bands_and_range_of_real_ones() -> None:
    cloudy, radar, clear = whole_tile("train", 0)
    assert cloudy.shape == clear.shape == (13, 256, 256) and radar.shape == (2, 256, 256)
    for image in (cloudy, radar, clear):
        assert image.dtype == torch.float32
        assert image.min() >= 0 and image.max() <= 1 and image.std() > 0.02
    assert BAND_MIX.shape == (13, 5) and CLOUD_SPECTRUM.shape == (13,)


def test_parts_share_no_terrain() -> None:
    blocks = [*_training_blocks(), *(block for part_blocks in HELD_OUT_BLOCKS.values() for block in part_blocks)]
    assert len(blocks) == len(set(blocks)) == (SIDE // BLOCK_SIDE) ** 2
    assert {part: len(tiles) for part, tiles in load_parts().items()} == {"train": 48, "validation": 16, "test": 16}
    assert len({(block, number) for tiles in load_parts().values() for block, number in tiles._tiles}) == 80


def test_tiles_of_one_block_differ_in_their_clouds_only() -> None:
    first, last = whole_tile("train", 0), whole_tile("train", CLOUDS_PER_BLOCK["train"] - 1)
    assert torch.equal(first[2], last[2]) and torch.equal(first[1], last[1])
    assert not torch.equal(first[0], last[0])


def test_a_crop_is_a_part_of_its_tile() -> None:
    tiles = SyntheticTiles("test")
    crop = tiles.cut(3, lambda *_: Window(100, 60, 32))
    for image, tile in zip(crop, whole_tile("test", 3), strict=True):
        np.testing.assert_allclose(image, tile[:, 100:132, 60:92], rtol=1e-5)


def test_tiles_are_as_cloudy_as_real_ones() -> None:
    """The cloudy images of the two real triplets in the repository of GLF-CR have 16.0 and 20.4 dB."""
    ratios = [
        float(psnr(cloudy[None], clear[None]))
        for cloudy, _, clear in (whole_tile("train", index) for index in range(0, 48, 5))
    ]
    assert min(ratios) > 11 and max(ratios) < 20 and 13 < np.mean(ratios) < 16


def test_clouds_are_bright_and_shadows_dark() -> None:
    clouds = generate_clouds(7, BLOCK_SIDE)
    assert clouds.cover.min() >= 0 and 0.9 < clouds.cover.max() <= 1
    assert 0.1 < (clouds.cover > 0.9).mean() < 0.6
    assert clouds.illumination.min() < 0.5 and clouds.illumination.max() == 1
    cloudy, _, clear = (image.numpy() for image in whole_tile("train", 5))
    assert cloudy[:4].mean() > 1.3 * clear[:4].mean()
    assert (cloudy[5:9] < 0.8 * clear[5:9]).all(axis=0).mean() > 0.04


def test_radar_carries_information_beneath_clouds() -> None:
    """The radar echo follows the slopes even under thick cloud, where the optical image does not."""
    east = load_layers()[3]
    tiles = SyntheticTiles("train")
    radar = np.concatenate([tiles.cut(index, lambda *_: Window(0, 0, BLOCK_SIDE))[1][0].ravel() for index in (0, 8)])
    slopes = np.concatenate([east[:BLOCK_SIDE, :BLOCK_SIDE].ravel(), east[:BLOCK_SIDE, 3 * BLOCK_SIDE :].ravel()])
    assert tiles._tiles[0][0] == (0, 0) and tiles._tiles[8][0] == (0, 3)
    assert np.corrcoef(radar, slopes)[0, 1] > 0.4


def test_tiles_are_the_same_on_all_machines() -> None:
    """Decoders of the photograph may differ by one level, so three digits are compared instead of bits."""
    cloudy, radar, clear = (image.double() for image in whole_tile("train", 5))
    digits = [f"{image.mean():.3f} {image.std():.3f}" for image in (cloudy, radar, clear)]
    assert digits == ["0.280 0.151", "0.478 0.162", "0.187 0.149"]


def test_clouds_depend_on_the_seed_alone() -> None:
    first = generate_clouds(3, 64)
    generate_clouds.cache_clear()
    second = generate_clouds(3, 64)
    assert first is not second
    np.testing.assert_array_equal(first.cover, second.cover)
