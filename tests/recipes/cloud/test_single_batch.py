"""One given batch with given weights: the metrics are those of the images, computed beside the recipe."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import shoestring
from tests.recipes.cloud.images import optical_image, radar_image, write_triplet

from shoestring.base.errors import UsageError  # isort: skip
from shoestring_recipes.cloud import Cloud, Options  # isort: skip
from shoestring_recipes.cloud.scale import to_backscatter, to_reflectance  # isort: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in the authors' file format, and beside them a folder with five tiles of the test part."""
    folder = tmp_path_factory.mktemp("cloud")
    torch.manual_seed(0)
    model = Cloud(Options(size="tiny", crop=16)).model()
    torch.save({"network": model.state_dict()}, folder / "CR_net.pth")
    rows = ["1," + write_triplet(folder, "train.tif", 90)]
    rows += ["3," + write_triplet(folder, f"{number}.tif", number) for number in range(5)]
    (folder / "data.csv").write_text("\n".join(rows))
    return folder / "CR_net.pth"


def expected_psnr(weights: Path, number: int) -> float:
    model = Cloud(Options(size="tiny", crop=16)).pretrained(weights).eval()
    cloudy, radar, clear = (
        torch.from_numpy(np.asarray(image, dtype=np.float32))[None]
        for image in (
            to_reflectance(optical_image(number + 100)),
            to_backscatter(radar_image(number)),
            to_reflectance(optical_image(number)),
        )
    )
    start = (cloudy.shape[-1] - 16) // 2
    cloudy, radar, clear = (image[..., start : start + 16, start : start + 16] for image in (cloudy, radar, clear))
    with torch.no_grad():
        error = (model(cloudy, radar) - clear).double().square().mean()
    return -10 * math.log10(error)


def test_first_batch_of_the_test_part(weights: Path, tmp_path: Path) -> None:
    values = {"data": weights.parent, "size": "tiny", "crop": 16}
    out = tmp_path / "rows.csv"
    evaluated = shoestring.evaluate(weights, recipe="cloud", on="cpu", first=2, out=out, **values)
    expected = [expected_psnr(weights, number) for number in range(5)]
    assert list(evaluated.metrics) == ["test"]
    assert evaluated.metrics["test"]["psnr"] == pytest.approx(sum(expected[:2]) / 2, rel=1e-5)
    with out.open() as file:
        assert [Path(row["id"]).name for row in csv.DictReader(file)] == ["0.tif", "1.tif"]
    every = shoestring.evaluate(weights, recipe="cloud", on="cpu", first=99, **values)
    assert every.metrics["test"]["psnr"] == pytest.approx(sum(expected) / 5, rel=1e-5)
    with pytest.raises(UsageError, match="at least 1"):
        shoestring.evaluate(weights, recipe="cloud", on="cpu", first=0, **values)
