"""What a run's checkpoints hold and its steps work on: a model, its optimizer, and how far they are.

Sample order, schedule and random numbers are functions of the seed and the update's number, so nothing else is saved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from shoestring.checkpoint.fitting import misfits, optimizer_misfits
from shoestring.checkpoint.trained import trained_state
from shoestring.data.seeding import derive, seed_all
from shoestring.engine import autotuning, cuda_graphs
from shoestring.engine.cuda_graphs import CudaGraphs
from shoestring.engine.precision import MixedPrecision, mixed_precision
from shoestring.errors import CheckpointError
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.parts import Parts
from shoestring.settings import Settings
from shoestring.techniques import adapt, checkpointing, compiled, eightbit, kernels, norms, offload
from shoestring.techniques.fallbacks import Limits, Sizes, least_micro_batch


class State(Protocol):
    """What the steps of training need of a state: the engine's own, or that of a library's trainer."""

    mixed_precision: MixedPrecision
    sizes: Sizes
    history: list[dict[str, Any]]
    """The validation metrics of each epoch so far; early stopping and the best epoch follow from them."""

    @property
    def model(self) -> nn.Module:
        """Whose weights must be finite; `pack()["model"]` has them by their names."""

    @property
    def optimizer(self) -> Any:
        """None before a library's trainer has made it."""

    @property
    def update(self) -> int:
        """Updates done."""

    @property
    def total_updates(self) -> int:
        """Of the whole run; 0 while a library's trainer has not said."""

    @property
    def epochs_done(self) -> int:
        """Epochs whose updates are all done."""

    @property
    def at_epoch_end(self) -> bool:
        """Whether the last update was an epoch's last."""

    def pack(self) -> dict[str, Any]:
        """The state as sections of a checkpoint."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over a state that `pack` gave, with its sizes where they were saved under the same settings."""

    def limits(self) -> Limits:
        """What decides which fallbacks there are."""

    def release(self) -> None:
        """Give back the memory of everything that the next update makes anew."""

    def resize(self, sizes: Sizes) -> None:
        """Put these sizes in force. Weights may be half updated until `restore`."""


@dataclass(kw_only=True)
class TrainingState:
    """The engine's own state."""

    model: nn.Module
    optimizer: Optimizer
    mixed_precision: MixedPrecision
    parts: Parts = field(default_factory=Parts)
    """Of the recipe."""
    learning_rates: list[float]
    """Of each parameter group before the schedule's factor."""
    update: int = 0
    """Updates done."""
    epochs: int = 1
    updates_per_epoch: int = 1
    history: list[dict[str, Any]] = field(default_factory=list)
    sizes: Sizes = field(default_factory=Sizes)
    """As the settings ask, or smaller."""
    cuda_graphs: CudaGraphs | None = None
    """CUDA graphs of the microbatches, where they are asked for."""

    @property
    def total_updates(self) -> int:
        return self.epochs * self.updates_per_epoch

    @property
    def epochs_done(self) -> int:
        return self.update // self.updates_per_epoch

    @property
    def at_epoch_end(self) -> bool:
        return self.update % self.updates_per_epoch == 0

    def pack(self) -> dict[str, Any]:
        scaler = self.mixed_precision.scaler
        return {
            "model": trained_state(self.model),
            "optimizer": self.optimizer.state_dict(),
            "scaler": scaler.state_dict() if scaler else None,
            "progress": {"update": self.update, "history": self.history, "fit": self.sizes.json()},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """As `State.restore`, a section at a time.

        Raises CheckpointError when the model, the optimizer or the precision is not the one that was saved; nothing
        has changed then.
        """
        self._require_fits(saved)
        # What an optimizer makes of its state only it knows, so it is asked first, and gets its own back if it fails.
        scaler, before = self.mixed_precision.scaler, self.optimizer.state_dict()
        try:
            self.optimizer.load_state_dict(self._own_memory(saved["optimizer"]))
            eightbit.share_tables(self.optimizer)
            if scaler and saved["scaler"]:
                scaler.load_state_dict(saved["scaler"])
            # What is not among it is frozen, and as the recipe made it.
            self.model.load_state_dict(saved["model"], strict=False)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.optimizer.load_state_dict(before)
            raise CheckpointError(f"the checkpoint cannot be restored: {type(error).__name__}: {error}") from error
        self.update = saved["progress"]["update"]
        self.history = saved["progress"]["history"]
        self.resize(self.sizes.resumed(saved["progress"].get("fit")))

    def limits(self) -> Limits:
        return Limits(
            least_micro_batch=least_micro_batch(batch_norm=trains_batch_norm(self.model)),
            blocks=len(checkpointing.blocks(self.model, self.parts)),
            batched_step=kernels.is_batched(self.optimizer),
        )

    def release(self) -> None:
        if self.cuda_graphs:
            self.cuda_graphs.forget()

    def resize(self, sizes: Sizes) -> None:
        self.sizes = sizes
        if sizes.checkpointing == "full":
            checkpointing.apply(self.model, self.parts, "full")
            # A graph cannot ask for the state of random numbers, as recomputing does; the same kernels run without it.
            self.cuda_graphs = None
        if sizes.optimizer_kernel == "for-loop":
            kernels.choose(self.optimizer, "for-loop")

    def _require_fits(self, saved: Mapping[str, Any]) -> None:
        lacking = {"model", "optimizer", "scaler", "progress"} - saved.keys()
        problems = [f"it has no {name}" for name in sorted(lacking)]
        if not problems:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            problems += [f"model: {what}" for what in misfits(saved["model"], trained_state(self.model))]
            problems += [
                f"optimizer: {what}"
                for what in optimizer_misfits(saved["optimizer"], self.optimizer.state_dict(), parameters)
            ]
            progress = saved["progress"] if isinstance(saved["progress"], dict) else {}
            update, history = progress.get("update"), progress.get("history")
            if not isinstance(update, int) or update < 0 or not isinstance(history, list):
                problems.append("progress: it does not say how many updates are done")
        if problems:
            more = [f"and {len(problems) - 20} more"] if len(problems) > 20 else []
            raise CheckpointError(
                "the checkpoint is of another model or optimizer",
                problems=[*problems[:20], *more],
                hint="has the recipe's model() or optimizer() changed since the run began?",
            )

    def _own_memory(self, saved: Any) -> Any:
        """An optimizer's state in memory of its own, aligned as torch allocates: a file's pages need not be, and vector
        code may round the ends of an unaligned tensor differently. What goes to a GPU is copied on its way there.
        """
        # States are where their copies of parameters are; an optimizer in host memory has all of them here.
        here = isinstance(self.optimizer, offload.HostOptimizer) or any(
            parameter.device.type == "cpu" for group in self.optimizer.param_groups for parameter in group["params"]
        )

        def own(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.clone() if here or value.ndim == 0 else value
            if isinstance(value, dict):
                return {key: own(item) for key, item in value.items()}
            return [own(item) for item in value] if isinstance(value, list) else value

        return own(saved)


def build(
    loaded: LoadedRecipe, settings: Settings, device: torch.device, *, updates_per_epoch: int = 1
) -> TrainingState:
    """The state before the first update: a model initialised from the seed, on `device`, in training mode.

    Raises UsageError for a technique that the model or its optimizer has not.
    """
    assert settings.precision is not None
    seed_all(derive(loaded.seed, "model"))
    model = adapt.trained_model(loaded.recipe.model(), loaded.adaptation, settings).train()
    offload.move(model, loaded.parts, settings, device)
    compiled.apply(model, loaded.parts, settings, device)
    checkpointing.apply(model, loaded.parts, settings.checkpointing)
    optimizer = adapt.trained_optimizer(loaded, model, device)
    kernels.choose(optimizer, settings.optimizer_kernel)
    optimizer = offload.hosted(optimizer, settings)
    torch.backends.cudnn.benchmark = autotuning.autotunes(settings, loaded.parts)
    return TrainingState(
        model=model,
        optimizer=optimizer,
        mixed_precision=mixed_precision(settings.precision, device),
        learning_rates=[float(group["lr"]) for group in optimizer.param_groups],
        parts=loaded.parts,
        epochs=loaded.epochs,
        updates_per_epoch=updates_per_epoch,
        sizes=Sizes.of(settings),
        cuda_graphs=cuda_graphs.of(model, settings, device),
    )


def trains_batch_norm(model: nn.Module) -> bool:
    """Whether some BatchNorm takes its statistics from the microbatch."""
    return any(isinstance(module, norms.BATCH) and module.training for module in model.modules())
