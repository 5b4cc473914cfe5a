"""How many updates the whole run has, where the program that trains knows it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from . import frames


def find() -> dict[str, Any] | None:
    """The total of the trainer that is running now: an object whose method is one of the frames."""
    visited: set[int] = set()
    for frame in frames.walk(sys._getframe(1)):
        owner = _local(frame, "self")
        if owner is not None and id(owner) not in visited:
            visited.add(id(owner))
            total = _of_trainer(owner)
            if total is not None:
                per_epoch = _local(frame, "num_update_steps_per_epoch")
                return total if not _is_count(per_epoch) else {"updates_per_epoch": per_epoch, **total}
        total = _of_arguments(frame)
        if total is not None:
            return total
    return None


def _local(frame: FrameType, name: str) -> Any:
    return frame.f_locals.get(name) if name in frame.f_code.co_varnames else None


def _of_trainer(owner: Any) -> dict[str, Any] | None:
    for kind in type(owner).__mro__:
        module, name = kind.__module__, kind.__name__
        if name != "Trainer":
            continue
        if module == "transformers.trainer":
            return _of_transformers(owner)
        if module in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
            return _of_lightning(owner, module.split(".", 1)[0])
    return None


def _of_transformers(trainer: Any) -> dict[str, Any] | None:
    state = trainer.state
    if not _is_count(state.max_steps):
        return None
    total = {"total_updates": state.max_steps - state.global_step, "source": "transformers.Trainer"}
    if state.global_step:  # it continues an earlier run
        total["updates_before"] = state.global_step
    return total


def _of_lightning(trainer: Any, package: str) -> dict[str, Any] | None:
    steps = trainer.estimated_stepping_batches
    if not _is_count(steps):  # infinite, if it ends by time or by a callback
        return None
    total = {"total_updates": int(steps), "source": f"{package}.Trainer"}
    batches = trainer.num_training_batches
    if _is_count(batches):
        total["updates_per_epoch"] = -(-int(batches) // trainer.accumulate_grad_batches)
    return total


def _of_arguments(frame: FrameType) -> dict[str, Any] | None:
    """The scripts of transformers, diffusers and Accelerate without a trainer compute `args.max_train_steps`."""
    if not frames.is_own(frame.f_code.co_filename):
        return None
    names = frame.f_code.co_varnames if frame.f_code.co_name != "<module>" else frame.f_globals
    steps = getattr(frame.f_locals.get("args"), "max_train_steps", None) if "args" in names else None
    return {"total_updates": steps, "source": "args.max_train_steps"} if _is_count(steps) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value < float("inf")
