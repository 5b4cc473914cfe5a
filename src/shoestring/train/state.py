"""What a training state is: the model, its optimizer, and how far they are. The rest follows from the update number."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from shoestring.errors import CheckpointError
from shoestring.recipe import LoadedRecipe, build_optimizer
from shoestring.settings import Settings
from shoestring.techniques import checkpointing, eightbit, kernels
from shoestring.train.precision import Arithmetic, arithmetic
from shoestring.train.seeding import derive, seed_all


@dataclass(kw_only=True)
class TrainingState:
    """Sample order, schedule and random numbers are functions of the seed and `update`; early stopping and the best
    metric of `history`. So nothing else needs to be saved.
    """

    model: nn.Module
    optimizer: Optimizer
    arithmetic: Arithmetic
    learning_rates: list[float]
    """Of each parameter group before the schedule's factor."""
    update: int = 0
    """Updates done."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The validation metrics of each epoch so far."""

    def pack(self) -> dict[str, Any]:
        """The state as sections of a checkpoint."""
        scaler = self.arithmetic.scaler
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": scaler.state_dict() if scaler else None,
            "progress": {"update": self.update, "history": self.history},
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Take over a state that `pack` gave.

        Raises CheckpointError when the model, the optimizer or the precision is not the one that was saved.
        """
        try:
            self.model.load_state_dict(saved["model"], strict=True)
            self.optimizer.load_state_dict(_own_memory(saved["optimizer"]))
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"the checkpoint is of another model or optimizer: {error}",
                hint="has the recipe's model() or optimizer() changed since the run began?",
            ) from error
        scaler = self.arithmetic.scaler
        if scaler and saved["scaler"]:
            scaler.load_state_dict(saved["scaler"])
        self.update = saved["progress"]["update"]
        self.history = saved["progress"]["history"]


def build(loaded: LoadedRecipe, settings: Settings, device: torch.device) -> TrainingState:
    """The state before the first update: a model initialised from the seed, on `device`, in training mode.

    Raises QuestionError for a technique that the model or its optimizer has not.
    """
    assert settings.precision is not None
    seed_all(derive(loaded.seed, "model"))
    model = loaded.recipe.model().to(device).train()
    checkpointing.apply(model, loaded.recipe, settings.checkpointing)
    optimizer = build_optimizer(loaded.recipe, model)
    eightbit.require_real(optimizer)
    kernels.choose(optimizer, settings.optimizer_kernel)
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark
    return TrainingState(
        model=model,
        optimizer=optimizer,
        arithmetic=arithmetic(settings.precision, device),
        learning_rates=[float(group["lr"]) for group in optimizer.param_groups],
    )


def trains_batch_norm(model: nn.Module) -> bool:
    """Whether some BatchNorm takes its statistics from the microbatch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training for module in model.modules())


def _own_memory(state: Any) -> Any:
    """`state` with tensors that lie in memory of their own, aligned as torch allocates: views into a file need not be,
    and vector code may round the ends of an unaligned tensor differently.
    """
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _own_memory(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_own_memory(value) for value in state]
    return state
