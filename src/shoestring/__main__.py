"""Run the command line, as `shoestring` and as `python -m shoestring`."""

import os
import signal
import sys


def main() -> None:
    """Run the command line and exit. Ctrl-C ends it without a traceback from its first moment."""
    try:
        from shoestring.cli import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        # The shell sees that the signal has ended the process, and stops a script that called it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
