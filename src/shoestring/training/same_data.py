"""Whether the processes of a session have the same data: each of them calls the recipe's `data()` for itself.

An order that differs from process to process, such as that of a set, would let each train on samples that belong to
another one. So they compare how many samples each part has, and the content of three samples of the training part.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoestring.base.errors import RunError
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import nested
from shoestring.training.data.generators import preserved_generators
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.processes.one_process import Processes

_PLAIN = (str, bytes, int, float, complex, bool, type(None), np.generic)
_HINT = (
    "data() must return the same samples in the same order in each process: sort what it lists, because sets and "
    "folders have no fixed order, and give generators of its own a seed"
)


def require_same_data(processes: Processes, loaded: LoadedRecipe, data: Mapping[str, Any], workers: int | None) -> None:
    """Raise RunError in all processes if their `data` differ.

    Samples that differ when they are read again, because they are augmented at random, are not compared; nor are those
    in shards, each of which would have to be read for one sample.
    """

    def require(own: Mapping[str, Any], first: Mapping[str, Any], description: str) -> None:
        """Raise RunError if this process has other facts on a part than the first; None is not compared."""
        problems = [f"{part} is not a part in each process" for part in sorted(own.keys() ^ first.keys())]
        problems += [
            description.format(part=part, own=value, first=first[part])
            for part, value in own.items()
            if part in first and None not in (value, first[part]) and value != first[part]
        ]
        if problems:
            raise RunError(
                f"data() returned other data in process {processes.number}: {'; '.join(problems)}", hint=_HINT
            )

    processes.require_same(
        lambda: {part: _count(samples) for part, samples in data.items()},
        partial(require, description="{part} has {own} samples, and {first} in the first process"),
    )
    processes.require_same(
        lambda: {"train": _content(loaded, data["train"], workers)},
        partial(require, description="{part} has other samples than in the first process"),
    )


def _count(samples: Any) -> int | None:
    try:
        return len(samples)
    except TypeError:
        return None


def _content(loaded: LoadedRecipe, samples: Any, workers: int | None) -> str | None:
    """Return a digest of the first, the middle and the last sample; None if they cannot be compared."""
    if getattr(samples, "shards", ()):
        return content_digest([samples.shards, getattr(samples, "names", None)])
    if not (count := _count(samples)):
        return None
    order = DataOrder.of(samples, effective_batch=loaded.effective_batch, seed=loaded.seed)
    indices = sorted({0, count // 2, count - 1})
    digests = set()
    try:
        with (
            preserved_generators(),
            Loader(
                loaded.recipe, samples, order, seed=loaded.seed, device=torch.device("cpu"), workers=workers
            ) as loader,
        ):
            for _ in range(2):
                digests.add(content_digest(loader.batches([indices], epoch=0)[0]))
    except Exception:  # noqa: BLE001  (what fails here fails in training, with the error for it)
        return None
    return digests.pop() if len(digests) == 1 else None


def content_digest(value: Any) -> str:
    """Return a digest of tensors, arrays, numbers and text in any containers; other objects count by their tensors."""
    digest = hashlib.sha256()
    for content in _contents(value):
        digest.update(content)
    return digest.hexdigest()


def _contents(value: Any) -> Iterator[bytes]:
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        if value.layout == torch.strided and not value.is_quantized:
            yield value.detach().cpu().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Path) or (isinstance(value, str) and Path(value).is_absolute()):
        yield Path(value).name.encode(errors="surrogateescape")  # its folder may be a copy on this process's machine
    elif isinstance(value, _PLAIN):
        yield f"{value!r};".encode()
    elif isinstance(value, Mapping):
        for key in value:
            yield from _contents(key)
            yield from _contents(value[key])
    elif isinstance(value, list | tuple):
        yield f"{len(value)}:".encode()
        for item in value:
            yield from _contents(item)
    else:
        for tensor in nested.tensors(value):
            yield from _contents(tensor)
