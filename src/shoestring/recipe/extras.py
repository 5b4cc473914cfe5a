"""The check that an extra's packages are installed."""

from importlib.util import find_spec

from shoestring.errors import UsageError


def require(extra: str, *modules: str) -> None:
    """Raise UsageError naming the `modules` that cannot be imported and the `extra` that installs them."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"not installed: {', '.join(missing)}", hint=f"pip install 'shoestring[{extra}]', then start again"
        )
