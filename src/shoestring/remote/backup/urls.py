"""Where a backup is: the URL of the options `--backup` and `--from`, or of the arguments of `surviving`.

A URL has no password, token or query: credentials come from the environment, as the libraries read them. So a URL can
be stored and shown.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from shoestring.base.errors import UsageError
from shoestring.base.packages import requirements

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<place>.*)", re.DOTALL)
_ALMOST_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/?(?!/)")
_SECRET_IN_URL = re.compile(r"(?<=://)[^\s/@]*@|(?<=[^\s?])\?[^\s\"']*")
_SECRET_VARIABLE = re.compile(r"TOKEN|SECRET|PASSWORD|_KEY", re.IGNORECASE)
_SHORTEST_SECRET = 8
_MODULES = {
    "s3": ("fsspec", "s3fs"),
    "s3a": ("fsspec", "s3fs"),
    "hf": ("huggingface_hub",),
    "kaggle": ("kaggle", "six"),
}
_NAMES = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_FORMS = {
    "hf": (
        re.compile(rf"(?:(?:datasets|models)/|(?!(?:datasets|models|spaces)/)){_NAMES}/{_NAMES}(?:/.+)?"),
        "hf://datasets/USER/REPO/FOLDER or hf://USER/REPO/FOLDER",
    ),
    # Two characters of the 50 that Kaggle allows are for the names of the two datasets.
    "kaggle": (
        re.compile(rf"(?:{_NAMES}/)?[a-z0-9][a-z0-9-]{{3,47}}"),
        "kaggle://NAME or kaggle://USER/NAME, where NAME has 4 to 48 of a-z, 0-9 and -",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place for copies."""

    scheme: str
    """`file` for a folder, otherwise that of the URL."""
    path: str
    """An absolute path of a folder, or what follows the scheme."""
    option: str = field(default="--backup", compare=False)
    """The option or the argument that named it, for messages."""

    @property
    def url(self) -> str:
        """The URL, which has no secrets."""
        return self.path if self.scheme == "file" else f"{self.scheme}://{self.path}"


def parse_url(text: str, option: str = "--backup") -> Location:
    """Return the location of a URL, or of the path of a folder.

    Raises UsageError if it has credentials or a query, is not complete, or needs a package that is not installed.
    """
    match = _URL.fullmatch(text)
    scheme, place = (match["scheme"].lower(), match["place"]) if match else ("file", text)
    if match and (_SECRET_IN_URL.search(text) or "@" in place.partition("/")[0]):
        raise UsageError(
            f"{option} {redacted(text)}: the URL has a user, a password or a query, and a URL is stored and shown",
            hint="leave them out: credentials are read from the environment, such as AWS_ACCESS_KEY_ID or HF_TOKEN",
        )
    if scheme == "file":
        path = unquote(place) if match else place
        if not match and (almost := _ALMOST_URL.match(text)):
            raise UsageError(
                f"{option} {text}: this is no URL, because two slashes have to follow the colon",
                hint=f"{almost['scheme']}://{text[almost.end() :]}; for a folder of this name, write ./{text}",
            )
        if not path.strip() or (match and not path.startswith("/")):
            raise UsageError(f"{option} {text!r} names no folder", hint=f"{option} /path/of/a/folder")
        absolute = os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - links remain
        return Location(scheme="file", path=absolute, option=option)
    place = place.strip("/")
    form = _FORMS.get(scheme)
    if not place or ".." in place.split("/") or (form and not form[0].fullmatch(place)):
        raise UsageError(
            f"{option} {text}: a URL of {scheme}:// has another form",
            hint=form[1] if form else f"{scheme}://NAME/FOLDER",
        )
    _require_packages(scheme, option)
    return Location(scheme=scheme, path=place, option=option)


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a message of a library without credentials of URLs and without secrets of the environment."""
    secrets = [
        value for name, value in environment.items() if _SECRET_VARIABLE.search(name) and len(value) >= _SHORTEST_SECRET
    ]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _SECRET_IN_URL.sub("", text)


def _require_packages(scheme: str, option: str) -> None:
    if scheme in _MODULES:
        requirements.require("kaggle" if scheme == "kaggle" else "backup", *_MODULES[scheme])
        return
    requirements.require("backup", "fsspec")
    from fsspec.registry import get_filesystem_class, known_implementations

    try:
        get_filesystem_class(scheme)
    except (ValueError, ImportError) as error:
        known = known_implementations.get(scheme, {}).get("err", "")
        raise UsageError(
            f"{option} {scheme}://: {error}",
            hint=known or "a folder, s3://, hf://, kaggle://, or another scheme of fsspec",
        ) from error
