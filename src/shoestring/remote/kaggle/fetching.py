"""Outputs of sessions on this machine: downloaded beside, verified by their digests, then put into their places."""

from __future__ import annotations

import dataclasses
import errno
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shoestring.base import shell
from shoestring.base.errors import CheckpointError, RunError, UsageError
from shoestring.base.system_errors import explaining
from shoestring.base.units import bytes_text
from shoestring.recipe.finding import file_of
from shoestring.remote.kaggle.chain_file import FOLDER, ChainState, SessionRecord, session_file
from shoestring.remote.kaggle.client import Client, KaggleError
from shoestring.remote.kaggle.kernel.program.places import LOG_FILE
from shoestring.remote.kaggle.kernel.session_file import NAME, OutputFile, SessionFile, read_session_file
from shoestring.training.checkpoint.files import remove, sha256, sync
from shoestring.training.checkpoint.identity import RunIdentity
from shoestring.training.run_directory.arriving import move_entries
from shoestring.training.run_directory.contents import BY_NAME, ENTRIES, KAGGLE, PLAN, accepted_before_plan
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.lock import locked
from shoestring.training.run_directory.stored import StoredPlan

RUN = "run"
_SMALL = tuple(entry.name for entry in ENTRIES if entry.on_kaggle != "removed" and not entry.is_folder)
"""Files of a run that are fetched after every session."""

_ATTEMPTS = 15
"""Downloads in a row that bring no further file, with pauses that grow, before it is given up."""
_CHECKPOINT = re.compile(r"run/checkpoints/(update-([0-9]{8,18}))(?=/)")
_LOOKS = 5
"""How often an output that is not complete yet is looked at."""
_INCOMING, _COMPLETE = "incoming", ".complete"


@dataclass(frozen=True, kw_only=True)
class Output:
    """What Kaggle shows of the output of a session."""

    is_known: bool
    """Whether Kaggle has answered: not if an error, or a page in place of a file, came instead."""
    session: SessionFile | None = None
    """What the session left about itself; None if there is nothing, or that of another session."""
    names: tuple[str, ...] = ()

    @property
    def newest_checkpoint(self) -> tuple[str, int] | None:
        """The name and the update of the newest checkpoint in the list of files."""
        updates = [(match[1], int(match[2])) for name in self.names if (match := _CHECKPOINT.match(name))]
        return max(updates, key=lambda item: item[1], default=None)


def inspect_output(client: Client, kernel: str, nonce: str, file: Path) -> Output:
    """Return what Kaggle shows of a session's output; what the session left about itself is downloaded to `file`.

    Raises KaggleError if nobody is signed in.
    """
    part = _part_file(file)
    remove(part)
    try:
        names = tuple(client.outputs(kernel))
        if NAME not in names:
            return Output(is_known=True, names=names)
        client.download(kernel, {NAME: part})
        session = read_session_file(part)
    except CheckpointError:  # an error page came in its place
        return Output(is_known=False)
    except KaggleError as error:
        if error.kind == "account":
            raise
        return Output(is_known=False)
    if session.nonce != nonce:
        remove(part)
        return Output(is_known=True)
    part.replace(file)
    return Output(is_known=True, session=session, names=names)


def fetch_small_files(client: Client, kernel: str, session: SessionFile, folder: Path) -> None:
    """Download the small files of a session's run to `folder/run`, and its log to `folder`, as far as they come."""
    names = [name for name in session.files if name == LOG_FILE or name in {f"{RUN}/{small}" for small in _SMALL}]
    with suppress(CheckpointError, KaggleError):
        download_verified(client, kernel, {name: session.files[name] for name in names}, folder, attempts=3)


def fetch_run(
    client: Client,
    kernel: str,
    session: SessionFile,
    run: Path,
    on_note: Callable[[str], object] = lambda _: None,
) -> None:
    """Put the run of a session's output into the directory `run`; a kill leaves what the next call completes.

    A checkpoint that Kaggle itself has damaged is left out, with a note, if another one, or the weights of a finished
    run, are there. Raises CheckpointError if anything else cannot be downloaded as it was left, and UsageError if the
    run was trained further on this machine.
    """
    files = {name: entry for name, entry in session.files.items() if _is_of_run(name)}
    incoming = run / KAGGLE.name / _INCOMING
    marker = incoming / f"{_COMPLETE}-{session.nonce}"
    with explaining(f"the run cannot be stored in {run}", ", then give the same command again"):
        if not marker.exists():
            _remove_others(incoming, session.nonce)
            _require_space(incoming, files)
            try:
                download_verified(client, kernel, files, incoming)
            except CheckpointError:
                damaged = _damaged_checkpoints(incoming, files)
                if not _is_enough_without(damaged, files, session):
                    raise
                for folder in damaged:
                    remove(incoming / folder)
                    on_note(f"left out, because Kaggle has damaged it: {folder}")
            marker.touch()
            sync(incoming)
        with locked(run):
            require_not_further(run, session.update)
            _require_same_run(incoming / RUN, run)
            move_entries(incoming / RUN, run)
        shutil.rmtree(incoming, ignore_errors=True)


def _require_space(incoming: Path, files: Mapping[str, OutputFile]) -> None:
    """Raise OSError if the files that have not come yet do not fit on the disk."""
    size = sum(entry.bytes for name, entry in files.items() if not (incoming / name).exists())
    free = shutil.disk_usage(incoming).free
    if size > free:
        text = f"{bytes_text(size)} are still to be downloaded, but {bytes_text(free)} are free"
        raise OSError(errno.ENOSPC, text)


def _damaged_checkpoints(incoming: Path, files: Mapping[str, OutputFile]) -> set[str]:
    """Return the folders of the files that are not there as they were left; other files by their own name."""
    damaged = [name for name, entry in files.items() if not _is_there(incoming / name, entry)]
    return {match[0] if (match := _CHECKPOINT.match(name)) else name for name in damaged}


def _is_enough_without(damaged: set[str], files: Mapping[str, OutputFile], session: SessionFile) -> bool:
    checkpoints = {match[0] for name in files if (match := _CHECKPOINT.match(name))}
    return damaged <= checkpoints and (session.status == "finished" or bool(checkpoints - damaged))


def _remove_others(incoming: Path, nonce: str) -> None:
    """Remove what an attempt to fetch the output of another session has left."""
    owner = incoming / f".of-{nonce}"
    if incoming.exists() and not owner.exists():
        shutil.rmtree(incoming)
    incoming.mkdir(parents=True, exist_ok=True)
    owner.touch()


def download_verified(
    client: Client,
    kernel: str,
    files: Mapping[str, OutputFile],
    folder: Path,
    *,
    attempts: int = _ATTEMPTS,
) -> None:
    """Download files of an output to `folder`; those that are there with the right digest are left as they are.

    A download that was cut short, or an error page in place of a file, is repeated, until `attempts` in a row have
    brought no further file. Raises CheckpointError.
    """
    problem, failures = "", 0
    while failures < attempts:
        missing = {name: entry for name, entry in files.items() if not _is_there(folder / name, entry)}
        if not missing:
            return
        if failures:
            time.sleep(client.pause_seconds * failures)
        parts = {name: _part_file(folder / name) for name in missing}
        try:
            for path in parts.values():
                path.parent.mkdir(parents=True, exist_ok=True)
            client.download(kernel, parts)
        except KaggleError as error:
            if error.kind == "account":
                raise
            problem = f" ({error.message})"
        failures += 1
        for name, path in parts.items():
            if _is_there(path, missing[name]):
                path.replace(folder / name)
                failures = 0
            else:
                remove(path)
    missing = {name: entry for name, entry in files.items() if not _is_there(folder / name, entry)}
    if missing:
        raise CheckpointError(
            f"the output of {kernel} could not be downloaded as the session left it{problem}",
            problems=[f"{name}: missing or damaged on the way" for name in sorted(missing)[:10]],
            hint="give the same command again: what has come is not downloaded twice",
        )


def require_usable(run: Path) -> None:
    """Raise UsageError if the directory is that of a run which was not begun on Kaggle, or has other files."""
    allowed = accepted_before_plan("fetch")
    names = {entry.name for entry in run.iterdir()} if run.is_dir() else set()
    if (run / KAGGLE.name / "chain.json").exists():
        return
    if RunDirectory(run).plan_file.name in names:
        raise UsageError(
            f"{run} has a run that was not begun by shoestring kaggle start, which sends no checkpoints to Kaggle",
            hint=f"go on with it here: shoestring train RECIPE --run {shell.quote(run)}; or begin another run: "
            "--run runs/NAME",
        )
    if names - allowed:
        raise UsageError(
            f"{run} is not empty: {', '.join(sorted(names - allowed)[:5])}",
            hint="choose a new directory: --run runs/NAME",
        )


def require_not_further(run: Path, update: int) -> None:
    """Raise UsageError if the run was trained on this machine beyond `update`: what Kaggle has would replace it."""
    state = None
    with suppress(UsageError):  # a damaged one may be replaced
        state = RunDirectory(run).state()
    if state is not None and state.update > update:
        raise UsageError(
            f"{run} is at update {state.update:,}, but what Kaggle has is at update {update:,} and would replace it",
            hint=f"go on here: shoestring train RECIPE --run {shell.quote(run)}; "
            f"or move state.json and checkpoints/ out of {run}",
        )


def _require_same_run(incoming: Path, run: Path) -> None:
    """Raise UsageError if the files that have come are of several runs, or of another one than is in `run`."""
    RunDirectory(incoming).require_own()
    own, fetched = _identity(run), _identity(incoming)
    if own and fetched and own.id != fetched.id:
        raise UsageError(
            f"{run} has another run than Kaggle: run {own.short_id} here, run {fetched.short_id} there",
            hint=f"to go on with the run here: shoestring train RECIPE --run {run}; to fetch the other one, move all "
            f"but {KAGGLE.name}/ out of {run}, and give the same command again",
        )


def _identity(run: Path) -> RunIdentity | None:
    with suppress(UsageError):  # a damaged plan may be replaced
        return RunDirectory(run).identity()
    return None


def _is_of_run(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return len(parts) > 1 and parts[0] == RUN and parts[1] in BY_NAME and BY_NAME[parts[1]].on_kaggle != "removed"


def _part_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _is_there(path: Path, entry: OutputFile) -> bool:
    try:
        return path.lstat().st_size == entry.bytes and sha256(path) == entry.sha256
    except (OSError, ValueError):
        return False


def fetch_output(
    run: Path,
    client: Client,
    state: ChainState,
    session: SessionRecord,
    on_note: Callable[[str], object] = lambda _: None,
) -> None:
    """Put the run that a session left into the directory `run`. Raises RunError if it has left none, or not all."""
    kernel, file = state.kernel(session), session_file(run / FOLDER, session)
    left = read_session_file(file) if file.exists() else None
    for _ in range(_LOOKS):
        if left is None or left.nonce != session.nonce:
            left = inspect_output(client, kernel, session.nonce, file).session
    if left is None or left.status == "running":
        raise RunError(
            f"session {session.number} was killed or its output is gone: {kernel} has none that can be verified",
            hint="go on with the chain: the next session verifies it and leaves another output",
        )
    fetch_run(client, kernel, left, run, on_note)
    _name_recipe(run / PLAN.name, state.recipe)


def _name_recipe(plan_file: Path, recipe: str) -> None:
    """Let the plan of a run name the recipe's file on this machine, in place of the copy that was on Kaggle."""
    with suppress(UsageError):  # a plan that cannot be read is reported by those who need it
        file, plan = file_of(recipe), StoredPlan.read(plan_file)
        if file and plan and plan.reference and not plan.is_changed:
            name = str(file) + recipe[len(recipe.partition(":")[0]) :]
            dataclasses.replace(plan, reference=name).write(plan_file)
