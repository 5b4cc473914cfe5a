"""What a session begins with: data, state and everything around them, restored from the newest checkpoint."""

from typing import Any

import torch

from shoestring.checkpoint import light
from shoestring.checkpoint.store import Store
from shoestring.checkpoint.trained import frozen_digest
from shoestring.data import inputs
from shoestring.data.loading import Loader
from shoestring.data.order import DataOrder
from shoestring.engine import autotuning, precision
from shoestring.engine.environment import device_name, environment
from shoestring.engine.memory import with_room
from shoestring.engine.state import TrainingState, build, trains_batch_norm
from shoestring.errors import RunError
from shoestring.recipe.contract import part
from shoestring.recipe.options import LoadedRecipe
from shoestring.session.directory import RunDirectory
from shoestring.session.stop import Stop
from shoestring.settings import Settings
from shoestring.train import room
from shoestring.train.failure import not_finite
from shoestring.train.meter import Meter
from shoestring.train.record import Record
from shoestring.train.saving import Saver
from shoestring.train.steps import Session


def begin(
    loaded: LoadedRecipe,
    settings: Settings,
    run: RunDirectory,
    record: Record,
    *,
    device: torch.device,
    stop: Stop,
    disk_bytes: int | None,
    allow_inexact: bool,
) -> Session:
    """The session with its state where the run left it; the arguments are those of `loop.train`.

    Raises SessionOver where time is up before the data is there, ShoestringError where the run cannot go on.
    """
    with stop.at_once():
        loaded, staged = inputs.staged(loaded, settings.stage, disk_bytes=disk_bytes, say=record.progress.message)
        data = loaded.data()
        here = environment(settings, device, loaded)
        state = build(loaded, settings, device)
    order = DataOrder.of(data["train"], effective_batch=loaded.effective_batch, seed=loaded.seed)
    here["data order"] = order.key
    here["frozen weights"] = frozen_digest(state.model)
    record.expect(loaded.epochs * order.updates_per_epoch)
    store = Store(
        run.checkpoints,
        keep=settings.keep_checkpoints,
        limit_bytes=disk_bytes,
        expendable=lambda: light.of_updates(run.light),
        on_damaged=record.damaged,
    )

    def without_finite_numbers(update: int, what: str, value: float) -> RunError:
        return _not_finite(run, order, settings, saver, update, what, value)

    saver = Saver(store, settings, record, stop.deadline, here, not_finite=without_finite_numbers)
    loader = Loader(loaded.recipe, data["train"], order, seed=loaded.seed, device=device, workers=settings.workers)
    meter = Meter(
        record.events,
        record.progress,
        stop.deadline,
        not_finite=without_finite_numbers,
        in_a_row=precision.IN_A_ROW[state.arithmetic.name],
        loader=loader,
        note=record.note,
    )
    session = Session(
        loaded=loaded,
        run=run,
        data=data,
        order=order,
        loader=loader,
        device=device,
        stop=stop,
        record=record,
        state=state,
        saver=saver,
        meter=meter,
        training=room.recovering_update(state, loaded.recipe, run, device, record),
        evaluating=room.recovering_evaluation(state, record),
        allow_inexact=allow_inexact,
        keep_light=settings.keep_light,
        light_weights=settings.light_weights,
    )
    restored = saver.restore(state, allow_inexact=allow_inexact)
    room.apply(state, loaded.recipe)
    in_force = settings.replace(micro_batch=state.fit.micro_batch)
    record.started(state.update, device=device_name(device), settings=in_force)
    if not restored:
        # Before the first update: a disk that cannot hold a checkpoint is found out now, not in an hour.
        with_room(lambda: saver.save(state), "a checkpoint")
    for note in (*staged, *_notes(loaded, settings, state, device)):
        record.note(note)
    return session


def _notes(loaded: LoadedRecipe, settings: Settings, state: TrainingState, device: torch.device) -> list[str]:
    """What a person should know of these data, this model and these settings."""
    micro_batch, notes = state.fit.micro_batch, list(part(loaded.recipe, "notes", list)())
    if trains_batch_norm(state.model) and micro_batch < loaded.effective_batch:
        notes.append(
            f"BatchNorm takes its statistics from each microbatch of {micro_batch}, not from the "
            f"effective batch of {loaded.effective_batch}: another microbatch would learn a little differently"
        )
    if settings.cudnn_benchmark and not autotuning.autotunes(settings, loaded.recipe):
        notes.append(autotuning.NOTE)
    if said := precision.remark(state.arithmetic.name, device):
        notes.append(said)
    return notes


def _not_finite(
    run: RunDirectory, order: DataOrder, settings: Settings, saver: Saver, update: int, what: str, value: float
) -> RunError:
    """The error for an update without finite numbers, whose samples are kept."""
    facts: dict[str, Any] = {
        "epoch": order.place(update - 1)[0] + 1, "seed": order.seed, "precision": settings.precision
    }  # fmt: skip
    samples = order.indices(update - 1)
    return not_finite(run, update=update, what=what, value=value, samples=samples, good=saver.newest(), facts=facts)
