"""The training loop.

    restore the newest checkpoint, or find what overflows in fp16, save the first one and compare the loss of a
    microbatch with that of its halves
    until all epochs are done, or early stopping ends training:
        after an epoch: evaluate, save the weights if they are the best
        otherwise: one update
        save a checkpoint when one is due
    evaluate the best weights on the test part

On out-of-memory a step is retried with less memory. A session can stop at any time: it saves a checkpoint, and the next
session resumes from there.

`setup.py` builds the session and `steps.py` contains the steps, in this order, with those that save in `save_steps.py`
and those that evaluate in `evaluation_steps.py`. When a library's trainer makes the updates, its callbacks run the same
steps (`integrations/callback.py`). The components are public and work without this loop: the data order, the update,
the deadline, the checkpoint store (`shoestring.pieces`).
"""

from contextlib import closing, nullcontext
from typing import Literal

from shoestring.base.failures import exits_as_errors
from shoestring.training import steps
from shoestring.training.engine.determinism import deterministic_shards
from shoestring.training.engine.malloc import keeping_freed_memory
from shoestring.training.engine.memory import explaining_out_of_memory
from shoestring.training.evaluation_steps import best_validation
from shoestring.training.library_loop import LibraryLoop
from shoestring.training.record import Record
from shoestring.training.request import SessionRequest
from shoestring.training.save_steps import save_if_due, save_now
from shoestring.training.session.outcome import Outcome
from shoestring.training.session.stop import SessionOver
from shoestring.training.setup import setup
from shoestring.training.split_loss import report_irregularities
from shoestring.training.stored_settings import store_settings_of_result


def train(request: SessionRequest, library: LibraryLoop | None = None) -> Outcome:
    """Train until the run is finished or the session is over.

    `library` makes the updates instead of the engine.

    Raises ShoestringError if the run cannot continue; state.json then has the status "failed" and the reason. Raises
    SessionOver if the session ends before the data is loaded; state.json then has the status "paused".
    """
    with (
        keeping_freed_memory(request.device),
        deterministic_shards(request.shards.count, request.device),
        Record(
            request.run,
            request.loaded,
            request.stop.deadline,
            target=request.target,
            folds=request.folds,
            processes=request.processes,
        ) as record,
        explaining_out_of_memory("training"),
        exits_as_errors(),
        closing(library) if library else nullcontext(),
    ):
        session = setup(request, record, library)
        record.trust_recipe()
        store_settings_of_result(session.request)
        state, updates = session.state, session.updates
        status: Literal["finished", "paused"]
        try:
            with record.progress, session.saver, updates.loader if updates else nullcontext():
                if library:
                    reason = library.run(session)
                else:
                    report_irregularities(session)
                    while not (reason := steps.before_update(session)):
                        steps.one_update(session)
                        save_if_due(session)
                status, metrics = "finished", steps.finish(session)
        except SessionOver as over:
            # If the test evaluation was interrupted, the model already has its best weights, but the state of the last
            # update is saved: `save_now` does nothing then.
            save_now(session)
            status, reason, metrics = "paused", over.reason, best_validation(session)
            if over.error:
                raise over.error from over
        record.trust_recipe()  # the recipe may have imported other files since
        record.session_ended(status, reason, state.update, metrics)
    return Outcome(
        status=status,
        reason=reason,
        update=state.update,
        total_updates=state.total_updates,
        metrics=metrics,
        test_weights=record.test_weights,
    )
