"""Pretrained models in a folder or, by name, on the hub: found alike by a plan and by training.

A name stands for a folder in the hub's cache, and libraries only load from folders: given a name, transformers may ask
a service on the hub to convert a `.bin` file and load the result. It reads a folder's `.bin` with `weights_only=True`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import ERROR
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.base.reading import require_regular_files
from shoestring.base.streams import write_messages
from shoestring.integrations.huggingface.library_errors import without_advice
from shoestring.training.checkpoint import foreign

_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.codes", "*.jinja"]
"""Configurations, indexes of weights, and tokenizers."""
_WEIGHTS = (["model*.safetensors"], ["pytorch_model*.bin"])
"""The files of weights, in the order in which they are looked for."""
_MOST_CHARACTERS = 200
"""Of a library's message."""


class _UnreachableError(Exception):
    """Files that may be downloaded cannot be."""


def find(source: str | Path, *, download: bool) -> Path:
    """Return the folder with the configuration and the tokenizer of `source`, a folder or a name on the hub.

    Its files are downloaded if `download` is true and they are not on this machine. Call it in `reading`.
    """
    folder = Path(source)
    if folder.is_dir():
        require_regular_files(folder)
        return folder
    if isinstance(source, Path) or folder.is_absolute() or folder.exists():
        raise ValueError("there is no such folder")
    return _fetch(source, _SMALL_FILES, download=download)


def find_weights(source: str | Path, *, download: bool) -> Path:
    """Return the folder of `source` with its weights, downloaded if necessary and allowed. Call it in `reading`.

    A plan needs no values: for it, weights are not downloaded and may be missing (see `weights_notes`). Those on this
    machine are checked, as far as can be seen without their values.
    """
    folder = find(source, download=download)
    if download and folder != Path(source) and foreign.missing_files(folder):
        if is_planned():
            _require_published(str(source))
        else:
            for patterns in _WEIGHTS:
                if foreign.missing_files(folder):
                    _fetch(str(source), patterns, download=True)
    if not (is_planned() and foreign.missing_files(folder)):
        foreign.check_weights(folder)
    return folder


def is_planned() -> bool:
    """Return whether a model is built for its shape alone, without memory for weights."""
    return torch.get_default_device().type == "meta"


def weights_notes(option: str, source: str | Path, *, download: bool) -> list[str]:
    """Return a note if the weights are not on this machine: a plan only needs the configuration, training more."""
    try:
        with reading(f"{option}={source}"):
            folder = find(source, download=download)
    except UsageError:  # which the model or the data raises
        return []
    if not (missing := foreign.missing_files(folder)):
        return []
    # What follows comes first: the summary of a plan shows as much of a note as fits on a line.
    if download and folder != Path(source):
        consequence = "training downloads the weights"
    else:
        consequence = "training will refuse the model without weights"
    return [f"{consequence}: {option}={source} has no complete weights on this machine ({missing})"]


@contextmanager
def reading(label: str, *, expected: str = "config.json, model.safetensors or pytorch_model.bin") -> Iterator[None]:
    """Raise UsageError for unreadable files, naming the option and its value in `label`; silence the libraries."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        yield
    except UsageError:
        raise
    except _UnreachableError as error:
        raise UsageError(
            f"{label} cannot be downloaded: {error}",
            hint=f"try again where the hub can be reached, or copy a folder with {expected} here and name it",
        ) from error
    except Exception as error:  # the library for tokenizers raises just that
        cause = error.message if isinstance(error, CheckpointError) else without_advice(str(error))[:_MOST_CHARACTERS]
        raise UsageError(
            f"{label} cannot be read: {cause}",
            hint=f"use a folder with {expected}, or the name of such a model on the hub with download=true; copy or "
            "download a damaged file again",
        ) from error
    finally:
        logging.set_verbosity(verbosity)


def load_model(model_class: Any, folder: Path, **options: Any) -> tuple[Any, list[str]]:
    """Return a model of transformers with the weights of a folder, and the sorted names of those that it lacks.

    Raises ValueError if the weights have other sizes than the configuration says, or values that are not finite.
    """
    model, info = model_class.from_pretrained(
        folder,
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=False,
        weights_only=True,
        ignore_mismatched_sizes=True,  # without it, transformers names them in its log alone
        **options,
    )
    if mismatched := sorted(info["mismatched_keys"]):
        name, stored_shape, model_shape = mismatched[0]
        raise ValueError(
            f"{len(mismatched)} of the weights have other sizes than config.json says: {name} is {list(stored_shape)}, "
            f"and of the described model {list(model_shape)}"
        )
    _require_finite(model)
    if unused := sorted(info["unexpected_keys"]):
        write_messages(
            f"note: {len(unused)} of the weights in {folder} are not used, for example {unused[0]}: the model that "
            "config.json describes does not have them"
        )
    return model, sorted(info["missing_keys"])


def _require_finite(model: torch.nn.Module) -> None:
    """Raise ValueError for a weight that is NaN or infinite. Reads each weight once, without memory of its own."""
    for name, weight in model.named_parameters():
        if not weight.is_floating_point() or weight.is_meta or not weight.numel():
            continue
        if not all(torch.isfinite(bound) for bound in weight.detach().aminmax()):
            raise ValueError(f"the weight {name} has values that are not finite, so every loss would be NaN")


def _require_published(name: str) -> None:
    """Raise ValueError if a model on the hub has no weights of a known format; nothing if the hub does not answer."""
    import huggingface_hub

    files = list(foreign.WHOLE)
    with suppress(Exception):  # of several libraries
        files = huggingface_hub.list_repo_files(name)
    if not set(files) & set(foreign.WHOLE):
        raise ValueError(f"it has none of {', '.join(foreign.WHOLE)}")


def _fetch(name: str, patterns: list[str], *, download: bool) -> Path:
    """Return the folder in the hub's cache of a model, with the files of these patterns."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, local_files_only=not download))
    except LocalEntryNotFoundError as error:
        if not download:
            raise
        raise _UnreachableError("the hub does not answer, and this machine has no copy of its files") from error
    require_regular_files(folder)
    return folder
