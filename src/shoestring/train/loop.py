"""How training works here, from top to bottom.

    restore the newest checkpoint, or save the first
    until every epoch is done, or patience is:
        after an epoch: evaluate, keep the best weights
        else: one update
        save when it is due
    evaluate the best weights on the test part
    where memory runs out: the same again in smaller pieces
    at any time: stop when asked, saved; go on from there in another session

`begin.py` puts together what it needs and `steps.py` has its steps, in this order. All of it is public and stands
alone: the data order, the update, the deadline, the checkpoint store (`shoestring.pieces`).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from shoestring.engine.determinism import deterministic
from shoestring.recipe.options import LoadedRecipe
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import SessionOver, Stop
from shoestring.settings import Settings
from shoestring.train import steps
from shoestring.train.record import Record
from shoestring.train.setup import begin


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a session ended."""

    status: Literal["finished", "paused"]
    reason: str
    update: int
    total_updates: int
    metrics: dict[str, Any]
    """By part of the data: the best validation metrics so far, and at the end the test metrics."""


def train(
    loaded: LoadedRecipe,
    settings: Settings,
    run: RunDirectory,
    *,
    target: str,
    device: torch.device,
    stop: Stop,
    disk_bytes: int | None = None,
    allow_inexact: bool = False,
) -> Outcome:
    """Train until the run is finished or the session is over.

    `settings` leave nothing open, `disk_bytes` is what the platform lets the run's directory have, and the caller
    holds the run's lock.

    Raises ShoestringError where the run cannot go on; state.json then says that it failed and why. Raises SessionOver
    where the session ends before the data is there; state.json then says that it is paused.
    """
    with deterministic(), Record(run, loaded, stop.deadline, target=target) as record:
        session = begin(
            loaded, settings, run, record, device=device, stop=stop, disk_bytes=disk_bytes, allow_inexact=allow_inexact
        )
        state, saver = session.state, session.saver
        status: Literal["finished", "paused"]
        try:
            with record.progress, saver, session.loader:
                while not (reason := steps.why_ended(session)):
                    stop.check()
                    if steps.epoch_ended(session):
                        steps.evaluate_epoch(session)
                    else:
                        steps.one_update(session)
                    if saver.due(state.update):
                        steps.save_meanwhile(session)
                steps.save_now(session)
                status, metrics = "finished", steps.finish(session)
        except SessionOver as over:
            # Where the test was cut short, the model has its best weights already, but the state was saved before.
            steps.save_now(session)
            status, reason, metrics = "paused", over.reason, steps.best_validation(session)
            if over.error:
                raise over.error from over
        record.ended(status, reason, state.update, metrics)
    return Outcome(
        status=status, reason=reason, update=state.update, total_updates=session.total_updates, metrics=metrics
    )
