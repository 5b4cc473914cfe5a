"""Training, and what the command line needs to supervise it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.api.arguments import checked_path, require_limits
from shoestring.base.packages.broken import usable_libraries

if TYPE_CHECKING:
    from shoestring.planning.plan import Plan
    from shoestring.runs.folds.cross_validation import InChild
    from shoestring.runs.folds.outcome import CrossValidation
    from shoestring.runs.train.session import LaunchRequest
    from shoestring.training.run_directory.config_file import ConfigFile
    from shoestring.training.session.outcome import Outcome


def train(
    recipe: str | object,
    plan: Plan | None = None,
    *,
    run: str | Path,
    on: str = "local",
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    allow_inexact: bool = False,
    allow_cpu: bool = False,
    started: float | None = None,
    log: Sequence[str] = (),
    backup: str | Path | None = None,
    from_url: str | Path | None = None,
    probe: bool | None = None,
    **values: object,
) -> Outcome:
    """Train until the run in the directory `run` is finished or this session is over; call it again to continue.

    Without a plan, or with one made for another device, the run is first planned for this machine. The platform of the
    target `on` provides the limits (session hours, disk), which `limit_seconds` of this session and `disk_bytes` of the
    run's directory replace. `started` is the value of `time.monotonic()` at the start of the session, by default now. A
    run keeps its options; other settings, versions or hardware need `allow_inexact`. If `on` is a target with a GPU and
    this machine has none, a new run is refused unless `allow_cpu`. `log` has names of logs, such as
    "tensorboard", which are written below `run/logs` while it trains, and in later sessions as well. Each checkpoint
    is copied to the folder or URL `backup` in the background, and a run that is not in `run` begins from the
    newest copy in `from_url`; if there is none, and it is the place of `backup`, the run begins anew.
    Before a new run the plan is measured, as `plan` does with `probe`; the run's bits do not depend on it.

    In the kernel of a notebook, a recipe that is named is trained by a child process, and the cell shows the run.
    Interrupting the cell pauses it.

    Raises UsageError for invalid usage, RunError if the run cannot continue.
    """
    with usable_libraries():
        from shoestring.answers import live
        from shoestring.runs.train.launch import launch

    request = _request(locals())
    if isinstance(recipe, str) and live.is_notebook():
        return live.train_in_child(recipe, values, request, plan)
    return launch(recipe, values, request, plan)


def cross_validate(
    recipe: str | object,
    *,
    folds: int,
    run: str | Path,
    on: str = "local",
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    allow_inexact: bool = False,
    allow_cpu: bool = False,
    started: float | None = None,
    log: Sequence[str] = (),
    backup: str | Path | None = None,
    from_url: str | Path | None = None,
    probe: bool | None = None,
    in_child: InChild | None = None,
    **values: object,
) -> CrossValidation:
    """Train a model on all folds of the data but one, for each fold, until all are finished or the session is over.

    Call it again to continue. The run of each fold is in the folder `run`, as `fold-1`, `fold-2`, and is one that
    `train` makes with the option `fold`: all have the plan of the first, and `limit_seconds` is that of all together.
    Once all are finished, `run` also gets `out_of_fold.jsonl`, with the prediction for each sample by the model that
    was not trained on it. `disk_bytes` is the limit of the directory of each fold. With `in_child` each fold is trained
    by a child process that runs it: a function which calls another one, prints its error, and returns the exit status.
    In the kernel of a notebook, the folds of a recipe that is named are trained by child processes too. The other
    arguments and the errors are those of `train`.
    """
    with usable_libraries():
        from shoestring.answers import live
        from shoestring.runs.folds.cross_validation import cross_validate

    request = _request(locals())
    launch_run = live.train_in_child if isinstance(recipe, str) and live.is_notebook() else None
    return cross_validate(recipe, values, request, folds, in_child=in_child, launch_run=launch_run)


def _request(arguments: Mapping[str, Any]) -> LaunchRequest:
    """Return the request of these arguments of `train` or `cross_validate`. Raises UsageError for impossible limits."""
    from shoestring.runs.train.session import LaunchRequest

    require_limits(limit_seconds=arguments["limit_seconds"], disk_bytes=arguments["disk_bytes"])
    names = ("on", "limit_seconds", "disk_bytes", "allow_inexact", "allow_cpu", "probe")
    started, backup, from_url = (arguments[name] for name in ("started", "backup", "from_url"))
    return LaunchRequest(
        run=checked_path(arguments["run"]),
        started=time.monotonic() if started is None else started,
        log=tuple(arguments["log"]),
        backup=None if backup is None else str(backup),
        from_url=None if from_url is None else str(from_url),
        **{name: arguments[name] for name in names},
    )


def train_supervised(
    work: Callable[[], int],
    recipe: str,
    *,
    run: str | Path,
    on: str = "local",
    limit_seconds: float | None = None,
    allow_cpu: bool = False,
    started: float | None = None,
) -> Outcome:
    """Run `work`, which calls `train` and returns an exit status, in a child process that is killed at the limit.

    Returns the outcome of a session that had to be ended at its limit. If the child ends by itself, this process exits
    with its status. This process must not have imported torch. The other arguments are those of `train`.

    Raises UsageError for an unknown target, RunError if the child was killed by another process.
    """
    from shoestring.runs.train.supervised import train_supervised
    from shoestring.training.run_directory.stored import resume_command

    return train_supervised(
        work,
        Path(run),
        on=on,
        limit_seconds=limit_seconds,
        started=time.monotonic() if started is None else started,
        resume_command=resume_command(recipe, Path(run), on, allow_cpu=allow_cpu),
    )


def is_first_process() -> bool:
    """Return whether this process prints the outcome: a launcher, such as torchrun, may have started several."""
    from shoestring.training.engine.parallel.launcher import is_first_process

    return is_first_process()


def config_file(path: str | Path) -> ConfigFile:
    """Return the content of a configuration file, `--config` of the command line.

    Raises UsageError with all problems of the file.
    """
    from shoestring.training.run_directory.config_file import read_config

    return read_config(checked_path(path))


def process_started() -> float:
    """Return when this process started, as a value of `time.monotonic()`."""
    from shoestring.base.processes import started_at

    return started_at()
