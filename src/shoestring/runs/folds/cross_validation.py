"""Training all folds, one after another, under one limit of time and with one plan."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import RunError, UsageError
from shoestring.base.streams import write_messages
from shoestring.recipe.folds import Fold, all_folds
from shoestring.runs.folds.outcome import CrossValidation, metrics_of_folds
from shoestring.runs.train.session import LaunchRequest, local_target
from shoestring.runs.train.supervised import session_seconds, train_supervised
from shoestring.runs.train.supervisor import supervise
from shoestring.training.engine.parallel.launcher import Launcher
from shoestring.training.run_directory import fold_runs
from shoestring.training.run_directory.stored import StoredState, resume_command
from shoestring.training.session.deadline import Deadline, seconds_to_end
from shoestring.training.session.outcome import Outcome
from shoestring.training.session.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from shoestring.runs.folds.training import Launch

InChild = Callable[[Callable[[], Any]], int]
"""Runs a function, prints what it raises, and returns the exit status of the process."""


def cross_validate(
    recipe: str | object,
    values: Mapping[str, object],
    request: LaunchRequest,
    count: int,
    *,
    in_child: InChild | None = None,
    launch_run: "Launch | None" = None,
) -> CrossValidation:
    """Implement `shoestring.cross_validate`. `launch_run` trains a run of this process, by default in it.

    With `in_child` each fold is trained by a child process, which calls it, and which is ended at the limit. This
    process must not have imported torch then.
    """
    folds = all_folds(count)
    if Launcher.find():
        raise UsageError(
            "a launcher such as torchrun has started this process, and folds cannot be trained in its processes",
            hint="without it, each fold is trained on all GPUs of this machine; or train the folds one by one: "
            f"--set fold=1/{count}",
        )
    if "fold" in values:
        raise UsageError(
            f"--set fold={values['fold']} trains one fold, and --folds {count} trains all of them", hint="leave one out"
        )
    request = _with_limit(request)
    fold_runs.create(request.run, count)
    outcomes = [_state(request.run, fold).outcome() for fold in folds]
    reason = ""
    for index, fold in enumerate(folds):
        if outcomes[index].status == "finished":
            continue
        write_messages(f"fold {fold.number} of {count}: {fold_runs.run_of(request.run, fold).path}")
        try:
            outcomes[index] = _train(recipe, values, _of_fold(request, fold), fold, in_child, launch_run)
        finally:
            with suppress(OSError):
                request.run.rmdir()  # it is empty if the first fold could not begin
        if outcomes[index].status != "finished":
            reason = f"fold {fold.number} is paused: {outcomes[index].reason}"
            break
    out_of_fold: str | None = None
    notes: tuple[str, ...] = ()
    if not reason:
        out_of_fold, notes, reason = _predict(recipe, values, request, folds, in_child)
    return CrossValidation(
        status="paused" if reason else "finished",
        reason=reason or f"all {count} folds are finished",
        recipe=recipe if isinstance(recipe, str) else type(recipe).__name__,
        run=str(request.run),
        folds=tuple(outcomes),
        metrics=metrics_of_folds([outcome.metrics for outcome in outcomes if outcome.status == "finished"]),
        out_of_fold=out_of_fold,
        notes=tuple(notes),
    )


def _with_limit(request: LaunchRequest) -> LaunchRequest:
    """Return the request with the limit of the session, which is the platform's if no other is set."""
    limit_seconds = session_seconds(local_target(request.on).platform, request.limit_seconds)
    return replace(request, limit_seconds=limit_seconds)


def _state(path: Path, fold: Fold) -> StoredState:
    """Return the state of a fold, which is paused at update 0 if it has not begun."""
    return fold_runs.run_of(path, fold).state() or StoredState(status="paused", reason="it has not begun")


def _of_fold(request: LaunchRequest, fold: Fold) -> LaunchRequest:
    """Return the request of a fold that begins now: what is left of the session is its limit."""
    started, limit_seconds = request.started, request.limit_seconds
    if fold.number > 1 and limit_seconds is not None:
        started = time.monotonic()
        limit_seconds = max(0.0, limit_seconds - (started - request.started))
    return replace(
        request,
        run=fold_runs.run_of(request.run, fold).path,
        started=started,
        limit_seconds=limit_seconds,
        backup=_place(request.backup, fold),
        from_url=_place(request.from_url, fold),
        folds=fold.count,
    )


def _place(url: str | None, fold: Fold) -> str | None:
    """Return the place for the copies of a fold; a dataset of Kaggle has a name without folders."""
    if url is None:
        return None
    return f"{url}-fold-{fold.number}" if url.startswith("kaggle://") else f"{url.rstrip('/')}/fold-{fold.number}"


def _train(
    recipe: str | object,
    values: Mapping[str, object],
    request: LaunchRequest,
    fold: Fold,
    in_child: InChild | None,
    launch_run: "Launch | None",
) -> Outcome:
    def work() -> Outcome:
        from shoestring.runs.folds.training import train_fold

        return train_fold(recipe, values, request, fold, *([launch_run] if launch_run else []))

    if in_child is None:
        return work()
    assert isinstance(recipe, str)
    command = resume_command(recipe, request.run, request.on, allow_cpu=request.allow_cpu, folds=request.folds)
    try:
        return train_supervised(
            lambda: in_child(work),
            request.run,
            on=request.on,
            limit_seconds=request.limit_seconds,
            started=request.started,
            resume_command=command,
        )
    except SystemExit as exit_:
        if exit_.code:
            raise  # the child has printed its error
        return _state(request.run.parent, fold).outcome()


def _predict(
    recipe: str | object,
    values: Mapping[str, object],
    request: LaunchRequest,
    folds: list[Fold],
    in_child: InChild | None,
) -> tuple[str | None, tuple[str, ...], str]:
    """Write the out-of-fold predictions, and return their file, notes, and why they are not complete, if so."""

    def work() -> str:
        from shoestring.runs.folds.out_of_fold import write_out_of_fold

        return write_out_of_fold(recipe, values, request, folds)

    file = request.run / fold_runs.OUT_OF_FOLD
    reason = work() if in_child is None else _predict_in_child(lambda: in_child(work), request)
    if reason:
        return None, (), reason
    if not file.exists():
        return None, ("no out-of-fold predictions: the recipe has no predict(model, batch)",), ""
    return str(file), (), ""


def _predict_in_child(work: Callable[[], int], request: LaunchRequest) -> str:
    limit = request.limit_seconds
    kill_at = None if limit is None else request.started + limit - seconds_to_end(limit)
    end = supervise(work, kill_at)
    if end.at_limit:
        assert limit is not None
        return f"{Deadline(limit).limit_text()}: the out-of-fold predictions are not complete"
    if end.by_request:
        signal.signal(end.by_request, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        os.kill(os.getpid(), end.by_request)
    if end.status > 0:
        raise SystemExit(end.status)  # the child has printed its error
    if end.status < 0:
        raise RunError(
            f"the process of the out-of-fold predictions was ended by {signal.Signals(-end.status).name}",
            hint="repeat the command",
        )
    return "" if (request.run / fold_runs.META).exists() else "the out-of-fold predictions are not complete"
