"""Tiles that satellites took, from their files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoestring.errors import DataError, UsageError
from shoestring.recipes.cloud import geotiff, layout, scale, table
from shoestring.recipes.cloud.looking import Look, bands_of, unfit, usable
from shoestring.recipes.cloud.scale import Image
from shoestring.recipes.cloud.tiles import Place
from shoestring.recipes.cloud.triplets import Listing, Triplet, shared_scenes
from shoestring.recipes.rows import Rows


def parts(
    data: Path, listing: Path | None, look: Look, crop: int, rows: Rows
) -> "tuple[dict[str, Measured], list[str]]":
    """The tiles in the folder `data`, as a `data.csv` lists them or else in SEN12MS-CR's layout, by part as far as
    there are usable ones, and what a person should know of them. `listing` is a `data.csv` that is elsewhere.

    Raises UsageError where there is no such folder, and DataError for what cannot be used unless it is to be
    skipped.
    """
    if not data.is_dir():
        raise UsageError(
            f"data={data}: there is no such folder", hint="give the images' folder; table=FILE is a data.csv elsewhere"
        )
    file = data / "data.csv" if listing is None else listing
    found = table.read(file, data, rows) if listing or file.is_file() else layout.read(data, rows)
    used = replace(found, parts=usable(found, look, crop, rows))
    rows.settle(used.read)
    if not used.parts["train"]:
        raise _nothing_to_train(data, used)
    tiles = {part: Measured(used, triplets) for part, triplets in used.parts.items() if triplets}
    return tiles, [*rows.notes, *shared_scenes(used)]


def _nothing_to_train(data: Path, listing: Listing) -> UsageError:
    if listing.file:
        there = ", ".join(f"{len(found)} of {part}" for part, found in listing.parts.items())
        return DataError(f"{listing.file} has no triplets to train on: {there}", hint="their rows begin with 1")
    return DataError(
        f"{data} has no tiles to train on",
        hint="expected are data.csv, or folders like ROIs1158_spring_s1/s1_1 with ROIs1158_spring_s1_1_p30.tif, "
        "with …_s2/s2_1 and …_s2_cloudy/s2_cloudy_1 beside",
    )


class Measured:
    """The triplets of one part, as `tiles.Tiles`."""

    def __init__(self, listing: Listing, triplets: Sequence[Triplet]) -> None:
        self._listing, self._triplets = listing, triplets

    def __len__(self) -> int:
        return len(self._triplets)

    def cut(self, index: int, place: Place) -> tuple[Image, Image, Image]:
        """As `Tiles.cut`. Raises DataError where an image cannot be read, or has a value that is no number."""
        triplet = self._triplets[index]
        radar, clear, cloudy = (self._read(triplet, path, bands) for path, bands in bands_of(triplet))
        window = place(*radar.shape[1:])
        if problem := unfit({(image.shape[1], image.shape[2]) for image in (radar, clear, cloudy)}, window.side):
            raise self._unusable(triplet, problem)
        return (
            scale.reflectance(window.cut(cloudy)),
            scale.backscatter(window.cut(radar)),
            scale.reflectance(window.cut(clear)),
        )

    def _read(self, triplet: Triplet, path: str, bands: int) -> NDArray[np.generic]:
        try:
            return geotiff.read(self._listing.root / path, bands)
        except geotiff.UnusableImageError as error:
            raise self._unusable(triplet, f"{path} {error}") from error

    def _unusable(self, triplet: Triplet, why: str) -> DataError:
        line = "" if triplet.line is None else f", line {triplet.line}"
        return DataError(
            f"{self._listing.whose(triplet)}{line}: {why}",
            hint="look=pixels finds all such images before training, and on_bad_rows=skip leaves them out",
        )
