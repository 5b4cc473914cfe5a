"""A small process that ends compilers whose rehearsal was killed: python compile_guard.py FOLDER

It leads the process group of the compilers. When its standard input ends without the word `done`, the process that
started them is gone: the group is killed and the unfinished folder is removed. Nothing of Shoestring is imported.
"""

import os
import shutil
import signal
import sys


def main() -> None:
    """Wait for the end of standard input, and clean up unless the compilation has ended properly."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.read().strip() == "done":
        return
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
