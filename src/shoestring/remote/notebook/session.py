"""What the cells of a notebook need besides the verbs: where the run is, and how long the session may still take.

SHOESTRING_KAGGLE_ROOT replaces `/kaggle`, and SHOESTRING_CONTENT_ROOT Colab's `/content`.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import os
import shutil
import time
from pathlib import Path
from typing import Literal

from shoestring.base.errors import UsageError
from shoestring.base.processes import started_at
from shoestring.base.reading import read_bytes
from shoestring.base.streams import write_messages
from shoestring.base.units import MIB
from shoestring.hardware.targets import find as find_target
from shoestring.recipe.dataset_paths import parse_dataset_path
from shoestring.remote.kaggle.kernel.program.files import digest
from shoestring.remote.kaggle.kernel.program.inputs import find_input
from shoestring.remote.kaggle.kernel.program.places import SessionError
from shoestring.remote.kaggle.kernel.program.previous import run_files
from shoestring.training.run_directory.directory import RunDirectory

_RESERVE_SECONDS = 300.0
"""Kept for the cells after the training and for saving the notebook."""
_MAX_FOLDERS, _DEPTH = 1000, 5
_MAX_PAGE_BYTES = 32 * MIB


def run_directory(name: str, platform: Literal["kaggle", "colab"]) -> Path:
    """Return the directory of the run: in the output of the Kaggle notebook, or in the user's Google Drive."""
    if platform == "kaggle":
        return _kaggle() / "working" / "runs" / name
    content = Path(os.environ.get("SHOESTRING_CONTENT_ROOT", "/content"))
    drive = content / "drive"
    if importlib.util.find_spec("google") and importlib.util.find_spec("google.colab"):
        importlib.import_module("google.colab.drive").mount(str(drive))
    return drive / "MyDrive" / "shoestring" / name


def continue_attached_run(run: Path) -> Path | None:
    """Copy the run that an attached notebook output contains, if it is further than the one in `run`.

    Only files of a run are copied: no links and no code. A run that was there is renamed. Returns where the run came
    from, None if nothing was copied.
    """
    own_update = _update(run)
    attached = [
        folder
        for folder in _folders_below(_kaggle() / "input")
        if folder.name == run.name and (folder / "plan.json").is_file() and (folder / "state.json").is_file()
    ]
    newest = max(attached, key=_update, default=None)
    if newest is None or _update(newest) <= own_update:
        return None
    incoming = run.with_name(f".{run.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    for path in run_files(newest):
        target = incoming / path.relative_to(newest)
        target.parent.mkdir(parents=True, exist_ok=True)
        digest(path, target)
    if run.exists():  # it is never removed: it may be another run
        run.rename(run.with_name(f"{run.name}-before-{time.time_ns()}"))
    incoming.rename(run)
    write_messages(f"the run goes on from update {_update(run)}, which is in {newest}")
    return newest


def attached_path(text: str) -> Path:
    """Return where a path in an attached dataset, `owner/dataset[:PATH]`, is on this machine of Kaggle.

    Raises UsageError if it is not attached.
    """
    path = parse_dataset_path(text)
    assert path is not None
    try:
        return find_input(path.dataset, path.path or ".", _kaggle() / "input")
    except SessionError as error:
        raise UsageError(str(error), hint=f"choose Add Input, then Datasets, and select {path.dataset}") from None


def seconds_left(target: str) -> float | None:
    """Return how long training may take: the platform's limit less what the session has lasted and a reserve.

    None if the platform has no limit.
    """
    platform = find_target(target).platform
    if platform is None or platform.session_hours is None:
        return None
    return max(60.0, platform.session_hours * 3600 - _session_seconds() - _RESERVE_SECONDS)


def predictions_file(run: Path) -> Path:
    """Return a file beside the run for the predictions of its present weights."""
    return run.with_name(f"{run.name}-predictions-{max(0, _update(run)):08d}.jsonl")


class Page:
    """A page of its own within a cell."""

    def __init__(self, path: Path, content: str) -> None:
        self._path, self._content = path, content

    def __repr__(self) -> str:
        return f"the report is in {self._path}"

    def _repr_html_(self) -> str:
        frame = "width:100%;height:44em;border:1px solid #8888;border-radius:6px"
        return (
            f'<iframe srcdoc="{html.escape(self._content)}" style="{frame}" title="report"></iframe>'
            f"<p>The page is in <code>{html.escape(str(self._path))}</code>.</p>"
        )


def show_page(path: Path) -> Page:
    """Return a page that displays itself in a notebook."""
    return Page(path, read_bytes(path, follow=False, max_bytes=_MAX_PAGE_BYTES).decode())


def _kaggle() -> Path:
    return Path(os.environ.get("SHOESTRING_KAGGLE_ROOT", "/kaggle"))


def _session_seconds() -> float:
    """Return how long the machine of the session has run: a kernel that is restarted has no new session."""
    in_container = any(name.startswith(("KAGGLE_", "COLAB_")) for name in os.environ)
    return time.monotonic() - started_at(1 if in_container else os.getpid())


def _update(run: Path) -> int:
    """Return the update that a run has reached; -1 if there is no run."""
    try:
        state = RunDirectory(run).state()
    except UsageError:
        return -1
    return state.update if state else -1


def _folders_below(folder: Path) -> list[Path]:
    """Return the folders below `folder`, at most so many and so deep."""
    folders, level = [], [folder]
    for _ in range(_DEPTH):
        below = []
        for place in level:
            if place.is_dir():
                below += sorted(entry for entry in place.iterdir() if entry.is_dir() and not entry.is_symlink())
        folders += below
        level = below
        if len(folders) > _MAX_FOLDERS:
            break
    return folders[:_MAX_FOLDERS]
