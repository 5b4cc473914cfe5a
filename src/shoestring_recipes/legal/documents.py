"""Reading judgments from files: `sentence<TAB>role` on each line, a blank line between two judgments."""

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path, PurePosixPath

from shoestring.base.errors import DataError
from shoestring.base.reading import LINE_BYTES, TEXT_BYTES, read_bytes, reason
from shoestring_recipes.legal.roles import unknown_role_problem
from shoestring_recipes.rows import BadRows

PART_NAMES = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""Names of files and folders that are a part of the data."""

SUFFIXES = (".txt", ".tsv")
"""The endings of files with judgments."""

_MOST_MEAN_BYTES = 400_000
"""Of files with one judgment each: those of LegalSeg have about 40,000."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """One judgment."""

    sentences: tuple[str, ...]
    roles: tuple[int, ...]
    """The class of each sentence."""
    file: str = field(default="", compare=False)
    """The path of its file in the data; empty for a synthetic judgment."""
    lines: Sequence[int] = field(default=(), compare=False)
    """The line of each sentence in the file, from 1."""


def read(
    path: Path, roles: Mapping[str, int], bad_rows: BadRows, find_problem: Callable[[str], str | None] = lambda _: None
) -> dict[str, list[Document]]:
    """Return the judgments of a file, or of a folder's files sorted by name, as the part `all`.

    A folder that contains `PART_NAMES` has these parts instead. `find_problem` returns why a sentence cannot be used.

    Raises DataError if nothing can be read, and for unusable rows unless `rows` skips them.
    """
    parts: dict[str, list[Document]] = {}
    row_count = 0
    for part, file in _list_files(path):
        name = file.relative_to(path).as_posix() if file != path else file.name
        documents, line_count = _parse(file, name, roles, bad_rows, find_problem)
        parts.setdefault(part, []).extend(documents)
        row_count += line_count
    bad_rows.finish(row_count)
    return parts


def _list_files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files to read, each with its part of the data."""
    if path.is_file():
        yield "all", path
        return
    if not path.is_dir():
        raise DataError(
            f"{path} is neither a file nor a folder" if path.exists() else f"the file or folder {path} does not exist",
            hint="use a file of sentence<TAB>role lines, or a folder",
        )
    entries = sorted(entry for entry in path.iterdir() if entry.is_dir() or entry.suffix in SUFFIXES)
    parts = {part: [entry for entry in entries if entry.stem.casefold() in names] for part, names in PART_NAMES.items()}
    if not parts["train"]:
        parts = {"all": [entry for entry in entries if entry.is_file()]}
        if not parts["all"]:
            raise DataError(
                f"{path} has no file *{' or *'.join(SUFFIXES)}",
                hint="add files of sentence<TAB>role lines, usually one for each judgment",
            )
    for part, members in parts.items():
        for member in members:
            files = [member] if member.is_file() else sorted(member.iterdir())
            yield from ((part, file) for file in files if file.is_file() and file.suffix in SUFFIXES)


def count_documents(files: Mapping[str, int]) -> int | None:
    """Return how many of the files, given by their paths in the data and their bytes, `read` would read.

    That is the number of judgments if each file has one. None if it seems not to be so: a part of the data is a single
    file, or the files are too large for one judgment each.
    """
    paths = {PurePosixPath(name): size for name, size in files.items()}
    sizes_by_entry: dict[PurePosixPath, list[int]] = defaultdict(list)
    for path, size in paths.items():
        if path.suffix in SUFFIXES and len(path.parts) <= 2 and size:
            sizes_by_entry[PurePosixPath(path.parts[0])].append(size)
    names = {entry: entry.stem.casefold() for entry in sizes_by_entry}
    part_names = {name for members in PART_NAMES.values() for name in members}
    has_parts = any(name in PART_NAMES["train"] for name in names.values())
    if has_parts:
        entries = [entry for entry in names if names[entry] in part_names]
    else:
        entries = [entry for entry in names if entry in paths]
    sizes = [size for entry in entries for size in sizes_by_entry[entry]]
    if len(sizes) < 2 or sum(sizes) > _MOST_MEAN_BYTES * len(sizes) or (has_parts and paths.keys() & set(entries)):
        return None
    return len(sizes)


def _parse(
    path: Path, name: str, roles: Mapping[str, int], bad_rows: BadRows, find_problem: Callable[[str], str | None]
) -> tuple[list[Document], int]:
    """Return the judgments of the file `name` of the data, and its number of lines that are not blank."""
    try:
        content = read_bytes(path, follow=True, max_bytes=TEXT_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {reason(error)}") from error
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines()
    documents: list[Document] = []
    sentences: list[tuple[str, int]] = []
    places = array("I")
    filled_lines = 0
    for number, line in enumerate([*lines, b""], start=1):
        if line.strip():
            filled_lines += 1
            if (row := _parse_row(path, number, line, roles, bad_rows, find_problem)) is not None:
                sentences.append(row)
                places.append(number)
        elif sentences:
            texts, classes = zip(*sentences, strict=True)
            documents.append(Document(sentences=texts, roles=classes, file=name, lines=places))
            sentences, places = [], array("I")
    return documents, filled_lines


def _parse_row(
    path: Path,
    number: int,
    line: bytes,
    roles: Mapping[str, int],
    bad_rows: BadRows,
    find_problem: Callable[[str], str | None],
) -> tuple[str, int] | None:
    """Return sentence and class of one line; None, and a report to `rows`, if it is unusable."""
    try:
        text = decode_line(line)
    except ValueError as error:
        bad_rows.report(path, number, str(error))
        return None
    sentence, tab, label = (field.strip(" \r\n") for field in text.rpartition("\t"))
    if not tab:
        bad_rows.report(path, number, f"has no tab between a sentence and its role: {text[:60]!r}")
    elif not sentence.strip():
        bad_rows.report(path, number, "has no sentence")
    elif label.casefold() not in roles:
        bad_rows.report(path, number, unknown_role_problem(label, roles))
    elif problem := find_problem(sentence):
        bad_rows.report(path, number, problem)
    else:
        return sentence.strip(), roles[label.casefold()]
    return None


def decode_line(line: bytes) -> str:
    """Return the text of a line. Raises ValueError if it is too long or not UTF-8."""
    if len(line) > LINE_BYTES:
        raise ValueError(f"has {len(line):,} bytes, more than {LINE_BYTES:,}")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: {error.reason} at byte {error.start}") from error


class SentenceIds:
    """The identifier of each sentence of some judgments: `FILE:LINE`, or its number if they are of no file."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._places = [(document.file, document.lines) for document in documents]
        self._starts = [0, *accumulate(len(document.roles) for document in documents)]

    def __getitem__(self, number: int) -> str | int:
        judgment = bisect_right(self._starts, number) - 1
        file, lines = self._places[judgment]
        return f"{file}:{lines[number - self._starts[judgment]]}" if file else number
