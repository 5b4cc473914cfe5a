"""Kaggle in memory, with the calls of `Client`: for the state machine alone. The real client is tested elsewhere."""

import hashlib
import json
import re
import time
from pathlib import Path

from shoestring.remote.kaggle.chain_file import ChainState
from shoestring.remote.kaggle.client import KaggleError
from shoestring.remote.kaggle.job import Job

TOTAL = 30


class Kill(BaseException):
    """The laptop dies."""


class MemoryKaggle:
    """`behaviors` has what becomes of each session in turn: updates that it makes, or a name of a failure."""

    def __init__(self, behaviors=(10, 10, 10), kill_at=None, quota=1e6):
        self.behaviors = list(behaviors)
        self.kernels: dict[str, dict] = {}
        self.datasets: dict[str, dict[str, int]] = {}
        self.pushes: list[dict] = []
        self.calls = 0
        self.kill_at = kill_at
        self.deleted: list[str] = []
        self.quotas = [quota]
        self.refusals: list[KaggleError] = []
        self.server_time = time.time
        self.polls = 2
        self.running = 0
        self.most_running = 0

    def _call(self, when):
        """Kill at call number n, before (2n) or after (2n + 1) its effect."""
        if when == "before":
            self.calls += 1
        if self.kill_at == 2 * self.calls + (when == "after"):
            raise Kill

    def quota(self):
        self._call("before")
        total = self.quotas.pop(0) if len(self.quotas) > 1 else self.quotas[0]
        return {"used": 0.0, "reserved": 0.0, "total": total, "refresh": "2026-12-01 00:00 UTC"}

    def push(self, folder, *, seconds, accelerator=None):
        self._call("before")
        if self.refusals:
            raise self.refusals.pop(0)
        metadata = json.loads((folder / "kernel-metadata.json").read_text())
        source = (folder / "script.py").read_text()
        kernel, config = metadata["id"], json.loads(source)
        behavior = self.behaviors.pop(0)
        previous = config["previous"]
        first = 0
        if previous:
            origin = self.kernels[previous["kernel"]]
            assert origin["nonce"] == previous["nonce"] and origin["over"]
            first = origin["update"]
            assert metadata["kernel_sources"] == [previous["kernel"]]
        self.kernels[kernel] = {
            "source": source, "nonce": config["nonce"], "polls": self.polls, "over": False, "behavior": behavior,
            "first": first, "update": first + (behavior if isinstance(behavior, int) else 0),
            "session": config["session"],
        }  # fmt: skip
        self.pushes.append({"kernel": kernel, "nonce": config["nonce"], "seconds": seconds})
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if behavior == "landed unseen":
            self.kernels[kernel] |= {"behavior": 10, "update": first + 10}
            raise KaggleError("502", "temporary")
        self._call("after")
        return {"version": len(self.pushes), "error": "", "invalid": [], "url": ""}

    def source(self, kernel):
        self._call("before")
        entry = self.kernels.get(kernel)
        return entry and {"source": entry["source"], "version": 1}

    def status(self, kernel):
        self._call("before")
        entry = self.kernels.get(kernel)
        if entry is None:
            return None
        if not entry["over"]:
            entry["polls"] -= 1
            if entry["polls"] <= 0 and entry["behavior"] != "endless":
                entry["over"] = True
                self.running -= 1
        ends = {"lost": "error", "killed": "error"}
        status = ends.get(entry["behavior"], "complete") if entry["over"] else "running"
        return {"status": status, "message": "", "time": self.server_time()}

    def files(self, entry):
        files = {"run/plan.json": b"{}", "run/checkpoints/update-00000001/manifest.json": b"manifest"}
        files["run/state.json"] = str(entry["update"]).encode()
        files["shoestring.log"] = b"one\nthe last line\n"
        status = (
            "finished" if entry["update"] >= TOTAL else "failed" if "failure" in str(entry["behavior"]) else "paused"
        )
        if entry["behavior"] == "killed":
            status, entry["update"] = "running", entry["first"] + 5
            files[f"run/checkpoints/update-{entry['update']:08d}/manifest.json"] = b"manifest"
        described = {
            "format": 1, "nonce": entry["nonce"], "session": entry["session"], "status": status, "reason": "a reason",
            "update": entry["update"], "first_update": entry["first"], "total_updates": TOTAL,
            "checkpoint": "update-00000001" if entry["update"] else None,
            "exit_status": {"failure": 1, "failure of usage": 2}.get(entry["behavior"]),
            "files": {
                name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                for name, content in files.items()
            },
        }  # fmt: skip
        return {**files, "shoestring-session.json": json.dumps(described).encode()}

    pause_seconds = 0.0

    def outputs(self, kernel):
        self._call("before")
        entry = self.kernels.get(kernel)
        if entry is None or not entry["over"] or entry["behavior"] == "lost":
            return []
        return list(self.files(entry))

    def download(self, kernel, files):
        self._call("before")
        entry = self.kernels.get(kernel)
        if entry is None or not entry["over"] or entry["behavior"] == "lost":
            return
        contents = self.files(entry)
        for name, path in files.items():
            if name in contents:
                Path(path).write_bytes(contents[name])
        self._call("after")

    def log_text(self, kernel):
        return "the log of Kaggle\n"

    def delete_kernel(self, kernel):
        self._call("before")
        self.deleted.append(kernel)
        entry = self.kernels.pop(kernel, None)
        if entry and not entry["over"]:
            self.running -= 1
        self._call("after")
        return entry is not None

    def dataset_status(self, dataset):
        self._call("before")
        return "ready" if dataset in self.datasets else None

    def dataset_files(self, dataset):
        self._call("before")
        files = self.datasets.get(dataset)
        return files and [{"name": name, "bytes": size} for name, size in files.items()]

    def create_dataset(self, folder):
        self._call("before")
        metadata = json.loads((folder / "dataset-metadata.json").read_text())
        assert metadata["id"] not in self.datasets
        self.datasets[metadata["id"]] = {
            path.name: path.stat().st_size for path in folder.iterdir() if path.name != "dataset-metadata.json"
        }
        self._call("after")


def make_state(limit_seconds=100.0):
    return ChainState(user="me", base="run-abcdef", recipe="temporal", on="kaggle-t4x2", limit_seconds=limit_seconds)


JOB = Job(
    script=json.dumps,
    config={},
    package={"a.whl": b"wheel"},
    package_digest="d" * 64,
    accelerator="NvidiaTeslaT4",
)


def slugs(kaggle):
    return [re.sub(".*-", "", push["kernel"]) for push in kaggle.pushes]
