"""What a session of training is asked to do."""

from dataclasses import dataclass

import torch

from shoestring.recipe.options import LoadedRecipe
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import Stop
from shoestring.settings import Settings


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """The caller holds the run's lock."""

    loaded: LoadedRecipe | None
    """None in a script with a trainer of its own."""
    settings: Settings
    """For a recipe they leave neither microbatch nor precision open."""
    run: RunDirectory
    target: str
    """The target's name, for the record."""
    device: torch.device
    stop: Stop
    disk_bytes: int | None = None
    """What the platform lets the run's directory have; None without a limit."""
    allow_inexact: bool = False
    """Continue under other versions, hardware or settings."""

    @property
    def recipe(self) -> LoadedRecipe:
        """The recipe of a session that has one."""
        assert self.loaded is not None
        return self.loaded
