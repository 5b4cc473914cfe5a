"""The part of the installed Shoestring that knows checkpoints, as a child process."""

import json
import subprocess
import sys
from typing import Any

from shoestring.remote.kaggle.kernel.program.places import RUN, TEMP, SessionError
from shoestring.remote.kaggle.kernel.program.printed import last_line
from shoestring.remote.kaggle.kernel.program.session import Session


def call_leaving(session: Session, *arguments: str) -> dict[str, Any]:
    """Run a part of Shoestring that knows checkpoints, and return its answer."""
    process = subprocess.run(
        [sys.executable, "-m", "shoestring.remote.kaggle.kernel.leaving", arguments[0], str(RUN), *arguments[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=session.environment(),
        cwd=TEMP,
        timeout=max(30, session.config["hand_over_seconds"]),
    )
    errors = process.stderr.decode(errors="replace")
    if process.returncode:
        session.log(errors)
        raise SessionError(f"the run's directory cannot be used: {last_line(errors)}")
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer
