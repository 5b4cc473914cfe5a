"""The recipe's files, which the configuration carries."""

import base64
import hashlib
import zlib
from pathlib import PurePosixPath

from shoestring.remote.kaggle.kernel.program.places import RECIPE_FILES, SessionError
from shoestring.remote.kaggle.kernel.program.session import Session


def unpack_recipe(session: Session) -> str:
    """Write the recipe's files, and return the argument of `shoestring train`."""
    for name, content in session.config["files"].items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise SessionError(f"the recipe's file {name!r} has a path outside of its folder")
        data = zlib.decompress(base64.b64decode(content))
        if hashlib.sha256(data).hexdigest() != session.config["digests"].get(name):
            raise SessionError(f"the recipe's file {name!r} differs from its digest")
        (RECIPE_FILES / path).parent.mkdir(parents=True, exist_ok=True)
        (RECIPE_FILES / path).write_bytes(data)
    recipe = session.config["recipe"]
    return str(RECIPE_FILES / recipe) if recipe in session.config["files"] else recipe
