"""The folder for what can be made again: `$XDG_CACHE_HOME/shoestring`, by default below `~/.cache`."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return the folder called `name` in this user's cache, whether or not it exists."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    return base / "shoestring" / name
