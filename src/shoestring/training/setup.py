"""Building a session: its data, its state restored from the newest checkpoint, and everything around them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoestring.techniques.streaming.stream import stream_of
from shoestring.training import oom, steps
from shoestring.training.checkpoint.store import Restored
from shoestring.training.checkpoint.trained import frozen_digest
from shoestring.training.data import inputs
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.data.seeded import seeded_data
from shoestring.training.engine import precision
from shoestring.training.engine.assembly import strategy
from shoestring.training.engine.block_order import CheckedBlockOrder
from shoestring.training.engine.building import build
from shoestring.training.engine.environment import environment, kernel_facts
from shoestring.training.engine.memory import explaining_out_of_memory
from shoestring.training.engine.parallel.default_group import without_default_group
from shoestring.training.engine.parallel.updates import ShardedUpdates
from shoestring.training.engine.recovery import OutOfMemory
from shoestring.training.engine.state import State, TrainingState
from shoestring.training.fp16_overflow import mend_overflow
from shoestring.training.library_loop import LibraryLoop
from shoestring.training.memory_kill import find_memory_kill
from shoestring.training.meter import Meter
from shoestring.training.monitor.events import read
from shoestring.training.monitor.host_memory import host_memory
from shoestring.training.preprocessing import load_preprocessing, save_preprocessing
from shoestring.training.processes.steps import in_turn
from shoestring.training.record import Record
from shoestring.training.request import SessionRequest
from shoestring.training.run_store import open_store, run_saver
from shoestring.training.same_data import require_same_data
from shoestring.training.saving import Saver
from shoestring.training.session_notes import data_notes, engine_notes
from shoestring.training.training_session import EngineUpdates, TrainingSession


def setup(request: SessionRequest, record: Record, library: LibraryLoop | None) -> TrainingSession:
    """Build the session, with its state restored from the run's newest checkpoint.

    `library` makes the updates instead of the engine.

    Raises SessionOver if the session ends before the data is loaded, ShoestringError if the run cannot continue.
    """
    request, data, staging_notes = _load(request, record)
    require_same_data(request.processes, request.recipe, data, request.settings.workers)
    writers = request.processes.with_writers()
    store, restored = open_store(request, record, writers)
    make_saver = partial(run_saver, request, record, store, writers=writers)
    stored = request.run.plan()
    notes = (*(stored.notes if stored else ()), *staging_notes)
    session = build_session(request, record, data, restored, make_saver, library, notes)
    if restored is None:
        session = mend_overflow(
            session, lambda: build_session(request, record, data, restored, make_saver, library, notes)
        )
    if session.updates:  # those of a library begin when its trainer knows the number of updates
        steps.begin(session)
    return session


@in_turn
@without_default_group()  # the recipe's data() must not communicate
def _load(request: SessionRequest, record: Record) -> tuple[SessionRequest, dict[str, Any], list[str]]:
    """Return what `load_data` does. The first process stores the preprocessing, which the others then load."""
    request, data, notes = load_data(request, record)
    if request.processes.is_first:
        save_preprocessing(request.run, request.recipe.parts, request.identity)
    return request, data, notes


def load_data(request: SessionRequest, record: Record) -> tuple[SessionRequest, dict[str, Any], list[str]]:
    """Return the request with the staged copies of the inputs, the data by part, and notes on the inputs.

    Raises SessionOver if the session ends before the data is loaded.
    """
    with request.stop.interrupting(), explaining_out_of_memory("loading the data, data()"):
        loaded, notes = inputs.stage_inputs(
            request.recipe, request.settings.stage, disk_bytes=request.disk_bytes, report=record.progress.message
        )
        load_preprocessing(request.run, loaded.parts)
        return replace(request, loaded=loaded), seeded_data(loaded), notes


def build_session(
    request: SessionRequest,
    record: Record,
    data: dict[str, Any],
    restored: Restored | None,
    make_saver: Callable[..., Saver],
    library: LibraryLoop | None,
    notes: Sequence[str] = (),
) -> TrainingSession:
    """Build the session, with the state of the checkpoint `restored`, if given. It has not begun.

    `make_saver` is called with the environment of the run and, if the engine makes the updates, with their order.
    `notes` on the plan and the inputs precede those of the session.
    """
    stop, loaded = request.stop, request.recipe
    if library:
        with stop.interrupting(), explaining_out_of_memory("building the trainer, trainer()"):
            state: State = library.build(request, data["train"], restored.state if restored else None)
        saver = make_saver(_environment(request, state) | library.environment())
        saver.restore(state, allow_inexact=request.allow_inexact, restored=restored)
        after_kill, kill_notes = _shrink_after_kill(request, record, state)
        if after_kill:
            state.release()
            state.resize(state.sizes)
            saver.restore(state, allow_inexact=request.allow_inexact)
        return TrainingSession(
            request=request,
            record=record,
            state=state,
            saver=saver,
            reports=library.reports,
            data=data if loaded.parts.evaluation.measured or loaded.parts.evaluation.evaluate else {},
            after_kill=after_kill,
            notes=(
                *kill_notes,
                *notes,
                *loaded.parts.data.notes(),
                *data_notes(loaded, data),
            ),
        )
    with stop.interrupting():
        order = DataOrder.of(data["train"], effective_batch=loaded.effective_batch, seed=loaded.seed)
        state = build(
            loaded,
            request.settings,
            request.device,
            updates_per_epoch=order.updates_per_epoch,
            ranks=request.ranks,
        )
    if state.schedulers:
        state.schedulers.require_steps(state.total_updates)
    record.expect(state.total_updates)
    saver = make_saver(_environment(request, state) | {"data order": order.key}, order)
    updates = _engine_updates(request, record, state, saver, order, data["train"])
    saver.restore(state, allow_inexact=request.allow_inexact, restored=restored)
    stored_sizes = state.sizes
    after_kill, kill_notes = _shrink_after_kill(request, record, state)
    return TrainingSession(
        request=request,
        record=record,
        state=state,
        saver=saver,
        reports=updates.meter,
        updates=updates,
        data=data,
        after_kill=after_kill,
        is_smaller=after_kill is None and state.sizes != stored_sizes,
        notes=(
            *kill_notes,
            *notes,
            *engine_notes(request, state),
            *data_notes(loaded, data),
        ),
    )


def _shrink_after_kill(
    request: SessionRequest, record: Record, state: State
) -> tuple[OutOfMemory | None, tuple[str, ...]]:
    """Set half the microbatch in the sizes of `state` if the kernel ended the session before for lack of memory.

    Returns the event and the notes for the user, if there are any.
    """
    earlier = [event for event in read(request.run.events_file) if event["session"] < record.events.session]
    if sizes := oom.restarted_sizes(earlier):
        state.resize(state.sizes.resumed(sizes, whole_batch=request.recipe.parts.learning.whole_batch))
        note = f"the session before ran out of memory; this one begins with microbatch {state.sizes.micro_batch}"
        return None, (note,)
    kill = find_memory_kill(earlier, host_memory())
    if kill is None:
        return None, ()
    event = kill.shrunk(state)
    return event, (kill.note(state),)


def _environment(request: SessionRequest, state: State) -> dict[str, Any]:
    return {
        **environment(request.settings, request.device, request.recipe, sharding=request.processes.sharding),
        # None for one shard, as in a checkpoint from before the setting existed.
        "logical_shards": request.shards.count if request.shards.count > 1 else None,
        "frozen weights": frozen_digest(state.model),
        **kernel_facts(request.device, state.model, offload=request.settings.offload),
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
        shards=request.shards,
        packing=request.settings.packing == "yes",
        memory_format=request.settings.memory_format,
    )
    block_order = None
    if request.settings.stream_order == "block":
        block_order = CheckedBlockOrder(
            state.model, partial(stream_of, state.model), record.note, lambda: state.sizes.stream_group
        )
    updates = strategy(
        state, request.shards, request.ranks, request.device, seed=request.recipe.seed, block_order=block_order
    )
    times = None
    if isinstance(updates, ShardedUpdates):
        updates.times.input_seconds = lambda: loader.waiting_seconds
        times = updates.times if request.ranks.size > 1 else None
    meter = Meter(
        record.events,
        record.progress,
        request.stop.deadline,
        non_finite_error=saver.non_finite_error,
        non_finite_limit=precision.NON_FINITE_LIMIT[state.mixed_precision.name],
        loader=loader,
        times=times,
        note=record.note,
    )
    recovering = oom.recovering_update(state, request, record, block_order)
    return EngineUpdates(state=state, order=order, loader=loader, meter=meter, recovering=recovering, strategy=updates)
