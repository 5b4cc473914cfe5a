"""The check for settings that can be estimated, but not used for training yet."""

from shoestring.errors import UsageError
from shoestring.recipe import extras
from shoestring.recipe.options import Adaptation
from shoestring.settings import Settings

_SUPPORTED = {"sharding": "ddp"}
"""The only value of each setting that the engine supports."""


def require_trainable(settings: Settings, adaptation: Adaptation | None = None) -> None:
    """Raise UsageError naming the values that the engine does not support, or a missing extra, before a run starts."""
    adaptation = adaptation or Adaptation()
    chosen = {**vars(settings), **vars(adaptation)}
    problems = [
        f"{name}={chosen[name]}: can be estimated, but not trained yet"
        for name, value in _SUPPORTED.items()
        if chosen[name] != value
    ]
    if problems:
        hint = " ".join(f"{name}={value}" for name, value in _SUPPORTED.items())
        raise UsageError("training does not support these settings", problems=problems, hint=hint)
    if adaptation.quantization != "none" or adaptation.optimizer_states != "own":
        extras.require("bitsandbytes", "bitsandbytes")
