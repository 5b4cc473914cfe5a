"""A Kaggle on this machine that the official client, as it is, talks to, and that really runs what is pushed.

    with Loopback(folder, session_seconds=20) as loopback:
        subprocess.run(["kaggle", "kernels", "push", "-p", "kernel"], env={**os.environ, **loopback.environment})

It has one account, two places for GPU sessions, a weekly quota, datasets that take time to be processed, versions, and
outputs that are kept or lost. `Faults` are the ways in which Kaggle and the network have been seen to fail.
"""

import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.loopback_kaggle.datasets import Datasets
from tests.loopback_kaggle.faults import Dice, Faults
from tests.loopback_kaggle.kernels import Kernels
from tests.loopback_kaggle.server import Server
from tests.loopback_kaggle.service import ApiError, Service

__all__ = ["Faults", "Loopback"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    user: str
    token: str
    python: str
    session_seconds: float
    quota_seconds: float
    refresh_seconds: float
    places: int
    keep_outputs: str
    """always, success (of the script), random (after a kill or a failure) or never."""
    mounts: str
    """flat: input/SLUG; nested: input/datasets/OWNER/SLUG and input/notebooks/OWNER/SLUG."""
    disk_bytes: int
    queue_seconds: float
    processing_seconds: float
    lag_seconds: float
    hang_seconds: float
    quota_tolerance_seconds: float
    """What a session may take beyond the quota without being counted: on a busy machine it is killed late."""
    clock_offset_seconds: float


class Loopback:
    """A context manager: the server runs and sessions are started within it, and all of them are ended after it."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        user: str = "me",
        token: str = "KGAT_loopback_0123456789abcdef",
        python: str = sys.executable,
        session_seconds: float = 60.0,
        quota_seconds: float = 108_000.0,
        refresh_seconds: float = 604_800.0,
        places: int = 2,
        keep_outputs: str = "success",
        mounts: str = "nested",
        disk_bytes: int = 2 << 30,
        queue_seconds: float = 0.05,
        processing_seconds: float = 0.2,
        lag_seconds: float = 0.5,
        hang_seconds: float = 30.0,
        quota_tolerance_seconds: float = 0.3,
        clock_offset_seconds: float = 0.0,
    ) -> None:
        self.folder = folder
        self.settings = Settings(
            user=user,
            token=token,
            python=python,
            session_seconds=session_seconds,
            quota_seconds=quota_seconds,
            refresh_seconds=refresh_seconds,
            places=places,
            keep_outputs=keep_outputs,
            mounts=mounts,
            disk_bytes=disk_bytes,
            queue_seconds=queue_seconds,
            processing_seconds=processing_seconds,
            lag_seconds=lag_seconds,
            hang_seconds=hang_seconds,
            quota_tolerance_seconds=quota_tolerance_seconds,
            clock_offset_seconds=clock_offset_seconds,
        )
        self.dice = Dice(faults or Faults(), seed)
        self.datasets = Datasets(folder, processing_seconds)
        self.kernels = Kernels(folder, self.dice, self.settings, self.datasets)
        self.requests: list[tuple[float, str]] = []
        self.answered = 0
        """Requests since the client signed in."""
        self.is_expired = False
        """Whether the token is refused until the client signs in again."""
        self._service = Service(self.kernels, self.datasets, self.dice, self.settings)
        self._server = Server(self)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.closing.set()
        self.kernels.kill_all()
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which the client talks to this Kaggle."""
        return {
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "HTTP_PROXY": f"http://127.0.0.1:{self._server.server_address[1]}",
            "http_proxy": f"http://127.0.0.1:{self._server.server_address[1]}",
            "NO_PROXY": "",
            "no_proxy": "",
            "KAGGLE_API_TOKEN": self.settings.token,
            "KAGGLE_CONFIG_DIR": str(self.folder / "config"),
        }

    def answer(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request of the client. Raises ApiError."""
        self.requests.append((time.monotonic(), method))
        if method not in self._service.methods:
            raise ApiError(404, f"the loopback has no {method}")
        return self._service.methods[method](body)

    def add_dataset(self, reference: str, files: dict[str, bytes]) -> None:
        """Make a dataset, `owner/slug`, that is ready at once."""
        self.datasets.add(reference, files)

    def kill_sessions(self) -> None:
        """Kill all sessions that run, without a warning."""
        for session in self.kernels.running():
            if session.machine:
                session.machine.kill("killed")

    def wait_until_idle(self, seconds: float) -> None:
        """Wait until no session runs. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while self.kernels.running():
            if time.monotonic() > end:
                raise TimeoutError("a session still runs")
            time.sleep(0.02)

    def counts(self) -> dict[str, int]:
        """Return what has happened: sessions, pushes of the same nonce, sessions that overlap on a slug, ..."""
        sessions = self.kernels.sessions
        nonces = Counter(session.nonce for session in sessions if session.nonce)
        return {
            "sessions": len(sessions),
            "without_output": sum(session.is_over and session.output is None for session in sessions),
            "doubled": sum(count - 1 for count in nonces.values()),
            "quota_exceeded": self.kernels.quota_exceeded,
            "running": len(self.kernels.running()),
        }
