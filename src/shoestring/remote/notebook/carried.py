"""Shoestring inside a notebook: there is no index to install it from, so the first cell carries its wheel.

The files of the wheel are one xz stream, which is half as large as the wheel, written as text: in base 92, which has
all characters but those that JSON and Python write as two, because base 85 would take 2% more of what Kaggle allows.
The cell verifies the digest, makes a wheel of the files again, and lets pip install it with what the machine lacks:
from the wheels of an attached dataset if they are enough, and else from the index.
"""

import functools
import hashlib
import io
import lzma
import textwrap
import zipfile
from collections.abc import Iterable

from shoestring.hardware.images import LackingPackage
from shoestring.remote.wheel import build_wheel, wheel_name
from shoestring.version import __version__

_ALPHABET = "".join(chr(code) for code in range(33, 127) if chr(code) not in '"\\')
_RECORD = f"shoestring-{__version__}.dist-info/RECORD"

_PROGRAM = '''\
#@title Install Shoestring (run this cell first) {{ display-mode: "form" }}
# Shoestring {version} is carried by this notebook, compressed, because it is not on PyPI. Nothing is installed if this
# very copy is installed already.
import base64, hashlib, importlib.metadata, importlib.util, io, lzma, os, re, subprocess, sys, tempfile, zipfile
from pathlib import Path

DIGEST = "{digest}"
RECORD = "{record}"  # the list of the wheel's files
EXTRAS = {extras!r}  # what the recipe needs besides
# What the image of the machine lacked: name, oldest sufficient version, version that is tested with it.
LACKS = {lacks!r}
WHEELS = {dataset!r}  # a dataset with their wheels, for a session without internet
ALPHABET = "{alphabet}"
CARRIED = """
{text}
"""


def decoded():
    """Return the bytes of the text, of which 27 characters are a number of 22 bytes; zeros follow them."""
    values, text, numbers = dict(zip(ALPHABET, range(92))), CARRIED.replace("\\n", ""), []
    for start in range(0, len(text), 27):
        number = 0
        for character in text[start : start + 27]:
            number = number * 92 + values[character]
        numbers.append(number.to_bytes(22, "big"))
    return b"".join(numbers)[:{size}]


def is_here(name, minimum):
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    numbers = [[int(number) for number in re.findall("[0-9]+", text)[:3]] for text in (version, minimum)]
    return numbers[0] >= numbers[1]


def lacking():
    """Return what is absent or too old here: of what Shoestring requires, and of what the image lacked."""
    required = [(name, minimum) for name, minimum, _ in LACKS]
    for text in importlib.metadata.requires("shoestring"):
        parts = re.match(r"([\\w.-]+)(?:[^;]*?>=([\\d.]+))?(?:.*extra == .([\\w-]+))?", text)
        if parts[3] is None or parts[3] in EXTRAS:
            required.append((parts[1], parts[2] or ""))
    return [name for name, minimum in required if not is_here(name, minimum)]


def wheel_folders():
    folder = Path(os.environ.get("SHOESTRING_KAGGLE_ROOT", "/kaggle"), "input")
    places = [place for pattern in (WHEELS, f"datasets/*/{{WHEELS}}") for place in folder.glob(pattern)]
    return {{wheel.parent for place in places for wheel in place.rglob("*.whl")}}


def install():
    installed = importlib.util.find_spec("shoestring")
    if installed and installed.origin:  # a folder that only has this name has none
        source = Path(installed.origin).parent / ".installed-from"
        if source.is_file() and source.read_text() == DIGEST:
            return
    content = decoded()
    if hashlib.sha256(content).hexdigest() != DIGEST:
        raise SystemExit("this notebook is damaged: what it carries differs from its digest")
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, "{wheel}")
        files = io.BytesIO(lzma.decompress(content))
        with zipfile.ZipFile(wheel, "w") as target:
            rows = []
            while heading := files.readline().decode().split():
                name, data = heading[0], files.read(int(heading[1]))
                target.writestr(name, data)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                rows.append(f"{{name}},sha256={{digest}},{{len(data)}}\\n")
            target.writestr(RECORD, "".join([*rows, f"{{RECORD}},,\\n"]))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--no-index", "--force-reinstall", str(wheel)], check=True)
        importlib.invalidate_caches()
        pins = [f"{{name}}=={{tested}}" for name, minimum, tested in LACKS if tested and not is_here(name, minimum)]
        links = [text for place in wheel_folders() for text in ("--find-links", str(place))]
        if pins and links:
            subprocess.run([*pip, "--no-deps", "--no-index", *links, *pins])
            importlib.invalidate_caches()
        if lacking():
            # The machine's own torch stays: another one would be gigabytes, and perhaps for another driver.
            constraints = Path(folder, "constraints.txt")
            constraints.write_text("\\n".join([f"torch=={{importlib.metadata.version('torch')}}", *pins]))
            needs = f"{{wheel}}[{{','.join(EXTRAS)}}]" if EXTRAS else str(wheel)
            subprocess.run([*pip, "--constraint", str(constraints), needs], check=True)
    importlib.invalidate_caches()
    (Path(importlib.util.find_spec("shoestring").origin).parent / ".installed-from").write_text(DIGEST)


install()
import shoestring

print(f"Shoestring {{shoestring.__version__}} is ready")
'''


def install_cell(
    extras: Iterable[str], lacks: Iterable[LackingPackage], dataset: str, recipes: Iterable[str] = ()
) -> str:
    """Return the source of the cell that installs Shoestring with its `extras`, and these of the built-in recipes.

    The others are left out, because Kaggle limits the size of a notebook, and six recipes are a fifth of it.
    `lacks` is what the image of the machine lacks; `dataset` is the name of a dataset that may have the wheels of it.
    """
    content = _compressed_wheel(frozenset(recipes))
    return _PROGRAM.format(
        version=__version__,
        digest=hashlib.sha256(content).hexdigest(),
        extras=sorted(extras),
        lacks=[(package.name, package.minimum, package.version) for package in lacks],
        dataset=dataset,
        alphabet=_ALPHABET,
        size=len(content),
        text="\n".join(textwrap.wrap(_encoded(content), 20_000, break_on_hyphens=False)),
        wheel=wheel_name(),
        record=_RECORD,
    )


def _encoded(content: bytes) -> str:
    """Return the text of which the cell makes `content` again."""
    characters: list[str] = []
    for start in range(0, len(content), 22):
        number = int.from_bytes(content[start : start + 22].ljust(22, b"\0"), "big")
        digits = []
        for _ in range(27):
            number, digit = divmod(number, len(_ALPHABET))
            digits.append(_ALPHABET[digit])
        characters += reversed(digits)
    return "".join(characters)


@functools.cache
def _compressed_wheel(recipes: frozenset[str]) -> bytes:
    """Return the files of the wheel with these recipes as an xz stream, which takes a second or two to make."""
    text = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}
    return lzma.compress(_stream_of(build_wheel(recipes)), filters=[text])


def _stream_of(wheel: bytes) -> bytes:
    """Return the files of a wheel, each after a line with its name and its number of bytes.

    A tar archive would add two hundredths, for headers that compress badly. The wheel's list of files is left out,
    because the digests in it cannot be compressed: the cell computes it.
    """
    with zipfile.ZipFile(io.BytesIO(wheel)) as source:
        names = [name for name in source.namelist() if name != _RECORD]
        return b"".join(
            b"%s %d\n" % (name.encode(), source.getinfo(name).file_size) + source.read(name) for name in names
        )
