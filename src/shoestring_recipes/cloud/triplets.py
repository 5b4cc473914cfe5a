"""Triplets of images that belong together, and the parts of the data that a listing assigns them to."""

import re
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

PARTS = ("train", "validation", "test")


class Triplet(NamedTuple):
    """The three images of a tile, by their paths relative to the data folder."""

    radar: str
    clear: str
    cloudy: str
    line: int | None
    """Line of the listing file, from 1; None without a listing file."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The triplets of each part, from a `data.csv` or from a folder's layout."""

    root: Path
    file: Path | None
    """The `data.csv`; None if the triplets come from the layout of the folders."""
    parts: dict[str, list[Triplet]]
    row_count: int
    """Number of rows, or of tiles in folders, including unusable ones."""

    def source_of(self, triplet: Triplet) -> Path:
        """Return the file to name in a problem with the triplet: the `data.csv`, or else the clear image."""
        return self.file or self.root / triplet.clear


class TileName(NamedTuple):
    """The fields of a tile's file name, such as `ROIs2017_winter_s2_cloudy_102_p30.tif`."""

    season: str
    roi: int
    patch: int


_NAME = re.compile(r"(ROIs\d+_[a-z]+)(?:_s1|_s2|_s2_cloudy)?_(\d+)_p(\d+)\.tif", re.ASCII)


def parse_tile_name(name: str) -> TileName | None:
    """Return the fields of a file name; None if it is not the name of a tile."""
    match = _NAME.fullmatch(name)
    return TileName(match[1], int(match[2]), int(match[3])) if match else None


def shared_scenes_notes(listing: Listing) -> list[str]:
    """Return a warning if two parts have tiles of the same scenes, else an empty list.

    Tiles of SEN12MS lie 128 pixels apart and are 256 wide (Schmitt et al., 2019), so neighbours share half of their
    ground, and a part of the evaluated ground would also be in the training data.
    """
    scenes = {part: set(map(_scene, triplets)) - {""} for part, triplets in listing.parts.items()}
    shared = {(first, second): sorted(scenes[first] & scenes[second]) for first, second in combinations(scenes, 2)}
    overlaps = [f"{first} and {second} {_abbreviate(names)}" for (first, second), names in shared.items() if names]
    if not overlaps:
        return []
    return [
        f"parts share tiles of the same scenes ({'; '.join(overlaps)}); neighbouring tiles overlap, so the metrics are "
        "too optimistic; the official parts of SEN12MS-CR have different scenes"
    ]


def _abbreviate(scenes: list[str]) -> str:
    hidden_count = len(scenes) - 3
    return ", ".join(scenes[:3]) + (f" and {hidden_count} more" if hidden_count > 0 else "")


def _scene(triplet: Triplet) -> str:
    """Return the season and region of a triplet; empty if its file name is not the name of a tile."""
    tile = parse_tile_name(Path(triplet.clear).name)
    return f"{tile.season}_{tile.roi}" if tile else ""
