"""The `cloud` recipe: reconstruct the ground beneath the clouds of an optical satellite image with the help of radar.

The model is GLF-CR (Xu et al., 2022): the radar image guides the attention over the optical image and fills in what
the clouds hide. Images are those of SEN12MS-CR; without a data set, synthetic ones are generated. The baseline is the
unchanged cloudy image, so `evaluate` reports the metrics of both.

The model needs torch alone; images from files need `pip install -e '.[cloud]'`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from shoestring.base.errors import UsageError
from shoestring.base.packages.requirements import require
from shoestring.recipe import evidence
from shoestring.recipe.evaluating import EvaluatesBatches
from shoestring.recipe.option_notes import Cheaper
from shoestring_recipes.cloud.layout import SHARES, count_triplets

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipe.exports import OnnxGraph
    from shoestring_recipes.cloud.network import Batch
    from shoestring_recipes.cloud.tiles import Crops, Tiles
    from shoestring_recipes.cloud.unlabeled import TileInputs

EPOCHS_PER_HALVING = 5
"""Epochs after which the learning rate is halved, as published."""


@dataclass(frozen=True, kw_only=True)
class SizeDefaults:
    """Values that depend on the model's size, for options that are None."""

    crop: int
    learning_rate: float


# The values of the tiny size let it learn within seconds on a CPU.
DEFAULTS = {"full": SizeDefaults(crop=128, learning_rate=1e-4), "tiny": SizeDefaults(crop=32, learning_rate=3e-3)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the recipe."""

    by_size: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tiny": {"epochs": 12}}

    size: Annotated[Literal["full", "tiny"], "the published model, or one of about ten thousand parameters"] = "full"
    data: Annotated[
        Path | None,
        "folder of satellite images: SEN12MS-CR's, or one with a data.csv; none: synthetic tiles, generated from a "
        "photograph and a relief",
    ] = None
    table: Annotated[Path | None, "the data.csv if it is outside the data folder; none: the one inside, if any"] = None
    look: Annotated[
        Literal["names", "headers", "pixels"],
        "how images are checked before training: names (the files exist), headers (also their bands, size and length) "
        "or pixels (also every value)",
    ] = "headers"
    on_bad_rows: Annotated[Literal["refuse", "skip"], "stop on unusable images, or skip and count them"] = "refuse"
    weights_from: Annotated[
        Path | None, "initial weights: the folder best or light of a run, or the published CR_net.pth; none: random"
    ] = None
    epochs: Annotated[int, "passes over the training data"] = 30
    effective_batch: Annotated[int, "samples in one update"] = 4
    seed: Annotated[int, "seed of the initialization, sample order, crops and dropped paths"] = 42
    crop: Annotated[
        int | None,
        "side in pixels of the square cut from each tile, a multiple of 16; none: full 128, tiny 32",
        Cheaper("smaller crops"),
    ] = None
    learning_rate: Annotated[float | None, "initial learning rate; none: full 1e-4, tiny 3e-3"] = None
    clip_norm: Annotated[float | None, "largest norm of the gradient; none: no clipping, as published"] = None

    def __post_init__(self) -> None:
        problems = []
        if self.crop is not None and (self.crop < 16 or self.crop % 16):
            problems.append(
                f"crop={self.crop}: must be a multiple of 16, because attention has windows of 8 pixels at half the "
                "resolution"
            )
        if self.data is None and self.crop is not None and self.crop > 256:
            problems.append(f"crop={self.crop}: synthetic tiles have only 256 pixels on a side")
        if self.table is not None and self.data is None:
            problems.append(f"table={self.table}: its paths are relative to the data folder; set data as well")
        if self.learning_rate is not None and self.learning_rate <= 0:
            problems.append(f"learning_rate={self.learning_rate}: must be more than 0")
        if self.clip_norm is not None and self.clip_norm <= 0:
            problems.append(f"clip_norm={self.clip_norm}: must be more than 0")
        if problems:
            raise UsageError("options of cloud cannot be used", problems=problems)


class Cloud(EvaluatesBatches):
    """Removal of clouds from 13 optical bands with the help of 2 radar bands."""

    best = ("psnr", "max")
    row = "a patch"
    data_options = ("table",)
    part_shares: Mapping[str, float] = SHARES

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._data_notes: list[str] = []

    def count_rows(self, files: Mapping[str, int]) -> int | None:
        """Return the number of complete triplets of SEN12MS-CR's folders; None for tiles that a `data.csv` lists."""
        if self.options.table is not None or "data.csv" in files:
            return None
        return count_triplets(files) or None

    @property
    def clip_norm(self) -> float | None:
        return self.options.clip_norm

    def model(self) -> nn.Module:
        from shoestring_recipes.cloud.network import SIZES, CloudRemoval

        if self.options.weights_from is not None:
            return self.pretrained(self.options.weights_from)
        return CloudRemoval(SIZES[self.options.size], crop=self._crop)

    def pretrained(self, path: Path) -> nn.Module:
        """Return the model with the weights at `path`: of a run, or the published ones."""
        from shoestring_recipes.cloud.network import SIZES, CloudRemoval
        from shoestring_recipes.cloud.weights import load_weights

        model = CloudRemoval(SIZES[self.options.size], crop=self._crop)
        load_weights(path, model)
        return model

    def batch(self, size: int) -> Batch:
        """Return cloudy (size, 13, crop, crop), radar (size, 2, crop, crop) and clear (size, 13, crop, crop), float32.

        All values are zero.
        """
        import torch

        from shoestring_recipes.cloud.scale import OPTICAL, RADAR

        cloudy, radar, clear = (torch.zeros(size, bands, self._crop, self._crop) for bands in (OPTICAL, RADAR, OPTICAL))
        return cloudy, radar, clear

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean absolute error over all samples, bands and pixels."""
        from torch.nn.functional import l1_loss

        cloudy, radar, clear = batch
        return l1_loss(model(cloudy, radar), clear)

    def data(self) -> dict[str, Crops]:
        """Return the datasets `train`, `validation` and `test`; a part without triplets is missing.

        Raises UsageError if the extra is not installed, DataError for unusable images.
        """
        from shoestring_recipes.cloud.tiles import Crops

        tiles_by_part, self._data_notes = self._load_tiles()
        return {
            part: Crops(tiles, self._crop, random_position=part == "train") for part, tiles in tiles_by_part.items()
        }

    def whole(self) -> Crops:
        """Return the center of every tile as one dataset; the folder may have tiles of any parts."""
        from shoestring_recipes.cloud.tiles import Crops

        if self.options.data is None:
            from shoestring_recipes.cloud import synthetic

            tiles: Tiles = synthetic.SyntheticTiles(*synthetic.CLOUDS_PER_BLOCK)
            self._data_notes = [synthetic.NOTE]
        else:
            require("cloud", "tifffile")
            from shoestring_recipes.cloud import measured
            from shoestring_recipes.rows import BadRows

            bad_rows, options = BadRows(self.options.on_bad_rows), self.options
            tiles, self._data_notes = measured.load_whole(
                self.options.data, options.table, options.look, self._crop, bad_rows
            )
        return Crops(tiles, self._crop, random_position=False)

    def inputs(self, source: Path | Sequence[Any] | None) -> TileInputs:
        """Return one input for each whole tile, without a clear image.

        `source` is a folder with radar and cloudy images, in SEN12MS-CR's layout or with a data.csv, a list of mappings
        with the paths `cloudy` and `radar`, or None for the synthetic test tiles.
        """
        require("cloud", "tifffile", "PIL")
        from shoestring_recipes.cloud import synthetic, unlabeled

        self._data_notes = [synthetic.NOTE] if source is None else []
        if source is None:
            return unlabeled.TileInputs(unlabeled.list_synthetic())
        if isinstance(source, str | Path):
            return unlabeled.TileInputs(unlabeled.list_folder(Path(source), self.options.table))
        return unlabeled.TileInputs(unlabeled.list_rows(source))

    def collate(self, samples: list[Any]) -> Any:
        """Return whole tiles as a list, because their sizes may differ, and crops as tensors."""
        from torch.utils.data import default_collate

        from shoestring_recipes.cloud.prediction import Tile

        return samples if isinstance(samples[0], Tile) else default_collate(samples)

    def predict(self, model: nn.Module, batch: Any) -> list[Any]:
        """Return a summary of each clear image; for whole tiles also a GeoTIFF and a preview as `files`.

        Tiles are processed one after another, in windows.
        """
        from shoestring_recipes.cloud.prediction import Tile, predict_tile, summarize

        if isinstance(batch[0], Tile):
            return [predict_tile(model, tile, self._crop) for tile in batch]
        cloudy, radar, *_ = batch
        return [summarize(*images) for images in zip(model(cloudy, radar), cloudy, strict=True)]

    def targets(self, batch: Batch) -> list[Any]:
        """Return the summary of each clear image."""
        from shoestring_recipes.cloud.prediction import summarize

        cloudy, _, clear = batch
        return [summarize(*images) for images in zip(clear, cloudy, strict=True)]

    def identify(self, dataset: Crops, index: int) -> str:
        """Return the path of the cloudy image of a sample."""
        return dataset.name(index)

    def inference(self, model: nn.Module, batch: Batch) -> Iterator[Tensor]:
        """Process the windows that `predict` has on the device at a time, however many tiles there are."""
        from shoestring_recipes.cloud.windows import windows_at_once

        yield model(*(image[:1].repeat(windows_at_once(self._crop), 1, 1, 1) for image in batch[:2]))

    def notes(self) -> list[str]:
        """Return sentences about the data and about the initial weights."""
        from shoestring_recipes.cloud.weights import source_notes

        return [*self._data_notes, *source_notes(self.options.weights_from)]

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        learning_rate = self.options.learning_rate
        return torch.optim.Adam(
            model.parameters(), lr=DEFAULTS[self.options.size].learning_rate if learning_rate is None else learning_rate
        )

    def schedule(self, update: int, updates_per_epoch: int, total_updates: int) -> float:  # noqa: ARG002
        """Return a factor that is halved every fifth epoch."""
        return float(0.5 ** (update // updates_per_epoch // EPOCHS_PER_HALVING))

    def evaluate_batch(self, model: nn.Module, batch: Batch) -> Any:
        """Return the metrics of each image, by name."""
        from shoestring_recipes.cloud.metrics import scores

        cloudy, radar, clear = batch
        images = {"": model(cloudy, radar), "copy_": cloudy}
        return {
            prefix + name: values for prefix, image in images.items() for name, values in scores(image, clear).items()
        }

    def combine(self, results: Sequence[Any]) -> dict[str, Any]:
        """Return `psnr` (dB), `ssim`, `sam` (degrees) and `mae`, each the mean over all images, and as evidence the
        distribution over the images.

        `copy_psnr` and so on are the same metrics of the unchanged cloudy images; `loss` equals `mae`.
        """
        import torch

        values = {name: torch.cat([result[name] for result in results]) for name in (results[0] if results else ())}
        means = {name: float(of_images.nanmean()) for name, of_images in values.items()}
        scores = {name: values[name].tolist() for name in ("psnr", "ssim", "mae", "copy_psnr") if name in values}
        return {
            "loss": means.get("mae", float("nan")),
            **means,
            evidence.KEY: {
                "histograms": {name: evidence.histogram(scores[name]) for name in ("psnr", "ssim") if name in scores},
                "samples": evidence.worst_samples(scores["psnr"], scores),
                "examples": evidence.examples(scores["psnr"], scores, count=2),
            }
            if scores
            else None,
        }

    def illustrate(self, model: nn.Module, dataset: Crops, index: int) -> dict[str, bytes]:
        """Return the cloudy, radar, predicted and clear images of a sample, and the error of the prediction."""
        from shoestring_recipes.cloud.illustration import illustrate

        return illustrate(model, dataset[index])

    def onnx(self, model: nn.Module) -> OnnxGraph:
        from shoestring_recipes.cloud.export import graph

        return graph(model)

    def _load_tiles(self) -> tuple[Mapping[str, Tiles], list[str]]:
        """Return the tiles of each part, and notes about them for the user."""
        if self.options.data is None:
            from shoestring_recipes.cloud import synthetic

            return synthetic.load_parts(), [synthetic.NOTE]
        require("cloud", "tifffile")
        from shoestring_recipes.cloud import measured
        from shoestring_recipes.rows import BadRows

        bad_rows = BadRows(self.options.on_bad_rows)
        return measured.load_parts(self.options.data, self.options.table, self.options.look, self._crop, bad_rows)

    @property
    def _crop(self) -> int:
        return DEFAULTS[self.options.size].crop if self.options.crop is None else self.options.crop
