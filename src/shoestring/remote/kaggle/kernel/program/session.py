"""The state of a session, the file that tells it, and the log."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from typing import Any

from shoestring.remote.kaggle.kernel.program.files import MIB, shorten
from shoestring.remote.kaggle.kernel.program.places import LOG_FILE, RUN, SESSION_FILE, SITE, TEMP, WORKING

LOG_BYTES = MIB


class Stopped(BaseException):
    """Kaggle asked the script to end."""


class Session:
    """What has become of a session, its file and its log, and the trainer that it waits for."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.started = time.monotonic()
        self.trainer: subprocess.Popen[bytes] | None = None
        self.is_stopped = False
        self.is_leaving = False
        self.state = {
            "format": 1,
            "nonce": config["nonce"],
            "session": config["session"],
            "status": "running",
            "reason": "",
            "hint": "",
            "update": 0,
            "total_updates": None,
            "first_update": 0,
            "checkpoint": None,
            "damaged": [],
            "notes": [],
            "exit_status": None,
            "seconds": 0.0,
            "facts": {},
            "files": {},
        }

    def record(self, **values: Any) -> None:
        self.state.update(values)
        for name in ("status", "reason", "hint"):
            if values.get(name):
                self.log(f"{name}: {values[name]}\n")

    def write(self) -> None:
        """Write the session's file. If the disk is full, what is only looked at makes room for it."""
        try:
            self.replace_session_file()
        except OSError as error:
            self.state["notes"].append(f"the log and images were left out, because the disk failed: {error.strerror}")
            for folder in ("evidence", "logs"):
                shutil.rmtree(RUN / folder, ignore_errors=True)
            for path in (RUN / "report.html", WORKING / LOG_FILE):
                path.unlink(missing_ok=True)
            files = {name: entry for name, entry in self.state["files"].items() if (WORKING / name).is_file()}
            self.state["files"] = files
            self.replace_session_file()

    def replace_session_file(self) -> None:
        """Replace the session's file at once, so that a reader never sees half of it."""
        self.state["seconds"] = round(time.monotonic() - self.started, 3)
        temporary = WORKING / f".{SESSION_FILE}"
        with temporary.open("w") as file:
            json.dump(self.state, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(WORKING / SESSION_FILE)

    def log(self, text: str) -> None:
        print(text, end="", flush=True)
        self.append_to_log(text.encode(errors="replace"))

    def append_to_log(self, output: bytes) -> None:
        """Append to shoestring.log, and drop its beginning when it grows. A full disk does not end the training."""
        path = WORKING / LOG_FILE
        try:
            with path.open("ab") as file:
                file.write(output)
                size = file.tell()
            if size > 2 * LOG_BYTES:
                shorten(path, LOG_BYTES)
        except OSError:
            pass

    def stop(self, *_: object) -> None:
        """End the training, saved, when Kaggle asks the script to end."""
        self.is_stopped = True
        if self.trainer is not None:
            with contextlib.suppress(OSError):
                self.trainer.terminate()
        elif not self.is_leaving:
            raise Stopped

    def seconds_left(self) -> float:
        """Until the output has to be left."""
        return float(self.started + self.config["limit_seconds"] - self.config["hand_over_seconds"] - time.monotonic())

    def environment(self) -> dict[str, str]:
        """Return the environment of the children. Caches go to /kaggle/temp, because /kaggle/working is downloaded."""
        places = {"PIP_CACHE_DIR": "pip", "HF_HOME": "huggingface", "TORCH_HOME": "torch", "TRITON_CACHE_DIR": "triton"}
        places |= {"TORCHINDUCTOR_CACHE_DIR": "inductor", "XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state"}
        places |= {"MPLCONFIGDIR": "matplotlib", "TMPDIR": "tmp"}
        (TEMP / "tmp").mkdir(parents=True, exist_ok=True)
        paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        offline = {} if self.config["internet"] else {"HF_HUB_OFFLINE": "1"}
        return {**os.environ, **{name: str(TEMP / folder) for name, folder in places.items()}, **own, **offline}
