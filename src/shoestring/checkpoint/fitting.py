"""Whether saved tensors belong to a model and its optimizer: asked before the first of them is put into its place."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

# What torch's optimizers keep for each number of a parameter (torch.optim, 2.13).
_LIKE_PARAMETER = {
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg"),
    *("acc_delta", "sum", "ax", "prev", "step_size"),
}


def misfits(saved: Any, own: Mapping[str, Any], *, dtypes: bool = True) -> list[str]:
    """What keeps `saved` from being the tensors of `own`, a model's state by name; dtypes may differ if so allowed."""
    if not isinstance(saved, Mapping):
        return ["there are no tensors by name"]
    found = [f"{name} is not there" for name in own.keys() - saved.keys()]
    found += [f"{name} is not the model's" for name in saved.keys() - own.keys()]
    for name in own.keys() & saved.keys():
        ours, theirs = own[name], saved[name]
        if not isinstance(ours, Tensor):
            continue
        if not isinstance(theirs, Tensor):
            found.append(f"{name} is no tensor")
        elif ours.shape != theirs.shape or (dtypes and ours.dtype != theirs.dtype):
            found.append(f"{name} was saved as {_kind(theirs)}, here it is {_kind(ours)}")
    return sorted(found)


def optimizer_misfits(saved: Any, own: Mapping[str, Any], parameters: list[Tensor]) -> list[str]:
    """What keeps `saved` from being a state of the optimizer whose `state_dict` is `own`, over `parameters`."""
    if not isinstance(saved, Mapping) or not isinstance(saved.get("state"), dict):
        return ["there is no optimizer's state"]
    groups = saved.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return ["there are no parameter groups"]
    if [_members(group) for group in groups] != [_members(group) for group in own["param_groups"]]:
        return ["its parameter groups have other parameters"]
    found = [
        f"{name} of group {number} was {str(theirs[name])[:40]!r}, here it is {ours[name]!r}"
        for number, (theirs, ours) in enumerate(zip(groups, own["param_groups"], strict=True))
        for name in sorted(theirs.keys() & ours.keys())
        if not _alike(theirs[name], ours[name])
    ]
    for place, states in saved["state"].items():
        if not isinstance(place, int) or not 0 <= place < len(parameters) or not isinstance(states, dict):
            found.append(f"it has states of {str(place)[:40]}, which is none of its parameters")
            continue
        shape = parameters[place].shape
        for name in states.keys() & _LIKE_PARAMETER:
            value = states[name]
            if value is not None and not (isinstance(value, Tensor) and value.shape == shape):
                found.append(
                    f"{name} of parameter {place} was saved as {_kind(value)}, the parameter is {tuple(shape)}"
                )
    return found


def _members(group: Mapping[str, Any]) -> Any:
    return group.get("params")


def _alike(saved: object, own: object) -> bool:
    """Whether both are numbers, or both are of one type; what may be left out, or be a tensor, may differ."""
    if saved is None or own is None or isinstance(own, Tensor):
        return True
    if isinstance(own, int | float) and not isinstance(own, bool):
        return isinstance(saved, int | float | Tensor)
    return type(saved) is type(own)


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
