"""A server that answers the unpatched client's requests with what a test says."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "KGAT_0123456789abcdef"


class Answers:
    """`answers` has for each method a value, or a function of the request's body that returns one; see `Answer`."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = {"IntrospectToken": {"active": True, "username": "me"}, **answers}
        self.requests: list[tuple[str, dict[str, Any], str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
                self.answer(self.path.rpartition("/")[2], body)

            def do_GET(self) -> None:
                self.answer(self.path.partition("?")[0].rpartition("/")[2], {})

            def answer(self, method: str, body: dict[str, Any]) -> None:
                outer.requests.append((method, body, self.headers.get("Authorization", "")))
                answer = outer.answers.get(method, (404, {"code": 404, "message": f"{method} is unknown"}))
                if isinstance(answer, Callable):
                    answer = answer(body)
                status, value = answer if isinstance(answer, tuple) else (200, answer)
                if value == "hang":
                    time.sleep(3)
                    return
                content = value if isinstance(value, bytes) else json.dumps(value).encode()
                kind = "application/json"
                if isinstance(value, bytes):
                    kind = "text/event-stream" if value.startswith(b"data:") else "text/html"
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        address = f"http://127.0.0.1:{self.server.server_port}"
        return {
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "HTTP_PROXY": address,
            "http_proxy": address,
            "NO_PROXY": "",
            "no_proxy": "",
            "KAGGLE_API_TOKEN": TOKEN,
        }

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
