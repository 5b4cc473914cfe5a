"""The process beside a run that talks to the place of its copies, so that a slow or hanging place holds nobody up.

    python -m shoestring.remote.backup copy DIR URL RUN_ID
    python -m shoestring.remote.backup restore DIR URL OPTION
    python -m shoestring.remote.backup restore_or_begin DIR URL OPTION

It answers with lines of JSON on its standard output (`conversation`). Its standard input is the life of the session: a
line `end SECONDS` ends it within this time, and without such a line the process ends at once.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from shoestring.base.errors import RunError, ShoestringError
from shoestring.remote.backup.background import Background
from shoestring.remote.backup.conversation import Life, send, send_error
from shoestring.remote.backup.restoring import restore
from shoestring.remote.backup.urls import parse_url, redacted
from shoestring.training.run_directory.directory import RunDirectory

_NICENESS = 10


def main(verb: str, path: str, url: str, run_id_or_option: str) -> None:
    """Copy or restore until it is done, or until the standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # of the terminal, for the run: it ends this process
    life = Life()
    try:
        if verb != "copy":
            location = parse_url(url, run_id_or_option)
            send(restored=restore(Path(path), location, is_backup=verb == "restore_or_begin"))
        else:
            with suppress(OSError):
                os.nice(_NICENESS)
            Background(RunDirectory(Path(path)), parse_url(url), run_id_or_option, life).run()
    except ShoestringError as error:
        send_error(error)
    except BaseException as error:  # noqa: BLE001 - of a library: the other process reports it
        send_error(RunError(redacted(f"{url}: {type(error).__name__}: {error}")))
    sys.stdout.flush()
    os._exit(0)  # threads of libraries may hang


if __name__ == "__main__":
    main(*sys.argv[1:])
