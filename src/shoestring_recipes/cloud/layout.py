"""SEN12MS-CR in the folders of its archives: `ROIs1158_spring_s1/s1_1/ROIs1158_spring_s1_1_p30.tif` and so on.

The folders `…_s2` have the same tile without clouds, `…_s2_cloudy` with clouds. Season folders may be at any depth,
because some copies of the data set nest them several times.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from shoestring_recipes.cloud.triplets import PARTS, Listing, TileName, Triplet, parse_tile_name
from shoestring_recipes.rows import BadRows

TEST = {
    "ROIs1158_spring": {31, 44, 106, 123, 140},
    "ROIs1868_summer": {73, 119},
    "ROIs1970_fall": {139},
    "ROIs2017_winter": {63, 108},
}
"""The official test scenes, from UnCRtainTS' loader (Ebel et al., 2023), `data/dataLoader.py`."""
VALIDATION = {
    "ROIs1158_spring": {17},
    "ROIs1868_summer": {17, 19, 80, 127},
    "ROIs1970_fall": {65},
    "ROIs2017_winter": {22, 84, 107, 130},
}
"""The official validation scenes, from the same loader."""

_SCENES = 169
"""The scenes of the data set (Ebel et al., 2021)."""
_HELD_OUT = sum(map(len, TEST.values())), sum(map(len, VALIDATION.values()))
SHARES = {
    "train": 1 - sum(_HELD_OUT) / _SCENES,
    "validation": _HELD_OUT[1] / _SCENES,
    "test": _HELD_OUT[0] / _SCENES,
}
"""The share of the scenes in each official part, for plans of data that are not here."""

KINDS = ("s1", "s2", "s2_cloudy")
_FOLDER = re.compile(r"(s1|s2|s2_cloudy)_\d+", re.ASCII)


def read(root: Path, bad_rows: BadRows) -> Listing:
    """Return the triplets below `root` in the official parts, sorted by season, scene and patch.

    Tiles that lack an image are reported to `rows`.
    """
    tiles = find_tiles(root)
    parts: dict[str, list[Triplet]] = {part: [] for part in PARTS}
    for tile, images in tiles:
        if problem := missing_images_problem(images, KINDS):
            bad_rows.report(root / next(iter(images.values())), None, problem)
            continue
        parts[_official_part(tile)].append(Triplet(images["s1"], images["s2"], images["s2_cloudy"], None))
    return Listing(root=root, file=None, parts=parts, row_count=len(tiles))


def find_tiles(root: Path) -> list[tuple[TileName, dict[str, str]]]:
    """Return the tiles below `root`, sorted by season, scene and patch, with the path of each kind of image."""
    return _tiles_of(_image_paths(root))


def _image_paths(root: Path) -> Iterator[str]:
    """Yield the paths relative to `root` of the files in folders of images; folders below these are left out."""
    for folder, subfolders, names in os.walk(root):
        subfolders.sort()
        if _FOLDER.fullmatch(Path(folder).name):
            subfolders.clear()
            yield from (Path(folder, name).relative_to(root).as_posix() for name in sorted(names))


def count_triplets(paths: Iterable[str]) -> int:
    """Return how many tiles have all three images, by the paths of the files relative to the data folder."""
    return sum(not missing_images_problem(images, KINDS) for _, images in _tiles_of(paths))


def _tiles_of(paths: Iterable[str]) -> list[tuple[TileName, dict[str, str]]]:
    """Return the tiles that these paths are images of, as `find_tiles` does."""
    paths_by_tile: dict[TileName, dict[str, str]] = defaultdict(dict)
    for path in paths:
        kind, tile = _FOLDER.fullmatch(PurePosixPath(path).parent.name), parse_tile_name(PurePosixPath(path).name)
        if kind and tile:
            paths_by_tile[tile][kind[1]] = path
    return sorted(paths_by_tile.items())


def missing_images_problem(images: Mapping[str, str], kinds: Iterable[str]) -> str:
    """Return which of `kinds` are missing; empty if none is."""
    missing = [kind for kind in kinds if kind not in images]
    return f"this tile has no {' and no '.join(missing)} image" if missing else ""


def _official_part(tile: TileName) -> str:
    if tile.roi in TEST.get(tile.season, ()):
        return "test"
    return "validation" if tile.roi in VALIDATION.get(tile.season, ()) else "train"
