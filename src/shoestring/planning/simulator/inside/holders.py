"""What holds the memory of a device: its live blocks by the line of the person's own code that allocated them."""

from __future__ import annotations

import bisect
import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from . import frames

LIMIT = 30
BACKWARD = "(backward)"
UNKNOWN = "(unknown)"
_CALLED_IN_BACKWARD = ("torch/autograd/function.py", "torch/utils/checkpoint.py", "torch/autograd/graph.py")


def holders(snapshot: dict[str, Any], device: int, backward_line: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The largest holders first. `library` has the lines of libraries, outside of PyTorch, that allocated for them."""
    blocks = list(_live_blocks(snapshot, device))
    kinds = _kinds(sorted((address, size) for address, size, _ in blocks))
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for address, size, stack in blocks:
        line, library = _lines(stack, backward_line)
        kind = kinds.get(address, "other")
        key = (line["file"], line["line"], line["function"], kind)
        row = rows.setdefault(key, {"bytes": 0, "count": 0, **line, "kind": kind, "library": {}})
        row["bytes"] += size
        row["count"] += 1
        if library is not None:
            row["library"][library] = row["library"].get(library, 0) + size
    largest = sorted(rows.values(), key=lambda row: -row["bytes"])[:LIMIT]
    for row in largest:
        lines = sorted(row["library"].items(), key=lambda item: -item[1])[:3]
        row["library"] = [
            {"bytes": size, "file": file, "line": line, "function": name} for (file, line, name), size in lines
        ]
    return largest


def _live_blocks(snapshot: dict[str, Any], device: int) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
    for segment in snapshot["segments"]:
        if segment.get("device", device) != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"].startswith("active"):
                yield block.get("address", address), block["size"], block.get("frames") or []
            address += block["size"]


def _lines(
    stack: list[dict[str, Any]], backward_line: dict[str, Any] | None
) -> tuple[dict[str, Any], tuple[str, int, str] | None]:
    """The innermost own line, else the innermost one, and the innermost line of a library that it called."""
    innermost: dict[str, Any] | None = None
    library: tuple[str, int, str] | None = None
    for frame in stack:
        file = frame["filename"]
        if frames.is_observer(file) or not file.endswith((".py", ">")):  # the rest is C++, in the script's own history
            continue
        line = {"file": file, "line": frame["line"], "function": frame["name"]}
        if frames.is_own(file):
            return line, library
        innermost = innermost or line
        if library is None and "/torch/" not in file and "-packages/" in file:
            library = (file, frame["line"], frame["name"])
    # The threads of backward have no Python frames but those of functions that PyTorch calls there, as to compute a
    # block again: what they allocated belongs to the line that called backward.
    if backward_line is not None and (not stack or stack[-1]["filename"].endswith(_CALLED_IN_BACKWARD)):
        return {"file": backward_line["file"], "line": backward_line["line"], "function": BACKWARD}, library
    return innermost or {"file": "", "line": 0, "function": UNKNOWN}, library


def _kinds(blocks: list[tuple[int, int]]) -> dict[int, str]:
    """What the tensor in a block is, by the address of the block."""
    starts = [address for address, _ in blocks]
    kinds: dict[int, str] = {}

    def mark(tensor: Any, kind: str) -> None:
        with suppress(Exception):
            tensor = getattr(tensor, "_local_tensor", tensor)  # the part of a distributed tensor
            address = tensor.untyped_storage().data_ptr()
            position = bisect.bisect_right(starts, address) - 1
            if position >= 0 and address < starts[position] + blocks[position][1]:
                kinds.setdefault(starts[position], kind)

    gradients: list[Any] = []
    states: list[Any] = []
    buffers: list[Any] = []
    for candidate in gc.get_objects():
        kind = type(candidate)
        with suppress(Exception):
            if issubclass(kind, torch.Tensor):
                if getattr(candidate, "_is_param", False) or issubclass(kind, torch.nn.Parameter):
                    mark(candidate, "weights")
                    gradients.append(candidate.grad)
                    quantized = getattr(candidate, "quant_state", None)  # of a weight of bitsandbytes
                    buffers.extend(_tensors(vars(quantized)) if quantized is not None else ())
            elif issubclass(kind, torch.optim.Optimizer):
                states.extend(_tensors(candidate.state))
            elif issubclass(kind, torch.nn.Module):
                buffers.extend(_tensors(candidate._buffers))
    for tensors, name in ((gradients, "gradients"), (states, "optimizer states"), (buffers, "weights")):
        for tensor in tensors:
            if tensor is not None:
                mark(tensor, name)
    return kinds


def _tensors(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, dict):
        for item in list(value.values()):
            yield from _tensors(item, depth + 1)
    elif depth < 4 and isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, depth + 1)
