"""One sentence for a package that an extra would have brought."""

from importlib.util import find_spec

from shoestring.errors import UsageError


def require(extra: str, *modules: str) -> None:
    """Every one of `modules` can be imported, or a UsageError names those that cannot and the `extra` to install."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"not installed: {', '.join(missing)}", hint=f"pip install 'shoestring[{extra}]'; then start anew"
        )
