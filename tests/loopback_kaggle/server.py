"""The HTTP server that stands in for api.kaggle.com: the official client reaches it as its proxy.

With KAGGLE_API_ENVIRONMENT=LOCALHOST the client talks to http://localhost, and with HTTP_PROXY all of it arrives here.
"""

import contextlib
import io
import json
import threading
import time
import urllib.parse
import zipfile
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.loopback_kaggle.service import ApiError, files_below

_API = "/api/v1/"
_LOGS = "/api/v1/kernels/logs/stream/"
_VALID_REQUESTS = 10
"""A new token does not expire before so many requests: it is valid for an hour."""
_END_OF_LOG = "data: END_OF_LOG\n\n"


class Server(ThreadingHTTPServer):
    """Listens on a free port of this machine; `loopback` is what it serves."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, loopback: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.loopback = loopback
        self.closing = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error of the server."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *arguments: object) -> None:
        """A log of requests is in `Loopback.requests`."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        offset = self.server.loopback.settings.clock_offset_seconds
        return formatdate((timestamp or time.time()) + offset, usegmt=True)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        method = self._path().removeprefix(_API)
        loopback, dice = self.server.loopback, self.server.loopback.dice
        if method == "security.OAuthService/IntrospectToken":
            loopback.is_expired, loopback.answered = False, 0  # the client signs in again
        elif not self._is_authorized():
            return self._send_error(401, "Unauthenticated")
        elif loopback.is_expired or (loopback.answered > _VALID_REQUESTS and dice.happens("token_expired")):
            loopback.is_expired = True
            return self._send_error(401, "Unauthenticated: the token has expired")
        loopback.answered += 1
        if dice.happens("error_before"):
            return self._send_error(503, "Service Unavailable")
        if dice.happens("throttled"):
            return self._send(429, b"Too many requests", "application/json")
        if dice.happens("hang"):
            return self._hang()
        try:
            if method == "datasets.DatasetApiService/DownloadDataset":
                return self._download_dataset(json.loads(body))
            answer = loopback.answer(method, json.loads(body or b"{}"))
        except ApiError as error:
            return self._send_error(error.status, error.message)
        if dice.happens("error_after"):
            return self._send_error(502, "Bad Gateway")
        if dice.happens("hang_after"):
            return self._hang()
        return self._send(200, json.dumps(answer).encode(), "application/json; charset=utf-8")

    def do_GET(self) -> None:
        path = self._path()
        if path.startswith(_LOGS):
            return self._stream_log(path.removeprefix(_LOGS))
        if path.startswith("/files/"):
            return self._send_file(path)
        return self._send_error(404, "Not Found")

    def do_PUT(self) -> None:
        """Receive an upload, or the rest of one that broke off."""
        datasets, dice = self.server.loopback.datasets, self.server.loopback.dice
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        blob = datasets.blobs.get(self._path().removeprefix("/upload/"))
        if blob is None:
            return self._send_error(404, "Not Found")
        place = (self.headers.get("Content-Range") or "").removeprefix("bytes ").partition("/")[0]
        if place == "*":
            size = blob.path.stat().st_size
            if size == blob.bytes:
                return self._send(200, b"", "text/plain")
            return self._send(308, b"", "text/plain", {"Range": f"bytes=0-{size - 1}"} if size else {})
        if dice.happens("error_before"):
            content = content[: len(content) // 2]
        with blob.path.open("ab" if place and not place.startswith("0-") else "wb") as file:
            file.write(content)
        return self._send(200 if blob.path.stat().st_size == blob.bytes else 503, b"", "text/plain")

    def _path(self) -> str:
        return urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)

    def _is_authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.server.loopback.settings.token}"

    def _send(self, status: int, content: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Type": kind, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    def _send_error(self, status: int, message: str) -> None:
        content = json.dumps({"code": status, "message": message}).encode()
        self._send(status, content, "application/json; charset=utf-8")

    def _hang(self) -> None:
        """Keep the connection open without an answer."""
        self.server.closing.wait(self.server.loopback.settings.hang_seconds)
        self.close_connection = True

    def _send_file(self, path: str) -> None:
        """Send a file of a session's output."""
        loopback, dice = self.server.loopback, self.server.loopback.dice
        number, _, name = path.removeprefix("/files/sessions/").partition("/")
        session = loopback.kernels.sessions[int(number) - 1]
        if session.output is None or name not in files_below(session.output):
            return self._send_error(404, "Not Found")
        if dice.happens("file_error"):
            return self._send(503, b"<html>Service Unavailable</html>", "text/html")
        if dice.happens("error_page"):
            return self._send(200, b"<!DOCTYPE html><html><body>Error 502</body></html>", "text/html")
        if dice.happens("hang"):
            return self._hang()
        content = (session.output / name).read_bytes()
        if dice.happens("truncated"):
            content = content[: len(content) // 2]
        return self._send(200, content, "application/octet-stream")

    def _download_dataset(self, body: dict[str, Any]) -> None:
        loopback = self.server.loopback
        folder = loopback.datasets.content(f"{body['ownerSlug']}/{body['datasetSlug']}")
        if folder is None:
            return self._send_error(403, "Permission 'datasets.get' was denied")
        if name := body.get("fileName"):
            if name not in files_below(folder):
                return self._send_error(404, "Not Found")
            return self._send(200, (folder / name).read_bytes(), "application/octet-stream")
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in files_below(folder):
                archive.write(folder / name, name)
        return self._send(200, buffer.getvalue(), "application/zip")

    def _stream_log(self, kernel: str) -> None:
        """Send the log as it is written, as server-sent events; the log of a session that is over as JSON."""
        loopback = self.server.loopback
        if kernel not in loopback.kernels.kernels:
            self._send_error(403, "Permission 'kernels.get' was denied")
            return
        session = loopback.kernels.kernels[kernel].newest.session
        if session.is_over:
            lines = [{"stream_name": "stdout", "data": line} for line in session.log_text().splitlines(keepends=True)]
            self._send(200, json.dumps(lines).encode(), "application/json")
            return
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            sent = 0
            while not self.server.closing.is_set():
                is_over, text = session.is_over, session.log_text()
                end = len(text) if is_over else text.rfind("\n") + 1
                for line in text[sent:end].splitlines(keepends=True):
                    self.wfile.write(f"data: {json.dumps({'stream_name': 'stdout', 'data': line})}\n\n".encode())
                sent = end
                self.wfile.flush()
                if is_over:
                    self.wfile.write(_END_OF_LOG.encode())
                    return
                time.sleep(0.05)
