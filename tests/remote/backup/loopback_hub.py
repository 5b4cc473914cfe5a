"""A stand-in for the Hugging Face hub on this machine, for the hub's own client: as much of its API as a copy needs.

What it answers is what huggingface_hub 0.30 to 2.4 read; the comments name their source files. Files become part of a
repository by a commit alone. `python -m tests.remote.backup.loopback_hub` prints its URL and runs until its input ends.
"""

import base64
import hashlib
import json
import re
import sys
import threading
import urllib.parse
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_token_of_the_tests"
SIGNATURE = "X-Amz-Signature=signature-of-the-storage"
_PART_BYTES = 1 << 20
_PAGE = 7
_REPOSITORY = r"(?P<id>(?:api/)?(?:models/|datasets/)?[\w.-]+/[\w.-]+?)"
_ROUTES = {  # the first that matches
    "create": r"POST /api/repos/create",
    "storage": r"\w+ /storage/(?P<oid>\w+)(?:/(?P<part>\d+))?",
    "tree": rf"GET /{_REPOSITORY}/tree/main(?:/(?P<path>.+))?",
    "preupload": rf"POST /{_REPOSITORY}/preupload/main",
    "batch": rf"POST /{_REPOSITORY}\.git/info/lfs/objects/batch",
    "verify": rf"POST /{_REPOSITORY}/verify",
    "commit": rf"POST /{_REPOSITORY}/commit/main",
    "resolve": rf"GET /{_REPOSITORY}/resolve/main/(?P<path>.+)",
    "info": rf"GET /{_REPOSITORY}(?:/revision/main)?",
}


class Hub:
    """Repositories with files by path, and contents that were uploaded and may not be part of any repository yet."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.contents: dict[str, bytes] = {}
        self.commits: list[str] = []
        self.requests: list[str] = []
        self.faults: list[tuple[str, str]] = []
        """(route, fault) for the next requests: a status, `landed` (a 502 after it was done), `broken`, `hang`."""
        self.closed = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{port}"
        self.storage_url = f"http://localhost:{port}/storage"  # another host, which must not see the token
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def fault_of(self, route: str) -> str:
        """Return the fault of a request, once."""
        fault = next((pair for pair in self.faults if pair[0] == route), None)
        if fault:
            self.faults.remove(fault)
        return fault[1] if fault else ""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one packet
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def handle_any(self) -> Any:
        path, _, self.query = self.path.partition("?")
        line = f"{self.command} {urllib.parse.unquote(path)}"
        route, match = next((name, m) for name, form in _ROUTES.items() if (m := re.fullmatch(form, line)))
        self.hub.requests.append(line)
        self.fault = self.hub.fault_of(route)
        if self.fault == "hang":
            self.hub.closed.wait()
        if self.fault == "broken" and self.command != "GET":
            self.rfile.read(int(self.headers["Content-Length"]) // 2)
            self.close_connection = True
            return None
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.fault.isdecimal():
            return self.answer({}, int(self.fault))
        authorization = self.headers.get("Authorization")
        if route == "storage":  # its URLs are signed; S3 refuses a request with two credentials
            ok = SIGNATURE in self.query and authorization is None
            return self.storage(**match.groupdict()) if ok else self.answer({}, 400)
        if authorization != f"Bearer {TOKEN}":  # utils/_http.py: hf_raise_for_status
            error = {"X-Error-Message": "Invalid credentials in Authorization header"}
            return self.answer({}, 401, error if authorization else {"X-Error-Code": "RepoNotFound"})
        groups = match.groupdict()
        identity = groups.pop("id", "").removeprefix("api/").removeprefix("models/")
        if identity and identity not in self.hub.repositories:
            return self.answer({}, 404, {"X-Error-Code": "RepoNotFound"})
        self.identity, self.files = identity, self.hub.repositories.get(identity, {})
        return getattr(self, route)(**groups)

    do_GET = do_POST = do_PUT = handle_any  # noqa: N815 - names of http.server

    def answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        if self.fault == "landed":
            status, data = 502, b"{}"
        with suppress(OSError):  # the client is gone
            self.send_response(status)
            for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if self.fault == "broken" else data)
        self.close_connection = self.fault == "broken"

    def create(self) -> None:  # hf_api.py: create_repo; `visibility` since 1.0, the answer of a 409 has the URL too
        value = json.loads(self.body)
        prefix = "datasets/" if value["type"] == "dataset" else ""
        identity = f"{prefix}{value['organization']}/{value['name']}"
        exists = identity in self.hub.repositories
        if not exists:
            self.hub.repositories[identity] = {".gitattributes": b""}
            self.hub.private[identity] = value.get("private", False) or value.get("visibility") == "private"
        self.answer({"url": f"{self.hub.url}/{identity}"}, 409 if exists else 200)

    def info(self) -> None:  # 0.30 asks before an upload whether the repository has Xet
        self.answer({"id": self.identity, "sha": "0" * 40, "siblings": [], "private": True, "xetEnabled": True})

    def tree(self, path: str | None) -> None:  # hf_api.py: list_repo_tree, RepoFile; utils/_pagination.py
        prefix = f"{path}/" if path else ""
        names = sorted(name for name in self.files if name.startswith(prefix))
        if path and not names:
            return self.answer({}, 404, {"X-Error-Code": "EntryNotFound"})
        files = [name for name in names if "/" not in name.removeprefix(prefix)]
        folders = sorted({prefix + name.removeprefix(prefix).split("/")[0] for name in names} - set(files))
        entries = [{"type": "directory", "path": name, "oid": "0"} for name in folders]
        entries += [{"type": "file", "path": name, "oid": "0", "size": len(self.files[name])} for name in files]
        start = int(dict(urllib.parse.parse_qsl(self.query)).get("cursor", 0))
        link = f'<{self.hub.url}{self.path.partition("?")[0]}?cursor={start + _PAGE}>; rel="next"'
        return self.answer(entries[start : start + _PAGE], 200, {"Link": link} if start + _PAGE < len(entries) else {})

    def preupload(self) -> None:  # _commit_api.py: _fetch_upload_modes; text is regular, what else is there is lfs
        files = []
        for file in json.loads(self.body)["files"]:
            sample = base64.b64decode(file["sample"])
            mode = "regular" if sample.isascii() and b"\0" not in sample and file["size"] < 4096 else "lfs"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None})
        self.answer({"files": files})

    def batch(self) -> None:  # lfs.py: post_lfs_batch_info; without actions, the content is there
        objects = []
        for entry in json.loads(self.body)["objects"]:
            url = f"{self.hub.storage_url}/{entry['oid']}"
            upload: dict[str, Any] = {"href": f"{url}?{SIGNATURE}"}
            parts = range(1, 1 + -(-entry["size"] // _PART_BYTES))
            if len(parts) > 1:
                urls = {f"{part:05d}": f"{url}/{part}?{SIGNATURE}" for part in parts}
                upload["header"] = {"chunk_size": str(_PART_BYTES), **urls}
            verify = {"href": f"{self.hub.url}/{self.identity}/verify"}
            new = {} if entry["oid"] in self.hub.contents else {"actions": {"upload": upload, "verify": verify}}
            objects.append({**entry, **new})
        self.answer({"transfer": "basic", "objects": objects})

    def storage(self, oid: str, part: str | None) -> None:
        contents = self.hub.contents
        if self.command == "GET":
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            return self.answer(contents[oid][int(match[1]) if match else 0 :], 206 if match else 200)
        if self.command == "POST":  # lfs.py: _upload_multi_part; the parts are complete
            parts = [f"{oid}/{entry['partNumber']}" for entry in json.loads(self.body)["parts"]]
            self.body = b"".join(contents.pop(name) for name in parts)
        is_intact = part is not None or hashlib.sha256(self.body).hexdigest() == oid
        if is_intact:
            contents[f"{oid}/{part}" if part else oid] = self.body
        return self.answer({}, 200 if is_intact else 400, {"etag": f'"{part}"'})

    def verify(self) -> None:
        value = json.loads(self.body)
        self.answer({}, 200 if len(self.hub.contents.get(value["oid"], b"")) == value["size"] else 404)

    def commit(self) -> None:  # _commit_api.py: _prepare_commit_payload
        header, *operations = (json.loads(line) for line in self.body.splitlines())
        new = dict(self.files)
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                new[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile" and value["oid"] in self.hub.contents:
                new[value["path"]] = self.hub.contents[value["oid"]]
            elif operation["key"] == "deletedFile" and value["path"] in new:
                del new[value["path"]]
            else:  # hf_api.py: create_commit
                headers = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "A file with this name doesn't exist"}
                return self.answer({}, 404, headers)
        self.hub.repositories[self.identity] = new
        self.hub.commits.append(header["value"]["summary"])
        return self.answer({"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.hub.url}/{self.identity}"})

    def resolve(self, path: str) -> None:  # file_download.py: hf_hub_url; LFS files are elsewhere
        data = self.files.get(path)
        if data is None:
            return self.answer({}, 404, {"X-Error-Code": "EntryNotFound"})
        oid = hashlib.sha256(data).hexdigest()
        if oid in self.hub.contents:
            return self.answer({}, 302, {"Location": f"{self.hub.storage_url}/{oid}?{SIGNATURE}"})
        return self.answer(data)


if __name__ == "__main__":
    print(Hub().url, flush=True)  # noqa: T201 - to the process that has started this one
    sys.stdin.read()
