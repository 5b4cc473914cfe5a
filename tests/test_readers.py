"""For any bytes in a file, every reader gives the same answer twice or one error, soon and within little memory.

`SHOESTRING_SOAK=1` tries many more damaged files.
"""

import copy
import json
import os
import re
import resource
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.readers import READERS, Reader
from tests.slow import slow_except

SLOW = ("report of events.jsonl", "report of state.json")  # the report of a damaged plan is drawn in the same way
CASES = slow_except(
    {reader.name: reader for reader in READERS}, *(reader.name for reader in READERS if reader.name not in SLOW)
)
EXAMPLES = 1000 if os.environ.get("SHOESTRING_SOAK") else 20
SECONDS, MEMORY_BYTES = 2.0, 200 << 20
TEXTS = ["", "x", "\0", "NaN", "1e400", "-1", "true", "\ud800", "\ufeff", '"', "'", ",,,", "\t", "\r", "a" * 5000]
VALUES = [
    *(None, True, [], {}, [[1]], {"a": {}}, 0, -1, 10**18, 10**30, 10**400, 0.5, 1e-320, 1e308, -1e308),
    *(float("nan"), float("inf"), *TEXTS, json.loads("[" * 90 + "]" * 90), [{}] * 200),
]


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value inside a JSON value."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def replaced(value: object, path: tuple[str | int, ...], new: object) -> object:
    """Return a copy of a JSON value with `new` at `path`; without the place itself if `new` is the class `object`."""
    if not path:
        return [] if new is object else new
    value = copy.deepcopy(value)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    if new is object:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return value


def damaged_json(draw: st.DrawFn, content: bytes) -> bytes:
    """Change values of other types into a JSON text, delete or repeat a key, or do so in one line of JSON lines."""
    lines = content.splitlines() if content.count(b"\n{") or content.endswith(b"}\n") else [content]
    index = draw(st.integers(0, len(lines) - 1))
    value = json.loads(lines[index])
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(places(value))))
        value = replaced(value, path, draw(st.sampled_from([*VALUES, object])))
    text = json.dumps(value)
    if draw(st.integers(0, 9)) == 0:
        text = re.sub(r'\{("[^"]*": )', r"{\g<1>0, \g<1>", text, count=1)
    return b"\n".join([*lines[:index], text.encode(), *lines[index + 1 :], b""])


def damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Cut bytes off, flip one, insert some, replace a field of a table, or replace everything."""
    position = draw(st.integers(0, len(content)))
    rest = content[position:]
    match draw(st.sampled_from(["cut", "flip", "insert", "field", "all"])):
        case "cut":
            return content[:position]
        case "flip" if rest:
            return content[:position] + bytes([rest[0] ^ (1 << draw(st.integers(0, 7)))]) + rest[1:]
        case "insert":
            return content[:position] + draw(st.binary(max_size=8)) + rest
        case "field":
            text = draw(st.sampled_from([*TEXTS, "9" * 400, "[" * 100_000])).encode(errors="surrogatepass")
            return content[:position] + re.sub(rb"[^,\t\n]*", lambda _: text, rest, count=1)
    return draw(st.binary(max_size=60))


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    try:
        json.loads(content.splitlines()[0] if content.count(b"\n{") else content)
    except (ValueError, IndexError):
        return damaged_bytes(draw, content)
    return (damaged_json if draw(st.integers(0, 3)) else damaged_bytes)(draw, content)


@contextmanager
def limited() -> Iterator[None]:
    """Limit the memory that can be allocated, and check the CPU time."""
    status = Path("/proc/self/status").read_text()
    current = int(re.search(r"VmData:\s+(\d+) kB", status)[1]) << 10
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    started_at = time.process_time()
    resource.setrlimit(resource.RLIMIT_DATA, (current + MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert time.process_time() - started_at < SECONDS


def answer(reader: Reader, folder: Path) -> str:
    with limited():
        try:
            return repr(reader.read(folder))
        except reader.errors as error:
            return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("reader", CASES)
def test_damaged_file_gives_one_answer_or_one_error(reader: Reader, tmp_path: Path) -> None:
    intact, folder = tmp_path / "intact", tmp_path / "damaged"
    intact.mkdir()
    reader.write(intact)
    content = (intact / reader.file).read_bytes()
    reader.read(intact)  # raises nothing, and imports what the reader needs

    @settings(
        max_examples=max(3, int(EXAMPLES * reader.share)),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(content))
    def check(data: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(intact, folder)
        (folder / reader.file).write_bytes(data)
        reader.prepare(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, on values that they can use
            assert answer(reader, folder) == answer(reader, folder)

    check()


@pytest.mark.parametrize("reader", CASES)
def test_pipe_directory_device_and_endless_file_give_an_error_at_once(reader: Reader, tmp_path: Path) -> None:
    for kind in ("pipe", "directory", "device", "endless"):
        folder = tmp_path / kind
        folder.mkdir()
        reader.write(folder)
        file = folder / reader.file
        file.unlink()
        match kind:
            case "pipe":
                os.mkfifo(file)
            case "directory":
                file.mkdir()
            case "device":
                file.symlink_to("/dev/zero")
            case "endless":
                file.touch()
                os.truncate(file, 10 << 30)
        answer(reader, folder)  # with a limit on time and memory
