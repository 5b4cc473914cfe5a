"""The training loop of a recipe whose updates are made by a library's trainer, for `train.loop.train`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from shoestring.base.errors import RunError
from shoestring.integrations.arguments import recomputes
from shoestring.integrations.callback import TrainingEnded
from shoestring.integrations.environment import library_versions, processes_fact
from shoestring.integrations.state import LibraryState
from shoestring.integrations.trainer import ResumableTrainer
from shoestring.techniques.fallbacks import Sizes
from shoestring.training import steps
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.engine.memory import Failure, catch_out_of_memory
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.request import SessionRequest
from shoestring.training.save_steps import return_to_checkpoint
from shoestring.training.training_session import TrainingSession


class LibraryUpdates:
    """An implementation of `train.setup.LibraryLoop`."""

    def __init__(self) -> None:
        self._resumable = ResumableTrainer()
        self._trainer_session = self._resumable.trainer_session
        self.reports = self._trainer_session.reports
        self._folder = ExitStack()

    def environment(self) -> dict[str, Any]:
        """Return the versions of the libraries, and the processes among which the library divides an update."""
        return {**library_versions(), **processes_fact(self._resumable.processes), "logical_shards": None}

    def build(self, request: SessionRequest, samples: Any, saved: Mapping[str, Any] | None) -> LibraryState:
        """Return the state of the recipe's trainer, with the sizes of the `saved` state if there is one."""
        self._resumable.allow_inexact, self._resumable.processes = request.allow_inexact, request.processes
        settings = request.settings.replace(gpus=request.processes.count)
        self._resumable.settings = settings
        assert settings.precision is not None

        def build(sizes: Sizes) -> Any:
            seed_all(derive(request.recipe.seed, "model"))
            sized_settings = settings.replace(micro_batch=sizes.micro_batch, checkpointing=sizes.checkpointing)
            self._folder.close()
            folder = self._folder.enter_context(request.run.trainer_folder())
            assert request.recipe.parts.learning.trainer
            trainer = request.recipe.parts.learning.trainer(
                sized_settings, samples, self._resumable, folder=folder, device=request.device
            )
            trainer.max_updates = request.recipe.max_updates
            if not request.processes.has_whole_weights:
                trainer.divide_weights(request.recipe.parts, request.ranks)
            _require_recomputation(sized_settings.checkpointing, settings.checkpointing, trainer)
            return trainer

        whole_batch = request.recipe.parts.learning.whole_batch
        sizes = Sizes.from_settings(settings).resumed(saved.get("fit") if saved else None, whole_batch=whole_batch)
        trainer = build(sizes)
        return LibraryState(
            trainer=trainer,
            fully_sharded=trainer.fully_sharded,
            mixed_precision=mixed_precision(settings.precision, request.device),
            sizes=sizes,
            build=build,
            whole_batch=whole_batch,
            ema=request.recipe.ema,
            processes=request.processes,
        )

    def run(self, session: TrainingSession) -> str:
        """Make all updates, as `LibraryLoop.run`; the trainer's callbacks call the steps between updates."""
        self._trainer_session.session = session
        state = self._trainer_session.state
        while True:
            try:
                result = catch_out_of_memory(lambda: state.trainer.train())
            except TrainingEnded as ended:
                return ended.reason
            if isinstance(result, Failure):
                return_to_checkpoint(session, "update", result.message)
                continue
            if self._trainer_session.over:
                raise self._trainer_session.over
            return steps.end_reason(session) or "the trainer stopped by itself"

    def close(self) -> None:
        """Remove the trainer's temporary files."""
        self._folder.close()


def _require_recomputation(checkpointing: str | None, planned: str | None, trainer: Any) -> None:
    """Raise RunError if checkpointing changed to full after out-of-memory, but the trainer does not apply it."""
    if checkpointing == "full" != planned and not recomputes(trainer.args):
        raise RunError(
            "out of memory with the smallest microbatch, and the recipe's trainer() ignores checkpointing=full",
            hint="pass gradient_checkpointing=settings.checkpointing not in (None, 'no') among its arguments, or use "
            "shorter samples or a GPU with more memory",
        )
