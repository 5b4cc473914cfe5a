"""Shoestring's own wheel, built from the copy that runs, so that it does not have to be on an index; and the wheel of
another package, whose recipe a session needs.

A wheel is a zip file of the packages and of their metadata, as the "binary distribution format" of packaging.python.org
says. It is built without a build backend, so neither the network nor a checkout is needed: an installed and an editable
copy have the same files. The same files make the same bytes.
"""

import base64
import hashlib
import importlib.metadata
import io
import re
import zipfile
from collections.abc import Collection
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_bytes
from shoestring.base.units import MIB, bytes_text
from shoestring.recipe.installed import Package
from shoestring.recipe.options import LoadedRecipe
from shoestring.version import __version__

_NAME = "shoestring"
_RECIPES = "shoestring_recipes"
_PACKAGES = (_NAME, _RECIPES)
_TIME = (1980, 1, 1, 0, 0, 0)
_MAX_BYTES = 16 * MIB
_OF_THE_INSTALLATION = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""Files of metadata that pip writes when it installs."""
_COMPILED = (".so", ".pyd", ".dylib")
_OF_A_SESSION: dict[str, tuple[str, ...]] = {
    "planning/simulator": (),
    "remote/notebook": ("__init__", "session"),
    "remote/kaggle": ("__init__", "chain_file", "client", "client_process", "job", "kernel", "upload"),
    "runs/rehearse": (),
    "answers/rehearsal": (),
    "runs/measurement": (),
}
"""Packages of which a session needs these modules alone: the simulated GPU, what writes notebooks and starts sessions,
rehearsals, and files of measured runs to publish."""
_WHEEL = "Wheel-Version: 1.0\nGenerator: shoestring\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_name() -> str:
    """Return the file name of the wheel."""
    return f"{_NAME}-{__version__}-py3-none-any.whl"


def build_wheel(recipes: Collection[str] | None = None) -> bytes:
    """Return the wheel of the running copy of Shoestring, with all built-in recipes or only the named `recipes`.

    That of some recipes, which a notebook carries, is without the modules that a session does not need.

    Raises UsageError if this copy has no metadata, because it was neither installed nor installed as editable.
    """
    folder = Path(__file__).parents[2]
    files = {
        path.relative_to(folder).as_posix(): read_bytes(path, follow=True, max_bytes=_MAX_BYTES)
        for package in _PACKAGES
        for path in sorted((folder / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    metadata = _metadata()
    if recipes is not None:
        left_out = {entry.name for entry in (folder / _RECIPES).iterdir() if entry.is_dir()} - set(recipes)
        folders = tuple(f"{_RECIPES}/{name}/" for name in left_out)
        files = {
            name: content for name, content in files.items() if not name.startswith(folders) and _is_of_a_session(name)
        }
        metadata["METADATA"] = metadata["METADATA"].partition("\n\n")[0] + "\n"  # without the README
        modules = {f"{_RECIPES}.{name}" for name in left_out}
        entry_points = metadata["entry_points.txt"].splitlines(keepends=True)
        metadata["entry_points.txt"] = "".join(
            line for line in entry_points if line.partition("=")[2].partition(":")[0].strip() not in modules
        )
    info = f"{_NAME}-{__version__}.dist-info"
    return _pack(info, files | {f"{info}/{name}": content.encode() for name, content in metadata.items()})


def _is_of_a_session(file: str) -> bool:
    for package, modules in _OF_A_SESSION.items():
        if file.startswith(f"{_NAME}/{package}/"):
            return file.split("/")[3].removesuffix(".py") in modules
    return True


def recipes_used(loaded: LoadedRecipe) -> set[str]:
    """Return the built-in recipes that this recipe is, or whose names are in those of its files that import any."""
    texts = [type(loaded.recipe).__module__]
    if loaded.source:
        texts += [content.decode(errors="replace") for content in loaded.source.contents.values()]
    words = {word for text in texts if re.search(r"shoestring[._]recipes", text) for word in re.findall(r"\w+", text)}
    return {path.name for path in (Path(__file__).parents[2] / _RECIPES).iterdir() if path.is_dir()} & words


def rebuild_wheel(package: Package) -> tuple[str, bytes]:
    """Return the file name and the content of a wheel of an installed package, made of the files that it has listed.

    Raises UsageError for a package that is not plain Python, and for one whose files are elsewhere, as those of an
    editable installation are.
    """
    distribution = importlib.metadata.distribution(package.distribution)
    files, total = {}, 0
    for path in distribution.files or ():
        # Programs are outside of the folder of packages: pip makes them again.
        if ".." in path.parts or "__pycache__" in path.parts or path.name in _OF_THE_INSTALLATION:
            continue
        if path.suffix in _COMPILED:
            raise _cannot_be_sent(package, f"{path} is compiled for this machine")
        content = read_bytes(Path(str(path.locate())), follow=True, max_bytes=_MAX_BYTES)
        files[path.as_posix()], total = content, total + len(content)
    if not any(name.endswith(".py") for name in files):
        raise _cannot_be_sent(package, "the list of its files has none in Python, as after pip install --editable")
    if total > _MAX_BYTES:
        raise _cannot_be_sent(package, f"it has {bytes_text(total)}, which is more than {bytes_text(_MAX_BYTES)}")
    stem = f"{re.sub('[-_.]+', '_', package.distribution)}-{package.version}"
    return f"{stem}-py3-none-any.whl", _pack(f"{stem}.dist-info", {f"{stem}.dist-info/WHEEL": _WHEEL.encode()} | files)


def _cannot_be_sent(package: Package, reason: str) -> UsageError:
    return UsageError(
        f"the recipe's package {package} cannot be sent to Kaggle: {reason}",
        hint="install it from a wheel of plain Python, or copy the recipe into a file and train that",
    )


def _pack(info: str, files: dict[str, bytes]) -> bytes:
    """Return the wheel of these files, with their list in the folder of metadata `info`."""
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
