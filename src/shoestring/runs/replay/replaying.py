"""The session of a replay: the steps of training up to the update, the update while it is watched, and the answer."""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import RunError, UsageError
from shoestring.base.failures import describe
from shoestring.base.settings import Settings
from shoestring.runs.replay.debugging import Debugged, LeftDebuggerError
from shoestring.runs.replay.replayed import Replay, describe_sample, summarize
from shoestring.training.run_directory.directory import RunDirectory

if TYPE_CHECKING:
    from shoestring.integrations.observing import TrainerObservation
    from shoestring.training.checkpoint.store import Restored
    from shoestring.training.engine.observation import Observation
    from shoestring.training.recorded_sizes import RecordedSizes
    from shoestring.training.request import SessionRequest
    from shoestring.training.training_session import TrainingSession


class Replaying:
    """The replay of update number `update` of a run."""

    def __init__(self, run: RunDirectory, update: int, sizes: "RecordedSizes", restored: "Restored | None") -> None:
        self._run, self._update, self._sizes, self._restored = run, update, sizes, restored
        self._first = restored.update if restored else 0
        self._started_at = time.monotonic()
        self._notes: list[str] = []

    def result(self, request: "SessionRequest") -> Replay:
        """Make the updates from the checkpoint on, and return what the last one showed."""
        from shoestring.training.preprocessing import load_preprocessing
        from shoestring.training.setup import build_session, load_data

        load_preprocessing(self._run, request.recipe.parts)
        with ExitStack() as stack:
            record = stack.enter_context(_record(request))
            request, data, _ = load_data(request, record)
            library, watcher, samples = None, None, data["train"]
            if request.recipe.parts.learning.trainer:
                from shoestring.integrations.library import LibraryUpdates
                from shoestring.integrations.observing import TrainerObservation, recording

                library = LibraryUpdates()
                stack.callback(library.close)
                request = replace(request, settings=self._library_settings(request.settings))
                samples = recording(samples)
                watcher = TrainerObservation(self._update, samples)
            make_saver = self._make_saver(request, record)
            session = build_session(request, record, {"train": samples}, self._restored, make_saver, library)
            self._announce(session)
            stack.enter_context(record.progress)
            stack.enter_context(session.saver)
            if watcher is None:
                return self._by_engine(session, samples)
            session = replace(session, is_discarded=True, watch_trainer=watcher.watch)
            return self._by_library(session, library, watcher, data["train"])

    def _by_engine(self, session: "TrainingSession", samples: Any) -> Replay:
        from shoestring.training import steps
        from shoestring.training.engine.observation import Observation
        from shoestring.training.replay_meter import ReplayMeter

        assert session.updates is not None
        state, stop, number = session.updates.state, session.request.stop, self._update - 1
        if self._update > state.total_updates:
            raise UsageError(f"--update {self._update}: the run has only {state.total_updates} updates")
        scaler, loader = state.mixed_precision.scaler, session.updates.loader
        compiled = session.request.settings.compile == "yes"
        observation = Observation(
            state.model,
            parts=lambda micro_batch: loader.parts(number, micro_batch),
            loss_scale=lambda: scaler.get_scale() if scaler else None,
            watches_modules=not compiled,
        )
        if compiled:
            self._notes.append("the outputs of modules are not shown, because compile=yes compiles them")
        meter = ReplayMeter(session.record.progress)
        session = replace(session, updates=replace(session.updates, meter=meter), reports=meter)
        assert session.updates is not None
        watched = replace(session, updates=replace(session.updates, observation=observation))
        error = ""
        with loader:
            while state.update < self._update:
                stop.check()
                self._use_recorded_size(session)
                if state.update < number:
                    steps.one_update(session)
                else:
                    error = self._watch(watched, observation, steps.one_update)
                    if error:
                        break
        if meter.not_finite:
            self._notes.append(f"the losses of these earlier updates are not finite: {meter.not_finite}")
        result = meter.result
        return self._summary(
            session,
            observation,
            samples,
            error=error,
            loss=float(result.loss) if result and not error else None,
            stepped=bool(result and result.stepped and not error),
            epoch=number // state.updates_per_epoch + 1,
            learning_rate=float(state.optimizer.param_groups[0]["lr"]),
        )

    def _by_library(
        self, session: "TrainingSession", library: Any, watcher: "TrainerObservation", samples: Any
    ) -> Replay:
        error = self._watch(session, None, library.run)
        observation = watcher.observation
        if observation is None or not (watcher.is_made or error):
            if error:
                raise RunError(f"before update {self._update}: {error}")
            raise UsageError(f"--update {self._update}: the run ends before this update")
        losses = [microbatch.loss for microbatch in observation.attempts[-1].microbatches]
        return self._summary(
            session,
            observation,
            samples,
            error=error,
            loss=fmean(losses) if losses and not error else None,
            stepped=watcher.is_made,
            epoch=session.state.epochs_done + (not session.state.at_epoch_end),
            learning_rate=watcher.learning_rate,
        )

    def _watch(self, session: "TrainingSession", observation: "Observation | None", make: Any) -> str:
        """Make the update, and return why it failed; empty if it did not."""
        recipe = session.request.recipe.recipe
        if isinstance(recipe, Debugged):
            recipe.is_armed = True
        try:
            make(session)
        except LeftDebuggerError:
            raise
        except Exception as error:
            if observation and not observation.attempts:
                raise
            failure = error if isinstance(error, RunError) else describe(error)
            return "\n".join(failure.lines()[: 1 + len(failure.problems)])
        if observation and observation.attempts:
            observation.weights()
        return ""

    def _summary(
        self, session: "TrainingSession", observation: "Observation", samples: Any, *, error: str, **facts: Any
    ) -> Replay:
        from shoestring.training.checkpoint.earlier import saved_weights_digest, weights_digest
        from shoestring.training.checkpoint.names import update_name
        from shoestring.training.engine.environment import device_name

        request = session.request
        saved = saved_weights_digest(self._run.checkpoints / update_name(self._update))
        digest = None if error else weights_digest(session.state.pack()["model"])
        summary = summarize(observation)
        indices = summary.pop("samples")
        if session.updates:  # in the order of the update, as in failed/update-N.json
            indices = tuple(session.updates.order.indices(self._update - 1))
        return Replay(
            recipe=request.recipe.name,
            update=self._update,
            from_checkpoint=self._first,
            repeated_updates=self._update - 1 - self._first,
            device=device_name(request.device),
            precision=str(request.settings.precision),
            clip_norm=self._clip_norm(session),
            samples=indices,
            sample_descriptions=tuple(describe_sample(request.recipe.parts, samples, index) for index in indices),
            weights_sha256=digest,
            equals_checkpoint=digest == saved if digest and saved else None,
            error=error,
            seconds=time.monotonic() - self._started_at,
            notes=tuple(self._notes),
            **summary,
            **facts,
        )

    def _clip_norm(self, session: "TrainingSession") -> float | None:
        from shoestring.recipe.losses import clip_norm, loss_at

        if not session.updates:
            return None
        recipe, updates = session.request.recipe, session.updates
        updates_per_epoch, total_updates = updates.order.updates_per_epoch, updates.state.total_updates
        return clip_norm(recipe.parts, loss_at(recipe.recipe, self._update - 1, updates_per_epoch, total_updates))

    def _make_saver(self, request: "SessionRequest", record: Any) -> Any:
        from shoestring.training.replay_saver import ReplaySaver

        def make_saver(environment: dict[str, Any], _: Any = None) -> ReplaySaver:
            return ReplaySaver(request, record, environment, self._restored, self._notes)

        return make_saver

    def _announce(self, session: "TrainingSession") -> None:
        """Say on stderr how many updates are made again, and from where."""
        progress, repeated = session.record.progress, self._update - 1 - self._first
        progress.expect(self._update)
        source = f"the checkpoint of update {self._first}" if self._restored else "the seed, without a checkpoint"
        repetition = f", after {repeated} updates that are made again" if repeated else ""
        progress.message(f"replaying update {self._update} from {source}{repetition}; the run is not changed")

    def _use_recorded_size(self, session: "TrainingSession") -> None:
        state = session.state
        recorded = self._sizes.micro_batch(state.update)
        if recorded and recorded < state.sizes.micro_batch:
            state.sizes = replace(state.sizes, micro_batch=recorded)

    def _library_settings(self, settings: Settings) -> Settings:
        """Return the settings with the recorded microbatch: a trainer is made with it."""
        recorded = self._sizes.micro_batch(self._update - 1)
        return settings.replace(micro_batch=min(recorded or math.inf, settings.micro_batch or 1))


@contextmanager
def _record(request: "SessionRequest") -> Iterator[Any]:
    """Return a record in the temporary directory, in which errors are not recorded."""
    from shoestring.training.record import Record

    record = Record(request.run, request.loaded, request.stop.deadline, target=request.target)
    try:
        yield record
    finally:
        record.__exit__(None, None, None)
