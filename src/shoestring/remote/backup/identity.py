"""The file backup.json of a run's directory: the id of the run, by which its copies are known as its own, and where
they are.
"""

from contextlib import suppress
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.reading import TEXT, find_problems, read_json
from shoestring.training.checkpoint.files import write_json
from shoestring.training.checkpoint.identity import is_id, new_id
from shoestring.training.run_directory.directory import RunDirectory


def read_identity(file: Path) -> dict[str, str] | None:
    """Return `run` and `url` of a run that was copied; None if it never was. Raises UsageError for a damaged file."""
    try:
        value = read_json(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(value, dict) or value.keys() != {"run", "url"}:
        raise _damaged(file, "it has other keys than run and url")
    if problems := find_problems(value, {"run": TEXT, "url": TEXT}):
        raise _damaged(file, "; ".join(problems))
    if not is_id(value["run"]):
        raise _damaged(file, "run is no id")
    return value


def write_identity(file: Path, run_id: str, url: str) -> None:
    """Write the file. Raises OSError."""
    write_json(file, {"run": run_id, "url": url})


def ensure_identity(run: RunDirectory, url: str) -> str:
    """Return the id of a run that is copied to `url`, and record the place. Raises UsageError and OSError.

    A run whose plan cannot have an id, because it was changed by hand, has one for its copies alone.
    """
    known, identity = read_identity(run.backup_file), run.identity()
    run_id = identity.id if identity else known["run"] if known else new_id()
    if known != {"run": run_id, "url": url}:
        write_identity(run.backup_file, run_id, url)
    return run_id


def earlier_url(run: RunDirectory) -> str:
    """Return where earlier sessions have copied the run to; an empty text if nowhere, or if the file is damaged."""
    with suppress(UsageError):
        known = read_identity(run.backup_file)
        return known["url"] if known else ""
    return ""


def _damaged(file: Path, problem: str) -> UsageError:
    return UsageError(
        f"{file} is damaged: {problem}",
        hint="remove it: the next session with --backup writes it again, with the id of the run",
    )
