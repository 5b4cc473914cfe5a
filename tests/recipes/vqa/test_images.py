from pathlib import Path

import pytest
import torch
from PIL import Image

from shoestring_recipes.images import open_image
from shoestring_recipes.vqa import images
from shoestring_recipes.vqa.images import to_tensor


def test_pixels_are_normalized_like_blip() -> None:
    """A resized white image stays white; the expected values follow from the constants of the BLIP processor."""
    pixels = to_tensor(Image.new("RGB", (40, 10), (255, 255, 255)), 8)
    assert pixels.shape == (3, 8, 8) and pixels.dtype == torch.float32 and pixels.is_contiguous()
    expected = [(1 - mean) / deviation for mean, deviation in
                ((0.48145466, 0.26862954), (0.4578275, 0.26130258), (0.40821073, 0.27577711))]  # fmt: skip
    torch.testing.assert_close(pixels[:, 3, 5], torch.tensor(expected))
    halves = to_tensor(Image.fromarray(torch.tensor([[255, 0]] * 2, dtype=torch.uint8).numpy()), 8)
    assert (halves[:, :, 0] > halves[:, :, 7]).all(), "rows and columns must not be swapped"


def test_constants_match_transformers() -> None:
    from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    torch.testing.assert_close(images.MEAN.flatten(), torch.tensor(OPENAI_CLIP_MEAN))
    torch.testing.assert_close(images.DEVIATION.flatten(), torch.tensor(OPENAI_CLIP_STD))


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "bmp"])
def test_broken_images_are_rejected(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    with pytest.raises(ValueError, match="there is no image"):
        open_image(path)
    Image.effect_noise((60, 50), 80).convert("RGB").save(path)
    assert open_image(path).size == (60, 50)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="cannot be read"):
        open_image(path)
    path.write_text("no image")
    with pytest.raises(ValueError, match="cannot be read"):
        open_image(path)


def test_images_with_too_many_pixels_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (50, 50)).save(tmp_path / "a.png")
    monkeypatch.setattr("shoestring_recipes.images.MAX_PIXELS", 2499)
    with pytest.raises(ValueError, match="50x50"):
        open_image(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with pytest.raises(ValueError, match="cannot be read"):
        open_image(tmp_path / "a.png")


def test_only_common_formats_are_open_image(tmp_path: Path) -> None:
    """Some of Pillow's formats run external programs."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", format="TIFF")
    with pytest.raises(ValueError, match="cannot be read"):
        open_image(tmp_path / "a.png")
