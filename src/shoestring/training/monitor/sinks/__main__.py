"""`python -m shoestring.training.monitor.sinks EVENTS_FILE FOLDER NAME`: the process of a sink.

It ends soon after its standard input does: when the session has ended, or was killed. It writes the last events first
and has `END_SECONDS` for them, so that a sink that hangs ends as well.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from shoestring.base.streams import write_messages
from shoestring.base.system_errors import reason
from shoestring.training.checkpoint.files import remove_own
from shoestring.training.monitor.sinks.following import Follower
from shoestring.training.monitor.sinks.names import SINKS

END_SECONDS = 5.0
_POLL_SECONDS = 1.0
_NICENESS = 10


def main(events_file: Path, folder: Path, name: str) -> None:
    """Write the record to the sink until the standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # of the terminal, for the run: it ends this process
    with suppress(OSError):
        os.nice(_NICENESS)
    is_ended = threading.Event()
    threading.Thread(target=_await_end, args=(is_ended,), daemon=True).start()
    try:
        follower = Follower(events_file, folder, SINKS[name].open)
        while not is_ended.wait(_POLL_SECONDS):
            follower.update()
        follower.update()
        follower.close()
    except BaseException as error:  # noqa: BLE001 - a sink's error must not reach the run
        text = reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        write_messages(
            f"note: {folder} is not written any more: {text}; training is not affected, and a later session with "
            f"--log {name} writes it anew"
        )
        # What it has written may be what filled the disk.
        names = re.compile("|".join(SINKS))
        remove_own(folder, names)
    os._exit(0)


def _await_end(is_ended: threading.Event) -> None:
    while os.read(0, 1):
        pass
    is_ended.set()
    threading.Event().wait(END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
