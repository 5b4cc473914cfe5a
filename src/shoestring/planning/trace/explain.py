"""Turn exceptions of torch or of the recipe's code into errors with a source location and a hint."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from shoestring.base.errors import ShoestringError, TraceError
from shoestring.base.failures import exits_as_errors
from shoestring.base.packages.broken import broken_library
from shoestring.planning.trace.places import is_own, python_syntax

if TYPE_CHECKING:
    from shoestring.planning.trace.recorder import Recorder

_REAL_GPU = "use the device of the input tensors instead of `cuda`; a model should not check whether there is a GPU"
_EXTENSION = (
    "a custom extension reads memory here, and fake tensors have none: register it as an operator with"
    " torch.library.custom_op, and the shape of its result with register_fake"
)
_HOST_MEMORY = "the recipe's own code needs more host memory than there is: load less at once"
_HINTS = {
    "not compiled with CUDA": _REAL_GPU,
    "without CUDA support": _REAL_GPU,
    "No CUDA GPUs are available": _REAL_GPU,
    "no NVIDIA driver": _REAL_GPU,
    "CUDA driver version is insufficient": _REAL_GPU,
    "no CUDA-capable device": _REAL_GPU,
    "Attempting to deserialize object on a CUDA device": _REAL_GPU,
    "data pointer": _EXTENSION,
    "data_ptr": _EXTENSION,
    "MemoryError": _HOST_MEMORY,
    "can't allocate memory": _HOST_MEMORY,
}
"""Hints by a fragment of torch's message (`torch/cuda/__init__.py`, `c10/core/StorageImpl.cpp`)."""
_VALUES = (
    "compute it from shapes or on the host before the batch is moved; on a real GPU it would also synchronize with the"
    " host"
)
_OF_TRANSFORMERS = (
    "this is code of transformers, not of the recipe: the update of this class cannot be estimated. Of a configuration"
    " (hf:), head= chooses another class, such as head=feature-extraction, which is the model without its loss; what"
    " the class itself needs, `shoestring check` measures on a GPU for a recipe that uses it"
)
_HINT = (
    "run the recipe with a small batch on the CPU: if it fails there too, the error is in the recipe, otherwise in the"
    " simulated GPU"
)


@contextlib.contextmanager
def explain_errors(recorder: Recorder | None = None) -> Iterator[None]:
    """Turn any error raised in this block into a TraceError, except the project's own and those of a broken library."""
    try:
        with exits_as_errors(TraceError):
            yield
    except ShoestringError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise TraceError(
            f"{error.func}{_python_syntax(error.func)} depends on a tensor's values{_location(error)}, and fake tensors"
            " on the simulated GPU have no values",
            hint=_OF_TRANSFORMERS if _is_of_transformers(error) else _VALUES,
        ) from error
    except (UnsupportedOperatorException, UnsupportedFakeTensorException) as error:
        raise TraceError(
            f"an operator has no implementation for fake tensors{_location(error)}: {error}",
            hint="register one with torch.library.register_fake",
        ) from error
    except Exception as error:
        if broken := broken_library(error):
            raise broken from error
        during = f" during {recorder.operator}" if recorder and recorder.operator else ""
        hint = next((hint for fragment, hint in _HINTS.items() if fragment in f"{type(error).__name__} {error}"), _HINT)
        message = f"{type(error).__name__}{_location(error)}{during}: {error}"
        raise TraceError(message, problems=recorder.bounds if recorder else (), hint=hint) from error


def _is_of_transformers(error: BaseException) -> bool:
    """Return whether the line that read a value belongs to transformers."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_own(frame.filename)]
    return bool(frames) and "transformers" in Path(frames[-1].filename).parts


def _python_syntax(operator: object) -> str:
    syntax = python_syntax(operator)
    return f" ({syntax})" if syntax else ""


def _location(error: BaseException) -> str:
    """Return ` at file:line in function` of the recipe's innermost frame, or an empty string without such a frame."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_own(frame.filename)]
    if not frames:
        return ""
    frame = frames[-1]
    return f" at {frame.filename}:{frame.lineno} in {frame.name}"
