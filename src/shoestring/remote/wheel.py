"""Shoestring's own wheel, built from the copy that runs, so that it does not have to be on an index.

A wheel is a zip file of the packages and of their metadata, as the "binary distribution format" of packaging.python.org
says. It is built without a build backend, so neither the network nor a checkout is needed: an installed and an editable
copy have the same files. The same files make the same bytes.
"""

import base64
import hashlib
import importlib.metadata
import io
import zipfile
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_bytes
from shoestring.base.units import MIB
from shoestring.version import __version__

_NAME = "shoestring"
_PACKAGES = (_NAME, "shoestring_recipes")
_TIME = (1980, 1, 1, 0, 0, 0)
_MAX_BYTES = 16 * MIB
_WHEEL = "Wheel-Version: 1.0\nGenerator: shoestring\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_name() -> str:
    """Return the file name of the wheel."""
    return f"{_NAME}-{__version__}-py3-none-any.whl"


def build_wheel() -> bytes:
    """Return the wheel of the running copy of Shoestring.

    Raises UsageError if this copy has no metadata, because it was neither installed nor installed as editable.
    """
    folder = Path(__file__).parents[2]
    files = {
        path.relative_to(folder).as_posix(): read_bytes(path, follow=True, max_bytes=_MAX_BYTES)
        for package in _PACKAGES
        for path in sorted((folder / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    info = f"{_NAME}-{__version__}.dist-info"
    files |= {f"{info}/{name}": content.encode() for name, content in _metadata().items()}
    rows = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    record = f"{info}/RECORD"
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return buffer.getvalue()


def _metadata() -> dict[str, str]:
    """Return the text files of the wheel's metadata, by name."""
    try:
        distribution = importlib.metadata.distribution(_NAME)
        texts = {name: distribution.read_text(name) for name in ("METADATA", "entry_points.txt")}
    except importlib.metadata.PackageNotFoundError:
        texts = {}
    if not texts.get("METADATA"):
        raise UsageError(
            "this copy of Shoestring has no metadata, so no wheel can be built of it",
            hint="install it, for example with: pip install --editable path/to/the/checkout",
        )
    return {**{name: text for name, text in texts.items() if text}, "WHEEL": _WHEEL}


def _digest(content: bytes) -> str:
    """Return the digest as the file RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
