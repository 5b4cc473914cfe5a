"""Whether the files of a run's directory are of one run: those that are read back name the run that wrote them.

The id of the run (`checkpoint/identity.py`) is in plan.json. A checkpoint, weights or another file that was copied from
another run into the directory would otherwise be continued, or evaluated, as the run's own.
"""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from shoestring.base.errors import ShoestringError, UsageError
from shoestring.base.reading import is_count, read_json
from shoestring.base.streams import write_messages
from shoestring.training.checkpoint import folder as own_folder
from shoestring.training.checkpoint.identity import RunIdentity, is_id, new_id
from shoestring.training.checkpoint.manifest import DamagedFileError, load_manifest
from shoestring.training.checkpoint.names import update_of
from shoestring.training.monitor.events import read
from shoestring.training.run_directory.contents import BACKUP, ENTRIES, EVENTS, PLAN, PREPROCESSING, STATE
from shoestring.training.run_directory.stored import StoredPlan, resume_command

_FIRST_EVENTS = 100
"""The events among which the start of the first session is looked for."""
_DAMAGE = (OSError, ValueError, DamagedFileError, ShoestringError)
"""What reading a file may raise. Those who need the file say so; here it names no run."""


@dataclass(frozen=True, kw_only=True)
class NamedFile:
    """A file that is read back, with what it says about its run."""

    path: Path
    run: RunIdentity | None
    update: int | None = None
    """The update that it was written after, if it says that."""


def require_one_run(run: Path) -> None:
    """Raise UsageError if a file in the run's directory is of another run than its plan.

    A damaged file, or weights without a manifest, name no run: those who read them say so.
    """
    try:
        plan = StoredPlan.read(run / PLAN.name)
    except UsageError:
        return
    if plan is None or not plan.recipe:  # none, or a damaged one
        return
    files = list(_files(run))
    if foreign := [file for file in files if not _is_own(file, plan)]:
        raise _mixed_error(run, plan, files, foreign)


def name_run(run: Path) -> None:
    """Give a run that an earlier version began its id, with a note. The caller holds the lock.

    A plan that was changed by hand stays as it is, and so does one on a full disk.
    """
    file = run / PLAN.name
    plan = StoredPlan.read(file)
    if plan is None or plan.run or plan.is_changed:
        return
    with suppress(OSError):
        named_at = max((named.update or 0 for named in _files(run)), default=0)
        plan = replace(plan, run=_id_of_copies(run) or new_id(), named_at=named_at)
        plan.write(file)
        assert plan.identity is not None
        write_messages(
            f"note: {run} was begun by a version that gave runs no id: it is run {plan.identity.short_id} from now on. "
            f"Its files up to update {named_at} name no run, and count as its own"
        )


def _is_own(file: NamedFile, plan: StoredPlan) -> bool:
    if file.path.name == BACKUP.name and plan.run is None:
        return True  # earlier versions have given copied runs an id for their copies
    if file.run is not None:
        return file.run.id == plan.run
    return plan.run is None or (file.update or 0) <= (plan.named_at if plan.named_at is not None else -1)


def _files(run: Path) -> Iterator[NamedFile]:
    """Yield the files of a run that can be read and that a run names, or could name."""
    for read_file in (_read_state, _read_events, _read_backup, _read_preprocessing):
        with suppress(*_DAMAGE):
            yield from read_file(run)
    for entry in ENTRIES:
        if entry.has_manifests:
            for path in _folders(run / entry.name):
                with suppress(*_DAMAGE):
                    manifest = load_manifest(path)
                    yield NamedFile(path=path, run=manifest.run, update=manifest.update)


def _folders(folder: Path) -> list[Path]:
    """Return a folder, and the saved updates in it; what has other names is the user's."""
    try:
        below = sorted(path for path in folder.iterdir() if update_of(path.name) is not None)
    except OSError:
        below = []
    return [folder, *below]


def _read_state(run: Path) -> Iterator[NamedFile]:
    state = read_json(run / STATE.name, paths=True)
    if not isinstance(state, dict):
        return
    update = state.get("update")
    if state.get("run") or update:  # before the first update there may be no plan, so no run yet
        yield _named_by_id(run / STATE.name, state.get("run"), update if is_count(update) else None)


def _read_events(run: Path) -> Iterator[NamedFile]:
    events = islice(read(run / EVENTS.name), _FIRST_EVENTS)
    first = next((event for event in events if event["event"] == "session"), None)
    if first is not None:
        yield _named_by_id(run / EVENTS.name, first.get("run"))


def _read_backup(run: Path) -> Iterator[NamedFile]:
    if identity := _id_of_copies(run):
        yield _named_by_id(run / BACKUP.name, identity)


def _read_preprocessing(run: Path) -> Iterator[NamedFile]:
    yield NamedFile(path=run / PREPROCESSING.name, run=own_folder.read_run(run / PREPROCESSING.name))


def _named_by_id(path: Path, run: Any, update: int | None = None) -> NamedFile:
    return NamedFile(path=path, run=RunIdentity(id=run) if is_id(run) else None, update=update)


def _id_of_copies(run: Path) -> str | None:
    """Return the id by which the copies of a run are known, which earlier versions have given to copied runs alone."""
    with suppress(*_DAMAGE):
        value = read_json(run / BACKUP.name)
        if isinstance(value, dict) and is_id(value.get("run")):
            return str(value["run"])
    return None


def _mixed_error(run: Path, plan: StoredPlan, files: list[NamedFile], foreign: list[NamedFile]) -> UsageError:
    """Return the error that names the files of another run: the plan, if all others are of one run, else those."""
    command = _command(run, plan)
    other = foreign[0]
    problems = _option_differences(other, plan)
    ids = {file.run.id if file.run else None for file in files}
    if other.run and len(files) > 1 and len(ids) == 1:
        return UsageError(
            f"{run / PLAN.name} is of another run than the rest of the directory: it is the plan of "
            f"{_describe(plan.identity)}, and {_names(run, foreign)} are of {_describe(other.run)}",
            problems=problems,
            hint=f"put the plan.json of {_describe(other.run)} back, from a copy of the run, and continue it with: "
            f"{command}",
        )
    if len(foreign) > 1:
        problems.append(f"of another run as well: {_names(run, foreign[1:])}")
    return UsageError(
        f"{other.path} is of another run than {run / PLAN.name}: it is of {_describe(other.run)}, and the plan is of "
        f"{_describe(plan.identity)}",
        problems=problems,
        hint=f"move {'it' if len(foreign) == 1 else 'them'} out of {run}; then continue {_describe(plan.identity)} "
        f"with: {command}",
    )


def _names(run: Path, files: list[NamedFile]) -> str:
    return ", ".join(str(file.path.relative_to(run)) for file in files)


def _describe(run: RunIdentity | None) -> str:
    return f"run {run.short_id}" if run else "a run without an id"


def _option_differences(file: NamedFile, plan: StoredPlan) -> list[str]:
    """Describe how the run of a file was started, where that differs from the plan."""
    own, other = plan.options or {}, file.run
    if other is None or not other.recipe:  # a file that names the id alone
        return []
    differences = [] if other.recipe == plan.recipe else [f"recipe: {other.recipe} there, and {plan.recipe} here"]
    return differences + [
        f"{name}: {other.options.get(name)} there, and {own.get(name)} here"
        for name in sorted(other.options.keys() | own.keys())
        if other.options.get(name) != own.get(name)
    ]


def _command(run: Path, plan: StoredPlan) -> str:
    if plan.reference:
        return resume_command(plan.reference, run)
    return f"the script that started it, with the directory {shlex.quote(str(run))}"
