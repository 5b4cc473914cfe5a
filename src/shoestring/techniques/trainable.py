"""Which settings can be estimated but not trained with yet."""

from shoestring.errors import UsageError
from shoestring.recipe import extras
from shoestring.recipe.options import Adaptation
from shoestring.settings import Settings

_TRAINED = {"sharding": "ddp"}
"""The only value that the engine runs."""


def require_trainable(settings: Settings, adaptation: Adaptation | None = None) -> None:
    """Raises UsageError naming what the engine cannot run, or the extra that it lacks; before a run is begun."""
    adaptation = adaptation or Adaptation()
    chosen = {**vars(settings), **vars(adaptation)}
    problems = [
        f"{name}={chosen[name]}: can be estimated, not trained yet"
        for name, runs in _TRAINED.items()
        if chosen[name] != runs
    ]
    if problems:
        hint = " ".join(f"{name}={runs}" for name, runs in _TRAINED.items())
        raise UsageError("this cannot be trained with", problems=problems, hint=hint)
    if adaptation.quantization != "none" or adaptation.optimizer_states != "own":
        extras.require("bitsandbytes", "bitsandbytes")
