"""Judgments without roles: one sentence on each line, or running text, which is split into sentences."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

from shoestring.base.errors import DataError
from shoestring.base.packages.requirements import require
from shoestring.base.reading import LINE_BYTES, TEXT_BYTES, read_bytes, read_lines, reason
from shoestring.base.units import count_text
from shoestring_recipes.legal.documents import SUFFIXES, decode_line
from shoestring_recipes.legal.roles import SETS, class_numbers
from shoestring_recipes.rows import character_problem

Form: TypeAlias = Literal["auto", "lines", "running"]
"""The values of the option `text`."""

_FIRST_LINES = 200
"""The number of lines by which `auto` recognizes running text."""
_RUNNING_SHARE = 1 / 3
"""The share of lines above which a text is running text. In the 40 judgments of Law-AI it is at most 0.13 with one
sentence on each line, and at least 0.57 in running text, wrapped at 60 to 200 characters or in paragraphs."""
_INNER_END = re.compile(r"[^\W\d_A-Z]{2}[.?!][\"')\]]*\s+[\"'(\[]*(\w)")
"""The end of a sentence within a line; not that of an abbreviation like `v.` or `No.` before a number."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence, or the reason why there is none."""

    text: str = ""
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """A judgment without roles. A file that cannot be read is a judgment of one sentence with an error."""

    name: str
    """The name of its file, its own identifier, or its number from 0 in a list."""
    sentences: Sequence[Sentence]
    id: str | int | None = None
    """Its own identifier in a list."""


@dataclass(kw_only=True)
class Reader:
    """Reads judgments one after another; only one is in memory."""

    form: Form
    roles: Sequence[str]
    find_problem: Callable[[str], str | None] = lambda _: None
    """Returns why a sentence cannot be used."""
    _texts: int = field(init=False, default=0)
    _running: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        sets = (*SETS.values(), self.roles)
        self._labels = {label for names in sets for label in class_numbers(names)}

    def read(self, source: Path | Sequence[Any]) -> Iterator[Judgment]:
        """Yield the judgments of a file, of a folder's files by name, or of a list (see `docs/explanation/recipes.md`).

        Raises DataError if there is no such file, or no file in the folder.
        """
        if isinstance(source, Path):
            files = _list_files(source)
            return chain.from_iterable(self._read_file(file) for file in files)
        return chain.from_iterable(self._read_item(number, item) for number, item in enumerate(source))

    def notes(self) -> list[str]:
        """Return a note on the texts that were recognized as running text."""
        if self.form != "auto" or not self._running:
            return []
        return [
            f"{count_text(self._running)} of {count_text(self._texts)} texts were split into sentences, because they "
            "seem to be running text; --set text=lines reads one sentence on each line"
        ]

    def _read_file(self, path: Path) -> Iterator[Judgment]:
        try:
            lines = _split_lines(read_lines(path, follow=True))
            first_lines = list(islice(lines, _FIRST_LINES))
            if self._is_running(first_lines):
                yield self._split_running(path.name, read_bytes(path, follow=True, max_bytes=TEXT_BYTES))
            else:
                yield from self._read_judgments(path.name, chain(first_lines, lines))
        except (OSError, ValueError) as error:
            yield _unusable(path.name, f"cannot be read: {reason(error)}")

    def _read_item(self, number: int, item: Any) -> Iterator[Judgment]:
        """Yield the judgments of a text, or of a dict with `text` or `sentences`, and perhaps `id`."""
        values = item if isinstance(item, Mapping) else {"text": item}
        identifier, text, sentences = values.get("id"), values.get("text"), values.get("sentences")
        if not isinstance(identifier, str | int | None) or isinstance(identifier, bool):
            yield _unusable(str(number), "its id is neither a text nor an integer")
            return
        name = str(number if identifier is None else identifier)
        if isinstance(sentences, list | tuple) and sentences and text is None:
            rows = tuple(self._check(name, row, sentence) for row, sentence in enumerate(sentences, start=1))
            yield Judgment(name=name, sentences=rows, id=identifier)
        elif isinstance(text, str) and sentences is None:
            content = text.encode(errors="replace")
            lines = content.splitlines()
            if problem := character_problem(text):
                yield _unusable(name, problem, identifier)
            elif self._is_running(lines[:_FIRST_LINES]):
                yield self._split_running(name, content, identifier)
            else:
                yield from self._read_judgments(name, lines, identifier)
        else:
            yield _unusable(name, "has neither a `text` nor a list of `sentences`", identifier)

    def _read_judgments(
        self, name: str, lines: Iterable[bytes | None], identifier: str | int | None = None
    ) -> Iterator[Judgment]:
        """Yield the judgments of lines with one sentence each; the second and later ones are `name#2` and so on."""
        count = 0
        sentences: list[Sentence] = []
        for number, line in enumerate(chain(lines, [b""]), start=1):
            if line is None or line.strip():
                sentences.append(self._parse_line(name, number, line))
            elif sentences:
                count += 1
                yield _judgment(name, count, sentences, identifier)
                sentences = []
        if not count:
            yield _unusable(name, "has no sentences: it is empty", identifier)

    def _parse_line(self, name: str, number: int, line: bytes | None) -> Sentence:
        try:
            if line is None:
                raise ValueError(f"has more than {LINE_BYTES:,} bytes")
            text = decode_line(line)
        except ValueError as error:
            return Sentence(error=f"{name}, line {number}: {error}")
        return self._check(name, number, self._without_role(text), unit="line")

    def _check(self, name: str, number: int, text: Any, *, unit: str = "sentence") -> Sentence:
        """Return a sentence, with an error if it cannot be used."""
        if not isinstance(text, str):
            problem: str | None = f"is no text but {type(text).__name__}"
        elif not text.strip():
            problem = "has no sentence"
        else:
            text = text.strip()
            problem = character_problem(text) or self.find_problem(text)
        return Sentence(error=f"{name}, {unit} {number}: {problem}") if problem else Sentence(text=text)

    def _split_running(self, name: str, content: bytes, identifier: str | int | None = None) -> Judgment:
        """Return running text as one judgment; a blank line ends a sentence."""
        require("legal", "nupunkt")
        import nupunkt

        try:
            text = content.removeprefix(_BYTE_ORDER_MARK).decode()
        except UnicodeDecodeError as error:
            return _unusable(name, f"is not UTF-8: {error.reason} at byte {error.start}", identifier)
        if problem := character_problem(text):
            return _unusable(name, problem, identifier)
        # Words with single spaces between them: its time is quadratic in the length of white space.
        paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n[ \t\r]*\n", text))
        sentences = [Sentence(text=sentence) for paragraph in paragraphs for sentence in nupunkt.sentences(paragraph)]
        if not sentences:
            return _unusable(name, "has no sentences: it is empty", identifier)
        return Judgment(name=name, sentences=sentences, id=identifier)

    def _is_running(self, first_lines: Sequence[bytes | None]) -> bool:
        """Return whether a text with these first lines is running text."""
        self._texts += 1
        running = self.form == "running" or (self.form == "auto" and self._seems_running(first_lines))
        self._running += running
        return running

    def _seems_running(self, first_lines: Sequence[bytes | None]) -> bool:
        """Return whether many lines continue a sentence of the line before, or contain the end of one.

        A line continues a sentence if it begins with a lower-case letter, unless no line begins with a capital.
        """
        if None in first_lines:
            return True
        texts = [text for line in first_lines if line and (text := line.decode(errors="replace").strip())]
        if any(self._without_role(text) != text for text in texts):
            return False
        has_capitals = any(text[0].isupper() for text in texts)
        continued = sum((has_capitals and text[0].islower()) or _has_inner_end(text) for text in texts)
        return continued > _RUNNING_SHARE * len(texts)

    def _without_role(self, line: str) -> str:
        """Return a line without the role of labeled data at its end."""
        sentence, tab, label = line.rpartition("\t")
        return sentence if tab and label.strip().casefold() in self._labels else line


def _list_files(path: Path) -> list[Path]:
    if not path.is_dir():
        if path.exists():
            return [path]
        raise DataError(f"the file or folder {path} does not exist", hint="use a text file, or a folder of such files")
    files = sorted(entry for entry in path.iterdir() if entry.suffix in SUFFIXES and not entry.is_dir())
    if not files:
        raise DataError(
            f"{path} has no file *{' or *'.join(SUFFIXES)}", hint="add text files, usually one for each judgment"
        )
    return files


def _split_lines(lines: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """Yield lines without a byte order mark, divided at every kind of line end."""
    for number, line in enumerate(lines):
        if line is None:
            yield None
        else:
            yield from (line if number else line.removeprefix(_BYTE_ORDER_MARK)).splitlines()


def _has_inner_end(text: str) -> bool:
    return any(end[1].isupper() for end in _INNER_END.finditer(text))


def _unusable(name: str, problem: str, identifier: str | int | None = None) -> Judgment:
    return Judgment(name=name, sentences=(Sentence(error=f"{name}: {problem}"),), id=identifier)


def _judgment(name: str, count: int, sentences: Sequence[Sentence], identifier: str | int | None) -> Judgment:
    """Return judgment number `count` of a text."""
    suffix = f"#{count}" if count > 1 else ""
    return Judgment(
        name=f"{name}{suffix}",
        sentences=tuple(sentences),
        id=identifier if not suffix or identifier is None else f"{identifier}{suffix}",
    )
