"""What a session begins with: data, state and everything around them, restored from the newest checkpoint."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from shoestring.checkpoint import fileset, light
from shoestring.checkpoint.store import Store
from shoestring.checkpoint.trained import frozen_digest
from shoestring.data import inputs
from shoestring.data.loading import Loader
from shoestring.data.order import DataOrder
from shoestring.engine import autotuning, precision
from shoestring.engine.environment import environment
from shoestring.engine.state import State, TrainingState, build, trains_batch_norm
from shoestring.errors import RunError
from shoestring.train import oom, steps
from shoestring.train.failure import not_finite
from shoestring.train.meter import Meter
from shoestring.train.record import Record
from shoestring.train.request import SessionRequest
from shoestring.train.saving import Saver
from shoestring.train.session import EngineUpdates, Reports, TrainingSession


class LibraryLoop(Protocol):
    """A library's trainer in the place of the engine's own updates: `integrations/library.py`."""

    @property
    def reports(self) -> Reports:
        """Of the updates that the trainer makes."""

    def build(self, request: SessionRequest, samples: Any, saved: Mapping[str, Any] | None) -> State:
        """The state of a trainer for the training part `samples`, in the sizes of the state that was `saved`."""

    def environment(self) -> dict[str, Any]:
        """What decides the bits besides what `engine.environment` knows."""

    def run(self, session: TrainingSession) -> str:
        """Make all updates, in microbatches that fit, with `steps` between them; returns why training ended.

        Raises SessionOver when it is time to stop.
        """


def setup(request: SessionRequest, record: Record, library: LibraryLoop | None) -> TrainingSession:
    """The session with its state where the run left it; `library` makes the updates in place of the engine.

    Raises SessionOver where time is up before the data is there, ShoestringError where the run cannot go on.
    """
    stop = request.stop
    with stop.at_once():
        loaded, staged = inputs.staged(
            request.recipe, request.settings.stage, disk_bytes=request.disk_bytes, say=record.progress.message
        )
        data = loaded.data()
    request = replace(request, loaded=loaded)
    for folder in (request.run.best, request.run.light):
        with suppress(OSError):  # there is no such folder yet, or the next save there tries again
            fileset.settle(folder)
    store = run_store(request, record)
    restored = store.load()
    if library:
        with stop.at_once():
            state: State = library.build(request, data["train"], restored.state if restored else None)
        saver = run_saver(request, record, store, _environment(request, state) | library.environment())
        session = TrainingSession(
            request=request,
            record=record,
            state=state,
            saver=saver,
            reports=library.reports,
            data=data if loaded.parts.measured or loaded.parts.evaluate else {},
            notes=(*staged, *loaded.parts.notes()),
        )
        saver.restore(state, allow_inexact=request.allow_inexact, restored=restored)
        return session  # it begins when the trainer knows how many updates there are
    with stop.at_once():
        order = DataOrder.of(data["train"], effective_batch=loaded.effective_batch, seed=loaded.seed)
        state = build(loaded, request.settings, request.device, updates_per_epoch=order.updates_per_epoch)
    record.expect(state.total_updates)
    saver = run_saver(request, record, store, _environment(request, state) | {"data order": order.key}, order)
    updates = _engine_updates(request, record, state, saver, order, data["train"])
    saver.restore(state, allow_inexact=request.allow_inexact, restored=restored)
    session = TrainingSession(
        request=request,
        record=record,
        state=state,
        saver=saver,
        reports=updates.meter,
        updates=updates,
        data=data,
        notes=(*staged, *_notes(request, state)),
    )
    steps.begin(session)
    return session


def run_store(request: SessionRequest, record: Record) -> Store:
    """The run's full checkpoints."""
    return Store(
        request.run.checkpoints,
        keep=request.settings.keep_checkpoints,
        limit_bytes=request.disk_bytes,
        expendable=lambda: light.of_updates(request.run.light),
        on_damaged=record.damaged,
    )


def run_saver(
    request: SessionRequest,
    record: Record,
    store: Store,
    environment: dict[str, Any],
    order: DataOrder | None = None,
) -> Saver:
    """What writes and restores the run's checkpoints, which must be restored under the same `environment`.

    The samples of an update that left no finite numbers are known from the `order`.
    """

    def without_finite_numbers(update: int, what: str, value: float) -> RunError:
        return not_finite(request, update=update, what=what, value=value, good=saver.newest(), order=order)

    saver = Saver(
        store, request.settings, record, request.stop.deadline, environment, not_finite=without_finite_numbers
    )
    return saver


def _environment(request: SessionRequest, state: State) -> dict[str, Any]:
    return {
        **environment(request.settings, request.device, request.recipe),
        "frozen weights": frozen_digest(state.model),
    }


def _engine_updates(
    request: SessionRequest, record: Record, state: TrainingState, saver: Saver, order: DataOrder, samples: Any
) -> EngineUpdates:
    loader = Loader(
        request.recipe.recipe,
        samples,
        order,
        seed=order.seed,
        device=request.device,
        workers=request.settings.workers,
    )
    meter = Meter(
        record.events,
        record.progress,
        request.stop.deadline,
        not_finite=saver.not_finite,
        in_a_row=precision.IN_A_ROW[state.mixed_precision.name],
        loader=loader,
        note=record.note,
    )
    recovering = oom.recovering_update(state, request, record)
    return EngineUpdates(state=state, order=order, loader=loader, meter=meter, recovering=recovering)


def _notes(request: SessionRequest, state: TrainingState) -> list[str]:
    """What a person should know of these data, this model and these settings."""
    loaded, settings = request.recipe, request.settings
    micro_batch, notes = state.sizes.micro_batch, list(loaded.parts.notes())
    if trains_batch_norm(state.model) and micro_batch < loaded.effective_batch:
        notes.append(
            f"BatchNorm takes its statistics from each microbatch of {micro_batch}, not from the "
            f"effective batch of {loaded.effective_batch}: another microbatch would learn a little differently"
        )
    if settings.cudnn_benchmark and not autotuning.autotunes(settings, loaded.parts):
        notes.append(autotuning.NOTE)
    if remark := precision.remark(state.mixed_precision.name, request.device):
        notes.append(remark)
    return notes
