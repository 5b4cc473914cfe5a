"""Resumable versions of Hugging Face's Trainer and of classes derived from it, such as TRL's.

    from shoestring.integrations.trainer import surviving

    with surviving("runs/mine", limit_seconds=9 * 3600) as survive:
        trainer = survive(GRPOTrainer)(model=..., args=..., train_dataset=...)
        trainer.train()  # again in the next session, to continue

Differences from the library's trainer: training saves and stops before the limit or on SIGTERM; checkpoints are
written in the background to a temporary folder, verified and then renamed; a resumed run ends with the same bits as one
that was never stopped. For that every update draws its random numbers from (seed, number of the update), and the order
of an epoch is a function of (seed, epoch).

Loss, microbatches, logging and evaluation are the library's. At a pause `train()` ends the script, unless
`exit_when_paused` is False. Random numbers that a dataset draws while its samples are fetched are not restored. Under
torchrun or `accelerate launch` the processes train together, each on a GPU of its own, with the same promises.
docs/guides/trainers.md has what works and what is refused (`arguments.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from shoestring.base.errors import UsageError
from shoestring.base.packages.quiet import quiet_bitsandbytes
from shoestring.base.settings import Settings
from shoestring.base.streams import write_messages
from shoestring.base.system_errors import explaining
from shoestring.base.units import count_text
from shoestring.integrations import private_parts
from shoestring.integrations.arguments import notes, refuse_arguments, refuse_distribution
from shoestring.integrations.callback import StepsCallback
from shoestring.integrations.environment import (
    library_versions,
    precision_of,
    processes_fact,
    script_environment,
)
from shoestring.integrations.learning import Learning
from shoestring.integrations.processes import joined, leaving_after_lost_peer
from shoestring.integrations.session import TrainerSession
from shoestring.integrations.splitting import make_splitting_class
from shoestring.integrations.state import LibraryState
from shoestring.recipe.parts import Parts
from shoestring.remote.backup.processes import copying, require_elsewhere, restoring
from shoestring.techniques import checkpointing, expandable_segments, offload
from shoestring.techniques.fallbacks import Sizes
from shoestring.training.checkpoint.divided import whole
from shoestring.training.checkpoint.identity import new_id
from shoestring.training.checkpoint.trained import frozen_digest
from shoestring.training.engine.determinism import deterministic
from shoestring.training.engine.environment import differences, kernel_facts
from shoestring.training.engine.parallel.fully_sharded import FullySharded, shard
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.processes.choice import choose_processes
from shoestring.training.processes.one_process import ONE_PROCESS, Processes
from shoestring.training.record import Record
from shoestring.training.request import SessionRequest
from shoestring.training.run_directory import one_run
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan
from shoestring.training.run_store import open_store, run_saver
from shoestring.training.saving import saved_environment
from shoestring.training.session.stop import SessionOver, Stop, session
from shoestring.training.training_session import TrainingSession

if TYPE_CHECKING:
    from transformers import Trainer

T = TypeVar("T", bound="Trainer")

_REPEATED_DATA = (
    "the data has no length, so if it has ended and begun again in this run, this version of transformers continues at "
    "its start instead of where it was; give it a length, or install transformers 5.23"
)
_ARGUMENTS_OF_TRAIN = ("resume_from_checkpoint", "trial", "ignore_keys_for_eval")


class ResumableTrainer:
    """Makes a trainer's class resumable, and reports how its session ended."""

    def __init__(
        self,
        begin_session: Callable[[Any], TrainingSession] | None = None,
        end_session: Callable[[], None] = lambda: None,
        *,
        processes: Processes = ONE_PROCESS,
        allow_inexact: bool = False,
    ) -> None:
        """`begin_session` makes the session of a script's trainer when that starts to train; `end_session` is called
        when it has trained. The `processes` train together.
        """
        self._begin_session, self.end_session = begin_session, end_session
        self.processes, self.allow_inexact = processes, allow_inexact
        self.settings = Settings()
        """Those of a recipe's run, which say what is divided among the processes and what is in host memory."""
        self.trainer_session = TrainerSession()

    @property
    def ended(self) -> str:
        """The reason why training stopped early; empty if it did not."""
        over = self.trainer_session.over
        return over.reason if over else ""

    def __call__(self, trainer: type[T]) -> type[T]:
        """Return a resumable subclass of the class `trainer`."""
        return _make_resumable_class(trainer, self)

    @contextmanager
    def training(self, trainer: Any, of_train: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Return a context in which the trainer can train, with the arguments that make it resume the run.

        Raises UsageError for arguments of the trainer or of its method `train` that cannot be used in a run.
        """
        is_script = self._begin_session is not None
        refuse_arguments(trainer, of_train, in_recipe=not is_script, allow_inexact=self.allow_inexact)
        with ExitStack() as contexts:
            if self._begin_session:
                if self.trainer_session.is_set:
                    raise UsageError(
                        f"train() was called a second time in {self.trainer_session.session.request.run.path}: a run "
                        "is one training, whose checkpoints a second one would take for its own",
                        hint="put each training into a `with surviving(...)` of its own, with another directory",
                    )
                self.trainer_session.session = session = self._begin_session(trainer)
                contexts.enter_context(session.saver)
                contexts.enter_context(session.record.progress)
            run = self.trainer_session.session.request.run
            contexts.enter_context(self.trainer_session.agreement.training())
            yield self._resume_arguments(contexts.enter_context(run.trainer_folder()))

    def _resume_arguments(self, folder: Path) -> dict[str, Any]:
        state = self.trainer_session.state
        if not state.restored:
            return {}
        private_parts.write_resume_folder(folder, state.trainer, state.restored["trainer"])
        return {"resume_from_checkpoint": str(folder)}


@contextmanager
def surviving(
    run: Path | str,
    *,
    limit_seconds: float | None = None,
    disk_bytes: int | None = None,
    save_every_seconds: float | None = None,
    keep_checkpoints: int = 2,
    allocator: Literal["segments", "expandable"] = "segments",
    allow_inexact: bool = False,
    extend: bool = False,
    exit_when_paused: bool = True,
    backup: Path | str | None = None,
    from_url: Path | str | None = None,
) -> Iterator[ResumableTrainer]:
    """Return the context of a session of at most `limit_seconds` in the directory `run`, locked for this process.

    Its value is called with the class of a trainer of transformers or TRL and returns a class that resumes: the first
    `train()` of a trainer of this class continues the run in `run`, or begins it. A checkpoint is saved at least every
    `save_every_seconds` (by default 600, or less if saving is cheap), the newest `keep_checkpoints` are
    kept, and the run's directory takes at most `disk_bytes`. With `allocator="expandable"` CUDA's allocator has
    expandable segments, in which samples of different lengths leave no blocks that later ones do not fit; a note
    recommends it where they do. None means no limit.

    A run continues bit for bit with the same hardware, versions, model, data and arguments. A change of anything that
    decides learning is an error that names it, unless `allow_inexact`: from the next update on the new values have the
    effect that they have in a run of their own. With `extend` the run may have more updates than before (`max_steps`,
    `num_train_epochs`); its learning rate is then that of a run of the new length from the next update on.

    Each checkpoint is copied to the folder or URL `backup` in the background, and the end of the context waits for the
    last copy, as `shoestring.train` does. If there is no run in `run`, the newest copy in `from_url` is restored first,
    or training begins if there is none and `from_url` is the place of `backup`. A session that has to stop meanwhile
    raises SystemExit(0).

    If the session stops before the end of training, `train()` raises SystemExit(0) after the state is saved, so that
    the rest of the script does not take the model for a trained one. With `exit_when_paused=False` it returns; `ended`
    is then the reason.

    Raises UsageError if another process holds the lock, if the directory contains something else, or if `backup` or
    `from_url` has copies of another run. Raises RunError if no copy in `from_url` can be restored.
    """
    quiet_bitsandbytes()
    if allocator == "expandable":
        expandable_segments.enable()
    directory = RunDirectory(Path(run))
    settings = Settings(save_every_seconds=save_every_seconds, keep_checkpoints=keep_checkpoints, allocator=allocator)
    with joined() as group, session(limit_seconds) as stop, ExitStack() as contexts:
        processes = choose_processes(group, settings)
        try:
            processes.call_first(lambda: contexts.enter_context(_opened(directory, settings, stop, backup, from_url)))
        except SessionOver as over:
            if processes.is_first:
                write_messages(f"paused before the run was restored ({over.reason}); run the same command to continue")
            raise SystemExit(0) from over
        # Within the context that waits for the last copy.
        contexts.enter_context(leaving_after_lost_peer())
        with deterministic(), _record(directory, stop, processes) as record:

            def begin_session(trainer: Any) -> TrainingSession:
                request = SessionRequest(
                    loaded=None,
                    settings=settings.replace(precision=precision_of(trainer.args)),
                    run=directory,
                    target="local",
                    device=trainer.args.device,
                    stop=stop,
                    disk_bytes=disk_bytes,
                    allow_inexact=allow_inexact,
                    identity=directory.identity(),
                    ranks=group,
                )
                learning = Learning(trainer, allow_inexact=allow_inexact, extend=extend)
                return _script_session(request, record, learning, trainer, resumable)

            def record_end() -> None:
                if resumable.trainer_session.is_set and not record.is_ended:
                    status, reason = ("paused", resumable.ended) if resumable.ended else ("finished", "all updates")
                    record.session_ended(status, reason, record.update, resumable.trainer_session.metrics)

            def end_session() -> None:
                if resumable.ended and exit_when_paused:
                    record_end()
                    state = resumable.trainer_session.state
                    record.progress.message(
                        f"paused at {count_text(state.update)} of {count_text(state.total_updates)}; run the same "
                        "command to continue"
                    )
                    raise SystemExit(0)

            resumable = ResumableTrainer(begin_session, end_session, processes=processes, allow_inexact=allow_inexact)
            try:
                yield resumable
            except SystemExit as leaving:
                if not leaving.code:  # a script may end in this way as well
                    record_end()
                raise
            record_end()


@contextmanager
def _opened(
    directory: RunDirectory, settings: Settings, stop: Stop, backup: Path | str | None, from_url: Path | str | None
) -> Iterator[None]:
    """Return a context in which the run's directory exists, is locked for this process, and is copied to `backup`.

    Raises SessionOver if it is time to stop before the run is restored.
    """
    places = {name: None if url is None else str(url) for name, url in (("backup", backup), ("from_url", from_url))}
    for name, url in places.items():
        require_elsewhere(directory, url, name)
    if places["from_url"] is not None:
        restoring(directory, places["from_url"], stop.check, "from_url", backup=places["backup"])
    directory.create()
    with directory.locked():
        if directory.plan() is None:
            with explaining(f"{directory.plan_file} could not be written"):
                plan = StoredPlan(recipe="a trainer", settings=settings.json(), run=new_id())
                plan.write(directory.plan_file)
        one_run.name_run(directory.path)
        with copying(directory, places["backup"], stop, "backup"):
            yield


def _record(directory: RunDirectory, stop: Stop, processes: Processes) -> Record:
    """Return the record of the session, which the first process writes."""
    return processes.call_in_turn(lambda: Record(directory, None, stop.deadline, target="local", processes=processes))


def _script_session(
    request: SessionRequest, record: Record, learning: Learning, trainer: Any, resumable: ResumableTrainer
) -> TrainingSession:
    """Return the session of a script's trainer, restored from the run's newest checkpoint."""
    micro_batch = trainer.args.per_device_train_batch_size
    state = LibraryState(
        trainer=trainer,
        mixed_precision=mixed_precision("fp32", request.device),
        sizes=Sizes(requested=f"micro_batch={micro_batch}", micro_batch=micro_batch),
        processes=request.processes,
        learning=learning,
        report=record.note,
    )
    facts = {
        **library_versions(),
        **processes_fact(request.processes),
        **script_environment(trainer),
        "frozen weights": frozen_digest(state.model),
        **kernel_facts(request.device, state.model),
    }
    store, restored = open_store(request, record, request.processes)
    changes = []
    if restored:
        changed_environment = differences(saved_environment(restored), facts)
        other_libraries = any(line.partition(":")[0] in library_versions() for line in changed_environment)
        changes = learning.require_same(restored.state, changed_environment, other_libraries=other_libraries)
        if not hasattr(trainer.train_dataset, "__len__") and not getattr(trainer, "continues_repeated_data", False):
            changes.append(_REPEATED_DATA)
    saver = run_saver(request, record, store, facts, writers=request.processes)
    saver.restore(state, allow_inexact=request.allow_inexact, restored=restored)
    return TrainingSession(
        request=request,
        record=record,
        state=state,
        saver=saver,
        reports=resumable.trainer_session.reports,
        notes=(*notes(trainer.args, request.settings), *changes),
    )


def _make_resumable_class(base: type[T], resumable: ResumableTrainer) -> type[T]:
    """Return a subclass of `base` that saves and restores as the engine does, and stops before the deadline."""
    from transformers import PrinterCallback
    from transformers.trainer_callback import ProgressCallback

    class Resumable(private_parts.make_resuming_class(make_splitting_class(base))):  # type: ignore[misc]
        fully_sharded: FullySharded | None = None
        """The model, if its weights are divided among the processes."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            refuse_distribution(self, resumable.processes)
            if resumable.processes.count > 1:
                # Without DistributedDataParallel, whose work is done by `GradientExchange`.
                self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
            for callback in (PrinterCallback, ProgressCallback):  # stdout is for data, and progress is reported anyway
                self.remove_callback(callback)

        def _move_model_to_device(self, model: Any, device: Any) -> None:
            """Move the model, unless its weights will be divided, which moves the parts of this process."""
            if resumable.processes.has_whole_weights:
                super()._move_model_to_device(model, device)

        def divide_weights(self, parts: Parts, ranks: Ranks) -> None:
            """Divide the weights among the processes, before the trainer creates its optimizer."""
            prepare_model, clip = self.accelerator.prepare_model, self.accelerator.clip_grad_norm_
            # Without moving what is in host memory; with a norm that every process can read.
            self.accelerator.prepare_model = lambda model, **_: prepare_model(model, device_placement=False)
            self.accelerator.clip_grad_norm_ = lambda *args, **kwargs: whole(clip(*args, **kwargs))
            model, settings = self.accelerator.unwrap_model(self.model), resumable.settings
            self.fully_sharded = shard(
                model,
                checkpointing.blocks(model, parts),
                ranks,
                self.args.device,
                reshard_after_forward=settings.sharding == "zero3",
                on_host=settings.offload == "parameters",
            )

        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            optimizer = super().create_optimizer(*args, **kwargs)
            if not isinstance(optimizer, offload.HostOptimizer):
                self.optimizer = offload.offloaded_optimizer(optimizer, resumable.settings)
            return self.optimizer

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            compute = super().compute_loss
            if self.fully_sharded:
                compute = self.fully_sharded.gathering(partial(compute, **kwargs))
                return compute(*args)
            return compute(*args, **kwargs)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            self.steps_callback.end_microbatch()
            return loss

        def is_run_ended(self, total_updates: int) -> bool:
            return resumable.trainer_session.state.is_ended(total_updates)

        def microbatches_of_saved_epoch(self) -> int | None:
            """Return how many microbatches the library has counted as an epoch of data without a length; None if no
            checkpoint is restored.
            """
            saved = resumable.trainer_session.state.restored.get("trainer")
            return saved["max_steps"] * self.args.gradient_accumulation_steps if saved else None

        def save_run_checkpoint(self) -> None:
            self.steps_callback.request_save()

        def end_update(self) -> None:
            self.steps_callback.end_update()

        def end_training(self) -> None:
            self.steps_callback.end_training()

        def train(self, *args: Any, **kwargs: Any) -> Any:
            """Train as `Trainer.train`, from the run's newest checkpoint if there is one."""
            of_train = dict(zip(_ARGUMENTS_OF_TRAIN, args, strict=False)) | kwargs
            # The last callback: it sees what others have requested through `control`, such as a save.
            self.steps_callback = callback = StepsCallback(self, resumable.trainer_session)
            self.add_callback(callback)
            try:
                with resumable.training(self, of_train) as resume_arguments:
                    output = super().train(**{**of_train, **resume_arguments})
            finally:
                self.remove_callback(callback)
            resumable.end_session()
            return output

    Resumable.__name__ = Resumable.__qualname__ = base.__name__
    return Resumable
