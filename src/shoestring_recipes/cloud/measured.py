"""Tiles from the image files of satellites."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoestring.base.errors import DataError, UsageError
from shoestring_recipes.cloud import geotiff, layout, scale, table
from shoestring_recipes.cloud.inspection import InspectionLevel, image_bands, size_problem, usable_triplets
from shoestring_recipes.cloud.scale import Image
from shoestring_recipes.cloud.tiles import PlaceWindow
from shoestring_recipes.cloud.triplets import Listing, Triplet, shared_scenes_notes
from shoestring_recipes.rows import BadRows


def load_parts(
    data: Path, table_path: Path | None, level: InspectionLevel, crop: int, bad_rows: BadRows
) -> "tuple[dict[str, MeasuredTiles], list[str]]":
    """Return the usable tiles in the folder `data` by part, and notes about them for the user.

    The triplets are those of a `data.csv`, at `table_path` or in the folder, or else of SEN12MS-CR's layout. A part
    without tiles is missing.

    Raises UsageError if the folder does not exist, and DataError for unusable images unless they are to be skipped.
    """
    usable = _usable_listing(data, table_path, level, crop, bad_rows)
    if not usable.parts["train"]:
        raise _no_training_tiles(data, usable)
    tiles = {part: MeasuredTiles(usable, triplets) for part, triplets in usable.parts.items() if triplets}
    return tiles, [*bad_rows.notes, *shared_scenes_notes(usable)]


def load_whole(
    data: Path, table_path: Path | None, level: InspectionLevel, crop: int, bad_rows: BadRows
) -> "tuple[MeasuredTiles, list[str]]":
    """Return the usable tiles of all parts, which need not include training tiles, and notes as `load_parts` does."""
    usable = _usable_listing(data, table_path, level, crop, bad_rows)
    triplets = [triplet for part in usable.parts.values() for triplet in part]
    if not triplets:
        raise DataError(f"{usable.file or data} has no tiles", hint=_LAYOUT_HINT)
    return MeasuredTiles(usable, triplets), bad_rows.notes


def find_table(data: Path, table_path: Path | None) -> Path | None:
    """Return the `data.csv` of a folder; None if its images are in SEN12MS-CR's layout.

    Raises UsageError if the folder does not exist.
    """
    if not data.is_dir():
        raise UsageError(
            f"data={data}: the folder does not exist",
            hint="set data to the folder of the images; table=FILE names a data.csv outside of it",
        )
    return table_path or (file if (file := data / "data.csv").is_file() else None)


def _usable_listing(
    data: Path, table_path: Path | None, level: InspectionLevel, crop: int, bad_rows: BadRows
) -> Listing:
    file = find_table(data, table_path)
    listing = table.read(file, data, bad_rows) if file else layout.read(data, bad_rows)
    usable = replace(listing, parts=usable_triplets(listing, level, crop, bad_rows))
    bad_rows.finish(usable.row_count)
    return usable


_LAYOUT_HINT = (
    "add a data.csv, or folders like ROIs1158_spring_s1/s1_1 with ROIs1158_spring_s1_1_p30.tif, next to …_s2/s2_1 and "
    "…_s2_cloudy/s2_cloudy_1"
)


def _no_training_tiles(data: Path, listing: Listing) -> UsageError:
    if listing.file:
        counts = ", ".join(f"{part} {len(triplets)}" for part, triplets in listing.parts.items())
        return DataError(
            f"{listing.file} has no triplets to train on: {counts}",
            hint="rows of the training part begin with 1; to evaluate all triplets, add --whole",
        )
    return DataError(
        f"{data} has no tiles to train on",
        hint="all of its tiles are for validation or test; to evaluate them, add --whole"
        if any(listing.parts.values())
        else _LAYOUT_HINT,
    )


class MeasuredTiles:
    """The triplets of one part; implements `tiles.Tiles`."""

    def __init__(self, listing: Listing, triplets: Sequence[Triplet]) -> None:
        self._listing, self._triplets = listing, triplets

    def __len__(self) -> int:
        return len(self._triplets)

    def name(self, index: int) -> str:
        return self._triplets[index].cloudy

    def cut(self, index: int, place: PlaceWindow) -> tuple[Image, Image, Image]:
        """Cut a window as `Tiles.cut` does. Raises DataError if an image is unreadable or has a non-finite value."""
        triplet = self._triplets[index]
        radar, clear, cloudy = (self._read(triplet, path, bands) for path, bands in image_bands(triplet))
        window = place(*radar.shape[1:])
        if problem := size_problem({(image.shape[1], image.shape[2]) for image in (radar, clear, cloudy)}, window.side):
            raise self._unusable(triplet, problem)
        return (
            scale.to_reflectance(window.cut(cloudy)),
            scale.to_backscatter(window.cut(radar)),
            scale.to_reflectance(window.cut(clear)),
        )

    def _read(self, triplet: Triplet, path: str, bands: int) -> NDArray[np.generic]:
        try:
            return geotiff.read_pixels(self._listing.root / path, bands)
        except geotiff.UnusableImageError as error:
            raise self._unusable(triplet, f"{path} {error}") from error

    def _unusable(self, triplet: Triplet, reason: str) -> DataError:
        line = "" if triplet.line is None else f", line {triplet.line}"
        return DataError(
            f"{self._listing.source_of(triplet)}{line}: {reason}",
            hint="look=pixels finds all such images before training, and on_bad_rows=skip leaves them out",
        )
