"""A folder that an export has written: how it is recognized, and how its weights are used without the run."""

from pathlib import Path

from shoestring.base import shell
from shoestring.base.reading import read_json

MANIFEST = "export.json"
_WEIGHTS = "model.safetensors"


def usage_hint(folder: Path) -> str:
    """Return how to use the weights of an export in place of a run; empty if the folder is no export."""
    try:
        facts = read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return ""
    recipe, format_ = (facts.get(name) for name in ("recipe", "format")) if isinstance(facts, dict) else (None, None)
    if not isinstance(recipe, str) or not isinstance(format_, str):
        return ""
    origin = f"it is an export of {recipe:.100} to {format_:.100}"
    if format_ != "safetensors" or not (folder / _WEIGHTS).is_file():
        return f"{origin}, which other libraries load: pass the run that it was made from"
    command = shell.join([folder, "--recipe", recipe])
    return (
        f"{origin}: pass {command}, with --set for the options in its options.json that are not the recipe's defaults"
    )
