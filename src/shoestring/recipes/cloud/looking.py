"""Whether the images of a listing are there and can be used, before training begins."""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

from shoestring.recipes.cloud import geotiff
from shoestring.recipes.cloud.geotiff import UnusableImageError
from shoestring.recipes.cloud.scale import OPTICAL, RADAR
from shoestring.recipes.cloud.triplets import Listing, Triplet
from shoestring.recipes.rows import Rows

Look: TypeAlias = Literal["names", "headers", "pixels"]
"""How closely: whether there is such a file; its bands, size and length as well; every pixel."""


def usable(listing: Listing, look: Look, crop: int, rows: Rows) -> dict[str, list[Triplet]]:
    """The triplets that can be used, by part; the others go to `rows`. `crop` has to fit into each image."""
    there = _names()
    found: dict[str, list[Triplet]] = {}
    for part, triplets in listing.parts.items():
        found[part] = []
        for triplet in triplets:
            if problem := _problem(listing.root, triplet, look, crop, there):
                rows.bad(listing.whose(triplet), triplet.line, problem)
            else:
                found[part].append(triplet)
    return found


def _problem(root: Path, triplet: Triplet, look: Look, crop: int, there: Callable[[Path], frozenset[str]]) -> str:
    """What is wrong with the triplet's images, all of it; empty where nothing is."""
    problems, sizes = [], set()
    for path, bands in bands_of(triplet):
        file = root / path
        if file.name not in there(file.parent):
            problems.append(f"{path}: there is no such file")
        elif look != "names":
            try:
                sizes.add(geotiff.look(file, bands))
                if look == "pixels":
                    geotiff.read(file, bands)
            except UnusableImageError as error:
                problems.append(f"{path} {error}")
    return "; ".join(problems) or unfit(sizes, crop)


def unfit(sizes: set[tuple[int, int]], crop: int) -> str:
    """What is wrong with images of these (height, width) as one sample; empty where nothing is."""
    if len(sizes) > 1:
        return f"its images are of different sizes: {', '.join(f'{high} x {wide}' for high, wide in sorted(sizes))}"
    if any(min(size) < crop for size in sizes):
        return f"its images are smaller than the crop of {crop}: {' x '.join(map(str, *sizes))}"
    return ""


def bands_of(triplet: Triplet) -> list[tuple[str, int]]:
    """The path of each image and how many bands it has to have."""
    return [(triplet.radar, RADAR), (triplet.clear, OPTICAL), (triplet.cloudy, OPTICAL)]


def _names() -> Callable[[Path], frozenset[str]]:
    """What is in a folder. One look at a folder of a thousand tiles in place of a thousand at the tiles."""

    @lru_cache(maxsize=64)
    def names(folder: Path) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in os.scandir(folder))
        except OSError:
            return frozenset()

    return names
