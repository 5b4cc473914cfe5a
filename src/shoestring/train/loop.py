"""How training works here, from top to bottom.

    restore the newest checkpoint, or save the first
    until every epoch is done, or patience is:
        after an epoch: evaluate, keep the best weights
        else: one update
        save when it is due
    evaluate the best weights on the test part
    where memory runs out: the same again in smaller pieces
    at any time: stop when asked, saved; go on from there in another session

`setup.py` puts together what it needs and `steps.py` has its steps, in this order. Where a library's trainer makes the
updates, its callbacks take the same steps (`integrations/callback.py`). All of it is public and stands alone: the data
order, the update, the deadline, the checkpoint store (`shoestring.pieces`).
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from shoestring.engine.determinism import deterministic
from shoestring.session.stop import SessionOver
from shoestring.train import steps
from shoestring.train.record import Record
from shoestring.train.request import SessionRequest
from shoestring.train.setup import LibraryLoop, setup


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a session ended."""

    status: Literal["finished", "paused"]
    reason: str
    update: int
    total_updates: int
    metrics: dict[str, Any]
    """By part of the data: the best validation metrics so far, and at the end the test metrics."""


def train(request: SessionRequest, library: LibraryLoop | None = None) -> Outcome:
    """Train until the run is finished or the session is over; `library` makes the updates in place of the engine.

    Raises ShoestringError where the run cannot go on; state.json then says that it failed and why. Raises SessionOver
    where the session ends before the data is there; state.json then says that it is paused.
    """
    with (
        deterministic(),
        Record(request.run, request.loaded, request.stop.deadline, target=request.target) as record,
    ):
        session = setup(request, record, library)
        state, updates = session.state, session.updates
        status: Literal["finished", "paused"]
        try:
            with record.progress, session.saver, updates.loader if updates else nullcontext():
                if library:
                    reason = library.run(session)
                else:
                    while not (reason := steps.before_update(session)):
                        steps.one_update(session)
                        steps.save_if_due(session)
                steps.save_now(session)
                status, metrics = "finished", steps.finish(session)
        except SessionOver as over:
            # If the test was cut short, the model has its best weights already, but the state was saved before.
            steps.save_now(session)
            status, reason, metrics = "paused", over.reason, steps.best_validation(session)
            if over.error:
                raise over.error from over
        record.ended(status, reason, state.update, metrics)
    return Outcome(
        status=status, reason=reason, update=state.update, total_updates=state.total_updates, metrics=metrics
    )
