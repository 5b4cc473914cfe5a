"""The functions of libraries that generate and save: each is replaced by one that also holds the phase."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from .files import Files
from .imports import when_imported
from .phases import Phases
from .quiet import quiet


def watch(phases: Phases, files: Files) -> None:
    """Watch them: now where a library is imported, else when it will be."""
    saving = functools.partial(_saving, phases, files)

    def safetensors(module: Any) -> None:
        # Others import `save_file` by its name; the function that it calls is looked up in this module each time.
        module.serialize_file = saving(module.serialize_file, position=1, name="filename")

    def checkpoints(module: Any) -> None:
        save = saving(module.save)
        package = sys.modules[module.__package__]
        if getattr(package, "save", None) is module.save:  # else it will import the new one
            package.save = save  # type: ignore[attr-defined]
        module.save = save

    def models(module: Any) -> None:
        module.PreTrainedModel.save_pretrained = saving(module.PreTrainedModel.save_pretrained)

    def generation(module: Any) -> None:
        module.GenerationMixin.generate = _during(phases, "generation", module.GenerationMixin.generate)

    save: Any = saving(torch.save, position=1, name="f")
    torch.save = torch.serialization.save = save
    when_imported(
        {
            "safetensors.torch": safetensors,
            "torch.distributed.checkpoint.state_dict_saver": checkpoints,
            "transformers.modeling_utils": models,
            "transformers.generation.utils": generation,
        }
    )


def _during(phases: Phases, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with phases.during(phase):
            return function(*args, **kwargs)

    return called


def _saving(
    phases: Phases, files: Files, function: Callable[..., Any], position: int | None = None, name: str = ""
) -> Callable[..., Any]:
    """`position` and `name` are those of the path: these functions write in C++ or Rust, which no audit event tells."""
    add, saved = quiet(files.add), quiet(files.saved)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if position is not None:
            path = args[position] if len(args) > position else kwargs.get(name)
            if isinstance(path, (str, bytes, os.PathLike)):
                add(path)
        with phases.during("saving"):
            result = function(*args, **kwargs)
        saved()
        return result

    return called
