from pathlib import Path

import pytest
import torch
from PIL import Image

from shoestring.recipes.vqa import images
from shoestring.recipes.vqa.images import opened, pixels


def test_normalised_as_blip_does() -> None:
    """Resized white is white; the numbers are those of transformers' BLIP processor, from its constants."""
    found = pixels(Image.new("RGB", (40, 10), (255, 255, 255)), 8)
    assert found.shape == (3, 8, 8) and found.dtype == torch.float32 and found.is_contiguous()
    expected = [(1 - mean) / deviation for mean, deviation in
                ((0.48145466, 0.26862954), (0.4578275, 0.26130258), (0.40821073, 0.27577711))]  # fmt: skip
    torch.testing.assert_close(found[:, 3, 5], torch.tensor(expected))
    left = pixels(Image.fromarray(torch.tensor([[255, 0]] * 2, dtype=torch.uint8).numpy()), 8)
    assert (left[:, :, 0] > left[:, :, 7]).all(), "columns stay columns"


def test_the_constants_are_those_of_transformers() -> None:
    from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    torch.testing.assert_close(images.MEAN.flatten(), torch.tensor(OPENAI_CLIP_MEAN))
    torch.testing.assert_close(images.DEVIATION.flatten(), torch.tensor(OPENAI_CLIP_STD))


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "bmp"])
def test_broken_ones_are_refused_and_never_white(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    with pytest.raises(ValueError, match="there is no image"):
        opened(path)
    Image.effect_noise((60, 50), 80).convert("RGB").save(path)
    assert opened(path).size == (60, 50)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="cannot be read"):
        opened(path)
    path.write_text("no image")
    with pytest.raises(ValueError, match="cannot be read"):
        opened(path)


def test_one_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (50, 50)).save(tmp_path / "a.png")
    monkeypatch.setattr(images, "MOST_PIXELS", 2499)
    with pytest.raises(ValueError, match="50x50"):
        opened(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with pytest.raises(ValueError, match="cannot be read"):
        opened(tmp_path / "a.png")


def test_only_the_usual_formats_are_opened(tmp_path: Path) -> None:
    """Pillow knows some that start other programs."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", format="TIFF")
    with pytest.raises(ValueError, match="cannot be read"):
        opened(tmp_path / "a.png")
