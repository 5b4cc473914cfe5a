"""What a child process of a check reports: a line of JSON for each stage."""

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

from shoestring.base.errors import ShoestringError
from shoestring.base.packages.broken import broken_library

Report = Callable[[dict[str, Any]], None]


def reporting() -> Report:
    """Return the function that writes a stage to standard output, where nothing else is written from now on."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the recipe's own output goes to stderr

    def report(stage: dict[str, Any]) -> None:
        print(json.dumps(stage), file=output, flush=True)

    return report


def error_stage(error: Exception) -> dict[str, Any]:
    """Return the stage that reports an error of the recipe's code; `memory` is true for out-of-memory."""
    from shoestring.training.engine.memory import error_message, out_of_memory_message

    if isinstance(error, ShoestringError):
        message, hint = "; ".join((error.message, *error.problems)), error.hint
        is_memory = message.startswith("out of memory")
    elif broken := broken_library(error):
        message, hint, is_memory = broken.message, broken.hint, False
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        located_message = f"{type(error).__name__} in {frame.filename}, line {frame.lineno}: {error_message(error)}"
        memory_message = out_of_memory_message(error)
        message, hint, is_memory = memory_message or located_message, "", memory_message is not None
    return {"stage": "error", "message": message, "hint": hint or "", "memory": is_memory}
