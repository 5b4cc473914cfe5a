"""Judgments as files have them: `sentence<TAB>role` on each line, a blank line between two judgments."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoestring.errors import DataError
from shoestring.recipes.legal.roles import unknown
from shoestring.recipes.rows import Rows

NAMES = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""How files and folders are called that are a part of the data by themselves."""

_SUFFIXES = (".txt", ".tsv")


@dataclass(frozen=True, kw_only=True)
class Document:
    """One judgment."""

    sentences: tuple[str, ...]
    roles: tuple[int, ...]
    """The class of each sentence."""


def read(
    path: Path, roles: Mapping[str, int], rows: Rows, wrong: Callable[[str], str | None] = lambda _: None
) -> dict[str, list[Document]]:
    """The judgments in a file, or in a folder's files in the order of their names, as the part `all`.

    Where a folder has files or folders called as `NAMES` has them, they are its parts. `wrong` says of a sentence why
    it cannot be used.
    Raises DataError where nothing can be read, and for bad rows unless `rows` skips them.
    """
    found: dict[str, list[Document]] = {}
    read_rows = 0
    for part, file in _files(path):
        documents, lines = _parse(file, roles, rows, wrong)
        found.setdefault(part, []).extend(documents)
        read_rows += lines
    rows.settle(read_rows)
    return found


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """The files to read, each with the part of the data that it is of."""
    if path.is_file():
        yield "all", path
        return
    if not path.is_dir():
        raise DataError(
            f"there is no file or folder {path}", hint="give a file of sentence<TAB>role lines, or a folder"
        )
    entries = sorted(entry for entry in path.iterdir() if entry.is_dir() or entry.suffix in _SUFFIXES)
    parts = {part: [one for one in entries if one.stem.casefold() in names] for part, names in NAMES.items()}
    if not parts["train"]:
        parts = {"all": [entry for entry in entries if entry.is_file()]}
        if not parts["all"]:
            raise DataError(f"{path} has no file *{' or *'.join(_SUFFIXES)}", hint="one judgment a file is usual")
    for part, members in parts.items():
        for member in members:
            inside = [member] if member.is_file() else sorted(member.iterdir())
            yield from ((part, file) for file in inside if file.is_file() and file.suffix in _SUFFIXES)


def _parse(
    path: Path, roles: Mapping[str, int], rows: Rows, wrong: Callable[[str], str | None]
) -> tuple[list[Document], int]:
    """The judgments of one file, and how many lines with text it has."""
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    documents: list[Document] = []
    sentences: list[tuple[str, int]] = []
    filled = 0
    for number, line in enumerate([*lines, b""], start=1):
        if line.strip():
            filled += 1
            if (row := _row(path, number, line, roles, rows, wrong)) is not None:
                sentences.append(row)
        elif sentences:
            texts, classes = zip(*sentences, strict=True)
            documents.append(Document(sentences=texts, roles=classes))
            sentences = []
    return documents, filled


def _row(
    path: Path,
    number: int,
    line: bytes,
    roles: Mapping[str, int],
    rows: Rows,
    wrong: Callable[[str], str | None],
) -> tuple[str, int] | None:
    """Sentence and class of one line; None where it is bad."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        rows.bad(path, number, f"is not UTF-8: {error.reason} at byte {error.start}")
        return None
    sentence, tab, label = (field.strip(" \r\n") for field in text.rpartition("\t"))
    if not tab:
        rows.bad(path, number, f"has no tab between a sentence and its role: {text[:60]!r}")
    elif not sentence.strip():
        rows.bad(path, number, "has no sentence")
    elif label.casefold() not in roles:
        rows.bad(path, number, unknown(label, roles))
    elif why := wrong(sentence):
        rows.bad(path, number, why)
    else:
        return sentence.strip(), roles[label.casefold()]
    return None
