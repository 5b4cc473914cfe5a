"""The process that runs Kaggle's official client: `python -m shoestring.remote.kaggle.client_process PARENT`.

The client prints, exits and waits without end, so it has a process of its own, which can be killed. Requests come on
standard input, one line of JSON each: `{"call": NAME, "arguments": {...}}`. Every answer is lines of JSON on standard
output: any number of `{"item": ...}`, then `{"value": ...}` or `{"error": {"type", "message", "status"}}`. What the
client itself prints is dropped, and no line contains a credential.
"""

import datetime
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from shoestring.base.processes import exit_with_parent

_READ_SECONDS = 60.0
"""The longest time between two blocks of a download."""
_BLOCK_BYTES = 1 << 20
_SLOW_BYTES_PER_SECOND = 50_000
_PROGRESS_SECONDS = 1.0
_LEAST_READ_BYTES = 4096
"""Between two looks: to ask the system how much was read takes less."""
_PAGE = 200
"""The most files that Kaggle lists on a page."""
_CREDENTIALS = ("KAGGLE_API_TOKEN", "KAGGLE_KEY")
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")
"""The signature of a signed address is in its query."""


def redact(text: str, credentials: set[str]) -> str:
    """Return `text` without credentials and without the queries of addresses."""
    return _QUERY.sub(r"\1?[...]", _without_credentials(text, credentials))


def _without_credentials(text: str, credentials: set[str]) -> str:
    for credential in sorted(credentials, key=len, reverse=True):
        if len(credential) >= 4:
            text = text.replace(credential, "[credential]").replace(json.dumps(credential)[1:-1], "[credential]")
    return text


def is_at_or_below(path: str, name: str) -> bool:
    """Return whether a file of a dataset is the one at `path`, or in the folder of this path."""
    return name == path or name.startswith(f"{path}/")


class RefusedTokenError(Exception):
    """Kaggle knows no account for the token of this machine; the message is where the token is from."""


class Calls:
    """The calls that the process answers. Each method is one; what it returns is JSON, what it yields are items."""

    def __init__(self) -> None:
        from kaggle import api

        self._api: Any = api
        self._dates = _server_dates()
        if not api._authenticated:  # the import has tried it, and dropped the reason
            try:
                api.authenticate()
            except SystemExit:
                if source := _token_source():
                    raise RefusedTokenError(source) from None
                raise

    def credentials(self) -> set[str]:
        """Return the texts that must not leave this process."""
        values = self._api.config_values
        return {str(values[name]) for name in ("token", "key") if values.get(name)}

    def account(self) -> str:
        return str(self._api.config_values.get("username") or "")

    def quota(self) -> dict[str, Any]:
        answer = self._api.quota_view()
        gpu, refresh = answer.gpu_quota, answer.quota_refresh_time
        seconds = {
            name: getattr(gpu, attribute).total_seconds() if gpu and getattr(gpu, attribute) else 0.0
            for name, attribute in (
                ("used", "time_used"),
                ("reserved", "time_reserved"),
                ("total", "total_time_allowed"),
            )
        }
        return {**seconds, "refresh": _time_text(refresh) if refresh else None}

    def push(self, folder: str, seconds: int, accelerator: str | None) -> dict[str, Any]:
        answer = self._api.kernels_push(folder, timeout=str(seconds), acc=accelerator)
        invalid = [*(answer.invalid_dataset_sources or []), *(answer.invalid_kernel_sources or [])]
        return {"version": answer.version_number, "error": answer.error or "", "invalid": invalid, "url": answer.url}

    def source(self, kernel: str) -> dict[str, Any]:
        from kagglesdk.kernels.types.kernels_api_service import ApiGetKernelRequest

        request = ApiGetKernelRequest()
        request.user_name, request.kernel_slug = kernel.split("/")
        with self._api.build_kaggle_client() as kaggle:
            answer = kaggle.kernels.kernels_api_client.get_kernel(request)
        metadata = answer.metadata
        return {
            "source": answer.blob.source if answer.blob else "",
            "version": metadata.current_version_number if metadata else None,
        }

    def status(self, kernel: str) -> dict[str, str]:
        from kagglesdk.kernels.types.kernels_api_service import ApiGetKernelSessionStatusRequest

        request = ApiGetKernelSessionStatusRequest()
        request.user_name, request.kernel_slug = kernel.split("/")
        with self._api.build_kaggle_client() as kaggle:
            answer = kaggle.kernels.kernels_api_client.get_kernel_session_status(request)
        return {
            "status": answer.status.name.lower(),
            "message": answer.failure_message or "",
            "time": _unix_seconds(self._dates[-1] if self._dates else ""),
        }

    def outputs(self, kernel: str) -> list[str]:
        return [file.file_name for file in self._output_files(kernel)]

    def download(self, kernel: str, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Download files of the output, by name, to paths. Yields the progress, so that a slow download is no hang."""
        import requests

        for file in self._output_files(kernel):
            if file.file_name not in names:
                continue
            path, count = Path(names[file.file_name]), 0
            path.parent.mkdir(parents=True, exist_ok=True)
            with (
                suppress(requests.RequestException),  # the other files may come
                requests.get(file.url, stream=True, timeout=_READ_SECONDS) as answer,
                path.open("wb") as target,
            ):
                answer.raise_for_status()
                for block in answer.iter_content(_BLOCK_BYTES):
                    target.write(block)
                    count += len(block)
                    yield {"name": file.file_name, "bytes": count}

    def log_text(self, kernel: str) -> str:
        return str(self._api.kernels_logs(kernel))

    def log(self, kernel: str) -> Iterator[dict[str, Any]]:
        yield from self._api.kernels_logs_stream(kernel)

    def delete_kernel(self, kernel: str) -> None:
        self._api.kernels_delete(kernel, no_confirm=True)

    def dataset_status(self, dataset: str) -> str:
        return str(self._api.dataset_status(dataset))

    def dataset_files(
        self, dataset: str, max_files: int | None, path: str | None
    ) -> Generator[dict[str, Any], None, list[dict[str, Any]]]:
        """List files, up to the page that exceeds `max_files`, or that has `path` or a file below it.

        Yields the progress, so that a long list is no hang.
        """
        files: list[dict[str, Any]] = []
        token = None
        while True:
            page = self._api.dataset_list_files(dataset, page_token=token, page_size=_PAGE)
            new = [{"name": file.name, "bytes": file.total_bytes or 0} for file in page.files or []]
            files += new
            token = page.next_page_token
            has_path = path is not None and any(is_at_or_below(path, file["name"]) for file in new)
            if not token or has_path or (max_files is not None and len(files) > max_files):
                return files
            yield {"files": len(files)}

    def download_dataset_file(self, dataset: str, name: str, path: str, max_bytes: int) -> Iterator[dict[str, Any]]:
        """Download a file to a path, up to the block that exceeds `max_bytes`. Yields the progress."""
        from kagglesdk.datasets.types.dataset_api_service import ApiDownloadDatasetRequest

        request = ApiDownloadDatasetRequest()
        request.owner_slug, request.dataset_slug = dataset.split("/")
        request.file_name = name
        count = 0
        with self._api.build_kaggle_client() as kaggle, Path(path).open("wb") as target:
            answer = kaggle.datasets.dataset_api_client.download_dataset(request)
            for block in answer.iter_content(_BLOCK_BYTES):
                target.write(block)
                count += len(block)
                yield {"bytes": count}
                if count > max_bytes:
                    return

    def create_dataset(self, folder: str) -> Generator[dict[str, Any], None, dict[str, Any]]:
        answer = yield from _with_progress(lambda: self._api.dataset_create_new(folder, quiet=True), Path(folder))
        return {"status": answer.status, "error": answer.error or ""}

    def create_version(
        self, folder: str, notes: str, delete_old_versions: bool
    ) -> Generator[dict[str, Any], None, dict[str, Any]]:
        def upload() -> Any:
            return self._api.dataset_create_version(folder, notes, quiet=True, delete_old_versions=delete_old_versions)

        answer = yield from _with_progress(upload, Path(folder))
        return {"status": answer.status, "error": answer.error or ""}

    def _output_files(self, kernel: str) -> Iterator[Any]:
        from kagglesdk.kernels.types.kernels_api_service import ApiListKernelSessionOutputRequest

        request = ApiListKernelSessionOutputRequest()
        request.user_name, request.kernel_slug = kernel.split("/")
        request.page_size, request.page_token = _PAGE, ""
        with self._api.build_kaggle_client() as kaggle:
            while True:
                answer = kaggle.kernels.kernels_api_client.list_kernel_session_output(request)
                yield from answer.files or []
                if not answer.next_page_token:
                    return
                request.page_token = answer.next_page_token


def _with_progress(upload: Callable[[], Any], folder: Path) -> Generator[dict[str, Any], None, Any]:
    """Upload the files of `folder` in a thread, and yield that it moves, so that a slow upload is no hang.

    The client says nothing meanwhile, but it reads the files while it sends them. Where the system does not count what
    a process reads, a slow line is assumed.
    """
    import psutil

    process = psutil.Process()
    slow_until = time.monotonic() + sum(path.stat().st_size for path in folder.iterdir()) / _SLOW_BYTES_PER_SECOND
    count = 0
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(upload)
        while not wait([future], timeout=_PROGRESS_SECONDS).done:
            if hasattr(process, "io_counters"):
                before, count = count, process.io_counters().read_chars
                is_moving = count - before > _LEAST_READ_BYTES
            else:
                is_moving = time.monotonic() < slow_until
            if is_moving:
                yield {"bytes": count}
        return future.result()


def _token_source() -> str:
    """Return the variable or the file that the client takes a token from; "" if there is none."""
    with suppress(ImportError):  # a client that knows no such tokens
        from kagglesdk.kaggle_env import get_access_token_from_env

        token, source = get_access_token_from_env()
        if token:
            return "~/.kaggle/access_token" if source == "access_token" else str(source)
    return ""


def _write_items(items: Iterator[Any], write: Callable[[dict[str, Any]], None]) -> Any:
    """Write what a call yields, and return its value."""
    while True:
        try:
            write({"item": next(items)})
        except StopIteration as end:
            return end.value


def _server_dates() -> deque[str]:
    """Return a list in which the newest answer's `Date` is last from now on: the clock of the server."""
    import requests

    dates: deque[str] = deque(maxlen=1)
    send = requests.Session.send

    def send_noting(session: Any, request: Any, **arguments: Any) -> Any:
        answer = send(session, request, **arguments)
        dates.append(answer.headers.get("Date", ""))
        return answer

    requests.Session.send = send_noting  # type: ignore[assignment, method-assign]
    return dates


def _unix_seconds(date: str) -> float | None:
    """Return the time of a header `Date`; None if it is none."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, IndexError):
        return None


def _time_text(time: datetime.datetime) -> str:
    """Return a time of the server, which is in UTC, for a person."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC") if time.tzinfo else f"{time:%Y-%m-%d %H:%M} UTC"


def _describe(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON: the names of its classes, its message with the server's own words, the HTTP status."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    message = f"exit {error.code}" if isinstance(error, SystemExit) else str(error)
    with suppress(Exception):
        words = response.json().get("message") if response is not None else ""
        if words and words not in message:
            message = f"{message}: {words}"
    return {
        "type": [kind.__name__ for kind in type(error).__mro__],
        "message": message[:2000],
        "status": status,
        "errno": getattr(error, "errno", None),
    }


def _answer(calls: Calls | None, request: dict[str, Any], write: Callable[[dict[str, Any]], None]) -> Calls | None:
    try:
        calls = calls or Calls()
        result = getattr(calls, request["call"])(**request["arguments"])
        if isinstance(result, Iterator):
            result = _write_items(result, write)
        write({"value": result})
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the client raises is an answer)
        write({"error": _describe(error)})
    return calls


def main(parent: int) -> None:
    """Answer requests until standard input ends or the process `parent` does."""
    exit_with_parent(parent)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    calls: Calls | None = None
    credentials = {os.environ[name] for name in _CREDENTIALS if os.environ.get(name)}

    def write(line: dict[str, Any]) -> None:
        known = credentials | (calls.credentials() if calls else set())
        # What Kaggle returned, such as a log, keeps its addresses.
        text = _without_credentials(json.dumps(line), known) if "value" in line else redact(json.dumps(line), known)
        output.write(text + "\n")
        output.flush()

    for line in sys.stdin:
        calls = _answer(calls, json.loads(line), write)


if __name__ == "__main__":
    main(int(sys.argv[1]))
