"""The hooks that a LightningModule overrides: those that have no effect here, and those that it cannot do without."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.recipe.lightning import DATA_MODULE, MODULE, base_of, overrides

_CALLED = {
    *("training_step", "validation_step", "test_step", "predict_step", "forward", "configure_optimizers"),
    *("configure_model", "prepare_data", "setup", "example_input_array", "automatic_optimization"),
    *("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader"),
    *("on_before_batch_transfer", "on_after_batch_transfer"),
    *(
        f"on_{part}_{place}"
        for part in ("validation", "test")
        for place in ("start", "end", "epoch_start", "epoch_end")
    ),
    *(f"on_{part}_batch_{place}" for part in ("validation", "test") for place in ("start", "end")),
}
_OWN = {"log", "log_dict", "print", "trainer", "device", "dtype", "to", "cuda", "cpu", "train", "eval"}
"""What the user's own code calls."""
_REFUSED = ("backward", "optimizer_step", "configure_gradient_clipping", "lr_scheduler_step")
"""Hooks that change the update itself: without them it would be another training."""


def require_usable(module: Any) -> None:
    """Raise UsageError for a LightningModule whose updates would be others without Lightning's Trainer."""
    kind = type(module)
    problems = [f"it overrides {name}, which Shoestring does not call" for name in _REFUSED if overrides(kind, name)]
    if not module.automatic_optimization:
        problems.append("it sets automatic_optimization = False: its training_step makes the updates itself")
    if not overrides(kind, "configure_optimizers"):
        problems.append("it has no configure_optimizers")
    if "dataloader_iter" in kind.training_step.__code__.co_varnames[: kind.training_step.__code__.co_argcount]:
        problems.append("its training_step takes dataloader_iter")
    if problems:
        raise UsageError(
            f"{kind.__name__} cannot be trained",
            problems=problems,
            hint="return the loss from training_step and the optimizer, with its scheduler, from configure_optimizers; "
            "for other updates use the parts of the engine in a loop of your own (docs/guides/own_loop.md)",
        )


def unused(kind: type) -> list[str]:
    """Return the names of the hooks of Lightning that the class overrides and that are not called."""
    base = base_of(kind, MODULE) or base_of(kind, DATA_MODULE)
    assert base is not None
    hooks = {
        name
        for library_class in base.__mro__
        if library_class.__module__.partition(".")[0] == base.__module__.partition(".")[0]
        for name, value in vars(library_class).items()
        if isinstance(value, FunctionType) and not name.startswith("_")
    }
    return sorted(name for name in hooks - _CALLED - _OWN if overrides(kind, name))


def position_names(kind: Any) -> frozenset[str]:
    """Return which of `current_epoch`, `global_step` and `batch_idx` the code of a LightningModule reads."""
    names = set[str]()
    for code in _code_of(kind):
        names |= {"current_epoch", "global_step"} & set(code.co_names)
    step: CodeType = kind.training_step.__code__
    if step.co_argcount > 2:
        index_name = step.co_varnames[2]
        loads = (item.argval for item in dis.get_instructions(step) if item.opname.startswith("LOAD"))
        if any(index_name == value or (isinstance(value, tuple) and index_name in value) for value in loads):
            names.add("batch_idx")
    return frozenset(names)


def logs_training(kind: Any) -> bool:
    """Return whether `training_step` itself logs."""
    return bool({"log", "log_dict"} & set(kind.training_step.__code__.co_names))


def _code_of(kind: type) -> Iterator[CodeType]:
    """Yield the code of all methods that are not Lightning's or torch's."""
    base = base_of(kind, MODULE)
    assert base is not None
    for owner in kind.__mro__:
        if owner in base.__mro__:
            continue
        for value in vars(owner).values():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                pending = [function.__code__]
                while pending:
                    code = pending.pop()
                    yield code
                    pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
