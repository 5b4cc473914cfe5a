"""Run the command line, as `shoestring` and as `python -m shoestring`."""

import os
import signal
import sys
from collections.abc import Callable

from shoestring.base.processes import limit_spinning


def main() -> None:
    """Run the command line and exit. Ctrl-C ends it without a traceback from its first moment."""
    try:
        limit_spinning()
        _command_line()()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        # The shell sees that the signal has ended the process, and stops a script that called it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _command_line() -> Callable[[], None]:
    """Return the command line. If one of its own libraries cannot be used, such as typer, exit with that error."""
    try:
        from shoestring.cli.commands import main
    except ImportError as error:
        from shoestring.base.packages.broken import broken_library

        if explained := broken_library(error):
            sys.stderr.write(f"error: {explained}\n")
            sys.exit(explained.status)
        raise
    return main


if __name__ == "__main__":
    main()
