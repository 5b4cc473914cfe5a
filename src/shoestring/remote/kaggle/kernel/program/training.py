"""The training itself: `shoestring train` as a child process that ends before the session does."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from shoestring.remote.kaggle.kernel.program.files import read_json
from shoestring.remote.kaggle.kernel.program.inputs import find_input
from shoestring.remote.kaggle.kernel.program.places import LOG_FILE, RUN, TEMP, WORKING, SessionError
from shoestring.remote.kaggle.kernel.program.printed import error_in, last_line
from shoestring.remote.kaggle.kernel.program.session import Session

SECONDS_TO_STOP = 30  # for a trainer that is asked to end, before it is killed


def train(session: Session, recipe: str) -> None:
    """Train until the run is finished or the session's limit is near, and record how it has ended."""
    limit = int(session.seconds_left())
    if limit < 1:
        raise SessionError("the session's limit was reached before training began", "give the session more time")
    command = [sys.executable, "-m", "shoestring", "train", recipe, "--run", str(RUN), "--on", session.config["on"]]
    options = dict(session.config["set"])
    for name, source in session.config["inputs"].items():
        options[name] = str(find_input(source["dataset"], source["path"]))
    for name, value in options.items():
        command += ["--set", f"{name}={value}"]
    command += ["--limit", f"{limit}s", *session.config["arguments"]]
    session.log(f"$ shoestring {' '.join(command[3:])}\n")
    # A group of its own, so that all its processes can be ended at once.
    session.trainer = trainer = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=session.environment(),
        cwd=TEMP,
        start_new_session=True,
    )
    if session.is_stopped:
        trainer.terminate()
    reader = threading.Thread(target=forward, args=(session, trainer.stdout), daemon=True)
    reader.start()
    was_killed = wait_for_trainer(session, trainer)
    reader.join(5)
    record_end(session, trainer.returncode, was_killed=was_killed)


def record_end(session: Session, code: int, *, was_killed: bool) -> None:
    """Record what the trainer has said about its end; for a failure the error that it has printed."""
    state = {}
    with contextlib.suppress(OSError, ValueError):
        state = read_json(RUN / "state.json")
    status = state.get("status")
    printed = (WORKING / LOG_FILE).read_text(errors="replace") if (WORKING / LOG_FILE).is_file() else ""
    if was_killed:
        session.record(status="paused", reason="the trainer did not end in time and was killed")
    elif code == 0 and status in ("finished", "paused"):
        session.record(status=status, reason=str(state.get("reason", "")))
    else:
        end = f"signal {-code}" if code < 0 else f"exit status {code}"
        reason = error_in(printed) or (status == "failed" and state.get("reason")) or last_line(printed)
        exit_status = code if code >= 0 else None
        session.record(status="failed", reason=f"training ended with {end}: {reason}", exit_status=exit_status)


def forward(session: Session, stream: Any) -> None:
    """Print what the trainer prints, as it comes, and keep its end."""
    with stream:
        while output := stream.read1(65536):
            session.append_to_log(output)
            with contextlib.suppress(OSError):
                print(output.decode(errors="replace"), end="", flush=True)


def wait_for_trainer(session: Session, trainer: "subprocess.Popen[bytes]") -> bool:
    """Wait for the trainer to end; return whether it had to be killed."""
    was_killed, stopping_since = False, None
    while trainer.poll() is None:
        time_now = time.monotonic()
        if stopping_since is None and (session.is_stopped or session.seconds_left() <= 0):
            stopping_since = time_now
            session.log("the trainer is asked to end\n")
            with contextlib.suppress(OSError):
                trainer.terminate()
        if stopping_since is not None:
            # At the session's limit, most of the time that is kept belongs to the output.
            hand_over = session.config["hand_over_seconds"]
            if time_now - stopping_since > SECONDS_TO_STOP or session.seconds_left() < -hand_over / 4:
                was_killed = True
                break
        time.sleep(0.05)
    # Also after a regular end: none of its processes may go on while the output is left.
    with contextlib.suppress(OSError):
        os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait()
    return was_killed
