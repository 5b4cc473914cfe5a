"""Which three images belong together, and in which part of the data: what a `data.csv` or a folder's layout says."""

import re
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

PARTS = ("train", "validation", "test")


class Triplet(NamedTuple):
    """The images of one place, by their paths below the data's folder."""

    radar: str
    clear: str
    cloudy: str
    line: int | None
    """Where the listing names them, from 1; None where no file lists them."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The triplets of each part."""

    root: Path
    file: Path | None
    """What lists them; None where the folders do."""
    parts: dict[str, list[Triplet]]
    read: int
    """Rows, or tiles in folders, that cannot be used among them."""

    def whose(self, triplet: Triplet) -> Path:
        """The file to name when something is wrong with the triplet: the listing, or else its clear image."""
        return self.file or self.root / triplet.clear


class Tile(NamedTuple):
    """What the name of a tile says, as `ROIs2017_winter_s2_cloudy_102_p30.tif` does."""

    season: str
    roi: int
    patch: int


_NAME = re.compile(r"(ROIs\d+_[a-z]+)(?:_s1|_s2|_s2_cloudy)?_(\d+)_p(\d+)\.tif", re.ASCII)


def tile(name: str) -> Tile | None:
    """The tile that a file's name stands for; None for a name of another kind."""
    found = _NAME.fullmatch(name)
    return Tile(found[1], int(found[2]), int(found[3])) if found else None


def shared_scenes(listing: Listing) -> list[str]:
    """A sentence where two parts have tiles of the same scenes.

    Tiles of SEN12MS lie 128 pixels apart and are 256 wide (Schmitt et al., 2019), so neighbours show half of the same
    ground: what a model is measured on is then in part what it was trained on.
    """
    scenes = {part: set(map(_scene, found)) - {""} for part, found in listing.parts.items()}
    shared = {(one, other): sorted(scenes[one] & scenes[other]) for one, other in combinations(scenes, 2)}
    said = [f"{one} and {other} {_some(both)}" for (one, other), both in shared.items() if both]
    if not said:
        return []
    return [
        f"parts have tiles of the same scenes ({'; '.join(said)}), whose neighbours overlap: the metrics flatter; "
        "SEN12MS-CR's own parts have different scenes"
    ]


def _some(scenes: list[str]) -> str:
    more = len(scenes) - 3
    return ", ".join(scenes[:3]) + (f" and {more} more" if more > 0 else "")


def _scene(triplet: Triplet) -> str:
    found = tile(Path(triplet.clear).name)
    return f"{found.season}_{found.roi}" if found else ""
