"""What the recipe's code or torch raised, as an error that says where and what to do."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from shoestring.errors import ShoestringError, TraceError

if TYPE_CHECKING:
    from shoestring.trace.recorder import Recorder

_PACKAGE = Path(__file__).parents[1]
_OWN = tuple(str(_PACKAGE / room) for room in ("trace", "recipe"))
_TORCH = str(Path(torch.__file__).parent)

_WRITTEN = {
    "aten._local_scalar_dense": "`.item()` or a condition",
    "aten.nonzero": "`nonzero()`, `x[mask]` or the like",
}
"""How code calls the operators that give values to Python, or results whose shape is by values."""

_REAL_GPU = (
    "take the device of the tensors that are given, not `cuda`; whether there is a GPU is not for a model to ask"
)
_EXTENSION = (
    "an extension of its own reads memory here, and a pretend GPU has none: give it as an operator by"
    " torch.library.custom_op, and its result's shape by register_fake"
)
_HINTS = {
    "not compiled with CUDA": _REAL_GPU,
    "without CUDA support": _REAL_GPU,
    "No CUDA GPUs are available": _REAL_GPU,
    "no NVIDIA driver": _REAL_GPU,
    "Attempting to deserialize object on a CUDA device": _REAL_GPU,
    "data pointer": _EXTENSION,
    "data_ptr": _EXTENSION,
}
"""By what torch says (`torch/cuda/__init__.py`, `c10/core/StorageImpl.cpp`)."""
_HINT = "if the same happens with a small batch on the CPU, it is the recipe's; else the pretend GPU's"


@contextlib.contextmanager
def explained(recorder: Recorder | None = None) -> Iterator[None]:
    """Turn any error in this block into a TraceError; the project's own pass as they are."""
    try:
        yield
    except ShoestringError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise TraceError(
            f"{error.func}{_written(error.func)} decides by a tensor's values{_place(error)}, and on a pretend GPU"
            " there are none",
            hint="compute the decision from shapes or on the host before the batch is moved; on a real GPU it would"
            " also stop the queue of kernels",
        ) from error
    except (UnsupportedOperatorException, UnsupportedFakeTensorException) as error:
        raise TraceError(
            f"an operator has no rule for shapes alone{_place(error)}: {error}",
            hint="register one with torch.library.register_fake",
        ) from error
    except Exception as error:
        during = f" during {recorder.operator}" if recorder and recorder.operator else ""
        hint = next((hint for said, hint in _HINTS.items() if said in str(error)), _HINT)
        raise TraceError(f"{type(error).__name__}{_place(error)}{during}: {error}", hint=hint) from error


def _written(operator: object) -> str:
    said = _WRITTEN.get(str(operator).rpartition(".")[0])
    return f" ({said})" if said else ""


def _place(error: BaseException) -> str:
    """` at file:line in function` of the recipe's innermost frame; empty where there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_TORCH, *_OWN, "<", contextlib.__file__))
    ]
    if not frames:
        return ""
    frame = frames[-1]
    return f" at {frame.filename}:{frame.lineno} in {frame.name}"
