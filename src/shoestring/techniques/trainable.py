"""The check for settings that can be estimated, but not used for training yet."""

from collections.abc import Mapping

from shoestring.errors import UsageError
from shoestring.recipe import extras
from shoestring.recipe.options import Adaptation
from shoestring.settings import Settings

TRAINED: Mapping[bool, tuple[str, ...]] = {False: ("ddp", "zero1"), True: ("ddp",)}
"""The values of `sharding` that several GPUs can train with, in the engine and (True) in a library's trainer."""


def require_trainable(settings: Settings, adaptation: Adaptation | None = None) -> None:
    """Raise UsageError naming the values that the engine does not support, or a missing extra, before a run starts."""
    adaptation = adaptation or Adaptation()
    if settings.sharding not in (None, *TRAINED[False]):
        raise UsageError(
            "training does not support these settings",
            problems=[f"sharding={settings.sharding}: can be estimated, but not trained yet"],
            hint=" or ".join(f"sharding={name}" for name in TRAINED[False]),
        )
    if adaptation.quantization != "none" or adaptation.optimizer_states != "own":
        extras.require("bitsandbytes", "bitsandbytes")
