"""Temporary folders with names by which those of killed processes are known and removed."""

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from shoestring.base.processes import is_running

_NAME = re.compile(r"shoestring-(?P<purpose>[a-z]+)-(?P<node>[^/]*)-(?P<pid>[0-9]+)-[^-/]+")


def temporary_folder(purpose: str) -> Path:
    """Create a folder for this process, and remove those of ended processes of this machine. The caller removes it."""
    for path in Path(tempfile.gettempdir()).glob(f"shoestring-{purpose}-*"):
        match = _NAME.fullmatch(path.name)
        # The directory may be shared with other machines and users.
        if match and match["node"] == _node() and not is_running(int(match["pid"])):
            with suppress(OSError):
                if path.lstat().st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"shoestring-{purpose}-{_node()}-{os.getpid()}-"))


def _node() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", os.uname().nodename)
