"""`data.csv`: a triplet in every row, in the two forms that there are.

Neither has a header, both begin `split,s1 folder,s2 folder,s2_cloudy folder` with split 1 for training, 2 for
validation and 3 for testing. The published one goes on with one name for all three images, a later one with
`s2 name,s1 name,s2_cloudy name`. Folders lie below that of the data.
"""

import csv
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from shoestring.errors import DataError
from shoestring.recipes.cloud.triplets import PARTS, Listing, Triplet
from shoestring.recipes.rows import Rows

SPLITS = dict(zip(("1", "2", "3"), PARTS, strict=True))


def read(file: Path, root: Path, rows: Rows) -> Listing:
    """The triplets below `root` that `file` lists; what cannot be used goes to `rows`.

    Raises DataError where it is no text.
    """
    parts: dict[str, list[Triplet]] = {part: [] for part in PARTS}
    seen: dict[str, tuple[str, int]] = {}
    read = 0
    for line, row in _rows(file):
        read += 1
        if problem := _problem(row):
            rows.bad(file, line, problem)
            continue
        part, triplet = SPLITS[row[0]], _triplet(row, line)
        earlier = seen.setdefault(triplet.clear, (part, line))
        if earlier != (part, line):
            rows.bad(file, line, f"{triplet.clear} is already in line {earlier[1]}, {earlier[0]}")
            continue
        parts[part].append(triplet)
    return Listing(root=root, file=file, parts=parts, read=read)


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.reader(opened)
            for row in reader:
                if row:
                    yield reader.line_num, [field.strip() for field in row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read: {error}", hint="give a data.csv in UTF-8") from error


def _problem(row: list[str]) -> str:
    """Why a row cannot be used; empty where it can."""
    if len(row) not in (5, 7):
        return f"has {len(row)} fields, not 5 (one name for all images) or 7 (a name for each)"
    if row[0] not in SPLITS:
        return f"split is {row[0]!r}, not 1 (train), 2 (validation) or 3 (test)"
    for path in _triplet(row, None)[:3]:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path:
            return f"{path!r} leads out of the data's folder"
    return ""


def _triplet(row: list[str], line: int | None) -> Triplet:
    _, radar, clear, cloudy, *names = row
    of_clear, of_radar, of_cloudy = names if len(names) == 3 else names * 3
    return Triplet(f"{radar}/{of_radar}", f"{clear}/{of_clear}", f"{cloudy}/{of_cloudy}", line)
