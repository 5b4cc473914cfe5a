"""The environment of a run: versions, machine and settings that determine its bits in addition to the recipe."""

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.reading import open_file
from shoestring.base.settings import Settings
from shoestring.base.units import KIB, MIB
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import compiled, memory_format
from shoestring.training.checkpoint.files import sha256
from shoestring.training.engine import kernel_probe
from shoestring.training.engine.machine_facts import changed_facts, machine_facts

_CPU = torch.device("cpu")
_KERNELS, _HOST_KERNELS, _MACHINE = "kernels", "host kernels", "machine"
_LIBRARY_FACTS = ("torch", "numpy", "device", "threads", "instructions")
"""Facts with which kernels change: a difference of one of them explains other results of the kernels."""
_UNRECORDED = (
    "the checkpoint is of a version that did not record what the libraries' kernels compute, so nothing shows whether "
    "those of this machine compute the same bits. The checkpoints of this session record it"
)
_SAME_BITS = "the machine differs from the checkpoint's, and its kernels compute the same bits"
_CONTENT = "content of "
"""The beginning of the names of the facts on options that are paths."""
_BYTES = "bytes of "
"""The beginning of the names of the facts on options that are directories."""

_MOST_FILES, _MOST_BYTES, _BLOCK_BYTES = 1024, 256 * MIB, 64 * KIB


def environment(
    settings: Settings, device: torch.device, loaded: LoadedRecipe, *, sharding: str | None = None
) -> dict[str, Any]:
    """Return everything whose change may make a resumed run end in different bits."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device_name(device),
        "micro_batch": settings.micro_batch,
        "precision": settings.precision,
        # None for a default, which compares equal to the missing entry of a checkpoint from before the setting existed.
        "checkpointing": None if settings.checkpointing == "no" else settings.checkpointing,
        "optimizer_kernel": settings.optimizer_kernel,
        "memory_format": settings.memory_format if settings.memory_format == memory_format.CHANNELS_LAST else None,
        "offload": None if settings.offload == "no" else settings.offload,
        "packing": "yes" if settings.packing == "yes" else None,
        "compile": None if settings.compile == "no" else settings.compile,
        "sharding": sharding,
        "compiler": compiled.toolchain(settings, device),
        "fp32_modules": settings.fp32_modules or None,
        "cudnn_benchmark": settings.cudnn_benchmark or None,
        "tf32": settings.tf32 or None,
        "recipe package": str(loaded.foreign_package) if loaded.foreign_package else None,
        "recipe file": loaded.digest[:16],
        "imported files": {name: digest[:16] for name, digest in loaded.imports.items()},
        **{f"{_CONTENT}{name}": content_digest(path)[:16] for name, path in loaded.paths.items()},
        **{f"{_BYTES}{name}": bytes_digest(path)[:16] for name, path in loaded.paths.items() if path.is_dir()},
    }
    if loaded.adaptation.quantization != "none" or loaded.adaptation.optimizer_states != "own":
        facts["bitsandbytes"] = version("bitsandbytes") if find_spec("bitsandbytes") else None
    if device.type == "cpu":
        # A sum is split among threads and vector lanes, so both decide its rounding.
        facts["threads"] = torch.get_num_threads()
        facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    return facts


def kernel_facts(device: torch.device, model: nn.Module, *, offload: str | None = None) -> dict[str, Any]:
    """Return the results of the kernels that compute updates, and what tells why they may differ.

    With a GPU the CPU computes the data alone, unless the optimizer is there (`offload`).
    """
    host = kernel_probe.digests(_CPU, has_convolutions=True)
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        host.pop(kernel_probe.RECURRENT, None)
    on_device: dict[str, str] = {}
    if device.type == "cuda":
        has_convolutions = kernel_probe.has_convolutions(model)
        on_device = kernel_probe.digests(device, has_convolutions=has_convolutions)
    has_host_updates = device.type == "cpu" or offload not in (None, "no")
    if has_host_updates:
        on_device |= {f"{library} on the CPU": digest for library, digest in host.items()}
    return {_KERNELS: on_device, _HOST_KERNELS: {} if has_host_updates else host, _MACHINE: machine_facts(device)}


def content_digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of a directory's file names and sizes: reading a whole data set takes long."""
    if path.is_file():
        return sha256(path, follow=True)
    entries = sorted((str(file.relative_to(path)), file.stat().st_size) for file in path.rglob("*") if file.is_file())
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def bytes_digest(folder: Path) -> str:
    """Return a digest of the bytes of the files in a directory, which may change while their sizes stay.

    At most 256 MiB are read: all bytes of a small data set, else of up to 1,024 files some blocks at equal distances.
    Which ones follows from the names and sizes alone. A file that cannot be read counts as one without bytes.
    """
    sizes = {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    names = sorted(sizes, key=lambda name: hashlib.sha256(name.encode(errors="surrogateescape")).digest())
    names, digest = names[:_MOST_FILES], hashlib.sha256()
    is_whole = sum(sizes[name] for name in names) <= _MOST_BYTES
    for name in names:
        count = sizes[name] if is_whole else _MOST_BYTES // len(names)
        with suppress(OSError, ValueError):
            for block in _blocks(folder / name, sizes[name], count):
                digest.update(block)
    return digest.hexdigest()


def _blocks(file: Path, size: int, count: int) -> Iterator[bytes]:
    """Yield a file, or about `count` bytes of it in blocks: the first one, the last one and others between them."""
    descriptor = open_file(file, follow=True)
    try:
        blocks = -(-min(size, count) // _BLOCK_BYTES)
        for index in range(blocks):
            is_part = size > count
            start = (size - _BLOCK_BYTES) * index // max(1, blocks - 1) if is_part else index * _BLOCK_BYTES
            yield os.pread(descriptor, _BLOCK_BYTES, max(0, start))
    finally:
        os.close(descriptor)


def device_name(device: torch.device) -> str:
    """Return the name of the hardware: `cpu`, or `cuda: Tesla T4`."""
    return f"cuda: {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


def differences(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Describe the differences between the environment of a checkpoint and the current one."""
    if "imported files" not in saved:  # a checkpoint from before they were recorded
        current = {name: value for name, value in current.items() if name != "imported files"}
    current = {name: value for name, value in current.items() if name in saved or not name.startswith(_BYTES)}
    names = sorted((saved.keys() | current.keys()) - {_KERNELS, _HOST_KERNELS, _MACHINE})
    changed = [name for name in names if saved.get(name) != current.get(name)]
    lines = [_describe_difference(name, saved.get(name), current.get(name)) for name in changed]
    if libraries := () if set(changed) & set(_LIBRARY_FACTS) else _other_results(saved, current, _KERNELS):
        lines.append(
            f"kernels: {', '.join(libraries)} compute other bits than when the checkpoint was saved"
            f"{_causes(saved, current, libraries)}"
        )
    return lines


def notes_on_machine(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Return notes on differences from the environment of a checkpoint that `differences` does not have."""
    if _KERNELS in current and not isinstance(saved.get(_KERNELS), dict):
        return [_UNRECORDED]
    if libraries := _other_results(saved, current, _HOST_KERNELS):
        return [
            f"on the CPU, {', '.join(libraries)} compute other bits than when the checkpoint was saved, so what the "
            f"recipe computes there, such as its data, may differ by rounding{_causes(saved, current, libraries)}"
        ]
    changes = "; ".join(changed_facts(_facts(saved, _MACHINE), _facts(current, _MACHINE)))
    return [f"{_SAME_BITS}: {changes}"] if changes else []


def _other_results(saved: dict[str, Any], current: dict[str, Any], kind: str) -> tuple[str, ...]:
    """Return the libraries with results in both environments that are not equal."""
    before, after = _facts(saved, kind), _facts(current, kind)
    return tuple(name for name in sorted(before.keys() & after.keys()) if before[name] != after[name])


def _causes(saved: dict[str, Any], current: dict[str, Any], libraries: tuple[str, ...]) -> str:
    names = tuple(name.removesuffix(" on the CPU") for name in libraries)
    changes = changed_facts(_facts(saved, _MACHINE), _facts(current, _MACHINE), names)
    return f"; {'; '.join(changes)}" if changes else "; nothing that is recorded of the machine has changed"


def _facts(environment: dict[str, Any], kind: str) -> dict[str, str]:
    value = environment.get(kind)
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def _describe_difference(name: str, saved: object, current: object) -> str:
    if name == "recipe file" and saved and current:
        return f"recipe file: changed since the checkpoint (its digest was {saved} and is {current})"
    if name == "imported files" and isinstance(saved, dict) and isinstance(current, dict):
        files = [file for file in sorted(saved.keys() | current.keys()) if saved.get(file) != current.get(file)]
        return f"files that the recipe imports: changed since the checkpoint: {', '.join(files)}"
    if name.startswith(_CONTENT) and saved and current:
        return f"{name.removeprefix(_CONTENT)}: its files have changed since the checkpoint (names, sizes or content)"
    if name.startswith(_BYTES) and saved and current:
        return f"{name.removeprefix(_BYTES)}: the content of its files has changed since the checkpoint"
    if name == "memory_format":
        saved, current = (value or "contiguous" for value in (saved, current))
    return f"{name}: saved with {saved}, now {current}"


def require_same(saved: dict[str, Any], current: dict[str, Any], *, allow_inexact: bool) -> list[str]:
    """Return descriptions of the differences.

    Raises UsageError, which lists all of them, if there are any and `allow_inexact` is False.
    """
    problems = differences(saved, current)
    if problems and not allow_inexact:
        raise UsageError(
            "the run would not continue bit for bit",
            problems=problems,
            hint="restore the saved values, or continue with --allow-inexact (in Python allow_inexact=True): the "
            "results then differ by rounding, and by more if the recipe or the data has changed",
        )
    return problems
