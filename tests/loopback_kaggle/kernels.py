"""Kernels: their versions and sessions, the places for GPU sessions, and the weekly quota."""

import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.loopback_kaggle.faults import Dice
from tests.loopback_kaggle.machine import Machine

_NONCE = re.compile(r"nonce\W+([0-9a-f]{32})")
MAX_SOURCE_BYTES = 1 << 20


@dataclass(kw_only=True)
class Session:
    """One run of a version of a kernel."""

    number: int
    kernel: str
    version: int
    nonce: str
    gpu: bool
    pushed: float
    limit_seconds: float
    started: float | None = None
    ended: float | None = None
    status: str = "QUEUED"
    end_reason: str = ""
    output: Path | None = None
    """The folder with the files of the output, if it was kept."""
    log_file: Path | None = None
    is_lagging: bool = False
    runs_on: bool = False
    lies: bool = False
    machine: Machine | None = None

    @property
    def seconds(self) -> float:
        """The time that is billed."""
        if self.started is None:
            return 0.0
        return (self.ended or time.monotonic()) - self.started

    @property
    def is_over(self) -> bool:
        return self.ended is not None

    def log_text(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file and self.log_file.exists() else ""


@dataclass(kw_only=True)
class Version:
    number: int
    body: dict[str, Any]
    session: Session


@dataclass(kw_only=True)
class Kernel:
    reference: str
    id: int
    versions: list[Version] = field(default_factory=list)

    @property
    def newest(self) -> Version:
        return self.versions[-1]


class Quota:
    """GPU time within a window that begins anew every `refresh_seconds`."""

    def __init__(self, total_seconds: float, refresh_seconds: float) -> None:
        self.total_seconds, self.refresh_seconds = total_seconds, refresh_seconds
        self._began = time.monotonic()

    def window(self) -> float:
        """Return the start of the present window."""
        passed = time.monotonic() - self._began
        return self._began + passed // self.refresh_seconds * self.refresh_seconds

    def refresh_in(self) -> float:
        return self.window() + self.refresh_seconds - time.monotonic()

    def used(self, sessions: list[Session]) -> float:
        """Return the time that the sessions which started in this window have taken."""
        window = self.window()
        return sum(
            item.seconds for item in sessions if item.gpu and item.started is not None and item.started >= window
        )


class Kernels:
    """The kernels of an account, whose sessions run in threads."""

    def __init__(self, folder: Path, dice: Dice, settings: Any, datasets: Any) -> None:
        self._folder, self._dice, self._settings, self._datasets = folder, dice, settings, datasets
        self.lock = threading.RLock()
        self.kernels: dict[str, Kernel] = {}
        self.sessions: list[Session] = []
        self.quota = Quota(settings.quota_seconds, settings.refresh_seconds)
        self.quota_exceeded = 0
        self._threads: list[threading.Thread] = []

    def running(self) -> list[Session]:
        return [session for session in self.sessions if not session.is_over]

    def push(self, body: dict[str, Any]) -> dict[str, Any]:
        """Save a version of a kernel and start its session. Raises ValueError with Kaggle's words for bad requests."""
        text, slug = body.get("text") or "", body.get("slug") or ""
        if len(text.encode()) > MAX_SOURCE_BYTES:
            raise ValueError("Bad Request")
        with self.lock:
            gpu = bool(body.get("enableGpu") or body.get("machineShape"))
            running = [session for session in self.running() if session.gpu]
            if gpu and len(running) >= self._settings.places:
                return {"error": f"Maximum batch GPU session count of {self._settings.places} reached."}
            if gpu and self.quota.used(self.sessions) >= self.quota.total_seconds:
                hours = self.quota.total_seconds / 3600
                return {"error": f"Maximum weekly GPU quota of {hours:.2f} hours reached."}
            datasets = {name: self._datasets.content(name) for name in body.get("datasetDataSources") or ()}
            kernels = {name: self._output(name) for name in body.get("kernelDataSources") or ()}
            kernel = self.kernels.setdefault(slug, Kernel(reference=slug, id=len(self.kernels) + 1))
            match = _NONCE.search(text)
            session = Session(
                number=len(self.sessions) + 1,
                kernel=slug,
                version=len(kernel.versions) + 1,
                nonce=match[1] if match else "",
                gpu=gpu,
                pushed=time.monotonic(),
                limit_seconds=self._settings.session_seconds,
            )
            asked = body.get("sessionTimeoutSeconds")
            if asked and not self._dice.happens("timeout_ignored"):
                session.limit_seconds = min(session.limit_seconds, float(asked))
            session.is_lagging = bool(kernel.versions) and self._dice.happens("status_lags")
            session.runs_on, session.lies = self._dice.happens("status_runs_on"), self._dice.happens("status_lies")
            kernel.versions.append(Version(number=session.version, body=body, session=session))
            self.sessions.append(session)
            mounts = {self._mount("datasets", name): folder for name, folder in datasets.items() if folder}
            mounts |= {self._mount("notebooks", name): folder for name, folder in kernels.items() if folder}
            thread = threading.Thread(target=self._run, args=(session, text, mounts, body), daemon=True)
            self._threads.append(thread)
            thread.start()
        return {
            "ref": f"/code/{slug}",
            "url": f"https://www.kaggle.com/code/{slug}",
            "versionNumber": session.version,
            "invalidDatasetSources": [name for name, folder in datasets.items() if not folder],
            "invalidKernelSources": [name for name, folder in kernels.items() if not folder],
        }

    def status(self, slug: str) -> dict[str, Any]:
        """Return the status of the newest version's session, as Kaggle shows it."""
        kernel = self.kernels[slug]
        session = kernel.newest.session
        delay = self._settings.lag_seconds
        if session.is_lagging and time.monotonic() - session.pushed < delay:
            session = kernel.versions[-2].session
        if session.runs_on and session.ended is not None and time.monotonic() - session.ended < delay:
            return {"status": "RUNNING"}
        if session.lies and session.status == "COMPLETE":
            return {"status": "CANCEL_ACKNOWLEDGED"}
        messages = {
            "limit": "Your notebook was stopped because it exceeded the max allowed execution duration.",
            "disk": "Your notebook tried to use more disk space than is available.",
        }
        message = messages.get(session.end_reason)
        return {"status": session.status, **({"failureMessage": message} if message else {})}

    def delete(self, slug: str) -> None:
        with self.lock:
            kernel = self.kernels.pop(slug)
            for version in kernel.versions:
                if version.session.machine:
                    version.session.machine.kill("deleted")
                version.session.end_reason = version.session.end_reason or "deleted"
                version.session.output = None

    def kill_all(self) -> None:
        """Kill all sessions, and wait until their processes have ended."""
        for session in self.running():
            session.end_reason = session.end_reason or "loopback closed"
            if session.machine:
                session.machine.kill("loopback closed")
        for thread in self._threads:
            thread.join(30)

    def _mount(self, kind: str, reference: str) -> str:
        slug = reference.partition("/")[2]
        return slug if self._settings.mounts == "flat" else f"{kind}/{reference}"

    def _output(self, slug: str) -> Path | None:
        """Return the output of the newest version that has one."""
        kernel = self.kernels.get(slug)
        outputs = [version.session.output for version in kernel.versions if version.session.output] if kernel else []
        return outputs[-1] if outputs else None

    def _run(self, session: Session, script: str, mounts: dict[str, Path], body: dict[str, Any]) -> None:
        time.sleep(self._settings.queue_seconds)
        limit = session.limit_seconds
        if self._dice.happens("killed_early"):
            limit *= self._dice.share("killed_early", 0.1, 0.7)
        internet = bool(body.get("enableInternet")) and not self._dice.happens("no_internet")
        with self.lock:
            if session.end_reason:
                session.ended, session.status = time.monotonic(), "CANCEL_ACKNOWLEDGED"
                return
            session.machine = machine = Machine(
                self._folder / "sessions" / f"{session.number:04d}",
                script,
                mounts,
                python=self._settings.python,
                limit_seconds=limit,
                disk_bytes=self._settings.disk_bytes,
                has_internet=internet,
                gpu=session.gpu,
            )
            session.log_file = machine.log_file
            session.started, session.status = machine.started, "RUNNING"
        code = machine.wait()
        machine.clean()
        with self.lock:
            session.end_reason = session.end_reason or machine.end_reason or f"exit status {code}"
            kept = {"always": True, "success": code == 0, "never": False}.get(self._settings.keep_outputs)
            if kept is None:
                kept = code == 0 or self._dice.share("output_lost", 0, 1) < 0.5
            if session.end_reason == "deleted" or self._dice.happens("output_lost"):
                kept = False
            if kept:
                self._damage(machine.working)
                session.output = machine.working
            is_cancelled = machine.end_reason in ("limit", "deleted", "loopback closed")
            session.status = "CANCEL_ACKNOWLEDGED" if is_cancelled else "ERROR" if code else "COMPLETE"
            session.ended = time.monotonic()
            if self.quota.used(self.sessions) > self.quota.total_seconds + self._settings.quota_tolerance_seconds:
                self.quota_exceeded += 1

    def _damage(self, output: Path) -> None:
        """Change a byte of the newest checkpoint."""
        if not self._dice.happens("damaged"):
            return
        files = sorted(path for path in output.rglob("checkpoint*/**/*") if path.is_file() and path.stat().st_size)
        if files:
            path = files[-1]
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.unlink()  # the file may be linked to the input of another session
            path.write_bytes(content)
