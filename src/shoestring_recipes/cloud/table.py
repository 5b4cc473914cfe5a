"""Reading a `data.csv`: one triplet in every row, in either of two formats.

Neither format has a header, and both begin `split,s1 folder,s2 folder,s2_cloudy folder` with split 1 for training, 2
for validation and 3 for testing. The published format continues with one name for all three images, a later one with
`s2 name,s1 name,s2_cloudy name`. Folders are relative to the data folder.
"""

import csv
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from shoestring.base.errors import DataError
from shoestring.base.reading import open_table
from shoestring_recipes.cloud.triplets import PARTS, Listing, Triplet
from shoestring_recipes.rows import BadRows

SPLITS = dict(zip(("1", "2", "3"), PARTS, strict=True))


def read(file: Path, root: Path, bad_rows: BadRows) -> Listing:
    """Return the triplets below `root` that `file` lists; unusable rows are reported to `rows`.

    Raises DataError if the file is not readable as text.
    """
    parts: dict[str, list[Triplet]] = {part: [] for part in PARTS}
    first_occurrences: dict[str, tuple[str, int]] = {}
    row_count = 0
    for line, row in read_rows(file):
        row_count += 1
        if problem := row_problem(row):
            bad_rows.report(file, line, problem)
            continue
        part, triplet = SPLITS[row[0]], to_triplet(row, line)
        first = first_occurrences.setdefault(triplet.clear, (part, line))
        if first != (part, line):
            bad_rows.report(file, line, f"{triplet.clear} is already in line {first[1]}, {first[0]}")
            continue
        parts[part].append(triplet)
    return Listing(root=root, file=file, parts=parts, row_count=row_count)


def read_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of each row that is not empty."""
    try:
        with open_table(file) as text:
            reader = csv.reader(text)
            for row in reader:
                if row:
                    yield reader.line_num, [field.strip() for field in row]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file} cannot be read: {error}", hint="use a data.csv in UTF-8") from error


def row_problem(row: list[str]) -> str:
    """Return why a row cannot be used; empty if it can."""
    if len(row) not in (5, 7):
        return f"has {len(row)} fields, not 5 (one name for all images) or 7 (a name for each)"
    if row[0] not in SPLITS:
        return f"split is {row[0]!r}, not 1 (train), 2 (validation) or 3 (test)"
    for path in to_triplet(row, None)[:3]:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path:
            return f"{path!r} is outside the data folder"
    return ""


def to_triplet(row: list[str], line: int | None) -> Triplet:
    _, radar, clear, cloudy, *names = row
    clear_name, radar_name, cloudy_name = names if len(names) == 3 else names * 3
    return Triplet(f"{radar}/{radar_name}", f"{clear}/{clear_name}", f"{cloudy}/{cloudy_name}", line)
