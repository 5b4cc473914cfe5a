"""The loop of a recipe whose updates a library's trainer makes: what `train.loop.train` is given in that case."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shoestring.data.seeding import derive, seed_all
from shoestring.engine.memory import Failure, catch_out_of_memory
from shoestring.engine.precision import mixed_precision
from shoestring.errors import RunError
from shoestring.integrations.callback import TrainingEnded
from shoestring.integrations.state import LibraryState
from shoestring.integrations.trainer import ResumableTrainer, libraries
from shoestring.techniques.fallbacks import Sizes
from shoestring.train import steps
from shoestring.train.request import SessionRequest
from shoestring.train.session import TrainingSession


class LibraryUpdates:
    """A `train.setup.LibraryLoop`."""

    def __init__(self) -> None:
        self._resumable = ResumableTrainer()
        self._trainer_session = self._resumable.trainer_session
        self.reports = self._trainer_session.reports
        self._folder = ExitStack()

    def environment(self) -> dict[str, Any]:
        """The versions of the libraries."""
        return libraries()

    def build(self, request: SessionRequest, samples: Any, saved: Mapping[str, Any] | None) -> LibraryState:
        """The state of the recipe's trainer, in the sizes of the state that was `saved`."""
        settings = request.settings
        assert settings.precision is not None

        def build(sizes: Sizes) -> Any:
            seed_all(derive(request.recipe.seed, "model"))
            changed = settings.replace(micro_batch=sizes.micro_batch, checkpointing=sizes.checkpointing)
            self._folder.close()
            folder = self._folder.enter_context(tempfile.TemporaryDirectory())
            assert request.recipe.parts.trainer
            trainer = request.recipe.parts.trainer(
                changed, samples, self._resumable, folder=Path(folder), device=request.device
            )
            _require_followed(changed.checkpointing, settings.checkpointing, trainer)
            return trainer

        sizes = Sizes.of(settings).resumed(saved.get("fit") if saved else None)
        return LibraryState(
            trainer=build(sizes),
            mixed_precision=mixed_precision(settings.precision, request.device),
            sizes=sizes,
            build=build,
        )

    def run(self, session: TrainingSession) -> str:
        """As `LibraryLoop.run`: the trainer's callbacks take the steps between updates."""
        self._trainer_session.session = session
        state = self._trainer_session.state
        with self._folder:
            while True:
                try:
                    trained = catch_out_of_memory(lambda: state.trainer.train())
                except TrainingEnded as ended:
                    return ended.reason
                if isinstance(trained, Failure):
                    steps.go_back(session, "update", trained.message)
                    continue
                if self._trainer_session.over:
                    raise self._trainer_session.over
                return steps.why_ended(session) or "the trainer stopped by itself"


def _require_followed(asked: str | None, before: str | None, trainer: Any) -> None:
    """Raises RunError where activations were to be recomputed for want of memory, and the trainer does not do it."""
    if asked == "full" != before and not _recomputes(trainer.args):
        raise RunError(
            "out of memory with the smallest microbatch, and the recipe's trainer() does not follow checkpointing=full",
            hint="gradient_checkpointing=settings.checkpointing not in (None, 'no') among its arguments; or shorter "
            "samples, or a GPU with more memory",
        )


def _recomputes(args: Any) -> bool:
    """Whether a trainer's arguments ask for activation checkpointing, which transformers has renamed."""
    return any(getattr(args, name, False) for name in ("activation_checkpointing", "gradient_checkpointing"))
