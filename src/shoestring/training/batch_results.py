"""What `evaluate_batch` returns for a batch, which one process can send to another."""

from typing import Any

from torch import Tensor

from shoestring.base.errors import UsageError

_PLAIN = (type(None), bool, int, float, str)


def on_host(result: Any, place: str = "") -> Any:
    """Return the result of a batch with its tensors in host memory.

    Raises UsageError for a value that another process would not receive with the same type, on any number of
    processes.
    """
    kind = type(result)
    if isinstance(result, Tensor):
        return result.detach().cpu()
    if kind in _PLAIN:
        return result
    if kind is tuple or kind is list:
        return kind([on_host(item, f"{place}[{index}]") for index, item in enumerate(result)])
    if kind is dict:
        return {on_host(key, f"{place}, as a key,"): on_host(item, f"{place}[{key!r}]") for key, item in result.items()}
    raise UsageError(
        f"evaluate_batch() returned a {kind.__module__}.{kind.__qualname__}{place and ' at ' + place}, which one "
        "process cannot send to another",
        hint="return tensors, numbers and texts in tuples, lists and dicts: torch.from_numpy(array), tuple(fields)",
    )
