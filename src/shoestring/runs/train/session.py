"""What one session of training of a run needs whose recipe and settings are known, in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.base.errors import Interruption, RunError, UsageError
from shoestring.base.settings import Settings
from shoestring.base.streams import flush, write_messages
from shoestring.hardware import targets
from shoestring.hardware.catalog import Target
from shoestring.recipe.options import LoadedRecipe
from shoestring.runs.train.starting import continue_run, import_training
from shoestring.runs.train.supervised import session_seconds
from shoestring.techniques import expandable_segments
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import Stop

if TYPE_CHECKING:
    from shoestring.training.library_loop import LibraryLoop
    from shoestring.training.request import SessionRequest


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The directory of a run, its target and the limits of its session."""

    run: Path
    on: str = "local"
    """The target whose platform's limits apply."""
    limit_seconds: float | None = None
    """The limit of this session, in place of the platform's."""
    disk_bytes: int | None = None
    """The limit of the run's directory, in place of the platform's."""
    started: float = field(default_factory=time.monotonic)
    """The start of the session by `time.monotonic()`; planning counts as part of the session."""
    allow_inexact: bool = False
    """Continue with other versions, hardware or settings."""
    allow_cpu: bool = False
    """Train on the CPU if `on` is a target with a GPU and this machine has none."""
    log: Sequence[str] = ()
    """The names of the sinks to write the run's numbers to (`training/monitor/sinks/names.py`)."""
    backup: str | None = None
    """The URL to copy each checkpoint to (`remote/backup`)."""
    from_url: str | None = None
    """The URL of the copies to begin from, if the directory has no run."""
    probe: bool | None = None
    """Whether a new run's plan is measured before it begins; None: unless the environment says otherwise."""
    folds: int = 1
    """The number of such runs of a cross-validation, which all have the plan of this one."""


def local_target(on: str) -> Target:
    """Return this machine as a target, with the limits of the platform of `on`."""
    return targets.on_this_machine(on)


def make_stop(request: LaunchRequest, target: Target, signals: StopSignals, starting_seconds: float) -> Stop:
    """Return the conditions to stop a session, which took so long to start."""
    limit_seconds = session_seconds(target.platform, request.limit_seconds)
    stop = Stop(deadline=Deadline(limit_seconds, started=request.started), signals=signals)
    stop.deadline.reserve(starting_seconds)
    return stop


def open_session(
    loaded: LoadedRecipe,
    settings: Settings,
    directory: RunDirectory,
    target: Target,
    request: LaunchRequest,
    stop: Stop,
    *,
    joins: bool = False,
) -> tuple[SessionRequest, LibraryLoop | None]:
    """Return the arguments of `training.loop.train`; if this process `joins` others, it has joined them then.

    The caller holds the lock of the run's directory, or has been started by the process that does.
    """
    if settings.allocator == "expandable" and target.device.kind == "cuda":
        _enable_expandable_segments()
    import_training(stop)
    import torch

    from shoestring.training.engine.parallel.ranks import Ranks
    from shoestring.training.request import SessionRequest

    library = None
    if loaded.parts.learning.trainer:
        from shoestring.integrations.library import LibraryUpdates

        library = LibraryUpdates()
    device = torch.device(target.device.kind)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"this machine has {target.device.title}, but this torch ({torch.__version__}) cannot use it",
            hint="install a CUDA build of torch for its driver, or train with --on cpu",
        )
    if joins:
        from shoestring.training.engine.parallel.joining import join

        device = join(device)
    disk_bytes = request.disk_bytes
    if disk_bytes is None and target.platform:  # the platform's present limit
        disk_bytes = target.platform.disk_bytes
    return SessionRequest(
        loaded=loaded,
        settings=settings,
        run=directory,
        target=request.on,
        device=device,
        stop=stop,
        disk_bytes=disk_bytes,
        allow_inexact=request.allow_inexact,
        folds=request.folds,
        identity=directory.identity(),
        ranks=Ranks.join(),
    ), library


@contextmanager
def ending_with_peers(on_lost: Callable[[str], object] = write_messages) -> Iterator[None]:
    """If one of the processes that this one trains with has ended, call `on_lost` with a message and leave Python.

    Nothing that this process could still do, or wait for, would help.
    """
    try:
        yield
    except Interruption as interruption:
        from shoestring.training.engine.parallel.errors import PeerLostError

        if not isinstance(interruption, PeerLostError):
            raise
        on_lost(str(interruption))
        flush()
        os._exit(interruption.status)


def reopen(
    directory: RunDirectory, recipe: str | object, values: Mapping[str, object]
) -> tuple[LoadedRecipe, Settings]:
    """Return the recipe and the settings of a run that another process of this session has just prepared."""
    if (stored := directory.plan()) is None:
        raise RunError(f"{directory.plan_file} is gone", hint="train again, with another --run if the run is lost")
    return continue_run(stored, directory, recipe, values)


def _enable_expandable_segments() -> None:
    """Make torch's CUDA allocator use expandable segments."""
    if not expandable_segments.enable():
        name = expandable_segments.VARIABLE
        write_messages(
            "torch was imported before allocator=expandable was set; if it has no effect, set "
            f"{name}={os.environ[name]} in the environment"
        )
