"""The checkpoints of a run as a session opens them: the store, the newest one, and what saves the next."""

from contextlib import suppress
from typing import Any

from shoestring.base.errors import CheckpointError, RunError
from shoestring.base.run_limits import KEEP_CHECKPOINTS
from shoestring.base.units import count_text
from shoestring.training.checkpoint import fileset, light
from shoestring.training.checkpoint.store import Restored, Store
from shoestring.training.data.order import DataOrder
from shoestring.training.engine.memory import explaining_out_of_memory
from shoestring.training.non_finite import non_finite_error
from shoestring.training.processes.one_process import Processes
from shoestring.training.processes.steps import in_turn
from shoestring.training.record import Record
from shoestring.training.request import SessionRequest
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.saving import Saver


@in_turn
def open_store(request: SessionRequest, record: Record, writers: Processes) -> tuple[Store, Restored | None]:
    """Return the store of the run's checkpoints, which `writers` save, and the newest of them.

    The first process completes or removes what a kill has interrupted.
    """
    if request.processes.is_first:
        _complete_weights(request.run)
        light.remove_leftovers(request.run.light)
    store = _run_store(request, record, writers)
    with explaining_out_of_memory("loading the checkpoint"):
        return store, _load_newest(store, record)


def _complete_weights(run: RunDirectory) -> None:
    """Complete the replacement of the best and the final weights if a kill has interrupted it."""
    for folder in (run.best, run.light):
        with suppress(OSError):  # the folder does not exist yet, or the next save there tries again
            fileset.complete_replacement(folder)


def _load_newest(store: Store, record: Record) -> Restored | None:
    """Return the newest valid checkpoint, None if the run has not written any.

    Raises CheckpointError if the run has made updates, but has no checkpoint: it would silently start again.
    """
    restored = store.load()
    if restored is None and record.update:
        raise CheckpointError(
            f"the run has made {count_text(record.update)} updates, but {store.root} has no checkpoint",
            problems=["the checkpoints were deleted or moved, or the run was copied without them"],
            hint=f"put them back into {store.root}; to start again from update 0, give another --run",
        )
    return restored


def _run_store(request: SessionRequest, record: Record, writers: Processes) -> Store:
    """Return the store of the run's full checkpoints."""
    store = writers.store(
        request.run.checkpoints,
        keep=request.settings.keep_checkpoints or KEEP_CHECKPOINTS,
        limit_bytes=request.disk_bytes,
        expendable=lambda: light.list_weights_folders(request.run.light),
        on_damaged=record.damaged,
        run=request.identity,
    )
    request.stop.signals.describe_loss = lambda: f"updates after {store.newest_verified() or 'the start'} are lost"
    return store


def run_saver(
    request: SessionRequest,
    record: Record,
    store: Store,
    environment: dict[str, Any],
    order: DataOrder | None = None,
    *,
    writers: Processes,
) -> Saver:
    """Return the saver of the run's checkpoints, which can only be restored with an equal `environment`.

    With the `order`, the error for an update that is not finite names the update's samples.
    """

    def make_error(update: int, quantity: str, value: float) -> RunError:
        last_good = saver.newest()
        return non_finite_error(
            request, update=update, quantity=quantity, value=value, last_good=last_good, order=order
        )

    saver = Saver(
        store,
        request.settings,
        record,
        request.stop.deadline,
        environment,
        non_finite_error=make_error,
        processes=writers,
    )
    return saver
