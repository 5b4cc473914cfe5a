"""Full checkpoints of a run: atomic, verified, and never without a good one.

    checkpoints/update-00001200/   manifest.json  state.json  model.safetensors  optimizer.safetensors

A checkpoint is written into a directory beside, synced, read back for its manifest, and only then given its name. One
that has its name therefore was whole; whether it still is, the manifest tells at every load.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from shoestring.checkpoint import codec
from shoestring.checkpoint.files import directory_bytes, sha256, sync, write_text
from shoestring.errors import CheckpointError
from shoestring.units import MIB, bytes_text

FORMAT = 1
_NAME = re.compile(r"update-(\d{8,})")
_FILE = re.compile(r"[a-z_]+\.(safetensors|json)")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint that was just written."""

    update: int
    path: Path
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The newest checkpoint that verified, with its state as it was saved."""

    update: int
    path: Path
    state: dict[str, Any]


class Store:
    """The full checkpoints in one directory. One process at a time may use it."""

    def __init__(
        self,
        root: Path,
        *,
        keep: int = 2,
        limit_bytes: int | None = None,
        on_damaged: Callable[[Path, str, str], None] | None = None,
    ) -> None:
        """`keep` verified checkpoints stay. `limit_bytes` is what the platform lets the run's directory (the parent
        of `root`) have, where the free space the system reports may be the host's. `on_damaged(path, file, why)` is
        told of every checkpoint that is passed over.
        """
        self.root = root
        self._keep = keep
        self._limit_bytes = limit_bytes
        self._on_damaged = on_damaged
        self._verified: set[int] = set()
        self._damaged: set[int] = set()
        root.mkdir(parents=True, exist_ok=True)
        self._clear_leftovers()

    def updates(self) -> list[int]:
        """The updates that have a checkpoint, verified or not, in order."""
        found = (_NAME.fullmatch(path.name) for path in self.root.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def path(self, update: int) -> Path:
        return self.root / f"update-{update:08d}"

    def save(self, update: int, state: dict[str, Any]) -> Saved:
        """Write `state` as the checkpoint of `update`; older ones beyond `keep` are removed afterwards.

        Each value of `state` is a section; the tensors of a section lie in a file of its name, all else in state.json.

        Raises CheckpointError when the disk cannot hold it or writing fails; nothing that was there is touched then.
        """
        started = time.monotonic()
        self._require_space(codec.tensor_bytes(state) + MIB)
        beside = self.root / f".writing-{update:08d}-{os.getpid()}"
        try:
            beside.mkdir()
            _write(beside, update, state)
            final, replaced = self.path(update), self.root / f".replaced-{update:08d}"
            if final.exists():
                final.rename(replaced)
            beside.rename(final)
            sync(self.root)
            shutil.rmtree(replaced, ignore_errors=True)
        except (OSError, safetensors.SafetensorError) as error:
            self._clear_leftovers()
            raise CheckpointError(
                f"the checkpoint of update {update} could not be written to {self.root}: {error}",
                hint=f"free space there ({bytes_text(shutil.disk_usage(self.root).free)} left), then train again: "
                "the run continues from its last checkpoint",
            ) from error
        self._damaged.discard(update)
        self._verified.add(update)
        self._rotate()
        return Saved(update=update, path=final, bytes=directory_bytes(final), seconds=time.monotonic() - started)

    def load(self) -> Restored | None:
        """The newest checkpoint that verifies; None when there is none at all.

        Raises CheckpointError when there are checkpoints and every one is damaged.
        """
        reasons = []
        for update in reversed(self.updates()):
            path = self.path(update)
            try:
                state = _read(path, update)
            except _Damaged as damage:
                self._damaged.add(update)
                reasons.append(f"{path.name}/{damage.file}: {damage.why}")
                if self._on_damaged:
                    self._on_damaged(path, damage.file, damage.why)
                continue
            self._verified.add(update)
            return Restored(update=update, path=path, state=state)
        if reasons:
            raise CheckpointError(
                f"no checkpoint in {self.root} is whole",
                problems=reasons,
                hint="copy the run again from where it came, or start a new one in another directory",
            )
        return None

    def _clear_leftovers(self) -> None:
        """Put right what a kill in the midst of a save has left."""
        for unfinished in self.root.glob(".writing-*"):
            shutil.rmtree(unfinished)
        for replaced in self.root.glob(".replaced-*"):
            final = self.path(int(replaced.name.rpartition("-")[2]))
            if final.exists():
                shutil.rmtree(replaced)
            else:
                replaced.rename(final)

    def _require_space(self, need: int) -> None:
        free = shutil.disk_usage(self.root).free
        what = f"{self.root} has {bytes_text(free)} free"
        if self._limit_bytes is not None:
            left = self._limit_bytes - directory_bytes(self.root.parent)
            if left < free:
                free, what = left, f"the run may take {bytes_text(self._limit_bytes)} and has {bytes_text(left)} left"
        if need > free:
            raise CheckpointError(
                f"a checkpoint needs {bytes_text(need)}; {what}",
                hint="free space, then train again: the run continues from its last checkpoint",
            )

    def _rotate(self) -> None:
        """Keep the newest ones, and always the newest that verified; damaged ones go first."""
        whole = [update for update in self.updates() if update not in self._damaged]
        keep = {*whole[-self._keep :], max(self._verified)}
        for update in self.updates():
            if update not in keep:
                shutil.rmtree(self.path(update))


class _Damaged(Exception):  # noqa: N818  (a finding about a file, turned into an event or an error by the caller)
    def __init__(self, file: str, why: str) -> None:
        super().__init__(file, why)
        self.file, self.why = file, why


def _write(folder: Path, update: int, state: dict[str, Any]) -> None:
    skeleton = {}
    for section, value in state.items():
        skeleton[section], tensors = codec.pack(value)
        if tensors:
            path = folder / f"{section}.safetensors"
            safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
            sync(path)
    write_text(folder / "state.json", json.dumps(skeleton, allow_nan=False))
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "update": update,
        "files": {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(folder.iterdir())
        },
    }
    write_text(folder / "manifest.json", json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1))
    sync(folder)


def _read(folder: Path, update: int) -> dict[str, Any]:
    manifest = _manifest(folder, update)
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise _Damaged(name, "it is not there")
        if path.stat().st_size != expected["bytes"]:
            raise _Damaged(name, f"it has {path.stat().st_size} bytes, {expected['bytes']} were written")
        if sha256(path) != expected["sha256"]:
            raise _Damaged(name, "its bytes are not those that were written")
    skeleton = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    state = {}
    for section, value in skeleton.items():
        name = f"{section}.safetensors"
        tensors = safetensors.torch.load_file(folder / name) if name in manifest["files"] else {}
        state[section] = codec.unpack(value, tensors)
    return state


def _manifest(folder: Path, update: int) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _Damaged("manifest.json", f"it cannot be read: {error}") from error
    digest = manifest.pop("sha256", None) if isinstance(manifest, dict) else None
    if digest is None or digest != _digest(manifest):
        raise _Damaged("manifest.json", "its bytes are not those that were written")
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"{folder} is of format {manifest['format']}, this version reads {FORMAT}",
            hint="continue with the version of shoestring that wrote it",
        )
    names = set(manifest["files"])
    if manifest["update"] != update or "state.json" not in names or not all(map(_FILE.fullmatch, names)):
        raise _Damaged("manifest.json", "it does not describe this checkpoint")
    return dict(manifest)


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
