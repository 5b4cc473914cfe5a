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
_OWN = tuple(str(_PACKAGE / room) for room in ("trace", "recipe.py"))
_TORCH = str(Path(torch.__file__).parent)


@contextlib.contextmanager
def explained(recorder: Recorder | None = None) -> Iterator[None]:
    """Turn any error in this block into a TraceError; the project's own pass as they are."""
    try:
        yield
    except ShoestringError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise TraceError(
            f"{error.func} decides by a tensor's values{_place(error)}, and on a pretend GPU there are none",
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
        raise TraceError(
            f"{type(error).__name__}{_place(error)}{during}: {error}",
            hint="if the same happens with a small batch on the CPU, it is the recipe's; else the pretend GPU's",
        ) from error


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
