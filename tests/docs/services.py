"""Services that run while the blocks of a page are executed, by the names that pages give them."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.loopback_kaggle import Loopback

POLL_SECONDS = 0.02


@contextlib.contextmanager
def loopback_kaggle(folder: Path) -> Iterator[dict[str, str]]:
    """A Kaggle on this machine, which kills the first session as soon as it has left two checkpoints.

    Yields the environment in which the official client talks to it.
    """
    with Loopback(folder, session_seconds=600.0, keep_outputs="always", processing_seconds=0.1) as loopback:
        is_over = threading.Event()
        thread = threading.Thread(target=_kill_first_session, args=(loopback, is_over))
        thread.start()
        try:
            # No wheels are downloaded: sessions have the packages of this environment.
            yield {**loopback.environment, "PIP_NO_INDEX": "1", "XDG_CACHE_HOME": str(folder / "cache")}
        finally:
            is_over.set()
            thread.join()


def _kill_first_session(loopback: Loopback, is_over: threading.Event) -> None:
    while not is_over.wait(POLL_SECONDS):
        machine = loopback.kernels.sessions[0].machine if loopback.kernels.sessions else None
        if machine and len(list(machine.working.glob("run/checkpoints/update-*/manifest.json"))) >= 2:
            machine.kill("killed")
            return


SERVICES: dict[str, Callable[[Path], AbstractContextManager[dict[str, str]]]] = {"loopback Kaggle": loopback_kaggle}
