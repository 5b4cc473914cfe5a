"""Weights in the files of other programs: safetensors, or torch's own format with tensors alone.

torch's format is a pickle. It is only read with `weights_only=True`, whose reader builds tensors and plain values and
refuses everything else, so no code in a file is executed. Nothing larger than the file itself is accepted.
"""

import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import CheckpointError
from shoestring.base.reading import is_file, open_binary, read_json, real_path, reason
from shoestring.base.units import bytes_text
from shoestring.training.checkpoint import fileset
from shoestring.training.checkpoint.compatibility import state_mismatches
from shoestring.training.checkpoint.light import read_light
from shoestring.training.checkpoint.mapped import MappedFile

WHOLE = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""The files of weights in a folder of transformers, in its order."""
PATTERNS = ("*.safetensors", "*.bin", "*.pth", "*.pt")
"""The files of weights in any other folder; the first pattern that matches decides."""
INDEX = ".index.json"

_WRAPPERS = ("state_dict", "model_state_dict", "model", "network")
"""Names under which programs store a state dict inside of a checkpoint."""
_PARALLEL = "module."
"""The prefix of every name in a state dict of torch's DataParallel."""
_LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of torch's format before version 1.6, which is no zip file."""
_REFUSED = re.compile(r"GLOBAL ([\w.]+)")
"""What torch's reader names when it refuses to build something."""
_NAMES_HINT = "expected: model.safetensors or pytorch_model.bin, each also with an index, or one file like CR_net.pth"
_HINT = "give weights in safetensors, or a state dict that was saved with torch.save; see docs/guides/data.md"


class _Ignored:
    """Replaces NumPy's scalars: many checkpoints contain a metric beside the weights."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


_NUMPY = ("numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtypes.Float64DType")


def find_files(path: Path) -> list[Path]:
    """Return the files with the weights at `path`, a file or a folder; several if an index distributes them.

    Raises CheckpointError if there are none, or not all.
    """
    if not path.is_dir():
        candidates = [path]
    elif not (candidates := [path / name for name in WHOLE if (path / name).is_file()][:1]):
        candidates = next((sorted(path.glob(pattern)) for pattern in PATTERNS if any(path.glob(pattern))), [])
    if len(candidates) != 1:
        listed = ": " + ", ".join(file.name for file in candidates[:5]) if candidates else ""
        raise CheckpointError(f"{path} has {len(candidates)} files of weights{listed}", hint=_NAMES_HINT)
    (file,) = candidates
    files = _indexed_files(file) if file.name.endswith(INDEX) else [file]
    if missing := [part.name for part in files if not is_file(part)]:
        raise CheckpointError(f"there is no file {missing[0]} in {file.parent}", hint=_NAMES_HINT)
    return files


def missing_files(path: Path) -> str:
    """Return why the weights at `path` are not complete; empty if they are."""
    try:
        find_files(path)
    except CheckpointError as error:
        return error.message
    return ""


def check_weights(path: Path) -> None:
    """Raise CheckpointError if the weights at `path` cannot be read, as far as can be seen without their values."""
    for file in find_files(path):
        _read_file(file, values=False)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the tensors of the weights at `path`, a file or a folder, by name. They are mapped, if possible.

    A state dict inside of a checkpoint is found under its usual names, and the prefix of DataParallel is removed.

    Raises CheckpointError if the weights cannot be read.
    """
    tensors: dict[str, Tensor] = {}
    for file in find_files(path):
        part = _read_file(file, values=True)
        if repeated := tensors.keys() & part.keys():
            raise CheckpointError(f"{file} cannot be loaded: {min(repeated)} is in another file as well", hint=_HINT)
        tensors |= part
    return tensors


def load_foreign(path: Path, model: nn.Module) -> None:
    """Load the weights at `path`, with the model's own names, into `model`.

    Raises CheckpointError if they cannot be read or belong to another model; the model is unchanged then.
    """
    if path.is_dir() and fileset.has_manifest(path):  # a run's own, whose digests are verified
        read_light(path, model)
    else:
        load_state(path, read_state_dict(path), model)


def load_state(path: Path, state: Mapping[str, Tensor], model: nn.Module) -> None:
    """Load all tensors of a model, which were read from `path`. Raises CheckpointError if they are of another model."""
    own = model.state_dict()
    state = _with_tied_names(state, own)
    if problems := state_mismatches(state, own, dtypes=False):
        raise CheckpointError(f"{path} cannot be loaded: it belongs to another model", problems=problems[:20])
    model.load_state_dict(state)


def _indexed_files(index: Path) -> list[Path]:
    try:
        values = read_json(index, follow=True, strict=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index} cannot be read: {reason(error)}", hint=_HINT) from error
    names = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{index} cannot be read: it has no weight_map", hint=_HINT)
    outside = [name for name in names.values() if Path(name).name != name or name == ".."]
    if outside:
        raise CheckpointError(f"{index} names {outside[0]!r}, which is not a file beside it", hint=_HINT)
    return [index.parent / name for name in sorted(set(names.values()))]


def _read_file(file: Path, *, values: bool) -> dict[str, Tensor]:
    """Return the tensors of one file by name; without their `values` they may be missing or on the meta device."""
    with _checkpoint_errors(file):
        with open_binary(file, max_bytes=None) as opened:  # a regular file: a pipe would block
            size = file.stat().st_size
            start = opened.read(len(_LEGACY_START))
            is_zip = start.startswith(b"PK")
            if is_zip:
                _require_stored(opened, size)
        if file.suffix == ".safetensors":
            mapped = MappedFile(real_path(file))
            return dict(mapped) if values else {}
        if not is_zip and start != _LEGACY_START:
            raise ValueError("it is neither safetensors nor a file of torch.save")
        state = _unwrap(_unpickle(file, values=values, is_mapped=is_zip))
        for name, tensor in state.items():
            if tensor.layout != torch.strided or tensor.numel() * tensor.element_size() > size:
                raise ValueError(f"{name} is not an ordinary tensor of the file's size")
        return state


def _require_stored(file: Any, size: int) -> None:
    """Raise ValueError if the content of a zip file is compressed, and so may be larger than the file."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("it is a compressed zip file, which torch.save does not make")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError(f"its parts are larger than its {bytes_text(size)}")


def _unpickle(file: Path, *, values: bool, is_mapped: bool) -> Any:
    """Return what torch's reader of tensors makes of a file."""
    ignored: Any = [(_Ignored, name) for name in _NUMPY]
    with torch.serialization.safe_globals(ignored):
        location = "cpu" if values else "meta"
        return torch.load(file, map_location=location, weights_only=True, mmap=is_mapped)


def _unwrap(content: Any) -> dict[str, Tensor]:
    """Return the state dict in what a file contains."""
    for _ in _WRAPPERS:
        inner = content if isinstance(content, Mapping) else {}
        names = [name for name in _WRAPPERS if isinstance(inner.get(name), Mapping)]
        if not names:
            break
        content = inner[names[0]]
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"it has no state dict, but {type(content).__name__}")
    strange = [name for name, value in content.items() if not isinstance(name, str) or not isinstance(value, Tensor)]
    if strange:
        raise ValueError(f"{str(strange[0])[:40]!r} in it is not a tensor")
    if all(name.startswith(_PARALLEL) for name in content):
        content = {name.removeprefix(_PARALLEL): value for name, value in content.items()}
    return dict(content)


def _with_tied_names(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `state` with all names of tied weights, of which some programs save only one."""
    saved_names = {_identity(tensor): name for name, tensor in own.items() if name in state}
    tied = {name: saved_names[key] for name, tensor in own.items() if (key := _identity(tensor)) in saved_names}
    return {**{name: state[saved] for name, saved in tied.items()}, **state}


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that two names of one weight share; an empty tensor has no memory to compare."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (id(tensor),)


@contextmanager
def _checkpoint_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # torch's reader of a damaged pickle raises errors of many kinds
        text = str(error)
        if refused := _REFUSED.search(text):
            raise CheckpointError(
                f"{file} is not loaded: it contains {refused[1]}, which is not a tensor and may execute code",
                hint=_HINT,
            ) from error
        # torch continues with the advice to load the file without this protection.
        text = text.partition("(1)")[0].partition("Please file an issue")[0].partition("Re-running")[0]
        cause = reason(error) if isinstance(error, OSError) else " ".join(text.split())[:200]
        raise CheckpointError(f"{file} cannot be loaded: {cause or type(error).__name__}", hint=_HINT) from error
