"""Inspection of the images of a listing before training: whether they exist and can be used."""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

from shoestring_recipes.cloud import geotiff
from shoestring_recipes.cloud.geotiff import UnusableImageError
from shoestring_recipes.cloud.scale import OPTICAL, RADAR
from shoestring_recipes.cloud.triplets import Listing, Triplet
from shoestring_recipes.rows import BadRows

InspectionLevel: TypeAlias = Literal["names", "headers", "pixels"]
"""What is inspected: whether the file exists; also its bands, size and length; also every pixel."""


def usable_triplets(listing: Listing, level: InspectionLevel, crop: int, bad_rows: BadRows) -> dict[str, list[Triplet]]:
    """Return the usable triplets by part and report the others to `rows`; each image has to contain a `crop`."""
    list_names = _cached_folder_listing()
    usable: dict[str, list[Triplet]] = {}
    for part, triplets in listing.parts.items():
        usable[part] = []
        for triplet in triplets:
            if problem := _triplet_problem(listing.root, triplet, level, crop, list_names):
                bad_rows.report(listing.source_of(triplet), triplet.line, problem)
            else:
                usable[part].append(triplet)
    return usable


def _triplet_problem(
    root: Path, triplet: Triplet, level: InspectionLevel, crop: int, list_names: Callable[[Path], frozenset[str]]
) -> str:
    """Return all problems of the triplet's images as one text; empty if there are none."""
    problems, sizes = [], set()
    for path, bands in image_bands(triplet):
        file = root / path
        if file.name not in list_names(file.parent):
            problems.append(f"{path} does not exist")
        elif level != "names":
            try:
                sizes.add(geotiff.read_size(file, bands))
                if level == "pixels":
                    geotiff.read_pixels(file, bands)
            except UnusableImageError as error:
                problems.append(f"{path} {error}")
    return "; ".join(problems) or size_problem(sizes, crop)


def size_problem(sizes: set[tuple[int, int]], crop: int) -> str:
    """Return why images of these (height, width) cannot be one sample; empty if they can."""
    if len(sizes) > 1:
        return f"its images have different sizes: {', '.join(f'{height} x {width}' for height, width in sorted(sizes))}"
    if any(min(size) < crop for size in sizes):
        return f"its images are smaller than the crop of {crop}: {' x '.join(map(str, *sizes))}"
    return ""


def image_bands(triplet: Triplet) -> list[tuple[str, int]]:
    """Return the path of each image and the number of bands that it must have."""
    return [(triplet.radar, RADAR), (triplet.clear, OPTICAL), (triplet.cloudy, OPTICAL)]


def _cached_folder_listing() -> Callable[[Path], frozenset[str]]:
    """Return a cached function that lists a folder's names: one call for a thousand tiles instead of one for each."""

    @lru_cache(maxsize=64)
    def list_names(folder: Path) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in os.scandir(folder))
        except OSError:
            return frozenset()

    return list_names
