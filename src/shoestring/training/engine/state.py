"""The state of training, which checkpoints store: a model, its optimizer, and the progress of the run.

Sample order, schedule and random numbers are functions of the seed and the update's number, so nothing else is saved.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.base.reading import is_count
from shoestring.recipe.parts import Parts
from shoestring.techniques import (
    checkpointing,
    eightbit,
    kernels,
    memory_format,
    offload,
)
from shoestring.techniques.fallbacks import Limits, Sizes, least_micro_batch
from shoestring.techniques.norms import trains_batch_norm
from shoestring.techniques.pipeline.placement import stream_more
from shoestring.techniques.streaming.placement import further_host_bytes
from shoestring.training.checkpoint.compatibility import history_problems, optimizer_state_mismatches, state_mismatches
from shoestring.training.checkpoint.trained import state_like
from shoestring.training.engine.averaging import AveragedWeights
from shoestring.training.engine.cuda_graphs import CudaGraphs
from shoestring.training.engine.memory import out_of_memory
from shoestring.training.engine.parallel.divided_optimizer import collected
from shoestring.training.engine.parallel.fully_sharded import FullySharded
from shoestring.training.engine.precision import MixedPrecision
from shoestring.training.engine.schedulers import SteppedSchedulers
from shoestring.training.engine.untrained import UntrainedTensors
from shoestring.training.monitor.host_memory import host_memory


class State(Protocol):
    """The interface of a state that the steps of training use: the engine's own, or that of a library's trainer."""

    mixed_precision: MixedPrecision
    sizes: Sizes
    history: list[dict[str, Any]]
    """The validation metrics of each epoch so far; early stopping and the best epoch follow from them."""
    averages: AveragedWeights | None
    """The averaged weights, if the run has the option `ema`."""
    fully_sharded: FullySharded | None
    """The model, if its weights are divided among processes."""

    @property
    def model(self) -> nn.Module:
        """The model, whose weights must be finite; `pack()["model"]` contains them by name."""

    @property
    def optimizer(self) -> Any:
        """The optimizer; None before a library's trainer has created it."""

    @property
    def update(self) -> int:
        """The number of completed updates."""

    @property
    def total_updates(self) -> int:
        """The number of updates of the whole run; 0 while a library's trainer has not determined it."""

    @property
    def epochs_done(self) -> int:
        """The number of epochs whose updates are all completed; the run's last one may be cut by `max_updates`."""

    @property
    def at_epoch_end(self) -> bool:
        """Whether the last completed update ended an epoch."""

    def collected(self) -> AbstractContextManager[None]:
        """Return a context in which the first process packs what only the others have. All processes enter it."""

    def pack(self) -> dict[str, Any]:
        """Return the state as sections of a checkpoint."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Load a state that `pack` returned, with its sizes if they were saved under the same settings."""

    def limits(self) -> Limits:
        """Return the properties of the model and optimizer that determine the available fallbacks."""

    def release(self) -> None:
        """Free the memory of everything that the next update allocates again."""

    def resize(self, sizes: Sizes) -> None:
        """Apply `sizes`. Weights may be partly updated until `restore`."""


@dataclass(kw_only=True)
class TrainingState:
    """The engine's own state."""

    model: nn.Module
    optimizer: Optimizer
    mixed_precision: MixedPrecision
    parts: Parts = field(default_factory=Parts)
    """The parts of the recipe."""
    learning_rates: list[float]
    """The learning rate of each parameter group, without the schedule's factor."""
    schedulers: SteppedSchedulers | None = None
    """The schedulers that the recipe has returned with its optimizer."""
    update: int = 0
    """The number of completed updates."""
    epochs: int = 1
    updates_per_epoch: int = 1
    max_updates: int | None = None
    """The run ends after this many updates, also within an epoch; None: after all epochs."""
    history: list[dict[str, Any]] = field(default_factory=list)
    sizes: Sizes = field(default_factory=Sizes)
    """The sizes of the settings, or smaller ones after out-of-memory."""
    averages: AveragedWeights | None = None
    cuda_graphs: CudaGraphs | None = None
    """The CUDA graphs of the microbatches, if the settings use them."""
    fully_sharded: FullySharded | None = None
    """The model, if its weights are divided among processes."""
    build_model: Callable[[], nn.Module] | None = None
    """Returns the model as it was before the first update, in host memory."""

    def __post_init__(self) -> None:
        self.untrained = UntrainedTensors(self.model, saves_new=self.parts.learning.after_update is not None)
        self._parameters = [(parameter, parameter.requires_grad) for parameter in self.model.parameters()]

    @property
    def total_updates(self) -> int:
        total = self.epochs * self.updates_per_epoch
        return total if self.max_updates is None else min(total, self.max_updates)

    @property
    def epochs_done(self) -> int:
        return self.update // self.updates_per_epoch + (self._is_cut and self.update == self.total_updates)

    @property
    def at_epoch_end(self) -> bool:
        return self.update % self.updates_per_epoch == 0 or self.update == self.total_updates

    @property
    def _is_cut(self) -> bool:
        """Whether the run ends within an epoch, which is then over as well."""
        return self.total_updates % self.updates_per_epoch > 0

    def reset_trained(self) -> int:
        """Set which parameters are trained as `model()` has: a `loss` may freeze some of them for its stage, and a
        checkpoint contains those that are trained. Returns the number of frozen parameters that were enabled.
        """
        enabled = 0
        for parameter, is_trained in self._parameters:
            if parameter.requires_grad != is_trained:
                enabled += parameter.requires_grad
                parameter.requires_grad_(is_trained)
        return enabled

    def finish_update(self) -> None:
        """Reset which parameters are trained after an update.

        Raises UsageError if the loss trains parameters that `model()` returned frozen.
        """
        enabled = self.reset_trained()
        if enabled:
            raise UsageError(
                f"loss() has enabled the training of {enabled} parameters that model() returned frozen: the optimizer "
                "may have no states for them",
                hint="return them from model() with requires_grad, and compute with them under torch.no_grad() while "
                "they must not be trained: parameters without a gradient are not stepped",
            )

    def parameter_versions(self) -> list[int]:
        """Return numbers that differ if a parameter, or a tensor that the recipe changes itself, has other values.

        torch counts the in-place changes of a trained parameter, except those through `.data`.
        """
        return [*(_changes(parameter) for parameter, _ in self._parameters), *self.untrained.checksums().values()]

    def collected(self) -> AbstractContextManager[None]:
        return collected(self.optimizer)

    def pack(self) -> dict[str, Any]:
        scaler = self.mixed_precision.scaler
        if not self.fully_sharded:  # with which neither the loss nor `after_update` may change them
            self.untrained.observe()
        return {
            "model": self.untrained.pack(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": scaler.state_dict() if scaler else None,
            "progress": {"update": self.update, "history": self.history, "fit": self.sizes.json()},
            **(self.averages.pack() if self.averages else {}),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Load the sections of a checkpoint.

        Raises CheckpointError if the model, the optimizer or the precision is not the one that was saved; the state is
        unchanged then. After an out-of-memory error, which passes, it is restored in part.
        """
        if self.fully_sharded:
            saved = self.fully_sharded.own_rows(saved, self.optimizer)
        self._require_fits(saved)
        # Only the optimizer and the scaler can tell whether they accept a state. So they are loaded first, and on
        # failure their previous states are loaded again.
        scaler, previous_optimizer_state = self.mixed_precision.scaler, self.optimizer.state_dict()
        previous_scaler_state = scaler.state_dict() if scaler else None
        if self.schedulers:
            self.schedulers.rewind()
        try:
            eightbit.load_states(
                self.optimizer, self._own_memory(memory_format.with_strides(saved["optimizer"], self.optimizer))
            )
            if scaler and saved["scaler"]:
                scaler.load_state_dict(saved["scaler"])
            # Not strict: frozen weights that do not change are not saved, since the recipe creates them.
            self.model.load_state_dict(saved["model"], strict=False)
            self.untrained.restore(saved["model"], self.build_model or (lambda: self.model))
            if self.averages:
                self.averages.restore(saved)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            if out_of_memory(error):
                raise
            self.optimizer.load_state_dict(previous_optimizer_state)
            if scaler and previous_scaler_state:
                scaler.load_state_dict(previous_scaler_state)
            raise CheckpointError(f"the checkpoint cannot be restored: {type(error).__name__}: {error}") from error
        self.update = saved["progress"]["update"]
        self.history = saved["progress"]["history"]
        self.resize(self.sizes.resumed(saved["progress"].get("fit"), whole_batch=self.parts.learning.whole_batch))

    def set_learning_rates(self) -> None:
        """Set the hyperparameters of the next update, which are functions of its number."""
        if self.schedulers:
            self.schedulers.apply(self.update)
            return
        schedule = self.parts.learning.schedule
        factor = schedule(self.update, self.updates_per_epoch, self.total_updates) if schedule else 1.0
        for group, rate in zip(self.optimizer.param_groups, self.learning_rates, strict=True):
            group["lr"] = rate * factor

    def limits(self) -> Limits:
        return Limits(
            least_micro_batch=least_micro_batch(
                batch_norm=trains_batch_norm(self.model),
                whole_batch=self.sizes.micro_batch if self.parts.learning.whole_batch else None,
            ),
            blocks=len(checkpointing.blocks(self.model, self.parts)),
            batched_step=kernels.is_batched(self.optimizer),
            # Each of several processes would find another number: `training/oom.py` asks one of them for all.
            streamable=(self.sizes.streamed_blocks or 0) if self._is_one_of_several else self.streamable(),
        )

    @property
    def _is_one_of_several(self) -> bool:
        return distributed.is_initialized() and distributed.get_world_size() > 1

    def streamable(self, processes: int = 1) -> int:
        """Return how many blocks can be streamed with what the host has left, with those that are.

        Each of the `processes` on this host has blocks of its own.
        """
        count = self.sizes.streamed_blocks or 0
        if not count:
            return 0
        free = host_memory().free_bytes // processes
        return count + sum(size <= free for size in accumulate(further_host_bytes(self.model, self.parts)))

    def release(self) -> None:
        if self.cuda_graphs:
            self.cuda_graphs.release()

    def resize(self, sizes: Sizes) -> None:
        self.sizes = sizes
        if sizes.checkpointing == "full":
            checkpointing.apply(self.model, self.parts, "full")
            # Recomputing reads the random state, which a graph cannot; the same kernels run without graphs.
            self.cuda_graphs = None
        if sizes.optimizer_kernel == "for-loop":
            kernels.choose(self.optimizer, "for-loop")
        if sizes.streamed_blocks:
            self._stream_more(sizes.streamed_blocks)

    def _stream_more(self, count: int) -> None:
        replaced = stream_more(self.model, self.parts, count)
        if not replaced:
            return
        # Whatever still has a weight that was on the device would keep its memory.
        current = {id(before): after for before, after in replaced}
        for group in self.optimizer.param_groups:
            group["params"] = [current.get(id(parameter), parameter) for parameter in group["params"]]
        self._parameters = [(parameter, parameter.requires_grad) for parameter in self.model.parameters()]

    def _require_fits(self, saved: Mapping[str, Any]) -> None:
        missing = {"model", "optimizer", "scaler", "progress"} - saved.keys()
        problems = [f"the section {name!r} is missing" for name in sorted(missing)]
        if not problems:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            problems += [
                f"model: {misfit}"
                for misfit in state_mismatches(saved["model"], state_like(self.model, saved["model"]))
            ]
            problems += [
                f"optimizer: {misfit}"
                for misfit in optimizer_state_mismatches(saved["optimizer"], self.optimizer.state_dict(), parameters)
            ]
            problems += self.averages.problems(saved) if self.averages else []
            progress = saved["progress"] if isinstance(saved["progress"], dict) else {}
            if not is_count(progress.get("update")):
                problems.append(f"progress: {str(progress.get('update'))[:40]!r} is not a number of completed updates")
            problems += [f"progress: {problem}" for problem in history_problems(progress.get("history"))]
        if problems:
            omitted = [f"and {len(problems) - 20} more"] if len(problems) > 20 else []
            raise CheckpointError(
                "the checkpoint belongs to another model or optimizer",
                problems=[*problems[:20], *omitted],
                hint="check whether the recipe's model() or optimizer() has changed since the run started",
            )

    def _own_memory(self, saved: Any) -> Any:
        """Copy an optimizer's state from a file's pages into memory that torch allocates.

        torch's memory is aligned, and vector code may round the ends of an unaligned tensor differently. States for a
        GPU are copied on their way there anyway.
        """
        # States are on the device of their parameters; an optimizer in host memory has all of them on the host.
        on_host = isinstance(self.optimizer, offload.HostOptimizer) or any(
            parameter.device.type == "cpu" for group in self.optimizer.param_groups for parameter in group["params"]
        )

        def own(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.clone() if on_host or value.ndim == 0 else value
            if isinstance(value, dict):
                return {key: own(item) for key, item in value.items()}
            return [own(item) for item in value] if isinstance(value, list) else value

        return own(saved)


def _changes(parameter: Any) -> int:
    """Return how often a parameter was changed in place; 0 of one that torch sets to itself whenever an adapter is used
    (`torch.nn.utils.parametrize`)."""
    return 0 if getattr(parameter, "is_parametrized", False) else int(parameter._version)
