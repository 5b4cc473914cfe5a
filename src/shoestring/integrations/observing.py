"""Watching one update that a library's trainer makes, and ending training after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from shoestring.integrations.callback import TrainingEnded
from shoestring.training.engine.observation import Observation


class FetchedSamples:
    """The samples of a training part, with a record of the order in which they are fetched."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            self.fetched.append(index)
        return self._samples[index]

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":
            fetch = self._samples.__getitems__

            def record(indices: Sequence[int]) -> Any:
                self.fetched += indices
                return fetch(indices)

            return record
        return getattr(self._samples, name)


def recording(samples: Any) -> Any:
    """Return the training part so that the order of its samples is recorded; a dataset of a library is unchanged,
    because trainers treat its type in a special way.
    """
    return samples if type(samples).__module__.startswith("datasets.") else FetchedSamples(samples)


class TrainerObservation:
    """Watches update number `update` (from 1) of each trainer that it is given."""

    def __init__(self, update: int, samples: Any) -> None:
        self._update = update
        self._fetched = samples.fetched if isinstance(samples, FetchedSamples) else None
        self.observation: Observation | None = None
        """The observation of the update, once it has begun."""
        self.is_made = False
        self.learning_rate: float | None = None

    def watch(self, trainer: Any) -> None:
        """Watch a trainer, which is about to train."""
        if self._fetched is not None:
            self._fetched.clear()
        trainer.add_callback(_Callback(self, trainer, self._update, self._fetched))


class _Callback(TrainerCallback):
    def __init__(self, owner: TrainerObservation, trainer: Any, update: int, fetched: list[int] | None) -> None:
        self._owner, self._trainer, self._update, self._fetched = owner, trainer, update, fetched
        self._consumed = 0
        self._make_step, trainer.training_step = trainer.training_step, self._training_step

    def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Begin to watch if this is the update."""
        if state.global_step != self._update - 1:
            return
        trainer, owner = self._trainer, self._owner
        model, scaler = trainer.accelerator.unwrap_model(trainer.model), trainer.accelerator.scaler
        if owner.observation is None:
            owner.observation = Observation(
                model, loss_scale=lambda: scaler.get_scale() if scaler else None, watches_generation=False
            )
        else:  # of a trainer with smaller microbatches, after an out-of-memory
            owner.observation.watch_model(model)
        owner.observation.begin(args.per_device_train_batch_size)
        owner.learning_rate = float(trainer.optimizer.param_groups[0]["lr"])
        clip = trainer.accelerator.clip_grad_norm_

        def clip_observed(*arguments: Any, **keywords: Any) -> Any:
            self._observe_gradients(is_scaled=True)
            return clip(*arguments, **keywords)

        trainer.accelerator.clip_grad_norm_ = clip_observed

    def on_pre_optimizer_step(self, args: Any, *_: Any, **__: Any) -> None:
        """Observe gradients that are not clipped; those of other updates are ignored."""
        is_scaled = not args.max_grad_norm
        self._observe_gradients(is_scaled=is_scaled)

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:  # noqa: ARG002
        """End training after the update."""
        if state.global_step == self._update and self._owner.observation:
            self._owner.is_made = True
            raise TrainingEnded(f"update {self._update} is made")

    def _training_step(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        """Make the gradient of a microbatch with the trainer's own method."""
        count = _count(inputs)
        samples = None
        if self._fetched is not None and len(self._fetched) >= self._consumed + count:
            samples = tuple(dict.fromkeys(self._fetched[self._consumed : self._consumed + count]))
        self._consumed += count
        observation = self._owner.observation
        if observation is None:
            return self._make_step(model, inputs, *arguments, **keywords)
        with observation.watching(inputs):
            loss = self._make_step(model, inputs, *arguments, **keywords)
        # The library has divided the loss by the number of microbatches.
        parts = getattr(self._trainer, "current_gradient_accumulation_steps", 1)
        observation.add(float(loss) * parts * count, count, samples)
        return loss

    def _observe_gradients(self, *, is_scaled: bool) -> None:
        observation, scaler = self._owner.observation, self._trainer.accelerator.scaler
        if observation and observation.attempts[-1].gradient_norms is None:
            observation.gradients(scaler.get_scale() if scaler and is_scaled else 1.0)


def _count(inputs: Any) -> int:
    """Return the number of samples in the inputs of a microbatch."""
    if isinstance(inputs, Mapping):
        return next((_count(value) for value in inputs.values()), 0)
    return len(inputs) if hasattr(inputs, "__len__") else 0
