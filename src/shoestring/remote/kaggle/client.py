"""Kaggle by way of the official client, which runs in a process of its own (`client_process`).

A call that does not answer in time ends the process, and the next one starts another. What goes wrong is a
`KaggleError` with its `kind`, because what to do next depends on it alone. Calls that change nothing are repeated while
the failure is temporary; a push never is, because one that answered with an error may have landed.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from shoestring.base.errors import RunError
from shoestring.base.packages.origin import pip_install
from shoestring.base.packages.requirements import require, required
from shoestring.remote.kaggle.client_process import redact

Kind = Literal["temporary", "places", "quota", "missing", "forbidden", "account", "rejected"]
"""temporary: try again. places: all GPU sessions of the account run. quota: the week's hours are used up. missing: no
such thing. forbidden: not allowed, or not yet. account: nobody is signed in, or the token is refused. rejected:
anything else."""

_HINTS: dict[Kind, str] = {
    "temporary": "check the network and https://www.kaggle.com, then give the same command again: it goes on",
    "places": "Kaggle runs two GPU sessions of an account at a time: wait for one to end, or stop it",
    "quota": "the same command goes on after the refresh of the quota",
    "missing": "check the name at https://www.kaggle.com",
    "forbidden": "check the name, and whether your account may read it",
    "account": "sign in with: kaggle auth login, or set KAGGLE_API_TOKEN to a token of https://www.kaggle.com/settings",
    "rejected": "give the same command again when the cause is removed",
}
_TEMPORARY_STATUS = (408, 425, 429)
_TEMPORARY_TYPES = {"ConnectionError", "Timeout", "JSONDecodeError", "ChunkedEncodingError", "ContentDecodingError"}
_ACCOUNT_TYPES = {"SystemExit", "RefusedTokenError"}
_UNREADABLE_TYPES = {"TypeError", "AttributeError", "KeyError"}
_TEMPORARY_TEXTS = ("Expecting value: line 1 column 1", "Connection aborted", "Max retries exceeded", "timed out")
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
"""Of this machine: to ask Kaggle again does not help."""
_PLACES_TEXT, _QUOTA_TEXT = "session count of", "GPU quota"
_CREDENTIALS = ("KAGGLE_API_TOKEN", "KAGGLE_KEY")


class KaggleError(RunError):
    """Kaggle, the client or the network refused a call."""

    def __init__(self, message: str, kind: Kind, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint or _HINTS[kind])
        self.kind: Kind = kind


def kind_of(text: str, types: tuple[str, ...] = (), status: int | None = None) -> Kind:
    """Return the kind of an error, from the names of its classes, its text and its HTTP status."""
    if "Maximum" in text and _PLACES_TEXT in text:
        return "places"
    if "Maximum" in text and _QUOTA_TEXT in text:
        return "quota"
    if status is not None and (status >= 500 or status in _TEMPORARY_STATUS):
        return "temporary"
    if status == 401 or _ACCOUNT_TYPES.intersection(types) or "Unauthorized" in text:
        return "account"
    if status in (403, 404):
        return "forbidden" if status == 403 else "missing"
    if _TEMPORARY_TYPES.intersection(types) or any(words in text for words in _TEMPORARY_TEXTS):
        return "temporary"
    return "rejected"


class Client:
    """The calls of Kaggle that a chain needs."""

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 120.0,
        patience_seconds: float = 300.0,
        pause_seconds: float = 2.0,
        on_progress: Callable[[int], object] = lambda _: None,
        check: bool = True,
    ) -> None:
        """`environment` is added to that of the process. A call that sends nothing for `timeout_seconds` is ended.
        Temporary failures of calls that change nothing are repeated for `patience_seconds`, after pauses that grow from
        `pause_seconds`. `on_progress` is called with 0 while a file moves.

        Raises UsageError if the official client is not installed.
        """
        if check:
            require("kaggle", "kaggle", "six")
        self._on_progress = on_progress
        self._environment = {**os.environ, **(environment or {})}
        self._timeout_seconds = timeout_seconds
        self.patience_seconds = patience_seconds
        self.pause_seconds = pause_seconds
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the client's process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()

    def account(self) -> str:
        """Return the name of the account. Raises KaggleError of the kind `account` if nobody is signed in."""
        user = str(self._repeat("account"))
        if not user:
            raise KaggleError("nobody is signed in to Kaggle on this machine", "account")
        return user

    def quota(self) -> dict[str, Any]:
        """Return the week's GPU quota in seconds, `used`, `reserved` and `total`, and the time of its `refresh`, for a
        person.
        """
        return dict(self._repeat("quota"))

    def push(self, folder: Path, *, seconds: int, accelerator: str | None = None) -> dict[str, Any]:
        """Push the kernel in `folder`, and return its `version` and the sources that are `invalid`. Is not repeated.

        Raises KaggleError; if it is temporary, the kernel may run nevertheless.
        """
        answer = dict(self._call("push", {"folder": str(folder), "seconds": seconds, "accelerator": accelerator}))
        if answer["error"]:
            raise KaggleError(f"Kaggle refused the session: {answer['error']}", kind_of(answer["error"]))
        return answer

    def source(self, kernel: str) -> dict[str, Any] | None:
        """Return the `source` and the `version` of a kernel, None if there is none."""
        value = self._unless_missing("source", {"kernel": kernel})
        return None if value is None else dict(value)

    def status(self, kernel: str) -> dict[str, Any] | None:
        """Return the newest session's `status` in small letters, its `message`, and the `time` by the server's clock in
        unix seconds, None if it is unknown. None if there is no session.
        """
        value = self._unless_missing("status", {"kernel": kernel})
        return None if value is None else dict(value)

    def outputs(self, kernel: str) -> list[str]:
        """Return the names of the files of a kernel's output."""
        return list(self._unless_missing("outputs", {"kernel": kernel}) or [])

    def download(self, kernel: str, files: Mapping[str, Path]) -> None:
        """Download files of a kernel's output, by name, to paths. A file that does not come is left out.

        The caller verifies what came: an error page may lie in a file.
        """
        self._call("download", {"kernel": kernel, "names": {name: str(path) for name, path in files.items()}})

    def log_text(self, kernel: str) -> str:
        """Return the log of a kernel's newest session."""
        return str(self._unless_missing("log_text", {"kernel": kernel}) or "")

    def log(self, kernel: str, *, seconds: float) -> Iterator[str]:
        """Yield the log as it comes, until its end, or until nothing came for `seconds`."""
        try:
            for item in self._stream("log", {"kernel": kernel}, timeout_seconds=seconds):
                yield str(item.get("data", ""))
        except KaggleError as error:
            if error.kind not in ("temporary", "missing", "forbidden"):
                raise

    def delete_kernel(self, kernel: str) -> bool:
        """Delete a kernel with its sessions and outputs, and return whether there was one."""
        return self._unless_missing("delete_kernel", {"kernel": kernel}, default=True) is not None

    def dataset_status(self, dataset: str) -> str | None:
        """Return the status of a dataset in small letters, such as `ready`, and None if there is none."""
        value = self._unless_missing("dataset_status", {"dataset": dataset})
        return None if value is None else str(value)

    def dataset_files(
        self, dataset: str, *, max_files: int | None = None, path: str | None = None
    ) -> list[dict[str, Any]] | None:
        """Return `name` and `bytes` of each file of a dataset, and None if it does not exist or may not be read.

        The list ends with the page on which it has more than `max_files` files, or on which `path` or a file below it
        is. Kaggle lists 200 files on a page.
        """
        value = self._unless_missing("dataset_files", {"dataset": dataset, "max_files": max_files, "path": path})
        return None if value is None else list(value)

    def download_dataset_file(self, dataset: str, name: str, path: Path, *, max_bytes: int) -> None:
        """Download a file of a dataset's newest version. Raises FileNotFoundError if there is no such file.

        One with more than `max_bytes` is a ValueError.
        """
        arguments = {"dataset": dataset, "name": name, "path": str(path), "max_bytes": max_bytes}
        if self._unless_missing("download_dataset_file", arguments, default=True) is None:
            raise FileNotFoundError(f"{dataset}/{name}")
        if path.stat().st_size > max_bytes:
            raise ValueError(f"it has more than {max_bytes} bytes")

    def create_dataset(self, folder: Path) -> None:
        """Upload the files of `folder` as a new private dataset. Is not repeated."""
        self._require_uploaded(self._call("create_dataset", {"folder": str(folder)}))

    def create_version(self, folder: Path, notes: str, *, delete_old_versions: bool = False) -> None:
        """Upload the files of `folder` as the next version of a dataset. Is not repeated."""
        arguments = {"folder": str(folder), "notes": notes, "delete_old_versions": delete_old_versions}
        self._require_uploaded(self._call("create_version", arguments))

    @staticmethod
    def _require_uploaded(answer: Any) -> None:
        if answer["error"]:
            raise KaggleError(f"Kaggle refused the dataset: {answer['error']}", kind_of(answer["error"]))

    def _unless_missing(self, call: str, arguments: dict[str, Any], default: Any = None) -> Any:
        """Return the answer, or `default` for an empty one; None if Kaggle says that there is no such thing.

        What does not exist and what may not be seen have the same answer, 403, for a kernel or dataset that is private.
        """
        try:
            value = self._repeat(call, arguments)
        except KaggleError as error:
            if error.kind in ("missing", "forbidden"):
                return None
            raise
        return default if value is None else value

    def _repeat(self, call: str, arguments: dict[str, Any] | None = None) -> Any:
        """Return the answer of a call that changes nothing, which is repeated while the failure is temporary."""
        give_up_at, pause = time.monotonic() + self.patience_seconds, self.pause_seconds
        while True:
            try:
                return self._call(call, arguments or {})
            except KaggleError as error:
                if error.kind != "temporary" or time.monotonic() + pause > give_up_at:
                    raise
            time.sleep(pause)
            pause = min(1.7 * pause, 60.0)

    def _call(self, call: str, arguments: dict[str, Any]) -> Any:
        """Return the answer of a call. One that was refused because the token has expired is made after a new sign-in:
        it has changed nothing.
        """
        try:
            return self._drain(self._stream(call, arguments))
        except KaggleError as error:
            if error.kind != "account":
                raise
        self.close()
        return self._drain(self._stream(call, arguments))

    def _drain(self, stream: Iterator[Any]) -> Any:
        while True:
            try:
                next(stream)
                self._on_progress(0)
            except StopIteration as end:
                return end.value

    def _stream(
        self, call: str, arguments: dict[str, Any], timeout_seconds: float | None = None
    ) -> Generator[Any, None, Any]:
        """Yield the items of a call, and return its value. Raises KaggleError."""
        process = self._started()
        is_complete = False
        try:
            self._send(process, {"call": call, "arguments": arguments})
            while True:
                line = self._lines.get(timeout=timeout_seconds or self._timeout_seconds)
                if line is None:
                    raise KaggleError("the process of Kaggle's client ended without an answer", "temporary")
                answer = json.loads(line)
                if "item" in answer:
                    yield answer["item"]
                    continue
                is_complete = True
                if "error" in answer:
                    raise self._error(call, answer["error"])
                return answer["value"]
        except queue.Empty:
            raise KaggleError(
                f"Kaggle has not answered for {self._timeout_seconds:.0f} s ({call})", "temporary"
            ) from None
        finally:
            if not is_complete:  # the rest of the answer must not be taken for that of the next call
                self.close()

    @staticmethod
    def _send(process: subprocess.Popen[str], request: Mapping[str, Any]) -> None:
        try:
            assert process.stdin
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise KaggleError(f"the process of Kaggle's client ended: {error}", "temporary") from error

    def _error(self, call: str, facts: Mapping[str, Any]) -> KaggleError | OSError:
        if facts["errno"] in _DISK_ERRORS:
            return OSError(facts["errno"], os.strerror(facts["errno"]))
        text = redact(str(facts["message"]), {self._environment.get(name, "") for name in _CREDENTIALS})
        kind = kind_of(text, tuple(facts["type"]), facts["status"])
        if "RefusedTokenError" in facts["type"]:
            return KaggleError(f"Kaggle does not accept the token of {text}: it is wrong, expired or revoked", kind)
        if "SystemExit" in facts["type"]:
            text = "nobody is signed in to Kaggle on this machine"
        elif {"ModuleNotFoundError", "ImportError"}.intersection(facts["type"]):
            client = [package.requirement for package in required(["kaggle"]) if package.extra]
            hint = f"{pip_install('--upgrade', *client)}, then give the same command again"
            return KaggleError(f"Kaggle's client cannot be loaded: {text}", kind, hint=hint)
        elif _UNREADABLE_TYPES.intersection(facts["type"]):
            text = f"Kaggle's answer cannot be read ({call.replace('_', ' ')}): {text}"
            return KaggleError(
                text, kind, hint="pip install --upgrade kaggle; or wait, and give the same command again"
            )
        elif {"ConnectionError", "ProxyError"}.intersection(facts["type"]):
            text = f"Kaggle cannot be reached: {text}"
        return KaggleError(f"Kaggle's client ({call.replace('_', ' ')}): {text}", kind)

    def _started(self) -> subprocess.Popen[str]:
        if self._process and self._process.poll() is None:
            return self._process
        self.close()
        process = subprocess.Popen(
            [sys.executable, "-m", "shoestring.remote.kaggle.client_process", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=self._environment,
        )
        self._process, self._lines = process, queue.SimpleQueue()
        threading.Thread(target=_forward, args=(process, self._lines), daemon=True).start()
        return process


def _forward(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Put the lines that a process writes into a queue, and None when it has ended."""
    try:
        assert process.stdout
        for line in process.stdout:
            lines.put(line)
    except (OSError, ValueError):  # it was closed
        pass
    lines.put(None)
