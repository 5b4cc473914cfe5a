"""Reading files that may be damaged, endless or no files at all: every file is opened and parsed by this module.

A file is opened only if it is a regular one of limited size, so a pipe or a device in its place neither blocks nor
fills the memory. JSON is strict: UTF-8, no key twice, finite numbers, limited nesting, no half characters.
"""

import io
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from shoestring.base.units import MIB, bytes_text

JSON_BYTES = 64 * MIB
"""The largest JSON file that is read. A plan has some 100 KB."""
TOML_BYTES = MIB
"""The largest TOML file that is read."""
DATA_BYTES = 4096 * MIB
"""The largest table that is read."""
TEXT_BYTES = 1024 * MIB
"""The largest file of texts or JSON rows, which is in memory as a whole."""
LINE_BYTES = 4 * MIB
"""The longest line that is read."""
MAX_COUNT = 2**53
"""The largest count: JSON numbers are exact up to here in every language."""
MAX_NUMBER = 1e150
"""The largest number, so that sums of many and products of two are finite."""

_BLOCK_BYTES = 8 * MIB
_MAX_NESTING = 100
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_LONG_INTEGER = re.compile("[0-9]{300}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_NOT_OF_A_PATH = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def open_file(path: Path, *, follow: bool, max_bytes: int | None = None) -> int:
    """Open a regular file for reading and return its descriptor, without waiting for another process.

    A symbolic link is followed only if `follow` is true: for files that the user names, not for those of a run.

    Raises OSError, and ValueError if it is not a regular file or has more than `max_bytes`.
    """
    # Before opening as well: to open a device may already change its state.
    _require_regular(path.stat() if follow else os.lstat(path), max_bytes)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        _require_regular(os.fstat(descriptor), max_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_binary(path: Path, *, max_bytes: int | None = DATA_BYTES) -> BinaryIO:
    """Open a file that the user names, as `open_file` does, for libraries that read from an open file."""
    return open(path, "rb", opener=lambda *_: open_file(path, follow=True, max_bytes=max_bytes))


def real_path(path: str | Path) -> Path:
    """Return the absolute path without links. `Path.resolve` raises RuntimeError for links in circles before 3.13."""
    return Path(os.path.realpath(path))


def is_file(path: Path) -> bool:
    """Return whether there is a file at `path`. `Path.is_file` raises OSError for a name that is too long."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Return whether there is a folder at `path`. `Path.is_dir` raises OSError for a name that is too long."""
    return os.path.isdir(path)  # noqa: PTH112


def regular_file_size(path: Path) -> int:
    """Return the size of a regular file. Raises ValueError for a link, directory or pipe, and OSError."""
    status = os.lstat(path)
    _require_regular(status, None)
    return status.st_size


def require_regular_files(folder: Path) -> None:
    """Raise ValueError for an entry of `folder` that is neither a regular file nor a folder, and OSError.

    Call it before a library opens the files of a folder by itself, and would wait for a pipe. A name that is no folder,
    but perhaps that of a model on a hub, is left to the library.
    """
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        status = entry.stat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise ValueError(f"{entry} is {_KINDS.get(stat.S_IFMT(status.st_mode), 'no file')}, not a regular file")


def read_blocks(path: Path, *, follow: bool, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the content of a file in blocks. Raises as `open_file` does, also if the file grows beyond `max_bytes`."""
    descriptor = open_file(path, follow=follow, max_bytes=max_bytes)
    try:
        total = 0
        while block := os.read(descriptor, _BLOCK_BYTES):
            total += len(block)
            _require_size(total, max_bytes)
            yield block
    finally:
        os.close(descriptor)


def read_bytes(path: Path, *, follow: bool, max_bytes: int) -> bytes:
    """Return the content of a file. Raises as `open_file` does."""
    return b"".join(read_blocks(path, follow=follow, max_bytes=max_bytes))


def read_lines(path: Path, *, follow: bool, max_bytes: int = DATA_BYTES, offset: int = 0) -> Iterator[bytes | None]:
    """Yield the lines of a file from byte `offset` on, with their ends; None for one longer than `LINE_BYTES`.

    Raises as `open_file` does.
    """
    with os.fdopen(open_file(path, follow=follow, max_bytes=max_bytes), "rb") as file:
        file.seek(offset)
        while line := file.readline(LINE_BYTES + 1):
            if len(line) <= LINE_BYTES:
                yield line
                continue
            while not line.endswith(b"\n") and (line := file.readline(LINE_BYTES)):
                pass
            yield None


def open_table(path: Path) -> TextIO:
    """Open a CSV file in UTF-8 that the user names, with its line ends and without a byte order mark.

    Raises OSError, and ValueError if it is not a regular file, too large, or not divided into lines.
    """
    file = open_binary(path)
    try:
        # A reader of lines would hold an endless one in memory.
        while len(block := file.read(LINE_BYTES)) == LINE_BYTES:
            if b"\n" not in block and b"\r" not in block:
                raise ValueError(f"it has a line of more than {bytes_text(LINE_BYTES)}")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


def read_json(
    path: Path, *, follow: bool = False, max_bytes: int = JSON_BYTES, strict: bool = True, paths: bool = False
) -> Any:
    """Return the content of a JSON file as `parse_json` does. Raises OSError, and ValueError with the problem."""
    return parse_json(read_bytes(path, follow=follow, max_bytes=max_bytes), strict=strict, paths=paths)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file that the user names. Raises OSError, and ValueError with the problem."""
    try:
        return tomllib.loads(read_bytes(path, follow=True, max_bytes=TOML_BYTES).decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_json(text: str | bytes, *, strict: bool = True, paths: bool = False) -> Any:
    """Return the value of strict JSON.

    If `strict` is false, NaN, infinities and repeated keys are accepted, as in files of other programs; this is also
    three times as fast. `paths` admits the characters with which Python represents a path that is not UTF-8.

    Raises ValueError with the problem.
    """
    text = text if isinstance(text, str) else text.decode()
    try:
        if strict:
            value = json.loads(
                text,
                object_pairs_hook=_build_object,
                parse_constant=_reject_constant,
                parse_float=_parse_float,
                parse_int=_parse_int,
            )
        else:
            value = json.loads(text, parse_int=_parse_int if _LONG_INTEGER.search(text) else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # A text with few brackets cannot be nested deeply, and one without escapes has no half characters.
    if text.count("[") + text.count("{") > _MAX_NESTING or "\\u" in text or _SURROGATE.search(text):
        _require_plain(value, _SURROGATE_NOT_OF_A_PATH if paths else _SURROGATE)
    return value


def reason(error: OSError | ValueError) -> str:
    """Return why a file cannot be read, without its path, which the caller's message names."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def number(value: object) -> float | None:
    """Return `value` as a float if it is a number of at most `MAX_NUMBER` and not a bool, and None otherwise."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if -MAX_NUMBER <= value <= MAX_NUMBER else None


def is_count(value: object) -> bool:
    """Return whether `value` is an integer from 0 to `MAX_COUNT`."""
    return type(value) is int and 0 <= value <= MAX_COUNT


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of value in a file."""

    name: str
    """What a value of another kind is not, for messages: "text"."""
    types: tuple[type, ...]
    low: float | None = None
    high: float | None = None
    """The bounds of a number."""

    def matches(self, value: object) -> bool:
        if isinstance(value, bool) and bool not in self.types:
            return False
        if not isinstance(value, self.types):
            return False
        if not isinstance(value, int | float) or self.low is None or self.high is None:
            return True
        return self.low <= value <= self.high


TEXT = Kind(name="text", types=(str,))
OBJECT = Kind(name="an object", types=(dict,))
COUNT = Kind(name=f"an integer from 0 to {MAX_COUNT}", types=(int,), low=0, high=MAX_COUNT)


def find_problems(values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> list[str]:
    """Return a problem for every present value that is not of its kind."""
    return [
        f"{name}: {str(values[name])[:40]!r} is not {kind.name}"
        for name, kind in kinds.items()
        if name in values and not kind.matches(values[name])
    ]


def _require_regular(status: os.stat_result, max_bytes: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"it is {_KINDS.get(stat.S_IFMT(status.st_mode), 'no file')}, not a regular file")
    _require_size(status.st_size, max_bytes)


def _require_size(size: int, max_bytes: int | None) -> None:
    if max_bytes is not None and size > max_bytes:
        raise ValueError(f"it has {bytes_text(size)}, but at most {bytes_text(max_bytes)} are read")


def _require_plain(value: Any, forbidden: re.Pattern[str]) -> None:
    """Raise ValueError if `value` is nested too deeply, or contains a text with a `forbidden` character."""
    level, nesting = [value], 0
    while level:
        if nesting > _MAX_NESTING:
            raise ValueError("it is nested too deeply")
        next_level: list[Any] = []
        for item in level:
            if isinstance(item, str) and forbidden.search(item):
                raise ValueError(f"the text {item[:20]!a} contains half a character")
            if isinstance(item, dict):
                next_level += item
                next_level += item.values()
            elif isinstance(item, list):
                next_level += item
        level, nesting = next_level, nesting + 1


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _parse_int(text: str) -> int:
    """Integers have the range of finite floats, so that arithmetic with floats never overflows."""
    if len(text) > 300:
        raise ValueError(f"the number {text[:20]}... is too large")
    return int(text)
