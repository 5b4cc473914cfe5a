"""What a session leaves: the smallest output that continues the run, and the list of its files."""

import contextlib
import shutil
import subprocess
import sys

from shoestring.remote.kaggle.kernel.program.checkpoints import call_leaving
from shoestring.remote.kaggle.kernel.program.files import digest, regular_files, shorten
from shoestring.remote.kaggle.kernel.program.places import (
    LOG_FILE,
    RUN,
    SESSION_FILE,
    SITE,
    TEMP,
    WORKING,
    SessionError,
)
from shoestring.remote.kaggle.kernel.program.session import LOG_BYTES, Session

MAX_FILES = 400  # in the output: the official client has stopped at 500


def leave(session: Session) -> None:
    """Leave the smallest output that continues, and the list of its files."""
    if (RUN / "plan.json").is_file() and (SITE / "shoestring").is_dir():
        try:
            answer = call_leaving(session, "prune", "--output-bytes", str(session.config["output_bytes"]))
            session.record(notes=[*session.state["notes"], *answer["notes"]])
            session.record(damaged=[*session.state["damaged"], *answer["damaged"]])
            if answer["update"] is not None:
                session.record(update=answer["update"], checkpoint=answer["checkpoint"])
            session.record(total_updates=answer["total_updates"])
        except (SessionError, OSError, subprocess.SubprocessError) as error:
            session.record(notes=[*session.state["notes"], f"the output was not pruned: {error}"])
        if session.state["status"] == "finished":
            write_report(session)
    (RUN / "lock").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        shorten(WORKING / LOG_FILE, LOG_BYTES)
    limit_files(session)
    listed = {}
    for path in regular_files(WORKING):
        if path.name not in (SESSION_FILE, f".{SESSION_FILE}"):
            size, sha256 = digest(path)
            listed[path.relative_to(WORKING).as_posix()] = {"bytes": size, "sha256": sha256}
    session.state["files"] = listed
    session.write()


def write_report(session: Session) -> None:
    """Write the run's page, if there is time."""
    seconds = session.seconds_left() + session.config["hand_over_seconds"] / 2
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [sys.executable, "-m", "shoestring", "report", str(RUN)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=session.environment(),
            cwd=TEMP,
            timeout=max(5, min(120, seconds)),
        )


def limit_files(session: Session) -> None:
    """Drop what is only looked at if there are more files than the client downloads."""
    for folder in ("evidence", "logs"):
        if sum(1 for _ in regular_files(WORKING)) <= MAX_FILES - 2:
            return
        if (RUN / folder).is_dir():
            shutil.rmtree(RUN / folder, ignore_errors=True)
            session.record(notes=[*session.state["notes"], f"{folder}/ was left out: more than {MAX_FILES} files"])
