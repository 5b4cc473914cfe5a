"""SEN12MS-CR as its archives unpack: `ROIs1158_spring_s1/s1_1/ROIs1158_spring_s1_1_p30.tif` and so on.

The same tile is in `…_s2` without and in `…_s2_cloudy` with clouds. Season folders may lie at any depth, for some
copies have them several times in one another.
"""

import os
import re
from collections import defaultdict
from pathlib import Path

from shoestring.recipes.cloud.triplets import PARTS, Listing, Tile, Triplet, tile
from shoestring.recipes.rows import Rows

TEST = {
    "ROIs1158_spring": {31, 44, 106, 123, 140},
    "ROIs1868_summer": {73, 119},
    "ROIs1970_fall": {139},
    "ROIs2017_winter": {63, 108},
}
"""The official test scenes; here and below as in UnCRtainTS' loader (Ebel et al., 2023), `data/dataLoader.py`."""
VALIDATION = {
    "ROIs1158_spring": {17},
    "ROIs1868_summer": {17, 19, 80, 127},
    "ROIs1970_fall": {65},
    "ROIs2017_winter": {22, 84, 107, 130},
}

KINDS = ("s1", "s2", "s2_cloudy")
_FOLDER = re.compile(r"(s1|s2|s2_cloudy)_\d+", re.ASCII)


def read(root: Path, rows: Rows) -> Listing:
    """The triplets below `root` in the official parts, by season, scene and patch; what lacks an image is in `rows`."""
    found: dict[Tile, dict[str, str]] = defaultdict(dict)
    for folder, folders, names in os.walk(root):
        folders.sort()
        kind = _FOLDER.fullmatch(Path(folder).name)
        if not kind:
            continue
        folders.clear()
        for name in sorted(names):
            if which := tile(name):
                found[which][kind[1]] = Path(folder, name).relative_to(root).as_posix()
    parts: dict[str, list[Triplet]] = {part: [] for part in PARTS}
    for which in sorted(found):
        images = found[which]
        if missing := [kind for kind in KINDS if kind not in images]:
            rows.bad(root / next(iter(images.values())), None, f"there is no {' and no '.join(missing)} of this tile")
            continue
        parts[_part(which)].append(Triplet(images["s1"], images["s2"], images["s2_cloudy"], None))
    return Listing(root=root, file=None, parts=parts, read=len(found))


def _part(which: Tile) -> str:
    if which.roi in TEST.get(which.season, ()):
        return "test"
    return "validation" if which.roi in VALIDATION.get(which.season, ()) else "train"
