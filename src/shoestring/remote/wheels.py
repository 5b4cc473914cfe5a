"""Wheels of packages that an image lacks, so that a session without internet has them.

They are made for the image's Python, not for the one that runs here, and downloaded with pip, once, to
`$XDG_CACHE_HOME/shoestring/wheels` (by default below `~/.cache`), which belongs to the user, and not to the run's
directory, which may come from someone else.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from shoestring.base.cache import cache_folder
from shoestring.base.errors import UsageError
from shoestring.base.reading import read_bytes
from shoestring.base.units import MIB
from shoestring.hardware.images import Image, ImageAnswer, LackingPackage

_PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 16, -1)), "manylinux2014_x86_64")
"""pip takes each of them literally: with manylinux_2_28 alone it would not find a wheel of manylinux_2_24."""
_SECONDS = 600.0
_MAX_BYTES = 500 * MIB
_WHEEL = re.compile(r"[\w.+-]+\.whl")


def cached_wheels(answer: ImageAnswer) -> dict[str, bytes]:
    """Return the wheels of what an image lacks that have been downloaded before, by file name. Nothing is contacted."""
    return {
        path.name: read_bytes(path, follow=False, max_bytes=_MAX_BYTES)
        for package in answer.lacks
        for path in _wheels_in(_folder(answer.image, package))
    }


def download_wheels(answer: ImageAnswer) -> list[str]:
    """Download the wheels of what an image lacks that are not in the cache; return the problems, one for each."""
    problems = []
    for package in answer.lacks:
        folder = _folder(answer.image, package)
        if folder.is_dir():
            continue
        try:
            _download(package, answer.image.python, folder)
        except (OSError, subprocess.SubprocessError) as error:
            output = getattr(error, "stderr", None) or str(error)
            reason = str(output).strip().splitlines()[-1:] or ["no reason"]
            problems.append(f"no wheel of {package.pin} for Python {answer.image.python}: {reason[0][:200]}")
    return problems


def require_wheels(answer: ImageAnswer, problems: Sequence[str]) -> None:
    """Raise UsageError if there are `problems` with wheels and the sessions have no internet."""
    if problems:
        raise UsageError(
            f"sessions without internet need wheels of what {answer.image.title} lacks",
            problems=problems,
            hint="give the same command again where pip reaches its index, or leave out --no-internet",
        )


def _download(package: LackingPackage, python: str, folder: Path) -> None:
    """Raises OSError, and SubprocessError with pip's words."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
    incomplete = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".download-"))
    try:
        # Without dependencies: they would bring torch, and pip evaluates their markers for the Python that runs here.
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"),
                *("--no-deps", "--only-binary=:all:", "--python-version", python, *platforms),
                *("--dest", str(incomplete), package.pin),
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        with contextlib.suppress(OSError):  # another process was faster
            incomplete.rename(folder)
    finally:
        shutil.rmtree(incomplete, ignore_errors=True)


def _wheels_in(folder: Path) -> Iterator[Path]:
    paths: Iterable[Path] = sorted(folder.iterdir()) if folder.is_dir() else ()
    return (path for path in paths if _WHEEL.fullmatch(path.name))


def _folder(image: Image, package: LackingPackage) -> Path:
    return cache_folder("wheels") / f"{package.pin}-py{image.python}"
