"""Where this copy of Shoestring was installed from, and the command of pip that installs an extra of it from there.

Shoestring is on no index: installing it by its name would fail, or bring what a stranger has published under the
name. What pip has recorded tells the origin (packaging.python.org, "Recording the direct URL origin"): a checkout, a
wheel or a repository.
"""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from shoestring.base.reading import parse_json

DISTRIBUTION = "shoestring"


def install_command(extra: str, requirements: Iterable[str]) -> str:
    """Return the command that installs an `extra`; if the origin is unknown or gone, the `requirements` themselves."""
    origin = _with_extra(_recorded_origin(), extra)
    return pip_install(*origin) if origin else pip_install(*requirements)


def pip_install(*arguments: str) -> str:
    """Return a command that installs into this environment, as a shell takes it."""
    return " ".join([*_installer(), *map(shlex.quote, arguments)])


def _installer() -> list[str]:
    """Return the words before the arguments of pip. With pipx and uv, `pip` would be that of another environment."""
    if (Path(sys.prefix) / "pipx_metadata.json").is_file():
        return ["pipx", "runpip", DISTRIBUTION, "install"]
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("pip")  # not `find_spec`, with which setuptools warns and replaces modules
    except PackageNotFoundError:  # as in the environments that uv makes
        return ["uv", "pip", "install", "--python", shlex.quote(sys.executable)]
    return ["pip", "install"]


def _recorded_origin() -> dict[str, Any]:
    """Return the content of direct_url.json; empty if this copy is not installed or came from an index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
        record = parse_json(text or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _with_extra(record: dict[str, Any], extra: str) -> list[str]:
    """Return the arguments for pip that name the origin with the extra; none if it is unknown or not there any more."""
    extras = f"[{extra}]" if extra else ""
    url = str(record.get("url", ""))
    if vcs := record.get("vcs_info"):
        commit = f"@{vcs['commit_id']}" if vcs.get("commit_id") else ""
        return [f"{DISTRIBUTION}{extras} @ {vcs.get('vcs', 'git')}+{url}{commit}"]
    path = Path(unquote(urlsplit(url).path))
    if not url.startswith("file://") or not path.exists():
        return []
    is_editable = bool(record.get("dir_info", {}).get("editable"))
    return [*(["--editable"] if is_editable else []), f"{path}{extras}"]
