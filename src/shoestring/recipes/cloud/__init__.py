"""`cloud`: what lies beneath the clouds of an optical satellite image, seen with the help of radar.

GLF-CR (Xu et al., 2022): the radar image guides attention over the optical one and fills in what it cannot show.
Images are those of SEN12MS-CR; without any, synthetic ones are made. What a network is worth shows against leaving the
cloudy image as it is, so `evaluate` reports both.

The model needs torch alone; images from files need `pip install 'shoestring[cloud]'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shoestring.errors import UsageError
from shoestring.recipe.extras import require

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipes.cloud.network import Batch
    from shoestring.recipes.cloud.tiles import Crops, Tiles

HALVED_EVERY = 5
"""Epochs after which the learning rate is half of what it was, as published."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What goes with a size where the options leave it open."""

    crop: int
    learning_rate: float


# Of the tiny one: what learns in seconds on a CPU.
OWN = {"full": Size(crop=128, learning_rate=1e-4), "tiny": Size(crop=32, learning_rate=3e-3)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen."""

    size: Annotated[Literal["full", "tiny"], "the published size, or some ten thousand parameters"] = "full"
    data: Annotated[
        Path | None,
        "folder of satellite images: SEN12MS-CR's, or one with a data.csv; none: synthetic tiles, made of a photograph "
        "and a relief",
    ] = None
    table: Annotated[Path | None, "the data.csv where it is not in that folder; none: the one there, if any"] = None
    look: Annotated[
        Literal["names", "headers", "pixels"],
        "how closely all images are looked at before training: whether they are there, their size and length, or every "
        "pixel",
    ] = "headers"
    on_bad_rows: Annotated[Literal["refuse", "skip"], "what to do about images that cannot be used"] = "refuse"
    weights_from: Annotated[
        Path | None, "weights to begin with: a run's best or light, or the published ones; none: random"
    ] = None
    epochs: Annotated[int, "passes over the training data"] = 30
    effective_batch: Annotated[int, "samples in one update"] = 4
    seed: Annotated[int, "decides initialisation, sample order, crops and dropped paths"] = 42
    crop: Annotated[
        int | None, "pixels on a side of what is cut out of a tile, a multiple of 16; none: full 128, tiny 32"
    ] = None
    learning_rate: Annotated[float | None, "at first; none: full 1e-4, tiny 3e-3"] = None
    clip_norm: Annotated[float | None, "the gradient's largest norm; none: any, as published"] = None

    def __post_init__(self) -> None:
        problems = []
        if self.crop is not None and (self.crop < 16 or self.crop % 16):
            problems.append(f"crop={self.crop}: must be a multiple of 16, windows of 8 at half the resolution")
        if self.data is None and self.crop is not None and self.crop > 256:
            problems.append(f"crop={self.crop}: synthetic tiles have 256 pixels on a side")
        if self.table is not None and self.data is None:
            problems.append(f"table={self.table}: names images below a folder; set data as well")
        if self.learning_rate is not None and self.learning_rate <= 0:
            problems.append(f"learning_rate={self.learning_rate}: must be more than 0")
        if self.clip_norm is not None and self.clip_norm <= 0:
            problems.append(f"clip_norm={self.clip_norm}: must be more than 0")
        if problems:
            raise UsageError("options of cloud cannot be used", problems=problems)


class Cloud:
    """Removal of clouds from 13 optical bands with the help of 2 radar bands."""

    best = ("psnr", "max")

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._notes: list[str] = []

    @property
    def clip_norm(self) -> float | None:
        return self.options.clip_norm

    def model(self) -> nn.Module:
        from shoestring.recipes.cloud import weights
        from shoestring.recipes.cloud.network import SIZES, CloudRemoval

        model = CloudRemoval(SIZES[self.options.size], crop=self._crop)
        if self.options.weights_from is not None:
            weights.load(self.options.weights_from, model)
        return model

    def batch(self, size: int) -> Batch:
        """Cloudy (size, 13, crop, crop), radar (size, 2, crop, crop) and clear (size, 13, crop, crop), float32."""
        import torch

        from shoestring.recipes.cloud.scale import OPTICAL, RADAR

        cloudy, radar, clear = (torch.zeros(size, bands, self._crop, self._crop) for bands in (OPTICAL, RADAR, OPTICAL))
        return cloudy, radar, clear

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean absolute error over all samples, bands and pixels."""
        from torch.nn.functional import l1_loss

        cloudy, radar, clear = batch
        return l1_loss(model(cloudy, radar), clear)

    def data(self) -> dict[str, Crops]:
        """`train`, `validation` and `test`, as far as there are triplets of them.

        Raises UsageError where the extra is not installed, DataError for images that cannot be trained on.
        """
        from shoestring.recipes.cloud.tiles import Crops

        tiles, self._notes = self._tiles()
        return {part: Crops(found, self._crop, anywhere=part == "train") for part, found in tiles.items()}

    def notes(self) -> list[str]:
        """What is to be known of the data and of the weights that training begins with."""
        source = self.options.weights_from
        return [*self._notes, f"weights are those of {source}" if source else "weights are random at first"]

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        learning_rate = self.options.learning_rate
        return torch.optim.Adam(
            model.parameters(), lr=OWN[self.options.size].learning_rate if learning_rate is None else learning_rate
        )

    def schedule(self, update: int, updates_per_epoch: int, total_updates: int) -> float:  # noqa: ARG002
        """Half as much every fifth epoch."""
        return float(0.5 ** (update // updates_per_epoch // HALVED_EVERY))

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, Any]:
        """`psnr` (dB), `ssim`, `sam` (degrees) and `mae`, the mean over all images; the same of the cloudy images as
        they are, `copy_psnr` and so on; `loss`, which is `mae` by another name.
        """
        import torch

        from shoestring.recipes.cloud.metrics import scores

        found: dict[str, list[Tensor]] = {}
        for cloudy, radar, clear in batches:
            for prefix, image in (("", model(cloudy, radar)), ("copy_", cloudy)):
                for name, values in scores(image, clear).items():
                    found.setdefault(prefix + name, []).append(values)
        means = {name: float(torch.cat(values).nanmean()) for name, values in found.items()}
        return {"loss": means.get("mae", float("nan")), **means}

    def _tiles(self) -> tuple[Mapping[str, Tiles], list[str]]:
        """What samples are cut out of, by part, and what a person should know of it."""
        if self.options.data is None:
            from shoestring.recipes.cloud import synthetic

            return synthetic.parts(), [synthetic.NOTE]
        require("cloud", "tifffile")
        from shoestring.recipes.cloud import measured
        from shoestring.recipes.rows import Rows

        rows = Rows(self.options.on_bad_rows)
        return measured.parts(self.options.data, self.options.table, self.options.look, self._crop, rows)

    @property
    def _crop(self) -> int:
        return OWN[self.options.size].crop if self.options.crop is None else self.options.crop
