"""The machine of one session: a folder laid out as Kaggle's, and a process group that runs the pushed script in it.

    input/    the attached datasets and kernel outputs, as copies       working/  what becomes the output
    temp/     what does not                                             script.py

Where the system allows it, the processes have a PID namespace of their own, so that one SIGKILL ends all of them as the
end of a container does, and without internet also a network namespace. The script finds the folder by
SHOESTRING_KAGGLE_ROOT.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

_POLL_SECONDS = 0.02
_NAMESPACE = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
_WITHOUT_NETWORK = [*_NAMESPACE, "--net", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh"]


@functools.cache
def has_namespaces() -> bool:
    """Return whether processes may have a PID and a network namespace of their own here."""
    return (
        bool(shutil.which("unshare"))
        and not subprocess.run([*_WITHOUT_NETWORK, "true"], capture_output=True).returncode
    )


class Machine:
    """Runs a script until it ends, its limit is reached or `kill` is called."""

    def __init__(
        self,
        folder: Path,
        script: str,
        mounts: Mapping[str, Path],
        *,
        python: str,
        limit_seconds: float,
        disk_bytes: int,
        has_internet: bool,
        gpu: bool,
    ) -> None:
        """`mounts` has the content of each path below `input`."""
        self.folder, self.limit_seconds, self.disk_bytes = folder, limit_seconds, disk_bytes
        self.working, self.log_file = folder / "working", folder / "log.txt"
        for name in ("input", "working", "temp"):
            (folder / name).mkdir(parents=True)
        for name, content in mounts.items():
            # Hard links instead of copies: a session has no business in writing to its inputs.
            shutil.copytree(content, folder / "input" / name, copy_function=os.link, dirs_exist_ok=True)
        (folder / "script.py").write_text(script)
        self.end_reason = ""
        self.started = time.monotonic()
        self._killed = threading.Event()
        prefix = (_NAMESPACE if has_internet else _WITHOUT_NETWORK) if has_namespaces() else []
        kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {"SHOESTRING_KAGGLE_ROOT": str(folder), "HOME": str(folder / "temp"), "OMP_NUM_THREADS": "1"}
        environment |= {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "LOOPBACK_GPU": str(int(gpu))}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*prefix, python, str(folder / "script.py")],
                cwd=self.working,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> int:
        """Return the exit status of the script; 137 if it was killed, with the reason in `end_reason`."""
        checked = 0.0
        while self._process.poll() is None:
            seconds = time.monotonic() - self.started
            if self._killed.is_set():
                break
            if seconds > self.limit_seconds:
                self.end_reason = "limit"
                break
            if seconds > checked:
                checked = seconds + 0.25
                if _bytes_below(self.working) > self.disk_bytes:
                    self.end_reason = "disk"
                    break
            time.sleep(_POLL_SECONDS)
        else:
            self._end_all()
            return self._process.returncode
        self._end_all()
        return 137

    def kill(self, reason: str) -> None:
        """Kill all processes without a warning; `wait` returns then."""
        self.end_reason = self.end_reason or reason
        self._killed.set()

    def clean(self) -> None:
        """Remove all but the output, the log and the script."""
        for name in ("input", "temp"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _end_all(self) -> None:
        processes = []
        with contextlib.suppress(psutil.Error):
            processes = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait()
        psutil.wait_procs(processes, 5)


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total
