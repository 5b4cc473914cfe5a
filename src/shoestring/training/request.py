"""The request for a training session."""

from dataclasses import dataclass

import torch

from shoestring.base.settings import Settings
from shoestring.recipe.options import LoadedRecipe
from shoestring.training.checkpoint.identity import RunIdentity
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.engine.parallel.ranks import ONE_RANK, Ranks
from shoestring.training.processes.choice import choose_processes
from shoestring.training.processes.one_process import Processes
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.session.stop import Stop


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """Everything that determines a session. The caller holds the lock of the run's directory."""

    loaded: LoadedRecipe | None
    """None in a script with a trainer of its own."""
    settings: Settings
    """With a recipe, its microbatch and precision are set."""
    run: RunDirectory
    target: str
    """The target's name, for the record."""
    device: torch.device
    stop: Stop
    disk_bytes: int | None = None
    """The platform's limit for the run's directory; None without a limit."""
    allow_inexact: bool = False
    """Whether to continue with other versions, hardware or settings."""
    folds: int = 1
    """The number of runs of a cross-validation of which this is one, and which one command continues."""

    identity: RunIdentity | None = None
    """What the files of the run name it by; None for a run of an earlier version, and if nothing is saved."""
    ranks: Ranks = ONE_RANK
    """The group of the processes that train together."""

    @property
    def processes(self) -> Processes:
        """The strategy by which these processes share the work."""
        return choose_processes(self.ranks, self.settings)

    @property
    def shards(self) -> LogicalShards:
        """The logical shards of an update, and those of this process."""
        return self.processes.shards(self.settings.logical_shards)

    @property
    def recipe(self) -> LoadedRecipe:
        """The recipe of a session that has one."""
        assert self.loaded is not None
        return self.loaded
