"""Checks that a saved state fits a model, its optimizer and a run, made before any part of it is loaded."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shoestring.base.reading import COUNT, OBJECT, find_problems

# States of torch's optimizers that have the shape of the parameter (torch.optim, 2.13).
_PARAMETER_SHAPED_STATES = {
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg"),
    *("acc_delta", "sum", "ax", "prev", "step_size"),
}


def state_mismatches(saved: Any, own: Mapping[str, Any], *, dtypes: bool = True) -> list[str]:
    """Return the reasons why `saved` does not fit `own`, a model's state by name; none if it does.

    Dtypes are compared only if `dtypes` is true.
    """
    if not isinstance(saved, Mapping):
        return ["it is not a mapping of names to tensors"]
    problems = [f"{name} is missing" for name in own.keys() - saved.keys()]
    problems += [f"{name} is not in the model" for name in saved.keys() - own.keys()]
    for name in own.keys() & saved.keys():
        own_value, saved_value = own[name], saved[name]
        if not isinstance(own_value, Tensor):
            continue
        if not isinstance(saved_value, Tensor):
            problems.append(f"{name} is not a tensor")
        elif own_value.shape != saved_value.shape or (dtypes and own_value.dtype != saved_value.dtype):
            problems.append(f"{name} was saved as {_describe(saved_value)}, but is {_describe(own_value)} in the model")
    return sorted(problems)


def optimizer_state_mismatches(saved: Any, own: Mapping[str, Any], parameters: list[Tensor]) -> list[str]:
    """Return the reasons why `saved` does not fit the optimizer of `parameters` whose `state_dict` is `own`."""
    if not isinstance(saved, Mapping) or not isinstance(saved.get("state"), dict):
        return ["it has no optimizer state"]
    groups = saved.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return ["it has no parameter groups"]
    if [_parameter_indices(group) for group in groups] != [_parameter_indices(group) for group in own["param_groups"]]:
        return ["its parameter groups have different parameters"]
    problems = [
        f"{name} of group {number} was saved as {str(saved_group[name])[:40]!r}, but is {own_group[name]!r} now"
        for number, (saved_group, own_group) in enumerate(zip(groups, own["param_groups"], strict=True))
        for name in sorted(saved_group.keys() & own_group.keys())
        if not _is_compatible(saved_group[name], own_group[name])
    ]
    for index, states in saved["state"].items():
        if not isinstance(index, int) or not 0 <= index < len(parameters) or not isinstance(states, dict):
            problems.append(f"it has states of parameter {str(index)[:40]}, which does not exist")
            continue
        shape = parameters[index].shape
        for name in states.keys() & _PARAMETER_SHAPED_STATES:
            value = states[name]
            if value is not None and not (isinstance(value, Tensor) and value.shape == shape):
                problems.append(
                    f"{name} of parameter {index} was saved as {_describe(value)}, but the parameter is {tuple(shape)}"
                )
    return problems


def history_problems(history: object) -> list[str]:
    """Return the reasons why `history` is not a list with the update and the metrics of each epoch, in order."""
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        return ["the metrics of the epochs are not a list of objects"]
    kinds = {"epoch": COUNT, "update": COUNT, "metrics": OBJECT}
    missing = [name for entry in history for name in kinds if name not in entry]
    problems = [f"an epoch has no {name}" for name in missing]
    problems += [problem for entry in history for problem in find_problems(entry, kinds)]
    epochs = [] if problems else [entry["epoch"] for entry in history]
    return problems + (["the epochs are not in order"] if sorted(set(epochs)) != epochs else [])


def _parameter_indices(group: Mapping[str, Any]) -> Any:
    return group.get("params")


def _is_compatible(saved: object, own: object) -> bool:
    """Return whether both are numbers or of one type; None, and a tensor as `own`, are compatible with any value."""
    if saved is None or own is None or isinstance(own, Tensor):
        return True
    if isinstance(own, int | float) and not isinstance(own, bool):
        return isinstance(saved, int | float | Tensor)
    return type(saved) is type(own)


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
