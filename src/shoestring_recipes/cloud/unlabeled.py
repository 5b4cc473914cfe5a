"""Tiles without clear images, for prediction: where they are, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoestring.base.errors import DataError
from shoestring.recipe.inputs import Input
from shoestring_recipes.cloud import geotiff, layout, scale, table
from shoestring_recipes.cloud.measured import find_table
from shoestring_recipes.cloud.prediction import Tile
from shoestring_recipes.cloud.scale import OPTICAL, RADAR
from shoestring_recipes.cloud.synthetic import SyntheticTiles
from shoestring_recipes.cloud.tiles import Window


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a tile comes from, or why it cannot be used."""

    value: Any
    load: Callable[[str], Tile] | None = None
    """Reads the tile, whose files get the given name."""
    stem: str = ""
    id: Any = None
    error: str | None = None


class TileInputs:
    """One input for each source. Images are read when their batch is due."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._names = unique_names(source.stem for source in sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Input]:
        for source, name in zip(self._sources, self._names, strict=True):
            load = None if source.load is None else partial(source.load, name)
            yield Input(id=source.id, value=source.value, load=load, error=source.error)


def unique_names(stems: Iterable[str]) -> list[str]:
    """Return names that are valid on every system and differ in more than case; a repeated one gets its position."""
    names: list[str] = []
    used: set[str] = set()
    for position, stem in enumerate(stems):
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", stem)[:100].lstrip(".") or "tile"
        name = f"{name}_{position}" if name.lower() in used else name
        while name.lower() in used:
            name += "_"
        used.add(name.lower())
        names.append(name)
    return names


def list_synthetic() -> list[Source]:
    """Return the synthetic test tiles as sources."""
    tiles = SyntheticTiles("test")

    def load(index: int, name: str) -> Tile:
        cloudy, radar, _ = tiles.cut(index, lambda side, _: Window(0, 0, side))
        return Tile(name=name, cloudy=scale.to_counts(cloudy, np.dtype("uint16")), radar=radar)

    names = [tiles.name(index) for index in range(len(tiles))]
    return [Source(value=name, load=partial(load, index), stem=name) for index, name in enumerate(names)]


def list_folder(data: Path, table_path: Path | None) -> list[Source]:
    """Return the tiles of a folder with radar and cloudy images, in the order of its `data.csv` or of SEN12MS-CR.

    The clear images that a `data.csv` names need not exist. Raises UsageError if the folder does not exist, DataError
    if it has no tiles.
    """
    if file := find_table(data, table_path):
        sources = [_row_source(data, line, row) for line, row in table.read_rows(file)]
    else:
        sources = [_tile_source(data, images) for _, images in layout.find_tiles(data)]
    if not sources:
        raise DataError(
            f"{file or data} has no tiles",
            hint="add a data.csv, or folders like ROIs1158_spring_s1/s1_1 and ROIs1158_spring_s2_cloudy/s2_cloudy_1",
        )
    return sources


def list_rows(rows: Sequence[Any]) -> list[Source]:
    """Return the tiles of rows with the paths `cloudy` and `radar`, and perhaps an `id`."""
    return [_mapping_source(row) for row in rows]


def _row_source(data: Path, line: int, row: list[str]) -> Source:
    if problem := table.row_problem(row):
        return Source(value={"line": line}, error=problem)
    triplet = table.to_triplet(row, line)
    return _pair_source(data, triplet.cloudy, triplet.radar)


def _tile_source(data: Path, images: Mapping[str, str]) -> Source:
    if problem := layout.missing_images_problem(images, ("s1", "s2_cloudy")):
        return Source(value=dict(images), error=problem)
    return _pair_source(data, images["s2_cloudy"], images["s1"])


def _mapping_source(row: Any) -> Source:
    if not isinstance(row, Mapping):
        return Source(
            value=str(row)[:200], error=f"is of type {type(row).__name__}, not an object with cloudy and radar"
        )
    paths = [row.get(key) for key in ("cloudy", "radar")]
    identifier = row.get("id")
    if type(identifier) not in (str, int, type(None)):
        return Source(value=str(dict(row))[:200], error=f"id is {str(identifier)[:40]!r}, not a text or an integer")
    if not all(isinstance(path, str | Path) and str(path) for path in paths):
        return Source(value=str(dict(row))[:200], id=identifier, error="has no paths cloudy and radar")
    cloudy, radar = map(str, paths)
    return _pair_source(Path(), cloudy, radar, identifier)


def _pair_source(folder: Path, cloudy: str, radar: str, identifier: Any = None) -> Source:
    return Source(
        value={"cloudy": cloudy, "radar": radar},
        load=partial(read_tile, folder, cloudy, radar),
        stem=Path(cloudy).stem,
        id=identifier,
    )


def read_tile(folder: Path, cloudy: str, radar: str, name: str) -> Tile:
    """Read the images of a tile. Raises DataError if one is unusable."""
    images, problems = [], []
    for path, bands in ((cloudy, OPTICAL), (radar, RADAR)):
        try:
            images.append(geotiff.read_pixels(folder / path, bands))
        except (geotiff.UnusableImageError, ValueError) as error:
            problems.append(f"{path} {error}")
    if len({image.shape[1:] for image in images}) > 1:
        problems.append(f"its images have different sizes: {' and '.join(_size_text(image) for image in images)}")
    if problems:
        raise DataError("; ".join(problems))
    tags = geotiff.read_geo_tags(folder / cloudy)
    return Tile(
        name=name,
        cloudy=images[0],
        radar=scale.to_backscatter(images[1]),
        tags=tags,
        no_data=geotiff.find_no_data(tags),
    )


def _size_text(image: NDArray[np.generic]) -> str:
    return f"{image.shape[1]} x {image.shape[2]}"
