"""Making one update of a run again, to the bit, and watching it. The run's directory is only read.

The state comes from the nearest checkpoint before the update, or from the seed; the updates in between are made by the
steps of training. What these record goes to a temporary directory.
"""

import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from shoestring.errors import RunError, UsageError
from shoestring.failures import describe, exits_as_errors
from shoestring.hardware import targets
from shoestring.runs.debugging import Debugged, LeftDebuggerError
from shoestring.runs.replayed import Replay, describe_sample, summarize
from shoestring.runs.saved_model import reopen_run
from shoestring.session.directory import RunDirectory
from shoestring.settings import Settings

if TYPE_CHECKING:
    from shoestring.checkpoint.store import Restored
    from shoestring.engine.observation import Observation
    from shoestring.integrations.observing import TrainerObservation
    from shoestring.train.recorded_sizes import RecordedSizes
    from shoestring.train.session import TrainingSession

_SAVED_SETTINGS = (
    *("micro_batch", "precision", "checkpointing", "optimizer_kernel", "offload", "compile", "cudnn_benchmark"),
)
"""The settings in the environment of a checkpoint: a later session may have had others than the plan."""


def replay(
    location: Path,
    update: int,
    values: Mapping[str, object],
    *,
    recipe: str | object | None = None,
    on: str = "local",
    debug: bool = False,
) -> Replay:
    """Implement `shoestring.replay`, with options and settings in `values`."""
    run = _find_run(location, update, on)
    loaded, settings, _, run_notes = reopen_run(run, recipe, values)
    if debug and loaded.parts.trainer:
        raise UsageError(
            f"the loss of {loaded.name} is computed by a library's trainer, so there is no loss() to stop in",
            hint="call breakpoint() in the code that the trainer calls, for example in a reward, and leave out --break",
        )

    import torch

    from shoestring.checkpoint.earlier import read_earlier
    from shoestring.engine.determinism import deterministic
    from shoestring.monitor.events import read
    from shoestring.session.stop import SessionOver, session
    from shoestring.train.recorded_sizes import RecordedSizes
    from shoestring.train.request import SessionRequest

    restored, damage = read_earlier(run.checkpoints, update - 1)
    settings = _settings_of(restored, settings, values).replace(workers=0, stage="no")
    settings = settings.replace(
        micro_batch=settings.micro_batch or loaded.effective_batch, precision=settings.precision or "fp32"
    )
    target = targets.find(on)
    sizes = RecordedSizes(read(run.events_file))
    if debug:
        loaded = replace(loaded, recipe=Debugged(loaded.recipe))
    try:
        with (
            session() as stop,
            tempfile.TemporaryDirectory(prefix="shoestring-replay-") as folder,
            deterministic(),
            exits_as_errors(),
        ):
            stop.signals.describe_loss = lambda: "the run is unchanged"
            request = SessionRequest(
                loaded=loaded,
                settings=settings,
                run=RunDirectory(Path(folder)),
                target=on,
                device=torch.device(target.device.kind),
                stop=stop,
                allow_inexact=True,
            )
            result = _Replaying(run, update, sizes, restored).result(request)
    except SessionOver as over:
        raise RunError(f"not replayed: {over.reason}", hint="the run is unchanged; repeat the command") from over
    damage_notes = [f"a damaged checkpoint was skipped: {text}" for text in damage]
    return replace(result, notes=(*run_notes, *damage_notes, *result.notes))


def _find_run(location: Path, update: int, on: str) -> RunDirectory:
    """Return the run in the directory `location`. Raises UsageError if it cannot have made the update."""
    run = RunDirectory(location.absolute())
    if on not in targets.PROBED:
        raise UsageError(f"an update can only be replayed on this machine, not on {on}", hint="use local or cpu")
    if not run.plan_file.exists():
        raise UsageError(f"{location} is not the directory of a run", hint="for example: shoestring replay runs/NAME")
    run.refuse_links()
    plan, state = run.plan(), run.state()
    assert plan is not None
    if plan.settings is not None and plan.reference is None:
        raise UsageError(
            f"the updates of the run in {location} are made by the trainer of a script, which alone can build it",
            hint="to replay updates, write a recipe with trainer(): see docs/recipes.md",
        )
    total = state.total_updates if state else 0
    if update < 1 or (total and update > total):
        last = f" to {total}" if total else ""
        raise UsageError(f"--update {update}: the updates of the run in {location} are counted from 1{last}")
    return run


def _settings_of(restored: "Restored | None", settings: Settings, values: Mapping[str, object]) -> Settings:
    """Return the settings with those that the checkpoint was saved with, unless `values` has others."""
    saved = restored.state.get("environment") if restored else None
    if not isinstance(saved, dict):
        return settings
    own = {name: value if value not in ("no", False) else None for name, value in settings.json().items()}
    changed = [name for name in _SAVED_SETTINGS if name not in values and saved.get(name) != own[name]]
    defaults = Settings().json()
    changes = {name: defaults[name] if saved.get(name) is None else saved[name] for name in changed}
    return Settings.from_json({**settings.json(), **changes})


class _Replaying:
    """The replay of update number `update` of a run."""

    def __init__(self, run: RunDirectory, update: int, sizes: "RecordedSizes", restored: "Restored | None") -> None:
        self._run, self._update, self._sizes, self._restored = run, update, sizes, restored
        self._first = restored.update if restored else 0
        self._started_at = time.monotonic()
        self._notes: list[str] = []

    def result(self, request: Any) -> Replay:
        """Make the updates from the checkpoint on, and return what the last one showed."""
        from shoestring.train.setup import build_session, load_data

        with ExitStack() as stack:
            record = stack.enter_context(_record(request))
            request, data, _ = load_data(request, record)
            library, watcher, samples = None, None, data["train"]
            if request.recipe.parts.trainer:
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
            return self._by_library(replace(session, watch_trainer=watcher.watch), library, watcher, data["train"])

    def _by_engine(self, session: "TrainingSession", samples: Any) -> Replay:
        from shoestring.engine.observation import Observation
        from shoestring.train import steps
        from shoestring.train.replay_meter import ReplayMeter

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
        except Exception as error:  # noqa: BLE001  (a failure is what a replay shows)
            described = error if isinstance(error, RunError) else describe(error)
            return "\n".join(described.lines()[: 1 + len(described.problems)])
        if observation and observation.attempts:
            observation.weights()
        return ""

    def _summary(
        self, session: "TrainingSession", observation: "Observation", samples: Any, *, error: str, **facts: Any
    ) -> Replay:
        from shoestring.checkpoint.earlier import saved_weights_digest, weights_digest
        from shoestring.checkpoint.names import update_name
        from shoestring.checkpoint.trained import trained_state
        from shoestring.engine.environment import device_name

        request = session.request
        saved = saved_weights_digest(self._run.checkpoints / update_name(self._update))
        digest = None if error else weights_digest(trained_state(session.state.model))
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
            clip_norm=request.recipe.parts.clip_norm if session.updates else None,
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

    def _make_saver(self, request: Any, record: Any) -> Any:
        from shoestring.train.replay_saver import ReplaySaver

        def make_saver(environment: dict[str, Any], _: Any = None) -> ReplaySaver:
            return ReplaySaver(request, record, environment, self._restored, self._notes)

        return make_saver

    def _announce(self, session: "TrainingSession") -> None:
        """Say on stderr how many updates are made again, and from where."""
        progress, repeated = session.record.progress, self._update - 1 - self._first
        progress.expect(self._update)
        source = f"the checkpoint of update {self._first}" if self._restored else "the seed, without a checkpoint"
        again = f", after {repeated} updates that are made again" if repeated else ""
        progress.message(f"replaying update {self._update} from {source}{again}; the run is not changed")

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
def _record(request: Any) -> Iterator[Any]:
    """Return a record in the temporary directory, in which errors are not recorded."""
    from shoestring.train.record import Record

    record = Record(request.run, request.loaded, request.stop.deadline, target=request.target)
    try:
        yield record
    finally:
        record.__exit__(None, None, None)
